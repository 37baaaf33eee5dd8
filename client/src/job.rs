//! A job: what a worker holds while it works.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rust_decimal::Decimal;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::amount::{Amount, Usage};
use crate::call::Call;
use crate::error::Error;
use crate::inner::{Inner, check_call};
use crate::keep::keep;
use crate::list;
use crate::request::put;
use crate::untold::unknown;
use crate::view::{CallItem, CallState, CallView, Reservation};

/// Whether a job may still spend, as far as this process knows. It only ever gets
/// worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// It may.
    Running,
    /// It was cancelled or fenced: no more calls are admitted. Stop, let what is
    /// being paid for come to its end, and settle.
    Cancelled,
    /// Another process has taken the job over: stop. Calls that were admitted
    /// before are still settled.
    Lost,
    /// It is settled, by this process or by finance, or this process has dropped
    /// its [`Job`].
    Over,
}

/// What tasks that work on the same job share: all that can be done with it but
/// end it. Made by cloning what a [`Job`] dereferences to.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inner: Arc<Inner>,
}

impl Handle {
    /// The reservation's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.attempt.0
    }

    /// The number of the attempt that this process holds.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.attempt.1
    }

    /// The reservation as the service last described it.
    #[must_use]
    pub fn reservation(&self) -> Reservation {
        self.inner.latest()
    }

    /// Whether the job may still spend, as far as this process knows.
    #[must_use]
    pub fn state(&self) -> JobState {
        self.inner.state()
    }

    /// The same, to be watched.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<JobState> {
        self.inner.state.subscribe()
    }

    /// Waits until the job must stop, and says why: never [`JobState::Running`].
    pub async fn stopped(&self) -> JobState {
        let mut state = self.watch();
        let stopped = state.wait_for(|state| *state != JobState::Running).await;
        stopped.map_or(JobState::Over, |state| *state)
    }

    /// How long the lease still runs. Zero once it has run out: then the job may be
    /// taken over at any time, which it learns when it next asks for anything.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        self.inner.lease_until().saturating_duration_since(Instant::now())
    }

    /// One paid request: `key` is its identity within the job, 1 to 255 visible
    /// ASCII characters, `most` is the most that it may cost.
    pub fn call(&self, key: impl Into<String>, most: impl Into<Amount>) -> Call<'_> {
        Call::new(&self.inner, key.into(), most.into())
    }

    /// Raises the ceiling to this many units in all, before the job crosses it. A
    /// ceiling at or below the current one changes nothing and succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], for example with the code `budget_exhausted`: the
    /// ceiling is as it was. And what may happen to every request.
    pub async fn extend(&self, ceiling: impl Into<Decimal>) -> Result<Reservation, Error> {
        let mut body = self.inner.body();
        body.insert("ceiling".to_owned(), ceiling.into().to_string().into());
        self.inner.ask_reservation(&["extend"], body).await
    }

    /// Reports what this attempt has used so far, in all. Only where workers call
    /// the provider directly (`worker` enforcement): otherwise calls report it.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], for example with the code `usage_decreases`; and what
    /// may happen to every request.
    pub async fn progress(&self, used: impl Into<Usage>) -> Result<Reservation, Error> {
        let mut body = self.inner.body();
        used.into().state(&mut body);
        body.insert("final".to_owned(), false.into());
        self.inner.ask_reservation(&["settle"], body).await
    }

    /// Cancels the job: nothing more is admitted, all of it stays charged until
    /// it is settled or fenced.
    ///
    /// # Errors
    ///
    /// What may happen to every request.
    pub async fn cancel(&self, reason: Option<&str>) -> Result<Reservation, Error> {
        let mut body = Map::new();
        put(&mut body, "reason", reason);
        self.inner.ask_reservation(&["cancel"], body).await
    }

    /// Tells the service how calls ended that it could not be told before
    /// ([`Report::Pending`](crate::Report::Pending)), whichever job of this attempt
    /// in this process made them. Settling does it first; a job that was lost does
    /// not settle, but its calls still can.
    /// ([`Client::deliver_reports`](crate::Client::deliver_reports) does it for all
    /// jobs, those that are gone included.)
    ///
    /// # Errors
    ///
    /// What may happen to every request, if it still cannot be told. It is still
    /// remembered then.
    pub async fn deliver_reports(&self) -> Result<(), Error> {
        self.inner.tell_all().await
    }

    /// The reservation's calls, whichever attempt made them, newest first: those in
    /// this state, or all. More than the newest 100,000 are not asked for.
    ///
    /// A job that the service does not settle because of `calls_in_flight`, made by
    /// an earlier life of this process for example, finds their keys with
    /// `calls(CallState::InFlight)`, and says of each how it ended
    /// ([`settle_call`](Self::settle_call)) or that it does not know
    /// ([`call_unknown`](Self::call_unknown)).
    ///
    /// # Errors
    ///
    /// What may happen to every request.
    pub async fn calls(&self, state: impl Into<Option<CallState>>) -> Result<Vec<CallItem>, Error> {
        list::calls(&self.inner, state.into()).await
    }

    /// Says what a call has cost that this attempt was admitted for and whose
    /// outcome was not known, as when it was found out from the provider.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], with the code `call_already_settled` if it ended
    /// otherwise, `stale_attempt` if another attempt made it; and what may happen
    /// to every request.
    pub async fn settle_call(&self, key: &str, used: impl Into<Usage>) -> Result<CallView, Error> {
        check_call(key)?;
        let mut body = self.inner.body();
        used.into().state(&mut body);
        self.inner.deliver(key, &Value::Object(body)).await.into()
    }

    /// Says that a call's outcome is not known, whichever attempt made it: it stays
    /// charged at the most that it may have cost.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], with the code `call_already_settled` if it is known; and
    /// what may happen to every request.
    pub async fn call_unknown(&self, key: &str) -> Result<CallView, Error> {
        check_call(key)?;
        self.inner.deliver(key, &unknown()).await.into()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Job");
        debug.field("id", &self.id()).field("attempt", &self.attempt()).field("state", &self.state());
        debug.finish_non_exhaustive()
    }
}

