//! `/v1/reservations/{id}/settle`: by its worker, or by finance.

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answers::OnReservation;
use super::body::{Amount, Json, Named};
use super::caller::Recognised;
use super::lists::Segment;
use super::problem::{Problem, ProblemDetails};
use super::reservations::own;
use super::said::{attempt, by_finance, not_for, usage};
use super::text::optional;
use super::views::ReservationView;
use crate::ledger::Ledger;
use crate::ledger::close::Close;
use crate::ledger::settle::Settle;
use crate::model::Name;
use crate::model::role::Role;

/// A report of usage: by a worker with `attempt`, by finance with `units` and
/// `reason` and nothing else.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    /// The token of the current attempt.
    attempt: Option<String>,
    /// What the attempt has used, cumulative; of finance, what the whole
    /// reservation has used. Left out, with `quantities` too, it is the sum of
    /// the attempt's calls (`calls` enforcement only).
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
    /// Why finance closes the reservation.
    #[schema(max_length = 255)]
    reason: Option<String>,
}

/// Settle the actual usage, exactly once.
///
/// The same settlement again returns the same answer and changes nothing; a
/// different amount afterwards is a conflict that shows what was recorded.
/// Usage above the ceiling is recorded as overrun, never refused. With something
/// still outstanding (unknown calls, what earlier attempts may have spent) the
/// reservation is `fenced` until that is known. An amount that comes too late is
/// kept as late usage. Finance closes any open reservation, whatever is
/// outstanding, with a reason.
#[utoipa::path(
    post, path = "/v1/reservations/{id}/settle", tag = "workers", operation_id = "settle",
    params(("id" = Uuid, Path, description = "The reservation")),
    request_body = SettleBody,
    responses(
        OnReservation,
        (status = 200, description = "The reservation with its usage", body = ReservationView),
        (status = 409, description = "`already_settled` (with `settled`), `calls_in_flight`, `usage_decreases`, `stale_attempt`, `not_active`, with the reservation", body = ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn settle(
    State(ledger): State<Ledger>,
    Recognised(caller): Recognised,
    Segment(id): Segment,
    Json(body): Json<SettleBody>,
) -> Result<axum::Json<ReservationView>, Problem> {
    caller.must_be(&[Role::Worker, Role::Finance])?;
    let (account, id) = own(&ledger, &caller, &id).await?;
    let reservation = if caller.credential.role == Role::Finance {
        let given = [
            ("attempt", body.attempt.is_some()),
            ("quantities", body.quantities.is_some()),
            ("final", body.r#final.is_some()),
            ("provider_request_id", body.provider_request_id.is_some()),
        ];
        not_for(given, "a worker")?;
        let (units, reason) = by_finance(body.units, body.reason)?;
        let close = Close { account, id, units, reason };
        ledger.close_reservation(&caller.context, &close).await
    } else {
        not_for([("reason", body.reason.is_some())], "finance")?;
        let settle = Settle {
            account,
            id,
            attempt: attempt(body.attempt)?,
            usage: usage(body.units, body.quantities)?,
            r#final: body.r#final.unwrap_or(true),
            provider_request_id: optional("provider_request_id", body.provider_request_id)?,
        };
        ledger.settle(&caller.context, &settle).await
    };
    Ok(axum::Json(reservation.map_err(|error| caller.problem(error))?.into()))
}
