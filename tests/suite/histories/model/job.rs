//! One reservation: its state, and the verbs that concern it alone.

use std::collections::BTreeMap;

use serde_json::json;

use super::units::Units;
use super::{Answer, No, Place, Room};
use crate::histories::request::{Operation, Request, Role, Token, Verb, WHY_CANCELLED};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Active,
    Cancelling,
    Fenced,
    Settled,
}

/// A call that was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub state: CallState,
    /// What it was admitted for.
    pub units: Units,
    /// The attempt that admitted it.
    pub attempt: i64,
    pub provider_request: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallState {
    InFlight,
    Unknown,
    NotSent,
    Settled { actual: Units },
}

/// Usage that was refused and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    pub attempt: i64,
    pub call: Option<usize>,
    pub units: Units,
    pub refused_as: &'static str,
    pub provider_request: Option<u8>,
}

/// What became of the reservation at one of its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub event: &'static str,
    pub state: State,
    pub ceiling: Units,
    pub settled: Units,
    pub reserved: Units,
    pub liability: Units,
    pub attempt: i64,
    /// Why, where somebody had to say.
    pub reason: Option<&'static str>,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub number: usize,
    pub operation: Operation,
    pub estimate: Units,
    pub state: State,
    pub ceiling: Units,
    pub settled: Units,
    pub in_flight: Units,
    pub unknown: Units,
    /// What earlier or stopped attempts may have spent, as it was stated.
    pub stated: Units,
    /// The current attempt's number, holder and lease.
    pub attempt: i64,
    pub holder: u8,
    pub lease_ends: i64,
    /// What the current attempt has reported, has in flight, and may have spent
    /// as stated when it was fenced.
    pub attempt_settled: Units,
    pub attempt_in_flight: Units,
    pub attempt_stated: Units,
    /// Whether it has settled for good.
    pub attempt_done: bool,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub closed_at: Option<i64>,
    /// Since when something has been in liability; never, if nothing is.
    pub liability_since: Option<i64>,
    pub calls: BTreeMap<usize, Call>,
    pub late: Vec<Late>,
    /// The budgets it is charged to, as they were when it was admitted; only
    /// their names and bounds are used.
    pub budgets: Vec<Room>,
    /// One for each version.
    pub events: Vec<Event>,
}

impl Job {
    /// One that has just been admitted.
    pub fn new(number: usize, operation: Operation, units: Units, holder: u8, lease: i64, at: &Place) -> Self {
        let zero = Units::ZERO;
        let mut job = Self {
            number,
            operation,
            estimate: units,
            state: State::Active,
            ceiling: units,
            settled: zero,
            in_flight: zero,
            unknown: zero,
            stated: zero,
            attempt: 1,
            holder,
            lease_ends: at.now + lease,
            attempt_settled: zero,
            attempt_in_flight: zero,
            attempt_stated: zero,
            attempt_done: false,
            version: 0,
            created_at: at.now,
            updated_at: at.now,
            closed_at: None,
            liability_since: None,
            calls: BTreeMap::new(),
            late: Vec::new(),
            budgets: at.rooms.clone(),
            events: Vec::new(),
        };
        job.changed("reserve", at);
        job
    }

    /// What may have been spent and is not known yet.
    pub fn outstanding(&self) -> Units {
        self.in_flight + self.unknown + self.stated
    }

    /// reserved + liability.
    pub fn held(&self) -> Units {
        match self.state {
            State::Active | State::Cancelling => (self.ceiling - self.settled).max(self.outstanding()),
            State::Fenced => self.outstanding(),
            State::Settled => Units::ZERO,
        }
    }

    pub fn liability(&self) -> Units {
        match self.state {
            State::Active => self.unknown + self.stated,
            State::Cancelling | State::Fenced => self.held(),
            State::Settled => Units::ZERO,
        }
    }

    pub fn reserved(&self) -> Units {
        self.held() - self.liability()
    }

    pub fn charged(&self) -> Units {
        self.settled + self.held()
    }

    pub fn overrun(&self) -> Units {
        (self.charged() - self.ceiling).or_zero()
    }

    /// Room for another call.
    pub fn remaining(&self) -> Units {
        (self.ceiling - self.settled - self.outstanding()).or_zero()
    }

    pub fn lease_has_run_out(&self, now: i64) -> bool {
        self.lease_ends <= now
    }

    /// Answers a verb, and does what it does.
    pub fn act(&mut self, request: &Request, at: &Place) -> Answer {
        match request.verb {
            Verb::Reserve { .. } => panic!("reserving is not a verb on a reservation"),
            Verb::Renew { attempt, lease } => self.renew(attempt, lease, at),
            Verb::Extend { attempt, ceiling } => self.extend(attempt, ceiling, at),
            Verb::TakeOver { previous, holder, lease, evidence, outstanding, force } => {
                let force = match (force, request.by) {
                    (true, Role::Operator) => true,
                    (true, _) => return No::because(403, "forbidden", json!({})).answer(None),
                    (false, _) => false,
                };
                self.take_over(previous, holder, lease, evidence, outstanding, force, at)
            }
            Verb::Admit { attempt, call, units, extend } => self.admit(attempt, call, units, extend, at),
            Verb::SettleCall { attempt, call, units, provider_request } => {
                self.settle_call(attempt, call, units, provider_request, at)
            }
            Verb::NotSent { attempt, call } => self.not_sent(attempt, call, at),
            Verb::Unknown { attempt, call } => self.call_unknown(attempt, call, at),
            Verb::CloseCall { call, units } => self.close_call(call, units, at),
            Verb::Settle { attempt, units, finally } => self.settle(attempt, units, finally, at),
            Verb::Close { units } => self.close(units, at),
            Verb::Cancel => self.cancel(at),
            Verb::Fence { number, evidence, outstanding } => self.fence(number, evidence, outstanding, at),
            Verb::Look => Answer::new(200, self.view(Token::Never, at.now)),
        }
    }

