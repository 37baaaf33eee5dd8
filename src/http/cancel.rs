//! `/v1/reservations/{id}/cancel`.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answers::OnReservation;
use super::body::Json;
use super::caller::Caller;
use super::lists::Segment;
use super::problem::Problem;
use super::reservations::own;
use super::text::optional;
use super::views::ReservationView;
use crate::ledger::Ledger;
use crate::ledger::cancel::Cancel;
use crate::model::role::Role;

/// A request to cancel.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelBody {
    /// Why.
    #[schema(max_length = 255)]
    reason: Option<String>,
}

/// Cancel a job. It releases nothing by itself.
///
/// No more calls and extensions are let through; everything that is not settled
/// moves to liability and stays charged until the attempt is fenced, or settled.
/// The worker learns of it from the answer to its next renewal or call. A second
/// cancel, or one of what is not active any more, changes nothing.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/cancel", tag = "workers", operation_id = "cancel",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = CancelBody,
    responses(OnReservation, (status = 200, description = "The reservation as it is now", body = ReservationView)),
)]
pub(super) async fn cancel(
    State(ledger): State<Ledger>,
    caller: Caller,
    Segment(id): Segment,
    Json(body): Json<CancelBody>,
) -> Result<axum::Json<ReservationView>, Problem> {
    caller.must_be(&[Role::Worker, Role::Operator])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let cancel = Cancel { account, id, reason: optional("reason", body.reason)? };
    let reservation = ledger.cancel(&caller.context, &cancel).await.map_err(|error| caller.problem(error))?;
    Ok(axum::Json(reservation.into()))
}
