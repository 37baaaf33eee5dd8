//! `/v1/reservations/{id}/renew` and `/attempts`: who holds the job.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answers::OnReservation;
use super::body::{Amount, Json, Object};
use super::caller::{Caller, Recognised};
use super::lists::Segment;
use super::problem::{Problem, ProblemDetails};
use super::reservations::own;
use super::said::{EvidenceBody, evidence, number};
use super::text::{MAX_TEXT, holder, lease, plain};
use super::views::ReservationView;
use crate::ledger::Ledger;
use crate::ledger::renew::Renew;
use crate::ledger::take_over::TakeOver;
use crate::model::role::Role;

/// A request to renew a lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewBody {
    /// The token of the current attempt.
    attempt: String,
    /// When the lease ends, in seconds from now.
    #[schema(minimum = 5, maximum = 3600, default = 60)]
    lease_seconds: Option<i32>,
}

/// A request for the next attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeOverBody {
    /// The number of the attempt that is to be superseded.
    #[schema(minimum = 1)]
    previous: i32,
    /// The client's own name for its process, 1 to 128 characters.
    #[schema(example = "w-18", min_length = 1, max_length = 128)]
    holder: Option<String>,
    /// How long the new lease is, in seconds.
    #[schema(minimum = 5, maximum = 3600, default = 60)]
    lease_seconds: Option<i32>,
    /// Why the earlier attempt cannot spend more; needed where the ledger cannot
    /// stop it (`worker` enforcement).
    #[schema(value_type = Option<EvidenceBody>)]
    evidence: Option<Object<EvidenceBody>>,
    /// What the earlier attempt may have spent in total, what it has reported
    /// included; left out, everything. Where the ledger admits the calls (`calls`
    /// enforcement) it knows by itself.
    outstanding: Option<Amount>,
    /// Whether to pass over a lease that has not run out. For operators.
    #[schema(default = false)]
    force: Option<bool>,
}

/// Renew the lease: the holder is still there.
///
/// The answer's `state` tells of a cancel. A lease that has run out changes no
/// balance and stops nobody; it only lets somebody else take over.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/renew", tag = "workers", operation_id = "renew",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = RenewBody,
    responses(
        OnReservation,
        (status = 200, description = "The reservation as it is now", body = ReservationView),
        (status = 409, description = "`stale_attempt`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn renew(
    State(ledger): State<Ledger>,
    Recognised(caller): Recognised,
    Segment(id): Segment,
    Json(body): Json<RenewBody>,
) -> Result<axum::Json<ReservationView>, Problem> {
    caller.must_be(&[Role::Worker])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let attempt = plain("attempt", body.attempt, 1, MAX_TEXT)?;
    let renew = Renew { account, id, attempt, lease_seconds: lease(body.lease_seconds)? };
    let reservation = ledger.renew(&caller.context, &renew).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(reservation.into()))
}

/// Take over a job whose holder is overdue.
///
/// Makes the next attempt current, with the same room and no fresh allowance.
/// Everything that the earlier attempt sends afterwards is refused as stale, but
/// the late settlement of a call that it had been admitted for. Where the ledger
/// cannot stop the earlier attempt, what it may have spent becomes liability.
/// Repeated by the same holder it answers with the same attempt.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/attempts", tag = "workers", operation_id = "takeOver",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = TakeOverBody,
    responses(
        OnReservation,
        (status = 201, description = "The reservation with the new attempt", body = ReservationView),
        (status = 200, description = "This holder has taken over before: the reservation as it is now", body = ReservationView),
        (status = 409, description = "`lease_current`, `evidence_required`, `stale_attempt`, `not_active`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn take_over(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Json(body): Json<TakeOverBody>,
) -> Result<(StatusCode, axum::Json<ReservationView>), Problem> {
    caller.must_be(&[Role::Worker, Role::Operator])?;
    let force = body.force.unwrap_or(false);
    if force && caller.credential.role != Role::Operator {
        return Err(Problem::forbidden("`force` is for operator keys"));
    }
    let (account, id) = own(&ledger, &caller, &id).await?;
    let ask = TakeOver {
        account,
        id,
        previous: number("previous", body.previous)?,
        holder: holder(body.holder)?,
        lease_seconds: lease(body.lease_seconds)?,
        evidence: evidence(body.evidence)?,
        outstanding: body.outstanding.map(|amount| amount.0),
        force,
    };
    let taken = ledger.take_over(&caller.context, &ask).await.map_err(|error| caller.problem(error))?;
    let status = if taken.repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(taken.reservation.into())))
}
