//! `/v1/reservations/{id}/extend`.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answers::OnReservation;
use super::body::{Amount, Json};
use super::caller::Recognised;
use super::lists::Segment;
use super::problem::{Problem, ProblemDetails};
use super::reservations::own;
use super::text::{MAX_TEXT, plain};
use super::views::ReservationView;
use crate::ledger::Ledger;
use crate::ledger::extend::Extend;
use crate::model::role::Role;

/// A request to raise a ceiling.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendBody {
    /// The token of the current attempt.
    attempt: String,
    /// The new ceiling, absolute.
    ceiling: Amount,
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
        OnReservation,
        (status = 200, description = "The reservation with its ceiling", body = ReservationView),
        (status = 400, description = "`invalid_request`, `too_expensive`", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 409, description = "`stale_attempt`, `not_active`, `period_closed`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 422, description = "`unknown_operation`, `unknown_account`, `no_budget`: retired since", body = ProblemDetails, content_type = "application/problem+json"),
        (status = 429, description = "`budget_exhausted`, with `breaches` and the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn extend(
    State(ledger): State<Ledger>,
    Recognised(caller): Recognised,
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
