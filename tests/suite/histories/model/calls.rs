//! Calls: admitted before they are sent, and ended once.

use serde_json::json;

use super::job::{Call, CallState, Job, Late, State};
use super::units::Units;
use super::{Answer, No, Place};
use crate::histories::request::{Operation, Token, WHY_CLOSED};

impl Job {
    pub fn admit(&mut self, token: Token, key: usize, units: Units, extend: bool, at: &Place) -> Answer {
        if !self.is_current(token) {
            return self.conflict("stale_attempt", token, at);
        }
        if let Some(call) = self.calls.get(&key) {
            return match (call.attempt == self.attempt, call.units == units) {
                (true, true) => self.shown(key, 200),
                (true, false) => self.no(No::because(422, "idempotency_key_reused", json!({})), token, at),
                (false, _) => self.conflict("call_key_taken", token, at),
            };
        }
        if self.state != State::Active {
            return self.conflict("not_active", token, at);
        }
        if self.operation == Operation::Run {
            return self.no(No::invalid("call"), token, at);
        }
        let ceiling = self.settled + self.outstanding() + units;
        if ceiling > self.ceiling {
            if !extend {
                let members = json!({"ceiling": self.ceiling.to_string(), "remaining": self.remaining().to_string()});
                return self.no(No::because(409, "ceiling_reached", members), token, at);
            }
            if let Err(no) = self.may_be_raised_to(ceiling, at) {
                return self.no(*no, token, at);
            }
            self.ceiling = ceiling;
        }
        self.in_flight += units;
        self.attempt_in_flight += units;
        let call = Call { state: CallState::InFlight, units, attempt: self.attempt, provider_request: None };
        self.calls.insert(key, call);
        self.changed("call_admitted", at);
        self.shown(key, 201)
    }

    pub fn settle_call(
        &mut self,
        token: Token,
        key: usize,
        actual: Units,
        provider_request: Option<u8>,
        at: &Place,
    ) -> Answer {
        let Some(call) = self.calls.get(&key).cloned() else {
            return self.no_such_call(token, at);
        };
        let refused_as = if token != Token::Of(call.attempt) {
            "stale_attempt"
        } else if call.state == (CallState::Settled { actual }) {
            return self.shown(key, 200);
        } else if matches!(call.state, CallState::Settled { .. } | CallState::NotSent) {
            "call_already_settled"
        } else if self.state == State::Settled {
            "already_settled"
        } else {
            self.record(key, actual, provider_request);
            self.changed("call_settled", at);
            return self.shown(key, 200);
        };
        if let Token::Of(attempt) = token {
            self.keep_late(Late { attempt, call: Some(key), units: actual, refused_as, provider_request });
        }
        self.refused_settlement(refused_as, &call, token, at)
    }

    /// Finance knows what a call came to.
    pub fn close_call(&mut self, key: usize, actual: Units, at: &Place) -> Answer {
        let Some(call) = self.calls.get(&key).cloned() else {
            return self.no_such_call(Token::Never, at);
        };
        if call.state == (CallState::Settled { actual }) {
            return self.shown(key, 200);
        }
        if matches!(call.state, CallState::Settled { .. } | CallState::NotSent) {
            return self.refused_settlement("call_already_settled", &call, Token::Never, at);
        }
        if self.state == State::Settled {
            return self.refused_settlement("already_settled", &call, Token::Never, at);
        }
        self.record(key, actual, None);
        self.changed_because("call_settled", Some(WHY_CLOSED), at);
        self.shown(key, 200)
    }

    pub fn not_sent(&mut self, token: Token, key: usize, at: &Place) -> Answer {
        let Some(call) = self.calls.get(&key).cloned() else {
            return self.no_such_call(token, at);
        };
        if token != Token::Of(call.attempt) || !self.is_current(token) {
            return self.conflict("stale_attempt", token, at);
        }
        match call.state {
            CallState::NotSent => return self.shown(key, 200),
            CallState::Settled { .. } | CallState::Unknown => {
                return self.refused_settlement("call_already_settled", &call, token, at);
            }
            CallState::InFlight if self.state == State::Settled => {
                return self.refused_settlement("already_settled", &call, token, at);
            }
            CallState::InFlight => {}
        }
        self.end_flight(&call);
        self.calls.get_mut(&key).unwrap().state = CallState::NotSent;
        self.ends_if_all_is_known();
        self.changed("call_not_sent", at);
        self.shown(key, 200)
    }

    pub fn call_unknown(&mut self, token: Option<Token>, key: usize, at: &Place) -> Answer {
        let presented = token.unwrap_or(Token::Never);
        let Some(call) = self.calls.get(&key).cloned() else {
            return self.no_such_call(presented, at);
        };
        if token.is_some_and(|token| token != Token::Of(call.attempt)) {
            return self.conflict("stale_attempt", presented, at);
        }
        match call.state {
            CallState::Unknown => return self.shown(key, 200),
            CallState::Settled { .. } | CallState::NotSent => {
                return self.refused_settlement("call_already_settled", &call, presented, at);
            }
            CallState::InFlight if self.state == State::Settled => {
                return self.refused_settlement("already_settled", &call, presented, at);
            }
            CallState::InFlight => {}
        }
        self.end_flight(&call);
        self.unknown += call.units;
        self.calls.get_mut(&key).unwrap().state = CallState::Unknown;
        self.changed("call_unknown", at);
        self.shown(key, 200)
    }

    /// The call's usage takes the place of what it was admitted for.
    fn record(&mut self, key: usize, actual: Units, provider_request: Option<u8>) {
        let call = self.calls[&key].clone();
        match call.state {
            CallState::Unknown => self.unknown -= call.units,
            _ => self.end_flight(&call),
        }
        self.settled += actual;
        if call.attempt == self.attempt && !self.attempt_done {
            self.attempt_settled += actual;
        }
        let provider_request = provider_request.or(call.provider_request);
        let settled = Call { state: CallState::Settled { actual }, provider_request, ..call };
        self.calls.insert(key, settled);
        self.ends_if_all_is_known();
    }

    fn end_flight(&mut self, call: &Call) {
        self.in_flight -= call.units;
        if call.attempt == self.attempt {
            self.attempt_in_flight -= call.units;
        }
    }

    fn no_such_call(&self, token: Token, at: &Place) -> Answer {
        self.no(No::because(404, "not_found", json!({})), token, at)
    }

    /// A refused settlement of a call says what was recorded.
    fn refused_settlement(&self, code: &'static str, call: &Call, token: Token, at: &Place) -> Answer {
        let settled = match (code, call.state) {
            ("already_settled", _) => json!({"settled": self.settled.to_string()}),
            ("call_already_settled", CallState::Settled { actual }) => json!({"settled": actual.to_string()}),
            ("call_already_settled", CallState::NotSent) => json!({"settled": "0"}),
            _ => json!({}),
        };
        self.no(No::because(409, code, settled), token, at)
    }
}
