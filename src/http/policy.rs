//! `POST /v1/policy`: the whole policy file.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::WithBody;
use super::body::PolicyText;
use super::caller::Caller;
use super::lists::Params;
use super::problem::{Problem, ProblemDetails};
use crate::ledger::Ledger;
use crate::model::role::Role;

/// How a policy is applied.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PolicyParams {
    /// Only say what would change.
    dry_run: Option<bool>,
}

/// What applying a policy did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PolicyApplied {
    /// The version in force now.
    version: i64,
    /// Whether nothing was done.
    dry_run: bool,
    /// What was added, changed and retired.
    #[schema(value_type = Vec<ChangeView>)]
    changes: Vec<crate::policy::Change>,
}

/// One difference between two policies.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangeView {
    /// `provider`, `operation`, `plan`, `budget`, `account` or `pool`.
    kind: String,
    /// Its name; of a plan's budget `plan/budget`.
    name: String,
    /// `added`, `changed` or `retired`.
    action: String,
    /// As it was; absent if it was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<serde_json::Value>,
    /// As it is; absent if it was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<serde_json::Value>,
}

/// Apply the whole policy file, in YAML or as the same in JSON.
///
/// What the file leaves out is retired, not deleted. A policy that asks for
/// something the service cannot do is refused whole, with the places named.
#[utoipa::path(
    post, path = "/v1/policy", tag = "operators", operation_id = "applyPolicy",
    params(PolicyParams),
    request_body(content((serde_json::Value = "application/yaml"), (serde_json::Value = "application/json")), description = "The policy file, at most 4 MiB"),
    responses(
        WithBody,
        (status = 200, description = "What changed", body = PolicyApplied),
        (status = 400, description = "`invalid_request`, with every fault of the file", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn apply(
    State(ledger): State<Ledger>,
    caller: Caller,
    Params(params): Params<PolicyParams>,
    PolicyText(source): PolicyText,
) -> Result<axum::Json<PolicyApplied>, Problem> {
    caller.must_be(&[Role::Operator])?;
    let dry_run = params.dry_run == Some(true);
    let applied =
        ledger.apply_policy(&caller.context, &source, dry_run).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(PolicyApplied { version: applied.version, dry_run, changes: applied.changes }))
}
