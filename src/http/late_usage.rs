//! `/v1/late-usage`: what was reported when it could not be charged any more.

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::answers::Keyed;
use super::caller::Caller;
use super::lists::{List, Page, Params, read};
use super::problem::Problem;
use crate::ledger::Ledger;
use crate::ledger::late_usage::{Filter, LateUsage};
use crate::model::role::Role;

/// What a list is narrowed to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LateUsageParams {
    /// Only this account's.
    account: Option<String>,
    /// Only of this reservation.
    reservation: Option<String>,
    /// How many, 1 to 500.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<i64>,
    /// Where the page before this one ended.
    cursor: Option<String>,
}

/// One report that came too late. It changed no balance.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LateUsageView {
    /// Its id.
    id: Uuid,
    /// Whose reservation it is.
    account: String,
    /// The reservation.
    reservation: Uuid,
    /// The attempt that reported it.
    attempt: i32,
    /// The call that it is the usage of; null for an attempt's own total.
    #[schema(required)]
    call: Option<String>,
    /// What the amount counts.
    unit: String,
    /// What was reported: of the call, or of the attempt in all.
    #[schema(example = "12")]
    units: String,
    /// What had been settled of that when it was reported: what is not in the books
    /// is at most the difference.
    #[schema(example = "0")]
    recorded: String,
    /// When.
    at: DateTime<Utc>,
    /// Who reported it.
    actor: String,
    /// The provider's own name for the work.
    #[schema(required)]
    provider_request_id: Option<String>,
    /// The reason with which the report was refused.
    #[schema(example = "already_settled")]
    refused_as: String,
}

impl From<LateUsage> for LateUsageView {
    fn from(late: LateUsage) -> Self {
        Self {
            id: late.id,
            account: late.account,
            reservation: late.reservation,
            attempt: late.attempt,
            call: late.call,
            unit: late.unit,
            units: late.units.to_string(),
            recorded: late.recorded.to_string(),
            at: late.at,
            actor: late.actor,
            provider_request_id: late.provider_request_id,
            refused_as: late.refused_as,
        }
    }
}

/// Usage that was reported by a stale attempt or after the settlement, newest
/// first. The reports changed no balance.
#[utoipa::path(
    get, path = "/v1/late-usage", tag = "finance", operation_id = "listLateUsage",
    params(LateUsageParams),
    responses(Keyed, (status = 200, description = "A page of late usage", body = List<LateUsageView>)),
)]
pub(super) async fn list(
    State(ledger): State<Ledger>,
    caller: Caller,
    Params(params): Params<LateUsageParams>,
) -> Result<axum::Json<List<LateUsageView>>, Problem> {
    caller.must_be(&[Role::Finance, Role::Operator])?;
    let page = Page::new(params.limit, params.cursor.as_deref())?;
    let filter = Filter {
        accounts: caller.accounts(read("account", params.account)?)?,
        reservation: read("reservation", params.reservation)?,
        before: page.at,
        limit: page.probe(),
    };
    let found = ledger.late_usage(&caller.context, &filter).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(page.of(found, |late| late.id)))
}
