//! What can be done to one reservation.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Client};

/// The idempotency key of the reservation that all verbs are about.
pub const JOB: &str = "job";

/// Who sends it.
#[derive(Debug, Clone, Copy)]
pub enum By {
    Worker,
    Operator,
    Finance,
}

/// One request about the reservation.
#[derive(Debug, Clone)]
pub struct Verb {
    pub name: &'static str,
    by: By,
    /// After the reservation's path; none of a repeat of its admission.
    path: Option<String>,
    body: Value,
}

/// Clients of each role at one process of the service.
#[derive(Debug, Clone)]
pub struct Clients {
    pub worker: Client,
    pub operator: Client,
    pub finance: Client,
}

impl Verb {
    pub async fn send(self, clients: Clients, account: String, id: String) -> Answer {
        let client = match self.by {
            By::Worker => clients.worker,
            By::Operator => clients.operator,
            By::Finance => clients.finance,
        };
        let request = match self.path {
            Some(path) => client.request(Method::POST, &format!("/v1/reservations/{id}{path}")).json(&self.body),
            None => {
                let mut body = self.body;
                body["account"] = account.into();
                client.reserve_request(JOB, body)
            }
        };
        client.send(request).await
    }

    /// Whether it finds out what there is without a lock.
    pub fn only_reads(&self) -> bool {
        self.path.is_none()
    }
}

fn verb(name: &'static str, by: By, path: &str, body: Value) -> Verb {
    Verb { name, by, path: Some(path.to_owned()), body }
}

/// The reservation asked for again.
pub fn repeat(operation: &str, units: u32) -> Verb {
    let body = json!({"operation": operation, "units": units, "holder": "w-1"});
    Verb { name: "repeat", by: By::Worker, path: None, body }
}

pub fn settle(name: &'static str, token: &str, units: u32) -> Verb {
    verb(name, By::Worker, "/settle", json!({"attempt": token, "units": units}))
}

/// A final settlement at what the attempt's calls come to.
pub fn settle_calls(name: &'static str, token: &str) -> Verb {
    verb(name, By::Worker, "/settle", json!({"attempt": token}))
}

pub fn progress(name: &'static str, token: &str, units: u32) -> Verb {
    verb(name, By::Worker, "/settle", json!({"attempt": token, "units": units, "final": false}))
}

pub fn extend(name: &'static str, token: &str, ceiling: u32) -> Verb {
    verb(name, By::Worker, "/extend", json!({"attempt": token, "ceiling": ceiling}))
}

pub fn renew(name: &'static str, token: &str) -> Verb {
    verb(name, By::Worker, "/renew", json!({"attempt": token, "lease_seconds": 300}))
}

pub fn cancel() -> Verb {
    verb("cancel", By::Operator, "/cancel", json!({"reason": "wrong file"}))
}

/// A fence of this attempt, with `evidence` and `outstanding` if they are given.
pub fn fence(name: &'static str, number: u32, more: Value) -> Verb {
    verb(name, By::Operator, "/fence", with(json!({"attempt_number": number}), more))
}

/// A takeover from this attempt by a worker.
pub fn take_over(name: &'static str, previous: u32, holder: &str, more: Value) -> Verb {
    verb(
        name,
        By::Worker,
        "/attempts",
        with(json!({"previous": previous, "holder": holder, "lease_seconds": 90}), more),
    )
}

/// The same by an operator who does not wait for the lease to end.
pub fn force(name: &'static str, previous: u32, holder: &str, more: Value) -> Verb {
    let body = json!({"previous": previous, "holder": holder, "lease_seconds": 90, "force": true});
    verb(name, By::Operator, "/attempts", with(body, more))
}

/// Finance closes the reservation.
pub fn close(name: &'static str, units: u32) -> Verb {
    verb(name, By::Finance, "/settle", json!({"units": units, "reason": "provider's invoice"}))
}

pub fn admit(name: &'static str, token: &str, call: &str, units: u32) -> Verb {
    verb(name, By::Worker, "/calls", json!({"attempt": token, "call": call, "units": units}))
}

/// A call for which the ceiling is raised if that is needed.
pub fn admit_extending(name: &'static str, token: &str, call: &str, units: u32) -> Verb {
    verb(name, By::Worker, "/calls", json!({"attempt": token, "call": call, "units": units, "extend": true}))
}

fn of_call(name: &'static str, by: By, call: &str, body: Value) -> Verb {
    verb(name, by, &format!("/calls/{call}/settle"), body)
}

pub fn settle_call(name: &'static str, token: &str, call: &str, units: u32) -> Verb {
    of_call(name, By::Worker, call, json!({"attempt": token, "units": units}))
}

pub fn not_sent(name: &'static str, token: &str, call: &str) -> Verb {
    of_call(name, By::Worker, call, json!({"attempt": token, "outcome": "not_sent"}))
}

pub fn unknown(name: &'static str, call: &str) -> Verb {
    of_call(name, By::Operator, call, json!({"outcome": "unknown"}))
}

/// Finance says what a call cost.
pub fn close_call(name: &'static str, call: &str, units: u32) -> Verb {
    of_call(name, By::Finance, call, json!({"units": units, "reason": "provider's invoice"}))
}

/// That the process has stopped, and what it may have spent.
pub fn stopped(outstanding: Option<u32>) -> Value {
    let evidence = json!({"kind": "process_stopped", "detail": "exit code 137"});
    match outstanding {
        Some(units) => json!({"evidence": evidence, "outstanding": units}),
        None => json!({"evidence": evidence}),
    }
}

fn with(mut body: Value, more: Value) -> Value {
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}
