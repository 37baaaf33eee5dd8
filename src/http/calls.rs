//! `/v1/reservations/{id}/calls`: admit, end, list.

use axum::extract::State;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::{Keyed, OnReservation};
use super::body::{Amount, Json, Named};
use super::caller::{Caller, Recognised};
use super::lists::{List, Page, Params, Segment, Segments, read};
use super::problem::{Problem, ProblemDetails};
use super::reservations::own;
use super::said::{attempt, by_finance, not_for, usage};
use super::text::{MAX_TEXT, optional, plain, visible};
use crate::ledger::Ledger;
use crate::ledger::calls::{AdmitCall, Call, End, EndCall};
use crate::ledger::settle::Usage;
use crate::model::Name;
use crate::model::call::{CallRecord, CallState};
use crate::model::reservation::State as ReservationState;
use crate::model::role::Role;

/// A paid request that is about to be sent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CallBody {
    /// The token of the current attempt.
    attempt: String,
    /// The client's own key for the call: 1 to 255 visible ASCII characters, not `.`
    /// or `..`, once for each reservation.
    #[schema(min_length = 1, max_length = 255)]
    call: String,
    /// The most that it may cost.
    units: Option<Amount>,
    /// The same in quantities, priced by the cost map of the estimate.
    #[schema(value_type = Option<BTreeMap<String, Amount>>)]
    quantities: Option<Named<Name, Amount>>,
    /// Whether to raise the ceiling in the same step, if that is needed.
    #[schema(default = false)]
    extend: Option<bool>,
}

/// How a call ends, in words.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub(super) enum Outcome {
    /// It was never sent: nothing is counted for it.
    NotSent,
    /// Nobody knows: it stays charged in full.
    Unknown,
}

/// An outcome is a word; nothing else is read as one.
impl TryFrom<String> for Outcome {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "not_sent" => Ok(Self::NotSent),
            "unknown" => Ok(Self::Unknown),
            _ => Err(format!("{text:?} is no outcome: not_sent or unknown; what is known is settled in units")),
        }
    }
}

/// The end of a call: by its worker with `attempt` and its usage, or with
/// `outcome`; by an operator with `outcome: unknown`; by finance with `units` and
/// `reason`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EndCallBody {
    /// The token of the attempt that admitted the call, stale or not. It may be
    /// left out with `outcome: unknown`.
    attempt: Option<String>,
    /// What the call cost.
    units: Option<Amount>,
    /// The same in quantities, priced by the cost map of the estimate.
    #[schema(value_type = Option<BTreeMap<String, Amount>>)]
    quantities: Option<Named<Name, Amount>>,
    /// Instead of usage: it was not sent, or its outcome is unknown.
    outcome: Option<Outcome>,
    /// The provider's own name for the call.
    #[schema(max_length = 255)]
    provider_request_id: Option<String>,
    /// Why finance settles the call.
    #[schema(max_length = 255)]
    reason: Option<String>,
}

/// A call, with what its reservation is after it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallView {
    /// The client's own key for it.
    call: String,
    /// Where it is in its life.
    state: CallState,
    /// The most that it may cost, as admitted.
    #[schema(example = "12")]
    units: String,
    /// What it cost; null until it is settled.
    #[schema(required)]
    actual: Option<String>,
    /// The attempt that admitted it.
    attempt: i32,
    /// The provider's own name for it.
    #[schema(required)]
    provider_request_id: Option<String>,
    /// What further calls may take within the ceiling.
    #[schema(example = "12")]
    remaining: String,
    /// The ceiling of the reservation.
    ceiling: String,
    /// The state of the reservation: it tells of a cancel.
    reservation_state: ReservationState,
    /// The version of the reservation.
    version: i64,
}

impl From<Call> for CallView {
    fn from(call: Call) -> Self {
        let Call { record, reservation, .. } = call;
        let of = reservation.record;
        Self {
            call: record.call,
            state: record.state,
            units: record.units.to_string(),
            actual: record.actual.map(|units| units.to_string()),
            attempt: record.attempt,
            provider_request_id: record.provider_request_id,
            remaining: of.remaining().to_string(),
            ceiling: of.ceiling.to_string(),
            reservation_state: of.state,
            version: of.version,
        }
    }
}

