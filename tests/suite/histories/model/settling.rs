//! Settling a reservation: by its attempt, or by finance.

use serde_json::json;

use super::job::{Job, Late, State};
use super::units::Units;
use super::{Answer, No, Place};
use crate::histories::request::{Operation, Token, WHY_CLOSED};

impl Job {
    pub fn settle(&mut self, token: Token, stated: Option<Units>, finally: Option<bool>, at: &Place) -> Answer {
        let finally = finally.unwrap_or(true);
        if !self.is_current(token) {
            self.keep_late_total(token, stated, "stale_attempt");
            return self.conflict("stale_attempt", token, at);
        }
        let units = match (stated, self.operation) {
            (Some(units), _) => units,
            (None, Operation::Ask) => self.attempt_settled,
            (None, Operation::Run) => return self.no(No::invalid("units"), token, at),
        };
        if self.state == State::Settled || self.attempt_done {
            if units == self.attempt_settled {
                return self.ok(token, at);
            }
            self.keep_late_total(token, stated, "already_settled");
            return self.already_settled(token, at);
        }
        if !finally && self.operation == Operation::Ask {
            return self.no(No::invalid("final"), token, at);
        }
        if units < self.attempt_settled {
            return self.conflict("usage_decreases", token, at);
        }
        if !finally && units == self.attempt_settled {
            return self.ok(token, at);
        }
        if finally && self.attempt_in_flight > Units::ZERO {
            return self.conflict("calls_in_flight", token, at);
        }
        let more = units - self.attempt_settled;
        self.settled += more;
        self.attempt_settled = units;
        // What the attempt was thought to have spent beyond this.
        let still_stated = if finally { Units::ZERO } else { (self.attempt_stated - more).or_zero() };
        self.stated -= self.attempt_stated - still_stated;
        self.attempt_stated = still_stated;
        if finally {
            self.attempt_done = true;
            self.state = State::Fenced;
        }
        self.ends_if_all_is_known();
        self.changed(if finally { "final_settlement" } else { "progressive_settlement" }, at);
        self.ok(token, at)
    }

    /// Finance knows what the whole reservation came to.
    pub fn close(&mut self, units: Units, at: &Place) -> Answer {
        if self.state == State::Settled {
            if units == self.settled {
                return self.ok(Token::Never, at);
            }
            return self.already_settled(Token::Never, at);
        }
        if units < self.settled {
            return self.conflict("usage_decreases", Token::Never, at);
        }
        self.settled = units;
        self.in_flight = Units::ZERO;
        self.unknown = Units::ZERO;
        self.stated = Units::ZERO;
        self.attempt_in_flight = Units::ZERO;
        self.attempt_stated = Units::ZERO;
        self.state = State::Settled;
        self.changed_because("finance_settlement", Some(WHY_CLOSED), at);
        self.ok(Token::Never, at)
    }

    fn already_settled(&self, token: Token, at: &Place) -> Answer {
        let members = json!({"settled": self.settled.to_string()});
        self.no(No::because(409, "already_settled", members), token, at)
    }

    fn keep_late_total(&mut self, token: Token, stated: Option<Units>, refused_as: &'static str) {
        if let (Token::Of(attempt), Some(units)) = (token, stated) {
            self.keep_late(Late { attempt, call: None, units, refused_as, provider_request: None });
        }
    }
}
