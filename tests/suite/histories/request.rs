//! What is asked of the service, and how it is sent.

use std::fmt;

use reqwest::Method;
use serde_json::{Value, json};

use super::model::units::Units;

/// The accounts of every history.
pub const ACCOUNTS: [&str; 2] = ["a", "b"];
/// The jobs of every history: the even ones of the first account, the odd ones
/// of the second.
pub const JOBS: usize = 4;
/// With one more for each account, which only opens its periods.
pub const KEYS: usize = JOBS + ACCOUNTS.len();
/// Keys of calls; the last one means something else if it is not encoded.
pub const CALLS: [&str; 5] = ["c0", "c1", "c2", "c3", "c/4?%2F#"];

/// Whose API key is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Worker,
    Operator,
    Finance,
}

/// Where the work spends: who can stop its worker follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Every call is admitted by the ledger (`calls` enforcement).
    Ask,
    /// The worker calls the provider by itself (`worker` enforcement).
    Run,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Run => "run",
        }
    }

    pub fn provider(self) -> &'static str {
        match self {
            Self::Ask => "gate",
            Self::Run => "direct",
        }
    }
}

/// What a client presents as its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The token of this attempt of the job.
    Of(i64),
    /// Something that never was a token of it.
    Never,
}

/// One request about one job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub job: usize,
    pub by: Role,
    pub verb: Verb,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Reserve {
        operation: Operation,
        units: Units,
        holder: u8,
        lease: i64,
    },
    Renew {
        attempt: Token,
        lease: i64,
    },
    Extend {
        attempt: Token,
        ceiling: Units,
    },
    TakeOver {
        previous: i64,
        holder: u8,
        lease: i64,
        evidence: bool,
        outstanding: Option<Units>,
        force: bool,
    },
    Admit {
        attempt: Token,
        call: usize,
        units: Units,
        extend: bool,
    },
    SettleCall {
        attempt: Token,
        call: usize,
        units: Units,
        provider_request: Option<u8>,
    },
    NotSent {
        attempt: Token,
        call: usize,
    },
    Unknown {
        attempt: Option<Token>,
        call: usize,
    },
    /// Finance settles a call.
    CloseCall {
        call: usize,
        units: Units,
    },
    Settle {
        attempt: Token,
        units: Option<Units>,
        finally: Option<bool>,
    },
    /// Finance settles the reservation.
    Close {
        units: Units,
    },
    Cancel,
    Fence {
        number: i64,
        evidence: bool,
        outstanding: Option<Units>,
    },
    Look,
}

/// How a request goes over the wire.
pub struct Sent {
    pub method: Method,
    pub path: String,
    pub idempotency_key: Option<String>,
    pub body: Option<Value>,
}

/// Why finance settles, in every history.
pub const WHY_CLOSED: &str = "the provider's export";
/// Why somebody cancels.
pub const WHY_CANCELLED: &str = "not wanted any more";

impl Request {
    /// The verb's name.
    pub fn name(&self) -> String {
        format!("{:?}", self.verb).split(' ').next().unwrap_or_default().to_owned()
    }

    /// The account whose job it is.
    pub fn account(&self) -> usize {
        self.job % ACCOUNTS.len()
    }

    /// As it is sent for the job with this key and id, attempts presented by
    /// `token`.
    pub fn sent(&self, key: &str, id: &str, token: impl Fn(Token) -> String) -> Sent {
        let at = |suffix: &str| format!("/v1/reservations/{id}{suffix}");
        let of_call = |call: usize| at(&format!("/calls/{}/settle", encoded(CALLS[call])));
        let (path, body) = match self.verb {
            Verb::Reserve { operation, units, holder, lease } => {
                let body = json!({"account": ACCOUNTS[self.account()], "operation": operation.name(),
                                  "units": units.to_string(), "holder": name_of(holder), "lease_seconds": lease});
                ("/v1/reservations".to_owned(), body)
            }
            Verb::Renew { attempt, lease } => {
                (at("/renew"), json!({"attempt": token(attempt), "lease_seconds": lease}))
            }
            Verb::Extend { attempt, ceiling } => {
                (at("/extend"), json!({"attempt": token(attempt), "ceiling": ceiling.to_string()}))
            }
            Verb::TakeOver { previous, holder, lease, evidence, outstanding, force } => {
                let body = json!({"previous": previous, "holder": name_of(holder), "lease_seconds": lease,
                                  "evidence": evidence.then(proof), "outstanding": text(outstanding),
                                  "force": force.then_some(true)});
                (at("/attempts"), body)
            }
            Verb::Admit { attempt, call, units, extend } => {
                let body = json!({"attempt": token(attempt), "call": CALLS[call], "units": units.to_string(),
                                  "extend": extend.then_some(true)});
                (at("/calls"), body)
            }
            Verb::SettleCall { attempt, call, units, provider_request } => {
                let body = json!({"attempt": token(attempt), "units": units.to_string(),
                                  "provider_request_id": provider_request.map(provider_request_id)});
                (of_call(call), body)
            }
            Verb::NotSent { attempt, call } => {
                (of_call(call), json!({"attempt": token(attempt), "outcome": "not_sent"}))
            }
            Verb::Unknown { attempt, call } => {
                (of_call(call), json!({"attempt": attempt.map(&token), "outcome": "unknown"}))
            }
            Verb::CloseCall { call, units } => {
                (of_call(call), json!({"units": units.to_string(), "reason": WHY_CLOSED}))
            }
            Verb::Settle { attempt, units, finally } => {
                (at("/settle"), json!({"attempt": token(attempt), "units": text(units), "final": finally}))
            }
            Verb::Close { units } => (at("/settle"), json!({"units": units.to_string(), "reason": WHY_CLOSED})),
            Verb::Cancel => (at("/cancel"), json!({"reason": WHY_CANCELLED})),
            Verb::Fence { number, evidence, outstanding } => {
                let body = json!({"attempt_number": number, "evidence": evidence.then(proof),
                                  "outstanding": text(outstanding)});
                (at("/fence"), body)
            }
            Verb::Look => return Sent { method: Method::GET, path: at(""), idempotency_key: None, body: None },
        };
        let reserves = matches!(self.verb, Verb::Reserve { .. });
        Sent {
            method: Method::POST,
            path,
            idempotency_key: reserves.then(|| key.to_owned()),
            body: Some(without_nulls(body)),
        }
    }
}

/// As a failing history shows it.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Role::Worker => "",
            Role::Operator => " by an operator",
            Role::Finance => " by finance",
        };
        write!(f, "j{}: {:?}{by}", self.job, self.verb)
    }
}

/// A holder's name.
pub fn name_of(holder: u8) -> String {
    format!("w-{holder}")
}

/// The provider's name for some work.
pub fn provider_request_id(n: u8) -> String {
    format!("req-{n}")
}

fn proof() -> Value {
    json!({"kind": "process_stopped", "detail": "exit status seen"})
}

fn text(units: Option<Units>) -> Option<String> {
    units.map(|units| units.to_string())
}

/// What is not stated is left out.
fn without_nulls(body: Value) -> Value {
    let Value::Object(fields) = body else { panic!("a body is an object") };
    Value::Object(fields.into_iter().filter(|(_, value)| !value.is_null()).collect())
}

fn encoded(key: &str) -> String {
    key.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}
