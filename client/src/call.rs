//! One paid request: admitted, paid for, reported.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use serde_json::Value;

use crate::amount::{Amount, Usage};
use crate::error::{Error, Refusal, read};
use crate::held::lock;
use crate::inner::{Inner, check_call};
use crate::job::JobState;
use crate::untold::unknown;
use crate::view::{CallState, CallView};
use crate::wire;

/// What a paid request gave and what it has cost.
#[derive(Debug, Clone)]
pub struct Paid<T> {
    value: T,
    used: Usage,
}

impl<T> Paid<T> {
    /// A request that cost this much and gave this. An answer of the provider that
    /// is an error but was charged for is paid as well: its value is a `Result`.
    pub fn new(used: impl Into<Usage>, value: T) -> Self {
        Self { value, used: used.into() }
    }

    /// With the provider's own name for the request: see [`Usage::provider_request_id`].
    #[must_use]
    pub fn provider_request_id(self, id: impl AsRef<str>) -> Self {
        Self { used: self.used.provider_request_id(id), ..self }
    }
}

/// How a paid request failed. `?` on the provider's error makes it
/// [`Unknown`](Failure::Unknown): only who knows better may say better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure<E> {
    /// Nobody knows what it has cost: up to what it was admitted for.
    Unknown(E),
    /// It was never sent, for certain: it has cost nothing.
    NotSent(E),
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Self::Unknown(error)
    }
}

/// Whether the service knows how a call ended.
#[derive(Debug)]
#[must_use]
pub enum Report {
    /// It does.
    Acknowledged(Box<CallView>),
    /// It did not answer, however often it was tried, or did not let this process in,
    /// whose key was revoked for example. This process remembers, and tells it when
    /// the job is settled or dropped, when another job of the same attempt is, or
    /// when asked to: [`deliver_reports`](crate::Client::deliver_reports). Should the
    /// process end before that, the call stays in flight, charged at the most that
    /// it may cost.
    Pending(Error),
    /// It would not have it. Usage that comes too late, after finance has settled
    /// the job for example, it has kept as late usage. What was no amount has left
    /// the call with unknown outcome. There is nothing to repeat.
    Refused(Box<Refusal>),
}

impl Report {
    /// Whether the service knows how the call ended.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        matches!(self, Self::Acknowledged(_))
    }
}

impl From<Report> for Result<CallView, Error> {
    fn from(report: Report) -> Self {
        match report {
            Report::Acknowledged(call) => Ok(*call),
            Report::Pending(error) => Err(error),
            Report::Refused(refusal) => Err(Error::Refused(refusal)),
        }
    }
}

/// A call that was paid for.
#[derive(Debug)]
pub struct Done<T> {
    /// What the paid request gave. It is there whatever became of the report.
    pub value: T,
    /// Whether the service knows what it has cost.
    pub report: Report,
}

/// Why there is no [`Done`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// Not paid: the job must stop.
    #[error("the job has stopped: {0:?}")]
    Stopped(JobState),
    /// Not paid: a call of this key was admitted before. Paying now could be
    /// paying twice. If it is still in flight, and nobody in this process is paying
    /// for it, say how it ended ([`settle_call`](crate::Handle::settle_call),
    /// [`call_unknown`](crate::Handle::call_unknown)) before the job settles.
    #[error("the call {key} was admitted before")]
    AlreadyAdmitted {
        /// The call's key.
        key: String,
        /// The call as it is, if the service was asked.
        call: Option<Box<CallView>>,
    },
    /// Not paid: not admitted, or not known to be. Without an answer
    /// ([`Error::Unreachable`]) the same call may be tried again; after a refusal
    /// where that can help: with the code `ceiling_reached` after
    /// [`extend`](crate::Handle::extend), with `budget_exhausted` when
    /// [`Refusal::retry`] says. With `call_key_taken` it never can: another attempt
    /// has asked for the call, and may have paid for it. With
    /// `idempotency_key_reused` this one has asked for it, with another amount.
    #[error("not admitted: {0}")]
    NotAdmitted(#[source] Error),
    /// The paid request failed, and nobody knows what it has cost.
    #[error("the paid request failed: {error}")]
    Unknown {
        /// How it failed.
        error: E,
        /// Whether the service knows that its outcome is unknown.
        report: Report,
    },
    /// The paid request was not sent.
    #[error("the paid request was not sent: {error}")]
    NotSent {
        /// Why.
        error: E,
        /// Whether the service knows.
        report: Report,
    },
}

