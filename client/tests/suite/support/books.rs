//! The rules of the fake service, in whole units.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// What the service decided.
pub struct Answer {
    pub status: u16,
    pub replayed: bool,
    pub body: Value,
}

impl Answer {
    pub fn ok(status: u16, body: Value) -> Self {
        Self { status, replayed: false, body }
    }

    pub fn problem(status: u16, code: &str, reservation: Option<Value>) -> Self {
        let retry = match status {
            503 => "transient",
            429 => "after_reset",
            _ => "never",
        };
        let mut body = json!({ "code": code, "detail": "as the test asked", "retry": retry });
        if let Some(reservation) = reservation {
            body["reservation"] = reservation;
        }
        Self::ok(status, body)
    }
}

/// Everything the service knows.
pub struct Books {
    pub limit: u64,
    pub worker_enforcement: bool,
    pub reservations: BTreeMap<String, Reservation>,
}

impl Default for Books {
    fn default() -> Self {
        Self { limit: 1000, worker_enforcement: false, reservations: BTreeMap::new() }
    }
}

pub struct Reservation {
    request: Value,
    pub state: &'static str,
    pub ceiling: u64,
    pub settled: u64,
    pub number: u64,
    pub holder: String,
    pub lease_out: bool,
    attempt_settled: u64,
    pub calls: BTreeMap<String, Call>,
    version: u64,
}

#[derive(Clone)]
pub struct Call {
    pub state: &'static str,
    pub units: u64,
    pub actual: Option<u64>,
    attempt: u64,
}

impl Reservation {
    fn sum(&self, state: &str) -> u64 {
        self.calls.values().filter(|call| call.state == state).map(|call| call.units).sum()
    }

    fn outstanding(&self) -> u64 {
        self.sum("in_flight") + self.sum("unknown")
    }

    pub fn charged(&self) -> u64 {
        let held = match self.state {
            "settled" => 0,
            "fenced" => self.outstanding(),
            _ => self.ceiling.saturating_sub(self.settled).max(self.outstanding()),
        };
        self.settled + held
    }

    fn token(&self) -> String {
        format!("{}.secret", self.number)
    }
}

