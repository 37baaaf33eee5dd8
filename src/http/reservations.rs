//! `/v1/reservations`: reserve, look, extend, settle.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::{Amount, Json, Named};
use super::caller::Caller;
use super::lists::{List, Page, Params, Segment, given, read};
use super::problem::{Problem, ProblemDetails};
use super::views::{EventView, ReservationView, ReservationWithEvents};
use crate::ledger::Ledger;
use crate::ledger::extend::Extend;
use crate::ledger::reservations::Filter;
use crate::ledger::reserve::Reserve;
use crate::ledger::settle::{Settle, Usage};
use crate::model::Name;
use crate::model::request::ReservationRequest;
use crate::model::role::Role;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest reference, label key, label value and provider request id.
const MAX_TEXT: usize = 255;
/// The most labels.
const MAX_LABELS: usize = 32;
const LEASE_SECONDS: std::ops::RangeInclusive<i32> = 5..=3600;
const DEFAULT_LEASE_SECONDS: i32 = 60;

/// A request to reserve.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReserveBody {
    /// The kind of work.
    #[schema(value_type = String, example = "export")]
    operation: Name,
    /// The quantities, for an operation with a cost map.
    #[schema(value_type = Option<BTreeMap<String, Amount>>)]
    quantities: Option<Named<Name, Amount>>,
    /// The units, for an explicit operation; above zero.
    units: Option<Amount>,
    /// Whose spending it is; needed if the key may act for several accounts.
    #[schema(value_type = Option<String>, example = "northstar")]
    account: Option<Name>,
    /// The member that the work is for.
    #[schema(value_type = Option<String>)]
    member: Option<Name>,
    /// Our key at the provider that the work will use.
    #[schema(value_type = Option<String>)]
    provider_key: Option<Name>,
    /// The client's own name for its process, 1 to 128 characters.
    #[schema(example = "w-17", min_length = 1, max_length = 128)]
    holder: Option<String>,
    /// How long the first lease is, in seconds.
    #[schema(minimum = 5, maximum = 3600, default = 60)]
    lease_seconds: Option<i32>,
    /// The client's own name for the job.
    #[schema(max_length = 255)]
    reference: Option<String>,
    /// The client's own labels, at most 32.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    labels: Option<Named<String, String>>,
}

/// A request to raise a ceiling.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    /// The token of the current attempt.
    attempt: String,
    /// The new ceiling, absolute.
    ceiling: Amount,
}

/// A report of usage.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    /// The token of the current attempt.
    attempt: String,
    /// What the attempt has used, cumulative.
    units: Option<Amount>,
    /// The same in quantities, priced by the cost map of the estimate.
    #[schema(value_type = Option<BTreeMap<String, Amount>>)]
    quantities: Option<Named<Name, Amount>>,
    /// Whether the job is done; false reports progress (`worker` enforcement
    /// only).
    #[schema(default = true)]
    r#final: Option<bool>,
    /// The provider's own name for the work.
    #[schema(max_length = 255)]
    provider_request_id: Option<String>,
}

/// What a list is narrowed to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only this account's.
    account: Option<String>,
    /// Only in this state.
    state: Option<String>,
    /// Only this kind of work.
    operation: Option<String>,
    /// Only this reference.
    reference: Option<String>,
    /// Only those whose lease has run out, or has not.
    overdue: Option<bool>,
    /// How many, 1 to 500.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<i64>,
    /// Where the page before this one ended.
    cursor: Option<String>,
}

/// What is wanted with a reservation.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GetParams {
    /// Whether to add its history.
    events: Option<bool>,
}

