//! Extend: raise the ceiling of an active reservation before it is crossed.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use super::charges::{ChargeSeen, exhausted, observed, over_a_whole_period};
use super::group::{Grouped, Subject, column};
use super::refusals::Refused;
use super::verdict::{Concluded, ExtensionSeen, Seen, Target, Verdict};
use super::{By, Context, Error, Ledger};
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

/// An extension as the statement takes it.
pub(super) struct Extension {
    extend: Extend,
    by: By,
}

impl Grouped for Extension {
    type Verdict = Verdict;
    const VERB: &'static str = "extend";

    fn account(&self) -> &Name {
        &self.extend.account
    }

    fn subject(&self) -> Subject {
        Subject::Reservation(self.extend.account.clone(), self.extend.id)
    }

    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, sqlx::Error>> {
        Box::pin(async move {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/extend.sql",
                &column(items, |item| item.extend.account.to_string()),
                &column(items, |item| item.extend.id),
                &column(items, |item| item.extend.attempt.clone()),
                &column(items, |item| item.extend.ceiling.get()),
                &column(items, |item| item.by.actor.clone()),
                &column(items, |item| item.by.key) as &[Option<Uuid>],
            )
            .fetch_all(connection)
            .await
        })
    }
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
        let mut concluded = self.extend_once(context, extend).await?;
        if self.gave_back_carried(context, &concluded).await? {
            concluded = self.extend_once(context, extend).await?;
        }
        match (concluded.outcome.as_str(), &concluded.seen.extension) {
            ("extended", Some(extension)) => {
                self.record_observed_extension(&concluded.reservation.record, extension);
                Ok(concluded.reservation)
            }
            ("unchanged", _) => Ok(concluded.reservation),
            _ => match extension_refusal(&concluded, "ceiling") {
                Some(refusal) => Err(self.refuse_on(concluded.reservation, refusal)),
                None => Err(concluded.unexpected("an extension")),
            },
        }
    }

    async fn extend_once(&self, context: &Context, extend: &Extend) -> Result<Concluded, Error> {
        let extension = Extension { extend: extend.clone(), by: By::of(context) };
        let sent = self.groups.extend.decide(context, extension).await;
        self.conclude(context, Target { account: &extend.account, id: extend.id, token: Some(&extend.attempt) }, sent)
            .await
    }

    /// Whether an extension found no room and something carried could be given
    /// back, so that it is worth asking again.
    pub(super) async fn gave_back_carried(&self, context: &Context, concluded: &Concluded) -> Result<bool, Error> {
        match (concluded.outcome.as_str(), &concluded.seen.extension) {
            ("budget_exhausted", Some(extension)) => {
                self.give_back_carried(context, &concluded.reservation.record.account, &extension.charges).await
            }
            _ => Ok(false),
        }
    }

    /// Writes down what limits that only observe would have refused.
    pub(super) fn record_observed_extension(&self, record: &Record, extension: &ExtensionSeen) {
        let record_observed = |refusal: &Refusal| {
            let refused = Refused::new(Some(&record.account), &record.operation, refusal, true);
            self.refusals.record(refused.of_reservation(record.id));
        };
        let breaches = observed(&extension.charges, extension.units);
        if !breaches.is_empty() {
            record_observed(&Refusal::BudgetExhausted { breaches, retry: Retry::Never, retry_after_seconds: None });
        }
        if extension.observing && extension.ceiling > extension.max_units {
            record_observed(&over_the_operation(record, extension));
        }
    }
}

/// Why a ceiling was not raised to what this field asks for; none if the outcome is
/// no such refusal.
pub(super) fn extension_refusal(concluded: &Concluded, field: &str) -> Option<Refusal> {
    let record = &concluded.reservation.record;
    let Some(extension) = &concluded.seen.extension else {
        return concluded.refusal();
    };
    match concluded.outcome.as_str() {
        "unknown_operation" => Some(Refusal::UnknownOperation(record.operation.to_string())),
        "unknown_account" => Some(Refusal::UnknownAccount(record.account.to_string())),
        "no_budget" => Some(Refusal::NoBudget { unit: record.unit.clone() }),
        "period_closed" => Some(Refusal::Conflict(Conflict::PeriodClosed)),
        "too_expensive" => Some(over_the_operation(record, extension)),
        "over_a_whole_period" => Some(over_a_whole_period(&extension.charges, extension.ceiling)),
        "out_of_range" => Some(Refusal::invalid(field, "would take a balance out of range")),
        "budget_exhausted" => Some(in_its_own_period(&extension.charges, extension.units, concluded.reservation.at)),
        _ => concluded.refusal(),
    }
}

fn over_the_operation(record: &Record, extension: &ExtensionSeen) -> Refusal {
    Refusal::TooExpensive {
        units: extension.ceiling,
        max_units: extension.max_units,
        bound: format!("one {}", record.operation),
        pool: false,
    }
}

/// An extension belongs to the reservation's own period: its end brings no room,
/// so no time is named and only a release can help.
fn in_its_own_period(charges: &[ChargeSeen], units: Units, at: DateTime<Utc>) -> Refusal {
    match exhausted(charges, units, at) {
        Refusal::BudgetExhausted { breaches, retry, .. } => {
            let retry = if retry == Retry::AfterRelease { retry } else { Retry::Never };
            Refusal::BudgetExhausted { breaches, retry, retry_after_seconds: None }
        }
        other => other,
    }
}
