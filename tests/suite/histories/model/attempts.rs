//! Attempts: taking over, and fencing.

use serde_json::json;

use super::job::{Job, State};
use super::units::Units;
use super::{Answer, No, Place};
use crate::histories::request::{Operation, Token};

impl Job {
    #[allow(clippy::too_many_arguments, reason = "they are the fields of the request")]
    pub fn take_over(
        &mut self,
        previous: i64,
        holder: u8,
        lease: i64,
        evidence: bool,
        outstanding: Option<Units>,
        force: bool,
        at: &Place,
    ) -> Answer {
        let mine = Token::Of(self.attempt);
        if self.attempt == previous + 1 && self.holder == holder {
            return self.ok(mine, at);
        }
        let nobodys = Token::Never;
        if self.attempt != previous {
            return self.conflict("stale_attempt", nobodys, at);
        }
        if self.state != State::Active {
            return self.conflict("not_active", nobodys, at);
        }
        if !force && !self.lease_has_run_out(at.now) {
            let until = Some(self.lease_ends - at.now);
            let no = No { retry: "after_release", retry_after: until, ..No::conflict("lease_current") };
            return self.no(no, nobodys, at);
        }
        match self.operation {
            Operation::Run if !evidence => return self.conflict("evidence_required", nobodys, at),
            Operation::Ask if outstanding.is_some() => return self.no(No::invalid("outstanding"), nobodys, at),
            // The ledger admits no further call of the earlier attempt.
            Operation::Ask => {}
            Operation::Run => {
                let everything = self.ceiling - self.settled - self.outstanding();
                let more = outstanding.map_or(everything, |spent| spent - self.attempt_settled);
                self.stated += more.or_zero();
            }
        }
        self.attempt += 1;
        self.holder = holder;
        self.lease_ends = at.now + lease;
        self.attempt_settled = Units::ZERO;
        self.attempt_in_flight = Units::ZERO;
        self.attempt_stated = Units::ZERO;
        self.attempt_done = false;
        self.changed("takeover", at);
        Answer { status: 201, ..self.ok(Token::Of(self.attempt), at) }
    }

    pub fn fence(&mut self, number: i64, evidence: bool, outstanding: Option<Units>, at: &Place) -> Answer {
        if number != self.attempt {
            return self.conflict("stale_attempt", Token::Never, at);
        }
        if self.state == State::Settled {
            return self.released(Units::ZERO, at);
        }
        match self.operation {
            Operation::Run if !evidence => return self.conflict("evidence_required", Token::Never, at),
            Operation::Ask if outstanding.is_some() => return self.no(No::invalid("outstanding"), Token::Never, at),
            _ => {}
        }
        let charged = self.charged();
        match self.state {
            State::Active | State::Cancelling => {
                if self.operation == Operation::Run {
                    let everything = (self.ceiling - self.settled - self.stated).or_zero();
                    self.attempt_stated = outstanding.unwrap_or(everything);
                    self.stated += self.attempt_stated;
                }
            }
            _ => match outstanding {
                // It can only be lowered.
                Some(less) if less < self.attempt_stated => {
                    self.stated -= self.attempt_stated - less;
                    self.attempt_stated = less;
                }
                _ => return self.released(Units::ZERO, at),
            },
        }
        self.state = State::Fenced;
        self.ceiling = self.ceiling.min(self.settled + self.outstanding());
        self.ends_if_all_is_known();
        self.changed("fence", at);
        self.released((charged - self.charged()).or_zero(), at)
    }

    fn released(&self, units: Units, at: &Place) -> Answer {
        let mut answer = self.ok(Token::Never, at);
        answer.body["released"] = json!(units.to_string());
        answer
    }
}