/// A reservation that this process works on. While it lives its lease is renewed
/// in the background. It dereferences to a [`Handle`], which has the verbs; tasks
/// that share the work clone that.
///
/// A job ends by [`settle`](Job::settle) or [`settle_calls`](Job::settle_calls).
/// Dropped before that, it gives nothing back, since nobody knows what it may have
/// spent: the reservation stays charged, its lease runs out, and then somebody takes
/// it over or fences it. This process gets it back by reserving with the same key.
/// What its calls have cost is still told: what the service could not be told before
/// is tried again when the job is dropped, and if it still cannot be, by the next job
/// of the same attempt or by
/// [`Client::deliver_reports`](crate::Client::deliver_reports).
#[derive(Debug)]
#[must_use = "dropped, it is no longer renewed and stays charged"]
pub struct Job {
    handle: Handle,
    keeper: JoinHandle<()>,
}

/// A job that could not be settled, and why.
#[derive(Debug, thiserror::Error)]
#[error("not settled: {error}")]
pub struct Unsettled {
    /// The job, to try again. (Dropped, it stays charged.)
    pub job: Job,
    /// Why it is not settled, or not known to be.
    #[source]
    pub error: Error,
}

impl Job {
    pub(crate) fn new(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let keeper = tokio::spawn(keep(Arc::clone(&inner)));
        Self { handle: Handle { inner }, keeper }
    }

    /// Settles at the sum of the job's calls and gives the rest back. Outcomes of
    /// calls that the service does not know yet are delivered first. Calls with
    /// unknown outcome stay charged: then the reservation is `fenced`, and ends by
    /// itself when they are known.
    ///
    /// # Errors
    ///
    /// The job, with [`Error::Refused`], for example with the code
    /// `calls_in_flight` while other tasks are still paying (or if they were made
    /// by an earlier life of this process: see [`calls`](Handle::calls)), or with
    /// what may happen to every request. It may be tried again.
    pub async fn settle_calls(self) -> Result<Reservation, Unsettled> {
        let body = self.inner.body();
        self.finish(body).await
    }

    /// Settles at what the job has used in all, and gives the rest back. (Where the
    /// ledger admits every call, `settle_calls` knows the sum.)
    ///
    /// # Errors
    ///
    /// As [`settle_calls`](Self::settle_calls).
    pub async fn settle(self, used: impl Into<Usage>) -> Result<Reservation, Unsettled> {
        let mut body = self.inner.body();
        used.into().state(&mut body);
        self.finish(body).await
    }

    async fn finish(self, body: Map<String, Value>) -> Result<Reservation, Unsettled> {
        match self.flush_and_settle(body).await {
            Ok(reservation) => {
                self.inner.end(JobState::Over);
                Ok(reservation)
            }
            Err(error) => Err(Unsettled { job: self, error }),
        }
    }

    async fn flush_and_settle(&self, body: Map<String, Value>) -> Result<Reservation, Error> {
        self.inner.withdraw();
        self.inner.tell_all().await?;
        self.inner.ask_reservation(&["settle"], body).await
    }
}

impl Deref for Job {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.keeper.abort();
        // Before anybody else can have the attempt.
        self.inner.leave();
        let (inner, held) = (Arc::clone(&self.inner), &self.inner.core.held);
        held.give_back(&inner.attempt);
        if held.untold_calls(&inner.attempt).is_empty() {
            return;
        }
        // Without a runtime it is left to whoever comes next.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = inner.tell_all().await {
                    let reservation = &inner.attempt.0;
                    tracing::warn!(reservation, %error, "how calls ended is not reported yet");
                }
            });
        }
    }
}
