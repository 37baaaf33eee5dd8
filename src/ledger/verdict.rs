//! What a deciding statement says of one reservation that exists, and what
//! follows from it whatever the verb.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use sqlx::types::Json;
use uuid::Uuid;

use super::carry::BudgetOf;
use super::charges::ChargeSeen;
use super::group::Numbered;
use super::refusals::Refused;
use super::{Context, Error, Ledger};
use crate::model::call::CallRecord;
use crate::model::refusal::Conflict;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::role::Accounts;
use crate::model::{Name, Refusal, Units};

/// What every deciding statement says to a key that is not valid any more.
pub(super) const UNAUTHENTICATED: &str = "unauthenticated";

/// One row of the answer of a statement.
pub(super) struct Verdict {
    /// The item that it is about.
    pub n: i64,
    /// What was decided: a word of the verb's own, or the code of a refusal.
    pub outcome: String,
    /// The database's clock.
    pub at: DateTime<Utc>,
    /// The reservation as it is after it.
    pub record: Json<Record>,
    pub budgets: Json<Vec<ChargedPeriod>>,
    pub seen: Json<Seen>,
}

impl Numbered for Verdict {
    fn number(&self) -> i64 {
        self.n
    }
}

/// What else a verb saw or did.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Seen {
    /// The call that it was about.
    pub call: Option<CallRecord>,
    /// What became of the wish for a higher ceiling.
    pub extension: Option<ExtensionSeen>,
    /// How much became available.
    pub released: Option<Units>,
    /// Budgets whose newest period carries what an ended one held.
    pub carried: Option<Vec<BudgetOf>>,
}

/// What decided about a higher ceiling.
#[derive(Debug, Deserialize)]
pub(super) struct ExtensionSeen {
    /// The ceiling that was asked for.
    pub ceiling: Units,
    /// What it takes from each budget.
    pub units: Units,
    /// The operation's bound on the total.
    pub max_units: Units,
    /// Whether that bound only observes.
    pub observing: bool,
    /// The budgets that had to admit it.
    pub charges: Vec<ChargeSeen>,
}

/// A verdict, read.
pub(super) struct Concluded {
    pub outcome: String,
    /// The reservation, with its token if the caller has shown that it has it.
    pub reservation: Reservation,
    pub seen: Seen,
}

impl Concluded {
    /// The refusals that mean the same whatever the verb.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        if let Some(conflict) = Conflict::plain(&self.outcome) {
            return Some(Refusal::Conflict(conflict));
        }
        match self.outcome.as_str() {
            "outstanding_is_computed" => Some(Refusal::invalid(
                "outstanding",
                "the ledger computes it: this provider's calls are admitted by the ledger",
            )),
            "out_of_range" => Some(Refusal::invalid("units", "would take a balance out of range")),
            _ => None,
        }
    }

    /// An outcome that the program does not know.
    pub(super) fn unexpected(&self, what: &str) -> Error {
        Error::Unexpected(format!("{what} came out as {}", self.outcome))
    }
}

/// What the database found out of range, said of the field that was too large.
pub(super) fn out_of_range_is_about<T>(field: &str, sent: Result<T, Error>) -> Result<T, Error> {
    match sent {
        Err(Error::Refused(Refusal::Invalid(_))) => {
            Err(Refusal::invalid(field, "would take a balance out of range").into())
        }
        other => other,
    }
}

/// The reservation that a request is about, and what its sender has presented as
/// its attempt: the token of the current attempt is only for who has it already.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub account: &'a Name,
    pub id: Uuid,
    pub token: Option<&'a str>,
}

impl Ledger {
    /// Reads a verdict and does what follows from any release.
    ///
    /// # Errors
    ///
    /// `NotFound`; what went wrong with the statement, with the reservation if it
    /// is a refusal.
    pub(super) async fn conclude(
        &self,
        context: &Context,
        target: Target<'_>,
        sent: Result<Option<Verdict>, Error>,
    ) -> Result<Concluded, Error> {
        let verdict = match sent {
            Ok(Some(verdict)) => verdict,
            Ok(None) => {
                self.still_valid(context).await?;
                return Err(Refusal::NotFound("reservation").into());
            }
            Err(Error::Refused(refusal)) => return Err(self.refuse(context, target, refusal).await),
            Err(error) => return Err(error),
        };
        let Verdict { outcome, at, record, budgets, seen, .. } = verdict;
        if outcome == UNAUTHENTICATED {
            return Err(self.unauthenticated(context));
        }
        for budget in seen.carried.iter().flatten() {
            // Made good before the next refusal if this does not get through.
            if let Err(error) = self.give_back(context, budget).await {
                tracing::warn!(%error, budget = budget.budget, "nothing was given back to the newest period yet");
            }
        }
        let reservation =
            Reservation { record: record.0, budgets: budgets.0, at }.shown_to(target.token.unwrap_or_default());
        Ok(Concluded { outcome, reservation, seen: seen.0 })
    }

    /// A refusal that is about this reservation, recorded, with the reservation as
    /// it is, so that a worker can decide without another request.
    pub(super) fn refuse_on(&self, reservation: Reservation, refusal: Refusal) -> Error {
        let record = &reservation.record;
        let refused = Refused::new(Some(&record.account), &record.operation, &refusal, false);
        self.refusals.record(refused.of_reservation(record.id));
        Error::RefusedOn { refusal, reservation: Box::new(reservation) }
    }

    /// The same for what was refused before the reservation was looked at.
    pub(super) async fn refuse(&self, context: &Context, target: Target<'_>, refusal: Refusal) -> Error {
        if let Err(error) = self.still_valid(context).await {
            return error;
        }
        if matches!(refusal, Refusal::NotFound(_)) {
            return refusal.into();
        }
        let account = Accounts::These(vec![target.account.clone()]);
        match self.reservation_with_token(context, &account, target.id).await {
            Ok(reservation) => self.refuse_on(reservation.shown_to(target.token.unwrap_or_default()), refusal),
            Err(error) => error,
        }
    }
}
