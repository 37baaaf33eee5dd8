//! Settle: replace a reservation by its actual usage, exactly once.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use super::carry::BudgetOf;
use super::database::run;
use super::refusals::Refused;
use super::{Context, Error, Ledger};
use crate::model::refusal::Conflict;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Refusal, Units};

/// A report of usage.
#[derive(Debug, Clone)]
pub struct Settle {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The token of the current attempt.
    pub attempt: String,
    /// What the attempt has used so far, cumulative.
    pub usage: Usage,
    /// Whether the job is done.
    pub r#final: bool,
    /// The provider's own name for the work.
    pub provider_request_id: Option<String>,
}

/// How usage is stated.
#[derive(Debug, Clone)]
pub enum Usage {
    /// In units.
    Units(Units),
    /// In quantities, to be priced by the cost map that the estimate was made
    /// by.
    Quantities(BTreeMap<Name, Units>),
}

struct Verdict {
    outcome: String,
    at: DateTime<Utc>,
    record: Json<Record>,
    budgets: Json<Vec<ChargedPeriod>>,
    carried: Json<Vec<BudgetOf>>,
    #[allow(dead_code, reason = "the item's number in a batch of one")]
    n: i64,
}

impl Ledger {
    /// Records the attempt's actual usage. The same settlement again returns the
    /// same answer and changes nothing.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `AlreadySettled` at another amount, `UsageDecreases`,
    /// `NotActive`, usage that is invalid or beyond the range of the columns, or
    /// the world.
    pub async fn settle(&self, context: &Context, settle: &Settle) -> Result<Reservation, Error> {
        let units = match &settle.usage {
            Usage::Units(units) => *units,
            Usage::Quantities(quantities) => {
                self.pricing_of(context, &settle.account, settle.id).await?.actual(quantities)?
            }
        };
        let verdict = self.settle_statement(context, settle, units).await?;
        for budget in &verdict.carried.0 {
            // Made good before the next refusal if this does not get through.
            if let Err(error) = self.give_back(context, budget).await {
                tracing::warn!(%error, budget = budget.budget, "nothing was given back to the newest period yet");
            }
        }
        let reservation = Reservation { record: verdict.record.0, budgets: verdict.budgets.0, at: verdict.at }
            .shown_to(&settle.attempt);
        let conflict = |conflict| Refusal::Conflict { conflict, reservation: Box::new(reservation.clone()) };
        let refusal = match verdict.outcome.as_str() {
            "settled" | "repeated" => return Ok(reservation),
            "stale_attempt" => conflict(Conflict::StaleAttempt),
            "already_settled" => conflict(Conflict::AlreadySettled),
            "not_active" => conflict(Conflict::NotActive),
            "usage_decreases" => conflict(Conflict::UsageDecreases),
            "not_progressive" => {
                Refusal::invalid("final", "the provider's usage is reported by its calls, not progressively")
            }
            "out_of_range" => {
                Refusal::invalid("units", "the usage of the reservation or of its period would be out of range")
            }
            other => return Err(Error::Unexpected(format!("a settlement came out as {other}"))),
        };
        let record = &reservation.record;
        self.refusals.record(Refused::new(Some(&record.account), &record.operation, &refusal, false));
        Err(refusal.into())
    }

    async fn settle_statement(&self, context: &Context, settle: &Settle, units: Units) -> Result<Verdict, Error> {
        let verdict = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/settle.sql",
                &[settle.account.to_string()],
                &[settle.id],
                std::slice::from_ref(&settle.attempt),
                &[units.get()],
                &[settle.r#final],
                std::slice::from_ref(&settle.provider_request_id) as &[Option<String>],
                std::slice::from_ref(&context.actor),
            )
            .fetch_optional(&mut *connection)
            .await
        })?;
        verdict.ok_or_else(|| Refusal::NotFound("reservation").into())
    }
}
