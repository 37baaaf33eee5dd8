//! What a worker asks for.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use crate::amount::Amount;

/// A job to reserve for. It is the job's identity together with its key: the same
/// key with a different request is refused.
#[derive(Debug, Clone)]
pub struct Request {
    operation: String,
    amount: Amount,
    account: Option<String>,
    member: Option<String>,
    provider_key: Option<String>,
    reference: Option<String>,
    labels: BTreeMap<String, String>,
}

impl Request {
    /// A job of this operation: units for an explicit one, quantities for one with
    /// a cost map.
    pub fn new(operation: impl Into<String>, amount: impl Into<Amount>) -> Self {
        Self {
            operation: operation.into(),
            amount: amount.into(),
            account: None,
            member: None,
            provider_key: None,
            reference: None,
            labels: BTreeMap::new(),
        }
    }

    /// The account whose spending it is, if the client's own is not meant.
    #[must_use]
    pub fn account(self, account: impl Into<String>) -> Self {
        Self { account: Some(account.into()), ..self }
    }

    /// The member that the work is for.
    #[must_use]
    pub fn member(self, member: impl Into<String>) -> Self {
        Self { member: Some(member.into()), ..self }
    }

    /// The name of our key at the provider that the work will use.
    #[must_use]
    pub fn provider_key(self, name: impl Into<String>) -> Self {
        Self { provider_key: Some(name.into()), ..self }
    }

    /// The client's own name for the job, at most 255 characters.
    #[must_use]
    pub fn reference(self, reference: impl Into<String>) -> Self {
        Self { reference: Some(reference.into()), ..self }
    }

    /// One of the client's own labels, at most 32.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// The body that is sent.
    pub(crate) fn body(&self, account: Option<&str>, holder: &str, lease_seconds: u32) -> Value {
        let mut body = Map::new();
        body.insert("operation".to_owned(), self.operation.as_str().into());
        self.amount.state(&mut body);
        let account = self.account.as_deref().or(account);
        put(&mut body, "account", account);
        put(&mut body, "member", self.member.as_deref());
        put(&mut body, "provider_key", self.provider_key.as_deref());
        put(&mut body, "reference", self.reference.as_deref());
        if !self.labels.is_empty() {
            body.insert("labels".to_owned(), json!(self.labels));
        }
        body.insert("holder".to_owned(), holder.into());
        body.insert("lease_seconds".to_owned(), lease_seconds.into());
        Value::Object(body)
    }
}

/// What is stated when a job is taken over from a holder that has vanished. Under
/// `calls` enforcement nothing has to be: the ledger itself stops the old attempt.
/// (Not to wait for the lease to run out is for operators, whose keys cannot do a
/// worker's work.)
#[derive(Debug, Clone, Default)]
pub struct TakeOver {
    /// Why the earlier attempt can spend no more; needed under `worker` enforcement.
    pub evidence: Option<Evidence>,
    /// What the earlier attempt may have spent in total, under `worker`
    /// enforcement; left out, everything.
    pub outstanding: Option<Decimal>,
}

/// Why an attempt can spend no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// Its process is confirmed to have stopped; says how that is known.
    ProcessStopped(String),
    /// A fence that is enforced elsewhere, as by a revoked key; says which.
    FencedElsewhere(String),
}

impl TakeOver {
    pub(crate) fn body(&self, previous: u32, holder: &str, lease_seconds: u32) -> Value {
        let mut body = Map::new();
        body.insert("previous".to_owned(), previous.into());
        body.insert("holder".to_owned(), holder.into());
        body.insert("lease_seconds".to_owned(), lease_seconds.into());
        if let Some(evidence) = &self.evidence {
            let (kind, detail) = match evidence {
                Evidence::ProcessStopped(detail) => ("process_stopped", detail),
                Evidence::FencedElsewhere(detail) => ("fenced_elsewhere", detail),
            };
            let mut evidence = Map::from_iter([("kind".to_owned(), kind.into())]);
            put(&mut evidence, "detail", Some(detail.as_str()).filter(|detail| !detail.is_empty()));
            body.insert("evidence".to_owned(), Value::Object(evidence));
        }
        if let Some(outstanding) = self.outstanding {
            body.insert("outstanding".to_owned(), outstanding.to_string().into());
        }
        Value::Object(body)
    }
}

/// Adds a text that was stated.
pub(crate) fn put(body: &mut Map<String, Value>, name: &str, text: Option<&str>) {
    if let Some(text) = text {
        body.insert(name.to_owned(), text.into());
    }
}
