//! `/v1/accounts/{account}/budgets`: the balances of an account.

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::answers::Keyed;
use super::body::Time;
use super::caller::Caller;
use super::lists::{Params, Segment, read};
use super::problem::{Problem, ProblemDetails};
use crate::ledger::Ledger;
use crate::ledger::budgets::Balance;

/// Which period is wanted.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BudgetParams {
    /// The periods that contain this instant (RFC 3339) instead of now.
    at: Option<String>,
}

/// The balances of all budgets of an account.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Budgets {
    /// One for each budget; a budget per member has one for each member with a
    /// period.
    items: Vec<BudgetView>,
}

/// The balances of one budget in one period: available + reserved + liability +
/// settled is the limit, less what earlier periods carry forward.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BudgetView {
    /// The budget's name.
    budget: String,
    /// Whose, for a budget per member.
    #[schema(required)]
    member: Option<String>,
    /// What is counted.
    unit: String,
    /// The period; null if it has not been opened: then this is how it would open.
    #[schema(required)]
    period_id: Option<Uuid>,
    /// The first instant of the period.
    period_starts_at: DateTime<Utc>,
    /// The first instant after it; null if it never ends.
    #[schema(required)]
    period_ends_at: Option<DateTime<Utc>>,
    /// The limit in force.
    limit: String,
    /// What may still be admitted.
    available: String,
    /// Authorised and not settled.
    reserved: String,
    /// Charged although the usage is not known.
    liability: String,
    /// Actual usage.
    settled: String,
    /// When the next period begins; null if never.
    #[schema(required)]
    resets_at: Option<DateTime<Utc>>,
    /// `enforce`, or `observe`: counts and never refuses.
    #[schema(example = "enforce")]
    mode: &'static str,
}

impl From<Balance> for BudgetView {
    fn from(balance: Balance) -> Self {
        Self {
            budget: balance.budget.to_string(),
            member: balance.member,
            unit: balance.unit.to_string(),
            period_id: balance.period_id,
            period_starts_at: balance.starts_at,
            period_ends_at: balance.ends_at,
            limit: balance.limit.to_string(),
            available: balance.available.to_string(),
            reserved: balance.reserved.to_string(),
            liability: balance.liability.to_string(),
            settled: balance.settled.to_string(),
            resets_at: balance.ends_at,
            mode: balance.mode.as_str(),
        }
    }
}

/// The budgets of an account: for each its open period, or as it would open.
#[utoipa::path(
    get, path = "/v1/accounts/{account}/budgets", tag = "workers", operation_id = "getBudgets",
    params(("account" = String, Path, description = "The account"), BudgetParams),
    responses(
        Keyed,
        (status = 200, description = "The balances", body = Budgets),
        (status = 404, description = "`not_found`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn budgets(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(account): Segment,
    Params(params): Params<BudgetParams>,
) -> Result<axum::Json<Budgets>, Problem> {
    let named = account.parse().map_err(|_| Problem::not_found("account"))?;
    let account = caller.account(Some(named))?;
    let at = read::<Time>("at", params.at)?.map(|time| time.0);
    let balances = ledger.balances(&caller.context, &account, at).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(Budgets { items: balances.into_iter().map(BudgetView::from).collect() }))
}
