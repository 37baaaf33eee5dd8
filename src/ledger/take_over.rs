//! Take over: another holder goes on with a job whose holder is overdue.

use sqlx::types::Json;
use uuid::Uuid;

use super::attempts::new_token;
use super::charges::seconds_until;
use super::database::run;
use super::verdict::{Seen, Target, Verdict, out_of_range_is_about};
use super::{Context, Error, Ledger};
use crate::model::evidence::Evidence;
use crate::model::refusal::Conflict;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Refusal, Units};

/// A request for the next attempt.
#[derive(Debug, Clone)]
pub struct TakeOver {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The number of the attempt that is to be superseded.
    pub previous: i32,
    /// The process that takes over.
    pub holder: String,
    /// How long the new lease is, in seconds.
    pub lease_seconds: i32,
    /// Why the earlier attempt cannot spend more, where the ledger cannot stop it.
    pub evidence: Option<Evidence>,
    /// What the earlier attempt may have spent in total, where the ledger does not
    /// know; everything, if it is not stated.
    pub outstanding: Option<Units>,
    /// Whether to pass over a lease that has not run out. It never replaces
    /// evidence.
    pub force: bool,
}

/// The new attempt.
#[derive(Debug, Clone)]
pub struct TakenOver {
    /// The reservation, with the attempt's token.
    pub reservation: Reservation,
    /// Whether this holder had taken over before.
    pub repeated: bool,
}

impl Ledger {
    /// Makes the next attempt current, with no fresh allowance. Repeated by the
    /// same holder it answers with the same attempt.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `NotActive`, `LeaseCurrent`, `EvidenceRequired`, an amount
    /// that the ledger computes itself, or the world.
    pub async fn take_over(&self, context: &Context, ask: &TakeOver) -> Result<TakenOver, Error> {
        let token = new_token(ask.previous.saturating_add(1))?;
        let evidence = ask.evidence.as_ref().map(|evidence| serde_json::json!(evidence));
        let sent = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/take_over.sql",
                &[ask.account.to_string()],
                &[ask.id],
                &[ask.previous],
                std::slice::from_ref(&ask.holder),
                std::slice::from_ref(&token),
                &[ask.lease_seconds],
                std::slice::from_ref(&evidence) as &[Option<serde_json::Value>],
                &[ask.outstanding.map(Units::get)] as &[Option<rust_decimal::Decimal>],
                &[ask.force],
                std::slice::from_ref(&context.actor),
                &[Uuid::now_v7()],
            )
            .fetch_optional(&mut *connection)
            .await
        });
        let sent = out_of_range_is_about("outstanding", sent);
        // The token of a repeat is the one that was made before.
        let issued = match &sent {
            Ok(Some(verdict)) if matches!(verdict.outcome.as_str(), "taken_over" | "repeated") => {
                verdict.record.0.attempt_token.clone()
            }
            _ => None,
        };
        let concluded = self
            .conclude(context, Target { account: &ask.account, id: ask.id, token: issued.as_deref() }, sent)
            .await?;
        let refusal = match (concluded.outcome.as_str(), concluded.refusal()) {
            (outcome @ ("taken_over" | "repeated"), _) => {
                // Sent again by this process, because the answer of the database was
                // lost, it finds what it made.
                let repeated = outcome == "repeated" && issued.as_deref() != Some(&token);
                return Ok(TakenOver { reservation: concluded.reservation, repeated });
            }
            ("lease_current", _) => {
                let reservation = &concluded.reservation;
                let end = reservation.record.lease_expires_at.unwrap_or(reservation.at);
                let retry_after_seconds = seconds_until(end, reservation.at);
                Refusal::Conflict(Conflict::LeaseCurrent { retry_after_seconds })
            }
            (_, Some(refusal)) => refusal,
            (_, None) => return Err(concluded.unexpected("a takeover")),
        };
        Err(self.refuse_on(concluded.reservation, refusal))
    }
}
