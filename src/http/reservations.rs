//! `/v1/reservations`: reserve, look.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answers::{Keyed, WithBody};
use super::body::{Amount, Json, Named};
use super::caller::{Caller, Recognised};
use super::lists::{List, Page, Params, Segment, given, read};
use super::problem::{Problem, ProblemDetails};
use super::text::{MAX_TEXT, holder, labels, lease, plain, visible};
use super::views::{EventView, ReservationView, ReservationWithEvents};
use crate::ledger::Ledger;
use crate::ledger::reservations::Filter;
use crate::ledger::reserve::Reserve;
use crate::model::Name;
use crate::model::request::ReservationRequest;
use crate::model::role::Role;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

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
        WithBody,
        (status = 201, description = "Admitted, with `Location`", body = ReservationView),
        (status = 200, description = "Admitted before (`Idempotency-Replayed: true`): the reservation as it is now", body = ReservationView),
        (status = 400, description = "`invalid_request`, `too_expensive`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 422, description = "`idempotency_key_reused`, `unknown_operation`, `unknown_account`, `no_budget`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 429, description = "`budget_exhausted`, with `breaches`", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn reserve(
    State(ledger): State<Ledger>,
    Recognised(caller): Recognised,
    headers: HeaderMap,
    Json(body): Json<ReserveBody>,
) -> Result<Response, Problem> {
    caller.must_be(&[Role::Worker])?;
    let key = idempotency_key(&headers)?;
    let holder = holder(body.holder)?;
    let lease_seconds = lease(body.lease_seconds)?;
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
        Keyed,
        (status = 200, description = "The reservation", body = ReservationWithEvents),
        (status = 404, description = "`not_found`, also for another account's", body = ProblemDetails, content_type = "application/problem+json"),
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
        Keyed,
        (status = 200, description = "A page of reservations", body = List<ReservationView>),
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
        before: page.at,
        limit: page.probe(),
    };
    let found = ledger.reservations(&caller.context, &filter).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(page.of(found, |reservation| reservation.record.id)))
}

/// The account and id of a reservation that the caller may act on.
pub(super) async fn own(ledger: &Ledger, caller: &Caller, id: &str) -> Result<(Name, Uuid), Problem> {
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
    visible("Idempotency-Key", value.as_bytes())
}