/// Reserve estimated units before paid work.
///
/// Admitted only if every enforcing budget that matches has room; then all that
/// match are charged, in one step. The `Idempotency-Key` is the job's identity
/// within its account: the same key and request answers with the same
/// reservation, as it is now, and takes nothing more.
#[utoipa::path(
    post, path = "/v1/reservations", tag = "workers", operation_id = "reserve",
    params(("Idempotency-Key" = String, Header, description = "The job's identity: 1 to 255 visible ASCII characters")),
    request_body = ReserveBody,
    responses(
        (status = 201, description = "Admitted, with `Location`", body = ReservationView),
        (status = 200, description = "Admitted before (`Idempotency-Replayed: true`): the reservation as it is now", body = ReservationView),
        (status = 400, description = "`invalid_request`, `too_expensive`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 401, description = "`unauthenticated`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 413, description = "`body_too_large`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported_media_type`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 422, description = "`idempotency_key_reused`, `unknown_operation`, `unknown_account`, `no_budget`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 429, description = "`budget_exhausted`, with `breaches`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 503, description = "`ledger_unavailable`, `overloaded`, `deadline_exceeded`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn reserve(
    State(ledger): State<Ledger>,
    caller: Caller,
    headers: HeaderMap,
    Json(body): Json<ReserveBody>,
) -> Result<Response, Problem> {
    caller.must_be(&[Role::Worker])?;
    let key = idempotency_key(&headers)?;
    let holder = match body.holder {
        Some(holder) => plain("holder", holder, 1, 128)?,
        None => format!("unnamed-{}", Uuid::now_v7()),
    };
    let lease_seconds = body.lease_seconds.unwrap_or(DEFAULT_LEASE_SECONDS);
    if !LEASE_SECONDS.contains(&lease_seconds) {
        return Err(Problem::invalid("lease_seconds", "is out of range: 5 to 3600"));
    }
    let request = ReservationRequest {
        operation: body.operation,
        quantities: body.quantities.unwrap_or_default().0.into_iter().map(|(name, amount)| (name, amount.0)).collect(),
        units: body.units.map(|amount| amount.0),
        member: body.member,
        provider_key: body.provider_key,
        reference: body.reference.map(|text| plain("reference", text, 0, MAX_TEXT)).transpose()?,
        labels: labels(body.labels.unwrap_or_default().0)?,
    };
    let account = caller.account(body.account)?;
    let reserve = Reserve { account, key, request, holder, lease_seconds };
    let reserved = ledger.reserve(&caller.context, &reserve).await.map_err(|error| caller.problem(error))?;
    let status = if reserved.replayed { StatusCode::OK } else { StatusCode::CREATED };
    let location = format!("/v1/reservations/{}", reserved.reservation.record.id);
    let mut response = (status, axum::Json(ReservationView::from(reserved.reservation))).into_response();
    if reserved.replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// A reservation as it is now.
#[utoipa::path(
    get, path = "/v1/reservations/{id}", tag = "workers", operation_id = "getReservation",
    params(("id" = Uuid, Path, description = "The reservation"), GetParams),
    responses(
        (status = 200, description = "The reservation", body = ReservationWithEvents),
        (status = 400, description = "`invalid_request`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 401, description = "`unauthenticated`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 404, description = "`not_found`, also for another account's", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 503, description = "`ledger_unavailable`, `overloaded`, `deadline_exceeded`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn get(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Params(params): Params<GetParams>,
) -> Result<axum::Json<ReservationWithEvents>, Problem> {
    let id = reservation_id(&id)?;
    let reservation = ledger
        .reservation(&caller.context, &caller.credential.accounts, id)
        .await
        .map_err(|error| caller.problem(error))?;
    let events = if params.events == Some(true) {
        let account = &reservation.record.account;
        let events = ledger.events(&caller.context, account, id).await.map_err(|error| caller.problem(error))?;
        Some(events.into_iter().map(EventView::from).collect())
    } else {
        None
    };
    Ok(axum::Json(ReservationWithEvents { reservation: reservation.into(), events }))
}

/// Reservations, newest first.
#[utoipa::path(
    get, path = "/v1/reservations", tag = "workers", operation_id = "listReservations",
    params(ListParams),
    responses(
        (status = 200, description = "A page of reservations", body = List<ReservationView>),
        (status = 400, description = "`invalid_request`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 401, description = "`unauthenticated`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 503, description = "`ledger_unavailable`, `overloaded`, `deadline_exceeded`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn list(
    State(ledger): State<Ledger>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<axum::Json<List<ReservationView>>, Problem> {
    let page = Page::new(params.limit, params.cursor.as_deref())?;
    let filter = Filter {
        accounts: caller.accounts(read("account", params.account)?)?,
        state: read("state", params.state)?,
        operation: read("operation", params.operation)?,
        reference: given(params.reference).map(|text| plain("reference", text, 1, MAX_TEXT)).transpose()?,
        overdue: params.overdue,
        before: page.before,
        limit: page.probe(),
    };
    let found = ledger.reservations(&caller.context, &filter).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(page.of(found, |reservation| reservation.record.id)))
}

/// Raise the ceiling before it is crossed.
///
/// The new ceiling is absolute: repeating the request is harmless. A ceiling at
/// or below the current one changes nothing and succeeds. A refused extension
/// leaves the reservation as it was.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/extend", tag = "workers", operation_id = "extend",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = ExtendBody,
    responses(
        (status = 200, description = "The reservation with its ceiling", body = ReservationView),
        (status = 400, description = "`invalid_request`, `too_expensive`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 401, description = "`unauthenticated`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 404, description = "`not_found`, also for another account's", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 409, description = "`stale_attempt`, `not_active`, `period_closed`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 413, description = "`body_too_large`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported_media_type`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 422, description = "`unknown_operation`, `unknown_account`, `no_budget`: retired since", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 429, description = "`budget_exhausted`, with `breaches`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 503, description = "`ledger_unavailable`, `overloaded`, `deadline_exceeded`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn extend(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Json(body): Json<ExtendBody>,
) -> Result<axum::Json<ReservationView>, Problem> {
    caller.must_be(&[Role::Worker])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let attempt = plain("attempt", body.attempt, 1, MAX_TEXT)?;
    let extend = Extend { account, id, attempt, ceiling: body.ceiling.0 };
    let reservation = ledger.extend(&caller.context, &extend).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(reservation.into()))
}

/// Settle the actual usage, exactly once.
///
/// The same settlement again returns the same answer and changes nothing; a
/// different amount afterwards is a conflict that shows what was recorded.
/// Usage above the ceiling is recorded as overrun, never refused.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/settle", tag = "workers", operation_id = "settle",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = SettleBody,
    responses(
        (status = 200, description = "The reservation with its usage", body = ReservationView),
        (status = 400, description = "`invalid_request`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 401, description = "`unauthenticated`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 404, description = "`not_found`, also for another account's", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 409, description = "`already_settled` (with `settled`), `usage_decreases`, `stale_attempt`, `not_active`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 413, description = "`body_too_large`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported_media_type`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 503, description = "`ledger_unavailable`, `overloaded`, `deadline_exceeded`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn settle(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Json(body): Json<SettleBody>,
) -> Result<axum::Json<ReservationView>, Problem> {
    caller.must_be(&[Role::Worker])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let usage = match (body.units, body.quantities) {
        (Some(units), None) => Usage::Units(units.0),
        (None, Some(quantities)) => {
            Usage::Quantities(quantities.0.into_iter().map(|(name, amount)| (name, amount.0)).collect())
        }
        (None, None) => return Err(Problem::invalid("units", "is missing: state units or quantities")),
        (Some(_), Some(_)) => return Err(Problem::invalid("units", "state units or quantities, not both")),
    };
    let settle = Settle {
        account,
        id,
        attempt: plain("attempt", body.attempt, 1, MAX_TEXT)?,
        usage,
        r#final: body.r#final.unwrap_or(true),
        provider_request_id: body
            .provider_request_id
            .map(|text| plain("provider_request_id", text, 1, MAX_TEXT))
            .transpose()?,
    };
    let reservation = ledger.settle(&caller.context, &settle).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(reservation.into()))
}

/// The account and id of a reservation that the caller may act on.
async fn own(ledger: &Ledger, caller: &Caller, id: &str) -> Result<(Name, Uuid), Problem> {
    let id = reservation_id(id)?;
    let account = ledger
        .account_of(&caller.context, &caller.credential.accounts, id)
        .await
        .map_err(|error| caller.problem(error))?;
    Ok((account, id))
}

/// What is no id is the id of nothing.
fn reservation_id(text: &str) -> Result<Uuid, Problem> {
    text.parse().map_err(|_| Problem::not_found("reservation"))
}

fn idempotency_key(headers: &HeaderMap) -> Result<String, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let problem = |message: &str| Problem::invalid("Idempotency-Key", message);
    let value = values.next().ok_or_else(|| problem("the header is missing: it is the job's identity"))?;
    if values.next().is_some() {
        return Err(problem("the header is there twice"));
    }
    let bytes = value.as_bytes();
    if bytes.is_empty() || bytes.len() > 255 || !bytes.iter().all(u8::is_ascii_graphic) {
        return Err(problem("must be 1 to 255 visible ASCII characters"));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Text without control characters, of a bounded number of characters.
fn plain(field: &str, text: String, min: usize, max: usize) -> Result<String, Problem> {
    let length = text.chars().count();
    if length < min || length > max {
        return Err(Problem::invalid(field, format!("must be {min} to {max} characters long")));
    }
    if text.chars().any(char::is_control) {
        return Err(Problem::invalid(field, "must not contain control characters"));
    }
    Ok(text)
}

fn labels(labels: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
    if labels.len() > MAX_LABELS {
        return Err(Problem::invalid("labels", format!("are too many: at most {MAX_LABELS}")));
    }
    labels
        .into_iter()
        .map(|(key, value)| {
            let field = format!("labels.{key}");
            Ok((plain(&field, key, 1, MAX_TEXT)?, plain(&field, value, 0, MAX_TEXT)?))
        })
        .collect()
}