/// One call of a reservation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallItem {
    /// The client's own key for it.
    call: String,
    /// Where it is in its life.
    state: CallState,
    /// The most that it may cost, as admitted.
    units: String,
    /// What it cost; null until it is settled.
    #[schema(required)]
    actual: Option<String>,
    /// The attempt that admitted it.
    attempt: i32,
    /// The provider's own name for it.
    #[schema(required)]
    provider_request_id: Option<String>,
    /// When it was admitted.
    admitted_at: DateTime<Utc>,
    /// When it ended; null while it is in flight.
    #[schema(required)]
    ended_at: Option<DateTime<Utc>>,
}

impl From<CallRecord> for CallItem {
    fn from(record: CallRecord) -> Self {
        Self {
            call: record.call,
            state: record.state,
            units: record.units.to_string(),
            actual: record.actual.map(|units| units.to_string()),
            attempt: record.attempt,
            provider_request_id: record.provider_request_id,
            admitted_at: record.admitted_at,
            ended_at: record.ended_at,
        }
    }
}

/// What a list is narrowed to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CallParams {
    /// Only in this state.
    state: Option<String>,
    /// How many, 1 to 500.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<i64>,
    /// Where the page before this one ended.
    cursor: Option<String>,
}

/// Admit a paid request before it is sent.
///
/// Admitted as long as what is settled, what is outstanding and this stay within
/// the ceiling; counted when admitted, not when answered. A repeat by the same
/// attempt with the same amount returns the call as it is now. Send the request
/// to the provider only after a 201; after a 200 only if you know that nobody has.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/calls", tag = "workers", operation_id = "admitCall",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = CallBody,
    responses(
        OnReservation,
        (status = 201, description = "Admitted: send it", body = CallView),
        (status = 200, description = "Admitted before by this attempt: the call as it is now", body = CallView),
        (status = 400, description = "`invalid_request`; with `extend` also `too_expensive`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 409, description = "`ceiling_reached` (with `ceiling`, `remaining`), `call_key_taken` (send nothing), `stale_attempt`, `not_active`; with `extend` also `period_closed`; with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 422, description = "`idempotency_key_reused`: another amount; with `extend` also `unknown_operation`, `unknown_account`, `no_budget`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 429, description = "With `extend`: `budget_exhausted`, with `breaches` and the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn admit(
    State(ledger): State<Ledger>,
    Recognised(caller): Recognised,
    Segment(id): Segment,
    Json(body): Json<CallBody>,
) -> Result<(StatusCode, axum::Json<CallView>), Problem> {
    caller.must_be(&[Role::Worker])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let ask = AdmitCall {
        account,
        id,
        attempt: plain("attempt", body.attempt, 1, MAX_TEXT)?,
        call: key(&body.call)?,
        most: stated(usage(body.units, body.quantities)?)?,
        extend: body.extend.unwrap_or(false),
    };
    let call = ledger.admit_call(&caller.context, &ask).await.map_err(|error| caller.problem(error))?;
    let status = if call.repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(call.into())))
}

/// Settle a call, or say that its outcome is unknown or that it was not sent.
///
/// Usage is recorded whole, also above what was admitted. Unknown stays charged
/// in full until it is settled or closed. Only the attempt that admitted the call
/// can say that it was not sent, and only while it is current. The same again
/// changes nothing. Usage that comes too late is kept as late usage.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/calls/{call}/settle", tag = "workers", operation_id = "settleCall",
    params(("id" = Uuid, Path, description = "The reservation"), ("call" = String, Path, description = "The client's own key for the call")),
    request_body = EndCallBody,
    responses(
        OnReservation,
        (status = 200, description = "The call as it is now", body = CallView),
        (status = 409, description = "`call_already_settled` (with `settled`), `stale_attempt`, `already_settled` (kept as late usage), with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn settle(
    State(ledger): State<Ledger>,
    Recognised(caller): Recognised,
    Segments(id, call): Segments,
    Json(body): Json<EndCallBody>,
) -> Result<axum::Json<CallView>, Problem> {
    caller.must_be(&[Role::Worker, Role::Operator, Role::Finance])?;
    let call = visible("call", call.as_bytes()).map_err(|_| Problem::not_found("call"))?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let end = EndCall { account, id, call, attempt: None, end: End::Unknown, provider_request_id: None, reason: None };
    let end = match caller.credential.role {
        Role::Worker => by_worker(end, body)?,
        Role::Operator => by_operator(end, body)?,
        Role::Finance => by_finance_role(end, body)?,
    };
    let call = ledger.end_call(&caller.context, &end).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(call.into()))
}