/// A paid request that may be made: see [`run`](Call::run).
#[must_use = "nothing is asked for until it is run"]
pub struct Call<'a> {
    inner: &'a Arc<Inner>,
    key: String,
    most: Amount,
    extend: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>, key: String, most: Amount) -> Self {
        Self { inner, key, most, extend: false }
    }

    /// Has the ceiling raised in the same step if the call needs it.
    pub fn extend(self) -> Self {
        Self { extend: true, ..self }
    }

    /// Asks the ledger, makes the paid request if it said yes, and reports what it
    /// has cost.
    ///
    /// `pay` makes the request. It is called at most once, and only when the
    /// ledger's yes has arrived. If it fails or panics, or if this future is
    /// dropped meanwhile, the outcome of the call is reported as unknown and stays
    /// charged. (A drop is reported by a task of its own, on the runtime that it
    /// happens on.) Dropped before that, nothing has been paid: the same call may
    /// be run again, and is withdrawn if it is not when the job settles.
    ///
    /// While the ledger does not answer, each of asking and reporting takes as long
    /// as requests are repeated ([`retry_for`](crate::Builder::retry_for)).
    ///
    /// # Errors
    ///
    /// [`CallError`] says what happened. A report that fails is no error: what
    /// was paid for is the caller's. A report that is refused because what it
    /// states is no amount leaves the call with unknown outcome.
    pub async fn run<T, E, P, F>(self, pay: P) -> Result<Done<T>, CallError<E>>
    where
        P: FnOnce() -> F,
        F: Future<Output = Result<Paid<T>, Failure<E>>>,
    {
        let admitted = self.admit().await?;
        match pay().await {
            Ok(Paid { value, used }) => Ok(Done { value, report: admitted.paid(&used).await }),
            Err(Failure::Unknown(error)) => Err(CallError::Unknown { error, report: admitted.ended(unknown()).await }),
            Err(Failure::NotSent(error)) => {
                let not_sent = admitted.inner.not_sent();
                Err(CallError::NotSent { error, report: admitted.ended(not_sent).await })
            }
        }
    }

    async fn admit<E>(&self) -> Result<Admitted, CallError<E>> {
        check_call(&self.key).map_err(CallError::NotAdmitted)?;
        self.stop()?;
        let asking = Asking::begin(self.inner, &self.key)
            .ok_or_else(|| CallError::AlreadyAdmitted { key: self.key.clone(), call: None })?;
        let exchange = self.inner.core.wire.send(&self.request()).await;
        let repeated = exchange.tries > 1;
        let answer = match self.inner.learn(exchange) {
            Ok(answer) => answer,
            Err(error) => {
                if let Error::Refused(refusal) = &error {
                    asking.refused(refusal, repeated);
                    if matches!(refusal.code.as_str(), "stale_attempt" | "not_active") {
                        self.stop()?;
                    }
                }
                return Err(CallError::NotAdmitted(error));
            }
        };
        let view: CallView = read(&answer).map_err(CallError::NotAdmitted)?;
        self.inner.saw_state(view.reservation_state);
        asking.admitted();
        // A 200 says that the key was known, not by whom. It was an own try, lost on
        // the way or repeated within the service, only if nobody else can have sent
        // one until now: no other process, and no other job in this one. If not,
        // somebody may be paying for it, and there is nothing to say of it here.
        let own = self.inner.is_fresh() && view.state == CallState::InFlight;
        if answer.status != 201 && !own {
            return Err(CallError::AlreadyAdmitted { key: self.key.clone(), call: Some(Box::new(view)) });
        }
        let (inner, key) = (Arc::clone(self.inner), self.key.clone());
        let admitted = Admitted { inner, key, remembered: false, told: false };
        // Stopped while the ledger said yes: nothing has been sent, and nothing need be.
        if let Err(stopped) = self.stop() {
            let not_sent = self.inner.not_sent();
            let _ = admitted.ended(not_sent).await;
            return Err(stopped);
        }
        Ok(admitted)
    }

    /// An error if the job must stop.
    fn stop<E>(&self) -> Result<(), CallError<E>> {
        match self.inner.state() {
            JobState::Running => Ok(()),
            stopped => Err(CallError::Stopped(stopped)),
        }
    }

    fn request(&self) -> wire::Request {
        let mut body = self.inner.body();
        body.insert("call".to_owned(), self.key.as_str().into());
        self.most.state(&mut body);
        if self.extend {
            body.insert("extend".to_owned(), true.into());
        }
        wire::Request::post(self.inner.url(&["calls"]), &Value::Object(body))
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("key", &self.key).field("most", &self.most).finish_non_exhaustive()
    }
}

