//! `/v1/audit`: who changed what.

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answers::Keyed;
use super::caller::Caller;
use super::keys::PageParams;
use super::lists::{List, Page, Params};
use super::problem::Problem;
use crate::ledger::Ledger;
use crate::ledger::audit::AuditEntry;
use crate::model::role::Role;

/// One line of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditView {
    /// Its id.
    id: Uuid,
    /// When.
    at: DateTime<Utc>,
    /// Who: `key:` and the id of an API key, or `cli`.
    actor: String,
    /// What was done.
    #[schema(example = "policy_applied")]
    action: String,
    /// What it was done to.
    subject: String,
    /// What changed.
    detail: serde_json::Value,
}

impl From<AuditEntry> for AuditView {
    fn from(entry: AuditEntry) -> Self {
        let AuditEntry { id, at, actor, action, subject, detail } = entry;
        Self { id, at, actor, action, subject, detail }
    }
}

/// The audit log, newest first.
#[utoipa::path(
    get, path = "/v1/audit", tag = "operators", operation_id = "listAudit",
    params(PageParams),
    responses(
        Keyed,
        (status = 200, description = "A page of the audit log", body = List<AuditView>),
    ),
)]
pub(super) async fn list(
    State(ledger): State<Ledger>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<axum::Json<List<AuditView>>, Problem> {
    caller.must_be(&[Role::Operator, Role::Finance])?;
    let page = Page::new(params.limit, params.cursor.as_deref())?;
    let entries = ledger.audit(&caller.context, page.at, page.probe()).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(page.of(entries, |entry| entry.id)))
}