/// The calls of a reservation, newest first.
#[utoipa::path(
    get, path = "/v1/reservations/{id}/calls", tag = "workers", operation_id = "listCalls",
    params(("id" = Uuid, Path, description = "The reservation"), CallParams),
    responses(
        Keyed,
        (status = 200, description = "A page of calls", body = List<CallItem>),
        (status = 404, description = "`not_found`, also for another account's", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Params(params): Params<CallParams>,
) -> Result<axum::Json<List<CallItem>>, Problem> {
    let page = Page::new(params.limit, params.cursor.as_deref())?;
    let state = read::<CallState>("state", params.state)?;
    let id = id.parse().map_err(|_| Problem::not_found("reservation"))?;
    let of = ledger
        .reservation(&caller.context, &caller.credential.accounts, id)
        .await
        .map_err(|error| caller.problem(error))?;
    let calls = ledger
        .calls(&caller.context, (&of.record.account, id), state, page.at, page.probe())
        .await
        .map_err(|error| caller.problem(error))?;
    Ok(axum::Json(page.of(calls, |call| call.id)))
}

/// The client's own key for a call. It becomes a segment of a path, where a dot or
/// two mean something else to whoever sends it.
fn key(call: &str) -> Result<String, Problem> {
    if matches!(call, "." | "..") {
        return Err(Problem::invalid("call", "must not be a dot or two: it could not be named in a path"));
    }
    visible("call", call.as_bytes())
}

fn stated(usage: Option<Usage>) -> Result<Usage, Problem> {
    usage.ok_or_else(|| Problem::invalid("units", "is missing: state units or quantities"))
}

fn by_worker(end: EndCall, body: EndCallBody) -> Result<EndCall, Problem> {
    not_for([("reason", body.reason.is_some())], "finance")?;
    let provider_request_id = optional("provider_request_id", body.provider_request_id)?;
    let usage = usage(body.units, body.quantities)?;
    let (attempt, how) = match (body.outcome, usage) {
        (Some(_), Some(_)) => return Err(Problem::invalid("outcome", "state usage or an outcome, not both")),
        (Some(Outcome::Unknown), None) => {
            (body.attempt.map(|token| plain("attempt", token, 1, MAX_TEXT)).transpose()?, End::Unknown)
        }
        (Some(Outcome::NotSent), None) => (Some(attempt(body.attempt)?), End::NotSent),
        (None, usage) => (Some(attempt(body.attempt)?), End::Settled(stated(usage)?)),
    };
    Ok(EndCall { attempt, end: how, provider_request_id, ..end })
}

/// An operator knows at most that nobody knows.
fn by_operator(end: EndCall, body: EndCallBody) -> Result<EndCall, Problem> {
    not_for([("units", body.units.is_some()), ("quantities", body.quantities.is_some())], "a worker or finance")?;
    not_for([("reason", body.reason.is_some())], "finance")?;
    let provider_request_id = optional("provider_request_id", body.provider_request_id)?;
    let attempt = body.attempt.map(|token| plain("attempt", token, 1, MAX_TEXT)).transpose()?;
    match body.outcome {
        Some(Outcome::Unknown) => Ok(EndCall { attempt, end: End::Unknown, provider_request_id, ..end }),
        Some(Outcome::NotSent) => Err(Problem::invalid("outcome", "`not_sent` is for the worker that did not send it")),
        None => Err(Problem::invalid("outcome", "is missing: an operator can only say `unknown`")),
    }
}

fn by_finance_role(end: EndCall, body: EndCallBody) -> Result<EndCall, Problem> {
    let given = [
        ("attempt", body.attempt.is_some()),
        ("quantities", body.quantities.is_some()),
        ("outcome", body.outcome.is_some()),
    ];
    not_for(given, "a worker")?;
    let provider_request_id = optional("provider_request_id", body.provider_request_id)?;
    let (units, reason) = by_finance(body.units, body.reason)?;
    Ok(EndCall { end: End::Settled(Usage::Units(units)), provider_request_id, reason: Some(reason), ..end })
}
