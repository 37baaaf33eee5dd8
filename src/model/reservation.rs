//! A reservation: the authorised estimate for one job, and what became of it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::policy::Enforcement;
use super::request::ReservationRequest;
use super::{Name, Units};

/// Where a reservation is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It holds its units in the queue and has no attempt yet.
    Waiting,
    /// Its current attempt may spend up to the ceiling.
    Active,
    /// Cancelled, not fenced: all of it is still charged.
    Cancelling,
    /// It cannot spend more; what is outstanding is still charged.
    Fenced,
    /// Ended with its actual usage.
    Settled,
    /// Waited too long and never started.
    Expired,
    /// Cancelled while waiting, never started.
    Cancelled,
}

impl State {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 7] =
        [Self::Waiting, Self::Active, Self::Cancelling, Self::Fenced, Self::Settled, Self::Expired, Self::Cancelled];

    /// The word for it in the API and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Cancelling => "cancelling",
            Self::Fenced => "fenced",
            Self::Settled => "settled",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("is not a state: one of {all}")
        })
    }
}

/// A reservation as the ledger has it, together with the database's time at
/// which it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    /// What is stored.
    pub record: Record,
    /// The budget periods that it is charged to.
    pub budgets: Vec<ChargedPeriod>,
    /// The database's clock when this was read.
    pub at: DateTime<Utc>,
}

/// What is stored of a reservation. All amounts are in its unit, and the same in
/// each of its budget periods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Whose spending it is.
    pub account: Name,
    /// Its id.
    pub id: Uuid,
    /// The request as it was sent.
    pub request: ReservationRequest,
    /// The kind of work.
    pub operation: Name,
    /// The revision of the operation's cost map that the estimate was made by.
    pub operation_revision: i32,
    /// Where it spends.
    pub provider: Name,
    /// Who can stop its worker.
    pub enforcement: Enforcement,
    /// What the amounts count.
    pub unit: Name,
    /// The member it was made for.
    pub member: Option<Name>,
    /// Our key at the provider that it uses.
    pub provider_key: Option<Name>,
    /// The periods it is charged to.
    pub period_ids: Vec<Uuid>,
    /// What it was admitted with.
    pub estimate: Units,
    /// The most that it may spend before it asks for more.
    pub ceiling: Units,
    /// Actual usage so far.
    pub settled: Units,
    /// Calls admitted and not ended.
    pub in_flight: Units,
    /// Calls with unknown outcome.
    pub unknown: Units,
    /// What an earlier or stopped attempt may have spent.
    pub stated_outstanding: Units,
    /// Held in the reserved bucket of each period.
    pub reserved: Units,
    /// Held in the liability bucket of each period.
    pub liability: Units,
    /// Where it is in its life.
    pub state: State,
    /// Rises by one with each change.
    pub version: i64,
    /// The current attempt's number; none was issued if absent.
    pub attempt_number: Option<i32>,
    /// Who owns the current attempt.
    pub attempt_holder: Option<String>,
    /// What the holder sends with everything it does.
    pub attempt_token: Option<String>,
    /// When the holder is overdue.
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// The client's own name for the job.
    pub reference: Option<String>,
    /// The client's own labels.
    pub labels: BTreeMap<String, String>,
    /// When it was admitted.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
    /// When it ended.
    pub closed_at: Option<DateTime<Utc>>,
}

/// A budget period that a reservation is charged to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChargedPeriod {
    /// The budget's or the pool's name.
    pub budget: String,
    /// The first instant of the period.
    pub period_starts_at: DateTime<Utc>,
    /// The first instant after the period; null if it never ends.
    pub period_ends_at: Option<DateTime<Utc>>,
}

/// One line of a reservation's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The version that this change made.
    pub version: i64,
    /// What happened.
    pub event: String,
    /// When.
    pub at: DateTime<Utc>,
    /// Who asked.
    pub actor: String,
    /// The state after it.
    pub state: State,
    /// The ceiling after it.
    pub ceiling: Units,
    /// Actual usage after it.
    pub settled: Units,
    /// Reserved after it.
    pub reserved: Units,
    /// In liability after it.
    pub liability: Units,
    /// The attempt that was current after it.
    pub attempt_number: Option<i32>,
    /// What else was said with it: the call, the evidence, the reason.
    pub detail: serde_json::Value,
}

impl Record {
    /// What the reservation takes from its budgets right now: settled +
    /// reserved + liability. The schema keeps the sum within range.
    #[must_use]
    pub fn charged(&self) -> Units {
        self.settled.checked_add(self.reserved).and_then(|sum| sum.checked_add(self.liability)).unwrap_or(Units::MAX)
    }

    /// What is charged above the ceiling.
    #[must_use]
    pub fn overrun(&self) -> Units {
        match self.charged().checked_sub(self.ceiling) {
            Ok(excess) if !excess.is_negative() => excess,
            _ => Units::ZERO,
        }
    }
}

impl Record {
    /// What its calls may still take: the ceiling less what is settled and what
    /// is outstanding; never below zero.
    #[must_use]
    pub fn remaining(&self) -> Units {
        let taken = [self.settled, self.in_flight, self.unknown, self.stated_outstanding];
        let left = taken.into_iter().try_fold(self.ceiling, Units::checked_sub);
        left.ok().filter(|left| !left.is_negative()).unwrap_or(Units::ZERO)
    }
}

impl Reservation {
    /// As it is shown to somebody who presents this token: the token of the
    /// current attempt is only for who has it already.
    #[must_use]
    pub fn shown_to(mut self, token: &str) -> Self {
        if self.record.attempt_token.as_deref() != Some(token) {
            self.record.attempt_token = None;
        }
        self
    }

    /// As it is shown to somebody who is not known to be its holder.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.record.attempt_token = None;
        self
    }

    /// Whether the holder's lease had run out when this was read. It changes
    /// nothing; it makes a takeover askable.
    #[must_use]
    pub fn overdue(&self) -> bool {
        self.record.state == State::Active && self.record.lease_expires_at.is_some_and(|expiry| expiry <= self.at)
    }
}