/// A key whose admission is being asked for. Left without an answer, by an error or
/// because whoever asked was dropped, it may be admitted or not.
struct Asking<'a> {
    inner: &'a Inner,
    key: &'a str,
    /// Whether it has been asked for before without an answer.
    before: bool,
    answered: bool,
}

impl<'a> Asking<'a> {
    /// None if the key is in use.
    fn begin(inner: &'a Inner, key: &'a str) -> Option<Self> {
        let mut calls = lock(&inner.calls);
        if calls.contains(key) {
            return None;
        }
        let before = inner.core.held.asks(&inner.attempt, key)?;
        calls.insert(key.to_owned());
        Some(Self { inner, key, before, answered: false })
    }

    /// A refusal leaves the key unused, and says nothing of tries before it that
    /// were not answered: one of them may have been admitted, or may still be.
    fn refused(mut self, refusal: &Refusal, repeated: bool) {
        let doubtful = self.before || repeated || refusal.status >= 500;
        // Another attempt's key is none that this one could have been admitted for.
        self.answered = !doubtful || refusal.code == "call_key_taken";
        if self.answered {
            lock(&self.inner.calls).remove(self.key);
        }
    }

    fn admitted(mut self) {
        self.answered = true;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.answered {
            lock(&self.inner.calls).remove(self.key);
            self.inner.core.held.unanswered(&self.inner.attempt, self.key);
        }
    }
}

/// A call that the service has in flight until it is told otherwise. Dropped, it
/// tells it.
struct Admitted {
    inner: Arc<Inner>,
    key: String,
    /// Whether how it ended is remembered.
    remembered: bool,
    /// Whether it has been told, or tried to.
    told: bool,
}

impl Admitted {
    async fn paid(self, used: &Usage) -> Report {
        let mut body = self.inner.body();
        used.state(&mut body);
        self.ended(Value::Object(body)).await
    }

    async fn ended(mut self, body: Value) -> Report {
        let untold = self.inner.remember(&self.key, body);
        self.remembered = true;
        let report = self.inner.tell(&self.key, &untold).await;
        if let Report::Refused(_) = report {
            // There may be something else to tell now.
            let _ = self.inner.tell_remembered(&self.key).await;
        }
        self.told = true;
        report
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        if !self.remembered {
            self.inner.remember(&self.key, unknown());
        }
        // Without a runtime it is told when the job settles.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (inner, key) = (Arc::clone(&self.inner), std::mem::take(&mut self.key));
            runtime.spawn(async move {
                if let Err(error) = inner.tell_remembered(&key).await {
                    tracing::warn!(call = key, %error, "how a call ended is not reported yet");
                }
            });
        }
    }
}