    pub fn is_current(&self, token: Token) -> bool {
        token == Token::Of(self.attempt)
    }

    /// The reservation as it is, to who presented this.
    pub fn ok(&self, token: Token, at: &Place) -> Answer {
        Answer::new(200, self.view(token, at.now))
    }

    /// A refusal that shows the reservation as it is.
    pub fn no(&self, no: No, token: Token, at: &Place) -> Answer {
        no.answer(Some(self.view(token, at.now)))
    }

    pub fn conflict(&self, code: &'static str, token: Token, at: &Place) -> Answer {
        self.no(No::conflict(code), token, at)
    }

    /// Another version. Everything that it changes has been changed.
    pub fn changed(&mut self, event: &'static str, at: &Place) {
        self.changed_because(event, None, at);
    }

    pub fn changed_because(&mut self, event: &'static str, reason: Option<&'static str>, at: &Place) {
        self.version += 1;
        self.updated_at = at.now;
        self.closed_at = (self.state == State::Settled).then_some(at.now);
        let began = self.liability_since.unwrap_or(at.now);
        self.liability_since = (self.liability() > Units::ZERO).then_some(began);
        self.events.push(Event {
            event,
            state: self.state,
            ceiling: self.ceiling,
            settled: self.settled,
            reserved: self.reserved(),
            liability: self.liability(),
            attempt: self.attempt,
            reason,
        });
    }

    /// A fenced reservation ends by itself when nothing is outstanding.
    pub fn ends_if_all_is_known(&mut self) {
        if self.state == State::Fenced && self.outstanding() == Units::ZERO {
            self.state = State::Settled;
        }
    }

    /// What must be true of every reservation, whatever happened: a fault here is
    /// one of the model.
    pub fn holds_together(&self) {
        let calls_in = |state: CallState| -> Units {
            let in_it = self.calls.values().filter(|call| call.state == state);
            in_it.map(|call| call.units).sum()
        };
        assert!(self.attempt_settled <= self.settled && self.attempt_stated <= self.stated, "{self:?}");
        assert!(self.reserved().min(self.liability()) >= Units::ZERO, "{self:?}");
        assert_eq!(self.events.len(), usize::try_from(self.version).unwrap(), "{self:?}");
        if self.state == State::Settled {
            assert_eq!(self.outstanding(), Units::ZERO, "{self:?}");
        } else {
            assert_eq!(self.in_flight, calls_in(CallState::InFlight), "{self:?}");
            assert_eq!(self.unknown, calls_in(CallState::Unknown), "{self:?}");
        }
    }

    /// Keeps refused usage, once.
    pub fn keep_late(&mut self, late: Late) {
        let same = |kept: &Late| (kept.attempt, kept.call, kept.units) == (late.attempt, late.call, late.units);
        if !self.late.iter().any(same) {
            self.late.push(late);
        }
    }

    fn renew(&mut self, token: Token, lease: i64, at: &Place) -> Answer {
        if !self.is_current(token) {
            return self.conflict("stale_attempt", token, at);
        }
        if self.state == State::Active {
            self.lease_ends = at.now + lease;
        }
        self.ok(token, at)
    }

    fn extend(&mut self, token: Token, ceiling: Units, at: &Place) -> Answer {
        if !self.is_current(token) {
            return self.conflict("stale_attempt", token, at);
        }
        if self.state != State::Active {
            return self.conflict("not_active", token, at);
        }
        if ceiling <= self.ceiling {
            return self.ok(token, at);
        }
        if let Err(no) = self.may_be_raised_to(ceiling, at) {
            return self.no(*no, token, at);
        }
        self.ceiling = ceiling;
        self.changed("extend", at);
        self.ok(token, at)
    }

    /// Whether the policy and all budgets allow this ceiling.
    pub fn may_be_raised_to(&self, ceiling: Units, at: &Place) -> Result<(), Box<No>> {
        if at.retired {
            return Err(Box::new(No::because(422, "unknown_operation", json!({}))));
        }
        at.could_ever_admit(ceiling)?;
        let more = (ceiling - self.settled).max(self.outstanding()) - self.held();
        // Its own periods: no time is named, and their end brings nothing.
        at.admits(more).map_err(|mut no| {
            no.retry = if no.retry == "after_release" { "after_release" } else { "never" };
            no.retry_after = None;
            no
        })
    }

    fn cancel(&mut self, at: &Place) -> Answer {
        if self.state == State::Active {
            self.state = State::Cancelling;
            self.changed_because("cancel", Some(WHY_CANCELLED), at);
        }
        self.ok(Token::Never, at)
    }
}