fn amount(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

impl Books {
    pub fn only(&mut self) -> &mut Reservation {
        assert_eq!(self.reservations.len(), 1);
        self.reservations.values_mut().next().unwrap()
    }

    pub fn call_state(&self, call: &str) -> Option<String> {
        self.reservations.values().find_map(|it| it.calls.get(call)).map(|call| call.state.to_owned())
    }

    fn available(&self) -> u64 {
        self.limit.saturating_sub(self.reservations.values().map(Reservation::charged).sum())
    }

    pub fn show(&self, id: &str, presented: Option<&str>) -> Value {
        let it = &self.reservations[id];
        let mut attempt = json!({ "number": it.number, "holder": it.holder, "overdue": it.lease_out,
            "lease_expires_at": "2024-01-01T00:00:00Z" });
        if presented == Some(it.token().as_str()) {
            attempt["token"] = json!(it.token());
        }
        json!({
            "id": id, "account": "northstar", "member": null, "operation": "bulk", "provider": "transformer",
            "enforcement": if self.worker_enforcement { "worker" } else { "calls" },
            "unit": "transformation", "state": it.state, "estimate": it.ceiling.to_string(),
            "ceiling": it.ceiling.to_string(), "settled": it.settled.to_string(),
            "in_flight": it.sum("in_flight").to_string(), "unknown": it.sum("unknown").to_string(),
            "stated_outstanding": "0", "overrun": "0", "charged": it.charged().to_string(),
            "version": it.version, "attempt": attempt, "reference": null, "labels": {},
        })
    }

    pub fn reserve(&mut self, key: &str, body: &Value) -> Answer {
        let mut request = body.clone();
        let holder = request["holder"].as_str().unwrap().to_owned();
        for free in ["holder", "lease_seconds", "account"] {
            request.as_object_mut().unwrap().remove(free);
        }
        let id = format!("id-{key}");
        if let Some(it) = self.reservations.get(&id) {
            if it.request != request {
                return Answer::problem(422, "idempotency_key_reused", None);
            }
            let token = (it.holder == holder).then(|| it.token());
            return Answer { replayed: true, ..Answer::ok(200, self.show(&id, token.as_deref())) };
        }
        let units = amount(&request["units"]).unwrap_or(36);
        if units > self.available() {
            return Answer::problem(429, "budget_exhausted", None);
        }
        let it = Reservation {
            request,
            state: "active",
            ceiling: units,
            settled: 0,
            number: 1,
            holder,
            lease_out: false,
            attempt_settled: 0,
            calls: BTreeMap::new(),
            version: 1,
        };
        let token = it.token();
        self.reservations.insert(id.clone(), it);
        Answer::ok(201, self.show(&id, Some(&token)))
    }

    pub fn act(&mut self, id: &str, verb: &str, body: &Value) -> Answer {
        let token = body["attempt"].as_str().map(str::to_owned);
        let current = token == Some(self.reservations[id].token());
        if !current && matches!(verb, "renew" | "extend" | "calls" | "settle") {
            return Answer::problem(409, "stale_attempt", Some(self.show(id, None)));
        }
        let refused =
            |books: &Self, status, code| Answer::problem(status, code, Some(books.show(id, token.as_deref())));
        let available = self.available();
        let worker = self.worker_enforcement;
        let it = self.reservations.get_mut(id).unwrap();
        match verb {
            "renew" => it.lease_out = false,
            "cancel" if it.state == "active" => {
                it.state = "cancelling";
                it.version += 1;
            }
            "cancel" => {}
            "extend" => {
                let more = amount(&body["ceiling"]).unwrap().saturating_sub(it.ceiling);
                if it.state != "active" {
                    return refused(self, 409, "not_active");
                }
                if more > available {
                    return refused(self, 429, "budget_exhausted");
                }
                it.ceiling += more;
                it.version += 1;
            }
            "settle" => {
                let in_flight = it.calls.values().any(|call| call.state == "in_flight" && call.attempt == it.number);
                let units = amount(&body["units"]).unwrap_or(it.attempt_settled);
                if it.state == "settled" && units != it.attempt_settled {
                    return refused(self, 409, "already_settled");
                }
                if units < it.attempt_settled {
                    return refused(self, 409, "usage_decreases");
                }
                if in_flight {
                    return refused(self, 409, "calls_in_flight");
                }
                it.settled += units - it.attempt_settled;
                it.attempt_settled = units;
                it.version += 1;
                if body["final"] != false {
                    it.state = if it.outstanding() == 0 { "settled" } else { "fenced" };
                }
            }
            "attempts" => return self.take_over(id, body),
            "calls" if worker => return refused(self, 400, "invalid_request"),
            "calls" => return self.admit(id, body),
            _ => return Answer::problem(404, "not_found", None),
        }
        Answer::ok(200, self.show(id, token.as_deref()))
    }

    fn take_over(&mut self, id: &str, body: &Value) -> Answer {
        let it = self.reservations.get_mut(id).unwrap();
        let (previous, holder) = (body["previous"].as_u64().unwrap(), body["holder"].as_str().unwrap());
        if it.number == previous + 1 && it.holder == holder {
            let token = it.token();
            return Answer::ok(200, self.show(id, Some(&token)));
        }
        let code = if it.number != previous {
            "stale_attempt"
        } else if it.state != "active" {
            "not_active"
        } else if !it.lease_out {
            "lease_current"
        } else if self.worker_enforcement && body["evidence"].is_null() {
            "evidence_required"
        } else {
            it.number += 1;
            it.holder = holder.to_owned();
            it.lease_out = false;
            it.attempt_settled = 0;
            it.version += 1;
            let token = it.token();
            return Answer::ok(201, self.show(id, Some(&token)));
        };
        Answer::problem(409, code, Some(self.show(id, None)))
    }

    fn admit(&mut self, id: &str, body: &Value) -> Answer {
        let (key, available) = (body["call"].as_str().unwrap(), self.available());
        let it = self.reservations.get_mut(id).unwrap();
        let units = amount(&body["units"]).unwrap_or(6);
        if let Some(call) = it.calls.get(key) {
            let (status, code) = match (call.attempt == it.number, call.units == units) {
                (true, true) => return Answer::ok(200, self.show_call(id, key)),
                (true, false) => (422, "idempotency_key_reused"),
                (false, _) => (409, "call_key_taken"),
            };
            return Answer::problem(status, code, Some(self.show(id, body["attempt"].as_str())));
        }
        let needed = it.settled + it.outstanding() + units;
        let (status, code) = if it.state != "active" {
            (409, "not_active")
        } else if needed > it.ceiling && body["extend"] != true {
            (409, "ceiling_reached")
        } else if needed.saturating_sub(it.ceiling) > available {
            (429, "budget_exhausted")
        } else {
            it.ceiling = it.ceiling.max(needed);
            it.version += 1;
            let call = Call { state: "in_flight", units, actual: None, attempt: it.number };
            it.calls.insert(key.to_owned(), call);
            return Answer::ok(201, self.show_call(id, key));
        };
        let remaining = it.ceiling.saturating_sub(it.settled + it.outstanding());
        let mut answer = Answer::problem(status, code, Some(self.show(id, body["attempt"].as_str())));
        answer.body["remaining"] = json!(remaining.to_string());
        answer
    }

    pub fn settle_call(&mut self, id: &str, key: &str, body: &Value) -> Answer {
        let token = body["attempt"].as_str();
        let shown = self.show(id, token);
        let refused = |status, code| Answer::problem(status, code, Some(shown.clone()));
        let it = self.reservations.get_mut(id).unwrap();
        let (number, settled) = (it.number, it.state == "settled");
        let Some(call) = it.calls.get_mut(key) else { return refused(404, "not_found") };
        if token.is_some_and(|token| token != format!("{}.secret", call.attempt)) {
            return refused(409, "stale_attempt");
        }
        let actual = amount(&body["units"]);
        let (outcome, done) = match body["outcome"].as_str() {
            Some("not_sent") if call.attempt != number => return refused(409, "stale_attempt"),
            Some("not_sent") => ("not_sent", call.state == "not_sent"),
            Some(_) => ("unknown", call.state == "unknown"),
            None if actual.is_none() => return refused(400, "invalid_request"),
            None => ("settled", call.state == "settled" && call.actual == actual),
        };
        if !done {
            match (call.state, outcome) {
                ("settled" | "not_sent", _) | ("unknown", "not_sent") => return refused(409, "call_already_settled"),
                _ if settled => return refused(409, "already_settled"),
                _ => {}
            }
            call.state = outcome;
            call.actual = actual;
            let own = call.attempt == number;
            it.settled += actual.unwrap_or(0);
            it.attempt_settled += if own { actual.unwrap_or(0) } else { 0 };
            it.version += 1;
            if it.state == "fenced" && it.outstanding() == 0 {
                it.state = "settled";
            }
        }
        Answer::ok(200, self.show_call(id, key))
    }

    /// The calls in this state, two on a page.
    pub fn list(&self, id: &str, query: &BTreeMap<String, String>) -> Answer {
        let it = &self.reservations[id];
        let state = query.get("state");
        let calls: Vec<&String> =
            it.calls.keys().filter(|key| state.is_none_or(|s| it.calls[*key].state == s)).collect();
        let from: usize = query.get("cursor").map_or(0, |cursor| cursor.parse().unwrap());
        let items: Vec<Value> = calls.iter().skip(from).take(2).map(|key| self.show_call(id, key)).collect();
        let next = (from + 2 < calls.len()).then(|| (from + 2).to_string());
        Answer::ok(200, json!({ "items": items, "next_cursor": next }))
    }

    fn show_call(&self, id: &str, key: &str) -> Value {
        let it = &self.reservations[id];
        let call = &it.calls[key];
        let remaining = it.ceiling.saturating_sub(it.settled + it.outstanding());
        json!({
            "call": key, "state": call.state, "units": call.units.to_string(),
            "actual": call.actual.map(|actual| actual.to_string()), "attempt": call.attempt,
            "remaining": remaining.to_string(), "ceiling": it.ceiling.to_string(),
            "reservation_state": it.state, "version": it.version, "provider_request_id": null,
        })
    }
}
