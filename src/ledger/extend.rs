//! Extend: raise the ceiling of an active reservation before it is crossed.

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use super::charges::{ChargeSeen, exhausted, observed, over_a_whole_period};
use super::database::run;
use super::refusals::Refused;
use super::reservations::units as as_units;
use super::{Context, Error, Ledger};
use crate::model::refusal::Conflict;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Refusal, Retry, Units};

/// A request to raise a ceiling.
#[derive(Debug, Clone)]
pub struct Extend {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The token of the current attempt.
    pub attempt: String,
    /// The new ceiling, absolute.
    pub ceiling: Units,
}

struct Verdict {
    outcome: String,
    at: DateTime<Utc>,
    max_units: rust_decimal::Decimal,
    observing: bool,
    units: String,
    record: Json<Record>,
    budgets: Json<Vec<ChargedPeriod>>,
    charges: Json<Vec<ChargeSeen>>,
    #[allow(dead_code, reason = "the item's number in a batch of one")]
    n: i64,
}

impl Ledger {
    /// Raises the ceiling if every enforcing budget of the reservation has room
    /// for the difference. A ceiling at or below the current one changes nothing
    /// and succeeds. A refused extension leaves the reservation as it was.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `NotActive`, `PeriodClosed`, `TooExpensive`,
    /// `BudgetExhausted`, what the policy has retired, or the world.
    pub async fn extend(&self, context: &Context, extend: &Extend) -> Result<Reservation, Error> {
        let mut verdict = self.extend_statement(context, extend).await?;
        if verdict.outcome == "budget_exhausted"
            && self.give_back_carried(context, &extend.account, &verdict.charges.0).await?
        {
            verdict = self.extend_statement(context, extend).await?;
        }
        let Verdict { outcome, at, max_units, observing, units, record, budgets, charges, .. } = verdict;
        let record = record.0;
        let charges = charges.0;
        let (account, operation) = (record.account.clone(), record.operation.clone());
        let unit = record.unit.clone();
        let units = Units::parse(&units).map_err(|error| Error::Unexpected(format!("extension {error}")))?;
        let reservation = Reservation { record, budgets: budgets.0, at }.shown_to(&extend.attempt);
        let over_the_operation = Refusal::TooExpensive {
            units: extend.ceiling,
            max_units: as_units(max_units)?,
            bound: format!("one {operation}"),
            pool: false,
        };
        let conflict = |conflict, reservation| Refusal::Conflict { conflict, reservation: Box::new(reservation) };
        let refusal = match outcome.as_str() {
            "extended" => {
                let breaches = observed(&charges, units);
                if !breaches.is_empty() {
                    let would = Refusal::BudgetExhausted { breaches, retry: Retry::Never, retry_after_seconds: None };
                    self.refusals.record(Refused::new(Some(&account), &operation, &would, true));
                }
                if observing && extend.ceiling.get() > max_units {
                    self.refusals.record(Refused::new(Some(&account), &operation, &over_the_operation, true));
                }
                return Ok(reservation);
            }
            "unchanged" => return Ok(reservation),
            "stale_attempt" => conflict(Conflict::StaleAttempt, reservation),
            "not_active" => conflict(Conflict::NotActive, reservation),
            "period_closed" => conflict(Conflict::PeriodClosed, reservation),
            "unknown_operation" => Refusal::UnknownOperation(operation.to_string()),
            "unknown_account" => Refusal::UnknownAccount(account.to_string()),
            "no_budget" => Refusal::NoBudget { unit },
            "too_expensive" => over_the_operation,
            "over_a_whole_period" => over_a_whole_period(&charges, extend.ceiling),
            "out_of_range" => Refusal::invalid("ceiling", "would take a balance out of range"),
            "budget_exhausted" => in_its_own_period(exhausted(&charges, units, at)),
            other => return Err(Error::Unexpected(format!("an extension came out as {other}"))),
        };
        self.refusals.record(Refused::new(Some(&account), &operation, &refusal, false));
        Err(refusal.into())
    }

    async fn extend_statement(&self, context: &Context, extend: &Extend) -> Result<Verdict, Error> {
        let verdict = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/extend.sql",
                &[extend.account.to_string()],
                &[extend.id],
                std::slice::from_ref(&extend.attempt),
                &[extend.ceiling.get()],
                std::slice::from_ref(&context.actor),
            )
            .fetch_optional(&mut *connection)
            .await
        })?;
        verdict.ok_or_else(|| Refusal::NotFound("reservation").into())
    }
}

/// An extension belongs to the reservation's own period: its end brings no room,
/// so no time is named and only a release can help.
fn in_its_own_period(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::BudgetExhausted { breaches, retry, .. } => {
            let retry = if retry == Retry::AfterRelease { retry } else { Retry::Never };
            Refusal::BudgetExhausted { breaches, retry, retry_after_seconds: None }
        }
        other => other,
    }
}
