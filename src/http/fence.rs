//! `/v1/reservations/{id}/fence`.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::OnReservation;
use super::body::{Amount, Json, Object};
use super::caller::Caller;
use super::lists::Segment;
use super::problem::{Problem, ProblemDetails};
use super::reservations::own;
use super::said::{EvidenceBody, evidence, number};
use super::views::ReservationView;
use crate::ledger::Ledger;
use crate::ledger::fence::Fence;
use crate::model::role::Role;

/// A request to fence.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FenceBody {
    /// The attempt that it is about.
    #[schema(minimum = 1)]
    attempt_number: i32,
    /// Why that attempt cannot spend more; needed where the ledger cannot stop it
    /// (`worker` enforcement).
    #[schema(value_type = Option<EvidenceBody>)]
    evidence: Option<Object<EvidenceBody>>,
    /// What it may have spent beyond what is settled; left out, everything that it
    /// had. Where the ledger admits the calls (`calls` enforcement) it knows by
    /// itself.
    outstanding: Option<Amount>,
}

/// A fenced reservation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FencedView {
    #[serde(flatten)]
    reservation: ReservationView,
    /// How much became available by this request.
    #[schema(example = "12")]
    released: String,
}

/// Release what an attempt that cannot spend more has not spent.
///
/// Releases the ceiling less what is settled and what is outstanding; what is
/// outstanding stays charged until it is known. Works after a cancel and on an
/// abandoned active reservation. A later fence of the same attempt can only lower
/// what it was said to have outstanding.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/fence", tag = "workers", operation_id = "fence",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = FenceBody,
    responses(
        OnReservation,
        (status = 200, description = "The reservation, and what was released", body = FencedView),
        (status = 409, description = "`stale_attempt`, `evidence_required`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn fence(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Json(body): Json<FenceBody>,
) -> Result<axum::Json<FencedView>, Problem> {
    caller.must_be(&[Role::Worker, Role::Operator])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let fence = Fence {
        account,
        id,
        attempt_number: number("attempt_number", body.attempt_number)?,
        evidence: evidence(body.evidence)?,
        outstanding: body.outstanding.map(|amount| amount.0),
        overdue_for: None,
    };
    let fenced = ledger.fence(&caller.context, &fence).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(FencedView { reservation: fenced.reservation.into(), released: fenced.released.to_string() }))
}
