//! `/v1/liabilities`: what is open and needs somebody.

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::Keyed;
use super::caller::Caller;
use super::lists::{List, Page, Params, read};
use super::problem::Problem;
use super::views::ReservationView;
use crate::ledger::Ledger;
use crate::ledger::liabilities::{Filter, Liability, Total};
use crate::model::liability::Why;
use crate::model::role::Role;

/// What a list is narrowed to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LiabilityParams {
    /// Only this account's.
    account: Option<String>,
    /// Only what is open for this reason.
    why: Option<String>,
    /// How many, 1 to 500.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<i64>,
    /// Where the page before this one ended.
    cursor: Option<String>,
}

/// A reservation that needs somebody.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LiabilityView {
    /// The reservation.
    reservation: ReservationView,
    /// Why it is here.
    why: Vec<Why>,
    /// Since when.
    since: DateTime<Utc>,
    /// How long that is.
    age_seconds: i64,
}

impl From<Liability> for LiabilityView {
    fn from(liability: Liability) -> Self {
        let age_seconds = (liability.reservation.at - liability.since).num_seconds().max(0);
        Self { why: liability.why, since: liability.since, age_seconds, reservation: liability.reservation.into() }
    }
}

/// What one budget, over all of its periods, or one pool is charged for such
/// reservations. All but `overdue` add up to `liability`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TotalView {
    /// The account; null of a pool.
    #[schema(required)]
    account: Option<String>,
    /// The budget's or the pool's name.
    budget: String,
    /// The member, of a budget per member.
    #[schema(required)]
    member: Option<String>,
    /// What the amounts count.
    unit: String,
    /// Reserved by active work whose lease has run out.
    overdue: String,
    /// Cancelled and not fenced.
    cancelled: String,
    /// Calls with unknown outcome.
    unknown_calls: String,
    /// What attempts before the current one may have spent.
    earlier_attempts: String,
    /// Outstanding after a fence, but for unknown calls.
    fenced: String,
    /// All of it but `overdue`.
    liability: String,
}

impl From<Total> for TotalView {
    fn from(total: Total) -> Self {
        Self {
            account: total.account,
            budget: total.budget,
            member: total.member,
            unit: total.unit,
            overdue: total.parts.overdue,
            cancelled: total.parts.cancelled,
            unknown_calls: total.parts.unknown_calls,
            earlier_attempts: total.parts.earlier_attempts,
            fenced: total.parts.fenced,
            liability: total.liability,
        }
    }
}

/// A page of what is open, with the totals of all of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Liabilities {
    /// The reservations; what has been open for longest is first.
    items: Vec<LiabilityView>,
    /// For each budget and pool, over all that is open (of the account that was
    /// asked for), not only this page and reason.
    totals: Vec<TotalView>,
    /// How many reports of usage came too late: see `/v1/late-usage`.
    late_usage: i64,
    /// What to send as `cursor` for the next page; null on the last one.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// What is open and needs somebody, by age: overdue work, and everything in
/// liability, with the reasons and the totals.
#[utoipa::path(
    get, path = "/v1/liabilities", tag = "finance", operation_id = "listLiabilities",
    params(LiabilityParams),
    responses(Keyed, (status = 200, description = "A page of what is open, and the totals", body = Liabilities)),
)]
pub(super) async fn list(
    State(ledger): State<Ledger>,
    caller: Caller,
    Params(params): Params<LiabilityParams>,
) -> Result<axum::Json<Liabilities>, Problem> {
    caller.must_be(&[Role::Finance, Role::Operator])?;
    let page = Page::new(params.limit, params.cursor.as_deref())?;
    let accounts = caller.accounts(read("account", params.account)?)?;
    let filter =
        Filter { accounts: accounts.clone(), why: read("why", params.why)?, after: page.at, limit: page.probe() };
    let context = &caller.context;
    let problem = |error| caller.problem(error);
    let found = ledger.liabilities(context, &filter).await.map_err(problem)?;
    let totals = ledger.liability_totals(context, &accounts).await.map_err(problem)?;
    let late_usage = ledger.late_usage_count(context, &accounts).await.map_err(problem)?;
    let List { items, next_cursor } = page.of(found, |liability| (liability.since, liability.reservation.record.id));
    Ok(axum::Json(Liabilities {
        items,
        totals: totals.into_iter().map(TotalView::from).collect(),
        late_usage,
        next_cursor,
    }))
}
