//! `/v1/keys`: who may ask.

use axum::extract::State;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::answers::{Keyed, WithBody};
use super::body::{Json, Time};
use super::caller::Caller;
use super::lists::{List, Page, Params, Segment};
use super::problem::{Problem, ProblemDetails};
use crate::ledger::Ledger;
use crate::ledger::keys::{Key, NewKey};
use crate::model::Name;
use crate::model::role::Role;

/// A key to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKeyBody {
    /// A person's name for it.
    #[schema(max_length = 255)]
    name: Option<String>,
    /// What it may do.
    role: Role,
    /// The accounts that a worker's key may act for.
    #[schema(value_type = Option<Vec<String>>)]
    accounts: Option<Vec<Name>>,
    /// Instead of `accounts`: a worker's key for all of them.
    all_accounts: Option<bool>,
    /// From when on it is refused.
    #[schema(value_type = Option<DateTime<Utc>>)]
    expires_at: Option<Time>,
}

/// A key that was just made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NewKeyView {
    /// The secret. Shown now and never again.
    #[schema(example = "sl_…")]
    key: String,
    #[serde(flatten)]
    about: KeyView,
}

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyView {
    /// Its id.
    id: Uuid,
    /// A person's name for it.
    #[schema(required)]
    name: Option<String>,
    /// What it may do.
    role: Role,
    /// The accounts that a worker's key may act for; null is all of them.
    #[schema(required)]
    accounts: Option<Vec<String>>,
    /// When it was made.
    created_at: DateTime<Utc>,
    /// By whom.
    created_by: String,
    /// From when on it is refused.
    #[schema(required)]
    expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    #[schema(required)]
    revoked_at: Option<DateTime<Utc>>,
}

impl From<Key> for KeyView {
    fn from(key: Key) -> Self {
        Self {
            id: key.id,
            name: key.name,
            role: key.role,
            accounts: key.accounts,
            created_at: key.created_at,
            created_by: key.created_by,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
        }
    }
}

/// The parameters of a plain list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParams {
    /// How many, 1 to 500.
    #[param(minimum = 1, maximum = 500, default = 50)]
    pub limit: Option<i64>,
    /// Where the page before this one ended.
    pub cursor: Option<String>,
}

/// Make a key. The secret is in this answer and nowhere else.
#[utoipa::path(
    post, path = "/v1/keys", tag = "operators", operation_id = "createKey",
    request_body = NewKeyBody,
    responses(
        WithBody,
        (status = 201, description = "The key, with its secret", body = NewKeyView),
        (status = 422, description = "`unknown_account`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn create(
    State(ledger): State<Ledger>,
    caller: Caller,
    Json(body): Json<NewKeyBody>,
) -> Result<(StatusCode, axum::Json<NewKeyView>), Problem> {
    caller.must_be(&[Role::Operator])?;
    let expires_at = body.expires_at.map(|time| time.0);
    let new = NewKey::new(body.name, body.role, body.accounts, body.all_accounts == Some(true), expires_at)
        .map_err(|fault| Problem::invalid(&fault.field, fault.message))?;
    let (key, secret) = ledger.create_key(&caller.context, &new).await.map_err(|error| caller.problem(error))?;
    Ok((StatusCode::CREATED, axum::Json(NewKeyView { key: secret, about: key.into() })))
}

/// The keys, newest first, without their secrets.
#[utoipa::path(
    get, path = "/v1/keys", tag = "operators", operation_id = "listKeys",
    params(PageParams),
    responses(
        Keyed,
        (status = 200, description = "A page of keys", body = List<KeyView>),
    ),
)]
pub(super) async fn list(
    State(ledger): State<Ledger>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<List<KeyView>>, Problem> {
    caller.must_be(&[Role::Operator])?;
    let page = Page::new(params.limit, params.cursor.as_deref())?;
    let keys = ledger.keys(&caller.context, page.at, page.probe()).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(page.of(keys, |key| key.id)))
}

/// Revoke a key, at once and for good.
#[utoipa::path(
    delete, path = "/v1/keys/{id}", tag = "operators", operation_id = "revokeKey",
    params(("id" = Uuid, Path, description = "The key")),
    responses(
        Keyed,
        (status = 204, description = "Revoked, now or before"),
        (status = 404, description = "`not_found`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn revoke(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
) -> Result<StatusCode, Problem> {
    caller.must_be(&[Role::Operator])?;
    let id = id.parse().map_err(|_| Problem::not_found("key"))?;
    ledger.revoke_key(&caller.context, id).await.map_err(|error| caller.problem(error))?;
    Ok(StatusCode::NO_CONTENT)
}
