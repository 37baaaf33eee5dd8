//! What answers and the database's rows show of a reservation.

use serde_json::{Map, Value, json};

use super::job::{CallState, Job, State};
use super::units::Units;
use super::{ABSENT, Answer, time};
use crate::histories::request::{ACCOUNTS, CALLS, Token, name_of, provider_request_id};

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Cancelling => "cancelling",
            Self::Fenced => "fenced",
            Self::Settled => "settled",
        }
    }
}

impl CallState {
    fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Unknown => "unknown",
            Self::NotSent => "not_sent",
            Self::Settled { .. } => "settled",
        }
    }

    fn actual(self) -> Option<String> {
        match self {
            Self::Settled { actual } => Some(actual.to_string()),
            _ => None,
        }
    }
}

impl Job {
    /// The name of its id, which only the service knows.
    pub fn id(&self) -> String {
        format!("§id of j{}", self.number)
    }

    /// The reservation as an answer shows it to who presented this.
    pub fn view(&self, token: Token, now: i64) -> Value {
        let shown = if self.is_current(token) { self.token(self.attempt) } else { ABSENT.to_owned() };
        let overdue = self.state == State::Active && self.lease_has_run_out(now);
        let budgets: Vec<Value> = self
            .budgets
            .iter()
            .map(|period| {
                json!({"budget": period.budget, "period_starts_at": time(period.starts_at),
                       "period_ends_at": time(period.ends_at)})
            })
            .collect();
        json!({
            "id": self.id(), "account": ACCOUNTS[self.number % ACCOUNTS.len()], "member": null,
            "operation": self.operation.name(), "provider": self.operation.provider(), "unit": "u",
            "state": self.state.name(),
            "estimate": self.estimate.to_string(), "ceiling": self.ceiling.to_string(),
            "settled": self.settled.to_string(), "in_flight": self.in_flight.to_string(),
            "unknown": self.unknown.to_string(), "stated_outstanding": self.stated.to_string(),
            "overrun": self.overrun().to_string(), "charged": self.charged().to_string(),
            "version": self.version,
            "attempt": {"number": self.attempt, "holder": name_of(self.holder), "token": shown,
                        "lease_expires_at": time(self.lease_ends), "overdue": overdue},
            "queue": null, "budgets": budgets, "reference": null, "labels": {},
            "created_at": time(self.created_at), "updated_at": time(self.updated_at),
            "closed_at": self.closed_at.map(time),
        })
    }

    /// The name of an attempt's token, which only the service knows.
    pub fn token(&self, attempt: i64) -> String {
        format!("§token of j{} attempt {attempt}", self.number)
    }

    /// A call as an answer shows it.
    pub fn shown(&self, key: usize, status: u16) -> Answer {
        let mut body = self.call_item(key);
        let of_the_reservation = json!({
            "remaining": self.remaining().to_string(), "ceiling": self.ceiling.to_string(),
            "reservation_state": self.state.name(), "version": self.version,
        });
        body.as_object_mut().unwrap().extend(of_the_reservation.as_object().unwrap().clone());
        Answer::new(status, body)
    }

    /// A call as lists show it.
    pub fn call_item(&self, key: usize) -> Value {
        let call = &self.calls[&key];
        json!({"call": CALLS[key], "state": call.state.name(), "units": call.units.to_string(),
               "actual": call.state.actual(), "attempt": call.attempt,
               "provider_request_id": call.provider_request.map(provider_request_id)})
    }

    /// Why it needs somebody, if it does, and how much of it for each reason.
    pub fn open_parts(&self, now: i64) -> Vec<(&'static str, Units)> {
        let earlier = if self.state == State::Fenced { Units::ZERO } else { self.stated };
        let mut parts = Vec::new();
        if self.state == State::Active && self.lease_has_run_out(now) {
            parts.push(("overdue", self.reserved()));
        }
        if self.state == State::Cancelling {
            parts.push(("cancelled", self.held() - self.unknown - earlier));
        }
        if self.unknown > Units::ZERO {
            parts.push(("unknown_calls", self.unknown));
        }
        if earlier > Units::ZERO {
            parts.push(("earlier_attempts", earlier));
        }
        if self.state == State::Fenced {
            parts.push(("fenced", self.in_flight + self.stated));
        }
        parts
    }

    /// Since when it has needed somebody.
    pub fn open_since(&self, now: i64) -> i64 {
        let overdue = self.state == State::Active && self.lease_has_run_out(now);
        let overdue_since = overdue.then_some(self.lease_ends);
        overdue_since.into_iter().chain(self.liability_since).min().unwrap_or(self.updated_at)
    }

    /// Its row.
    pub fn row(&self) -> Value {
        json!({
            "state": self.state.name(), "ceiling": self.ceiling.to_string(), "settled": self.settled.to_string(),
            "in_flight": self.in_flight.to_string(), "unknown": self.unknown.to_string(),
            "stated": self.stated.to_string(), "reserved": self.reserved().to_string(),
            "liability": self.liability().to_string(), "version": self.version, "attempt": self.attempt,
            "holder": name_of(self.holder), "attempt_settled": self.attempt_settled.to_string(),
            "attempt_in_flight": self.attempt_in_flight.to_string(),
            "attempt_stated": self.attempt_stated.to_string(), "attempt_done": self.attempt_done,
            "lease_ends": self.lease_ends, "updated_at": self.updated_at, "closed_at": self.closed_at,
        })
    }

    /// Its history, its calls and the late usage that was kept, as rows.
    pub fn rows_beside_it(&self) -> Value {
        let events: Vec<String> = self.events.iter().zip(1..).map(|(event, version)| event.line(version)).collect();
        let calls: Map<String, Value> =
            self.calls.keys().map(|key| (CALLS[*key].to_owned(), self.call_item(*key))).collect();
        let mut late: Vec<String> = self.late.iter().map(super::job::Late::line).collect();
        late.sort();
        json!({"events": events, "calls": calls, "late": late})
    }
}

impl super::job::Event {
    /// As a line, at this version.
    pub fn line(&self, version: i64) -> String {
        let Self { event, state, ceiling, settled, reserved, liability, attempt, .. } = self;
        let because = self.reason.map_or(String::new(), |reason| format!(" because {reason}"));
        let state = state.name();
        format!("{version} {event} {state} {ceiling} {settled} {reserved} {liability} attempt {attempt}{because}")
    }
}

impl super::job::Late {
    pub fn line(&self) -> String {
        let call = self.call.map_or("-", |call| CALLS[call]);
        let provider_request = self.provider_request.map_or("-".to_owned(), provider_request_id);
        format!("attempt {} call {call} {} {} {provider_request}", self.attempt, self.units, self.refused_as)
    }
}
