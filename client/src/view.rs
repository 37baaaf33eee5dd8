//! What the service says of reservations and calls.

use std::collections::BTreeMap;
use std::fmt;

use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer};

/// Where a reservation is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReservationState {
    /// In the queue; it has no attempt yet.
    Waiting,
    /// Its attempt may spend.
    Active,
    /// Cancelled and not fenced: it may spend no more, and all of it is still charged.
    Cancelling,
    /// It cannot spend more; what is outstanding is still charged.
    Fenced,
    /// Its actual usage is known.
    Settled,
    /// Waited too long, never started.
    Expired,
    /// Cancelled while waiting, never started.
    Cancelled,
    /// A state that this library does not know.
    #[serde(other)]
    Other,
}

impl ReservationState {
    /// Whether nothing can change any more but by finance.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Settled | Self::Expired | Self::Cancelled)
    }
}

/// Who can stop a worker from spending at a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Enforcement {
    /// The ledger: it admits every paid request.
    Calls,
    /// Nobody but the worker, which calls the provider directly.
    Worker,
    /// A kind that this library does not know.
    #[serde(other)]
    Other,
}

/// A reservation as it was when the service answered. Amounts are in the unit
/// `unit`, times are RFC 3339 in UTC by the database's clock.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Reservation {
    /// Its id.
    pub id: String,
    /// Whose spending it is.
    pub account: String,
    /// The kind of work.
    pub operation: String,
    /// Where it spends.
    pub provider: String,
    /// Who can stop the job from spending there.
    pub enforcement: Enforcement,
    /// What the amounts count.
    pub unit: String,
    /// Where it is in its life.
    pub state: ReservationState,
    /// What it was admitted with.
    #[serde(deserialize_with = "exact")]
    pub estimate: Decimal,
    /// The most that the job may spend before it asks for more.
    #[serde(deserialize_with = "exact")]
    pub ceiling: Decimal,
    /// Actual usage so far.
    #[serde(deserialize_with = "exact")]
    pub settled: Decimal,
    /// Calls admitted and not ended.
    #[serde(deserialize_with = "exact")]
    pub in_flight: Decimal,
    /// Calls with unknown outcome.
    #[serde(deserialize_with = "exact")]
    pub unknown: Decimal,
    /// What an earlier or stopped attempt may have spent.
    #[serde(deserialize_with = "exact")]
    pub stated_outstanding: Decimal,
    /// What is charged above the ceiling.
    #[serde(deserialize_with = "exact")]
    pub overrun: Decimal,
    /// What it takes from its budgets: settled, reserved and liability.
    #[serde(deserialize_with = "exact")]
    pub charged: Decimal,
    /// Rises by one with each change.
    pub version: i64,
    /// The current attempt; none if none was ever issued.
    pub attempt: Option<Attempt>,
    /// The client's own name for the job.
    pub reference: Option<String>,
    /// The client's own labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// The current attempt at a reservation's job.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// The fencing token's number: rises by one with each takeover.
    pub number: u32,
    /// The process that owns it.
    pub holder: String,
    /// When the holder is overdue.
    pub lease_expires_at: String,
    /// Whether the lease had run out.
    pub overdue: bool,
    /// Only in answers to the holder.
    pub(crate) token: Option<Token>,
}

/// What the holder of an attempt sends with everything it does. Never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Token(pub(crate) String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// How a call ended, if it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallState {
    /// Admitted and not ended.
    InFlight,
    /// Its actual cost is known.
    Settled,
    /// It may have cost anything up to what it was admitted for, which stays charged.
    Unknown,
    /// It was never sent and cost nothing.
    NotSent,
    /// A state that this library does not know.
    #[serde(other)]
    Other,
}

impl CallState {
    /// The service's word for it.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::InFlight => Some("in_flight"),
            Self::Settled => Some("settled"),
            Self::Unknown => Some("unknown"),
            Self::NotSent => Some("not_sent"),
            Self::Other => None,
        }
    }
}

/// One of a reservation's calls.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct CallItem {
    /// The client's own key for it.
    pub call: String,
    /// How it ended, if it has.
    pub state: CallState,
    /// What it was admitted for.
    #[serde(deserialize_with = "exact")]
    pub units: Decimal,
    /// What it has cost; none until it is settled.
    #[serde(default, deserialize_with = "exact_if_any")]
    pub actual: Option<Decimal>,
    /// The number of the attempt that it was admitted for.
    pub attempt: u32,
    /// The provider's own name for the request.
    pub provider_request_id: Option<String>,
}

/// A call, and its reservation after what was just asked about it.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct CallView {
    /// The client's own key for it.
    pub call: String,
    /// How it ended, if it has.
    pub state: CallState,
    /// What it was admitted for.
    #[serde(deserialize_with = "exact")]
    pub units: Decimal,
    /// What it has cost; none until it is settled.
    #[serde(default, deserialize_with = "exact_if_any")]
    pub actual: Option<Decimal>,
    /// The number of the attempt that it was admitted for.
    pub attempt: u32,
    /// What further calls may cost within the ceiling.
    #[serde(deserialize_with = "exact")]
    pub remaining: Decimal,
    /// The reservation's ceiling.
    #[serde(deserialize_with = "exact")]
    pub ceiling: Decimal,
    /// The reservation's state.
    pub reservation_state: ReservationState,
    /// The reservation's version.
    pub version: i64,
    /// The provider's own name for the request.
    pub provider_request_id: Option<String>,
}

/// Reads an amount from its text. A number would have gone through a float.
fn exact<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
    parse(&String::deserialize(deserializer)?)
}

fn exact_if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Decimal>, D::Error> {
    Option::<String>::deserialize(deserializer)?.as_deref().map(parse).transpose()
}

fn parse<E: serde::de::Error>(text: &str) -> Result<Decimal, E> {
    // `from_str_exact` refuses what it would have to round; the service never
    // writes an exponent.
    Decimal::from_str_exact(text).map_err(E::custom)
}
