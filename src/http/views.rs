//! What answers look like.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::model::reservation::{ChargedPeriod, Event, Reservation, State};

/// A reservation as it is now. Amounts are exact decimals.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct ReservationView {
    /// Its id.
    id: Uuid,
    /// Whose spending it is.
    account: String,
    /// The member it was made for.
    #[schema(required)]
    member: Option<String>,
    /// The kind of work.
    operation: String,
    /// Where it spends.
    provider: String,
    /// Who can stop its worker: `calls` (the ledger admits each call), `worker`.
    #[schema(example = "calls")]
    enforcement: &'static str,
    /// What the amounts count.
    unit: String,
    /// Where it is in its life.
    state: State,
    /// What it was admitted with.
    #[schema(example = "36")]
    estimate: String,
    /// The most that the job may spend before it asks for more.
    #[schema(example = "36")]
    ceiling: String,
    /// Actual usage so far.
    #[schema(example = "0")]
    settled: String,
    /// Calls admitted and not ended.
    in_flight: String,
    /// Calls with unknown outcome.
    unknown: String,
    /// What an earlier or stopped attempt may have spent.
    stated_outstanding: String,
    /// What is charged above the ceiling.
    overrun: String,
    /// What it takes from its budgets right now: settled + reserved + liability.
    charged: String,
    /// Rises by one with each change.
    version: i64,
    /// The current attempt; null if none was ever issued.
    #[schema(required)]
    attempt: Option<AttemptView>,
    /// Its place in the queue; null unless it waits.
    #[schema(required)]
    queue: Option<QueueView>,
    /// The budget periods that it is charged to.
    budgets: Vec<ChargedPeriod>,
    /// The client's own name for the job.
    #[schema(required)]
    reference: Option<String>,
    /// The client's own labels.
    labels: BTreeMap<String, String>,
    /// When it was admitted.
    created_at: DateTime<Utc>,
    /// When it last changed.
    updated_at: DateTime<Utc>,
    /// When it ended; null while it is open.
    #[schema(required)]
    closed_at: Option<DateTime<Utc>>,
}

/// The current attempt at a reservation's job.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct AttemptView {
    /// The fencing token's number.
    number: i32,
    /// The process that owns it.
    holder: String,
    /// What the holder sends as `attempt`; only in the answer to the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// When the holder is overdue.
    lease_expires_at: DateTime<Utc>,
    /// Whether the lease had run out.
    overdue: bool,
}

/// A place in the queue.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct QueueView {
    /// How many are before it.
    position: i64,
    /// When it stops waiting.
    expires_at: DateTime<Utc>,
}

impl From<Reservation> for ReservationView {
    fn from(reservation: Reservation) -> Self {
        let overdue = reservation.overdue();
        let Reservation { record, budgets, .. } = reservation;
        let (charged, overrun) = (record.charged(), record.overrun());
        let attempt = match (record.attempt_number, record.attempt_holder, record.lease_expires_at) {
            (Some(number), Some(holder), Some(lease_expires_at)) => {
                Some(AttemptView { number, holder, token: record.attempt_token, lease_expires_at, overdue })
            }
            _ => None,
        };
        Self {
            id: record.id,
            account: record.account.to_string(),
            member: record.member.map(|name| name.to_string()),
            operation: record.operation.to_string(),
            provider: record.provider.to_string(),
            enforcement: record.enforcement.as_str(),
            unit: record.unit.to_string(),
            state: record.state,
            estimate: record.estimate.to_string(),
            ceiling: record.ceiling.to_string(),
            settled: record.settled.to_string(),
            in_flight: record.in_flight.to_string(),
            unknown: record.unknown.to_string(),
            stated_outstanding: record.stated_outstanding.to_string(),
            overrun: overrun.to_string(),
            charged: charged.to_string(),
            version: record.version,
            attempt,
            queue: None,
            budgets,
            reference: record.reference,
            labels: record.labels,
            created_at: record.created_at,
            updated_at: record.updated_at,
            closed_at: record.closed_at,
        }
    }
}

/// A reservation and, if it was asked for, its history.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReservationWithEvents {
    #[serde(flatten)]
    pub reservation: ReservationView,
    /// One line for each version, oldest first (`?events=true`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<EventView>>,
}

/// One line of a reservation's history.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventView {
    /// The version that this change made.
    version: i64,
    /// What happened.
    #[schema(example = "reserve")]
    event: String,
    /// When.
    at: DateTime<Utc>,
    /// Who asked.
    actor: String,
    /// The state after it.
    state: State,
    /// The ceiling after it.
    ceiling: String,
    /// Actual usage after it.
    settled: String,
    /// Reserved after it.
    reserved: String,
    /// In liability after it.
    liability: String,
    /// The attempt that was current after it.
    #[schema(required)]
    attempt: Option<i32>,
    /// What else was said with it: the call, the evidence, the reason.
    #[schema(value_type = Object)]
    detail: serde_json::Value,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            version: event.version,
            event: event.event,
            at: event.at,
            actor: event.actor,
            state: event.state,
            ceiling: event.ceiling.to_string(),
            settled: event.settled.to_string(),
            reserved: event.reserved.to_string(),
            liability: event.liability.to_string(),
            attempt: event.attempt_number,
            detail: event.detail,
        }
    }
}
