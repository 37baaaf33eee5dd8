//! What a job and everything that it started have in common: what is known of the
//! reservation, and of the keys of its calls.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Url;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Report;
use crate::client::Core;
use crate::error::{Error, Refusal, accepted, read};
use crate::held::{AttemptId, Untold, lock};
use crate::job::JobState;
use crate::untold::unknown;
use crate::view::{Reservation, ReservationState, Token};
use crate::wire::{self, Answer, Exchange};

/// What a job and everything that it started have in common.
pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) attempt: AttemptId,
    token: Token,
    /// Whether nobody but this job can have made a call under this attempt.
    fresh: AtomicBool,
    pub(crate) state: watch::Sender<JobState>,
    latest: Mutex<Reservation>,
    lease_until: Mutex<Instant>,
    /// Keys of calls that are being asked for, or were admitted: there is no second
    /// time. Those of a job that was dropped are forgotten.
    pub(crate) calls: Mutex<HashSet<String>>,
}

impl Inner {
    pub(crate) fn new(
        core: Arc<Core>,
        reservation: Reservation,
        attempt: AttemptId,
        token: Token,
        fresh: bool,
        lease_until: Instant,
    ) -> Self {
        let state = reservation.state;
        let inner = Self {
            core,
            attempt,
            token,
            fresh: AtomicBool::new(fresh),
            state: watch::Sender::new(JobState::Running),
            latest: Mutex::new(reservation),
            lease_until: Mutex::new(lease_until),
            calls: Mutex::default(),
        };
        inner.saw_state(state);
        inner
    }

    pub(crate) fn url(&self, rest: &[&str]) -> Url {
        let path: Vec<&str> = [self.attempt.0.as_str()].iter().chain(rest).copied().collect();
        self.core.url.reservation(&path)
    }

    /// A body with the token.
    pub(crate) fn body(&self) -> Map<String, Value> {
        Map::from_iter([("attempt".to_owned(), self.token.0.as_str().into())])
    }

    /// Sends a request about this reservation and learns from the answer.
    pub(crate) async fn ask(&self, rest: &[&str], body: Map<String, Value>) -> Result<Answer, Error> {
        let request = wire::Request::post(self.url(rest), &Value::Object(body));
        self.learn(self.core.wire.send(&request).await)
    }

    /// As [`ask`](Self::ask), for verbs that answer with the reservation.
    pub(crate) async fn ask_reservation(&self, rest: &[&str], body: Map<String, Value>) -> Result<Reservation, Error> {
        let reservation: Reservation = read(&self.ask(rest, body).await?)?;
        self.saw(reservation.clone());
        Ok(reservation)
    }

    /// What an exchange says about the job, if it was refused.
    pub(crate) fn learn(&self, exchange: Exchange) -> Result<Answer, Error> {
        let answer = accepted(exchange);
        if let Err(Error::Refused(refusal)) = &answer {
            self.learn_refusal(refusal);
        }
        answer
    }

    fn learn_refusal(&self, refusal: &Refusal) {
        if let Some(reservation) = &refusal.reservation {
            self.saw(reservation.clone());
        }
        // A call that another attempt has made makes a token stale as well: where the
        // reservation is there, it says whether the attempt is.
        match refusal.code.as_str() {
            "stale_attempt" if refusal.reservation.is_none() => self.end(JobState::Lost),
            "not_active" if refusal.reservation.is_none() => self.become_at_least(JobState::Cancelled),
            _ => {}
        }
    }

    /// Remembers what a reservation has become.
    pub(crate) fn saw(&self, reservation: Reservation) {
        self.core.held.saw(&reservation);
        let lost = reservation.attempt.as_ref().is_some_and(|attempt| attempt.number > self.attempt.1);
        let state = reservation.state;
        {
            let mut latest = lock(&self.latest);
            if reservation.version >= latest.version {
                *latest = reservation;
            }
        }
        if lost {
            self.become_at_least(JobState::Lost);
        }
        self.saw_state(state);
    }

    /// Remembers what state a reservation is in.
    pub(crate) fn saw_state(&self, state: ReservationState) {
        match state {
            ReservationState::Cancelling | ReservationState::Fenced => self.become_at_least(JobState::Cancelled),
            state if state.is_over() => self.end(JobState::Over),
            _ => {}
        }
    }

    /// No job will work on this attempt again.
    pub(crate) fn end(&self, state: JobState) {
        self.core.held.end(&self.attempt);
        self.become_at_least(state);
    }

    /// Its job has been dropped. From now on another job may make calls under this
    /// attempt, and this one's handles may make none.
    pub(crate) fn leave(&self) {
        self.fresh.store(false, Ordering::SeqCst);
        self.become_at_least(JobState::Over);
        lock(&self.calls).clear();
    }

    /// Whether nobody but this job can have made a call under this attempt until now.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::SeqCst)
    }

    pub(crate) fn become_at_least(&self, state: JobState) {
        self.state.send_if_modified(|now| {
            let worse = state > *now;
            *now = state.max(*now);
            worse
        });
    }

    pub(crate) fn state(&self) -> JobState {
        *self.state.borrow()
    }

    pub(crate) fn latest(&self) -> Reservation {
        lock(&self.latest).clone()
    }

    /// The lease was renewed by a request that was sent at this time.
    pub(crate) fn leased(&self, asked: Instant) {
        *lock(&self.lease_until) = asked + Duration::from_secs(self.core.lease_seconds.into());
    }

    pub(crate) fn lease_until(&self) -> Instant {
        *lock(&self.lease_until)
    }

    /// Says how a call ended.
    pub(crate) async fn deliver(&self, call: &str, body: &Value) -> Report {
        let report = self.core.deliver(&self.attempt, call, body).await;
        self.learn_report(&report);
        report
    }

    /// Keeps how a call ended until the service knows.
    pub(crate) fn remember(&self, call: &str, body: Value) -> Untold {
        self.core.held.remember(&self.attempt, call, body)
    }

    /// Says how a call ended that is remembered until the service knows.
    pub(crate) async fn tell(&self, call: &str, untold: &Untold) -> Report {
        let report = self.core.tell(&self.attempt, call, untold).await;
        self.learn_report(&report);
        report
    }

    /// Says how a call ended if that is remembered.
    pub(crate) async fn tell_remembered(&self, call: &str) -> Result<(), Error> {
        self.core.tell_remembered(&self.attempt, call, |report| self.learn_report(report)).await
    }

    /// Says all that is remembered of this attempt's calls.
    pub(crate) async fn tell_all(&self) -> Result<(), Error> {
        self.core.tell_all(&self.attempt, |report| self.learn_report(report)).await
    }

    fn learn_report(&self, report: &Report) {
        match report {
            Report::Acknowledged(view) => self.saw_state(view.reservation_state),
            Report::Refused(refusal) | Report::Pending(Error::Refused(refusal)) => self.learn_refusal(refusal),
            Report::Pending(_) => {}
        }
    }

    /// Gives up what may have been admitted without an answer, so that it does not
    /// stay in flight: nothing was paid for it here. That nobody else has paid for
    /// it is known only of an attempt that nobody else had.
    pub(crate) fn withdraw(&self) {
        let body = if self.is_fresh() { self.not_sent() } else { unknown() };
        let calls = lock(&self.calls);
        self.core.held.withdraw(&self.attempt, |call| calls.contains(call), &body);
    }

    pub(crate) fn not_sent(&self) -> Value {
        let mut body = self.body();
        body.insert("outcome".to_owned(), "not_sent".into());
        Value::Object(body)
    }
}

/// A segment of a path cannot be `.` or `..`, however it is escaped.
pub(crate) fn check_call(key: &str) -> Result<(), Error> {
    let field = "the call's key";
    wire::check_key(field, key)?;
    if matches!(key, "." | "..") {
        return Err(Error::Invalid { field, reason: "cannot be put into an address" });
    }
    Ok(())
}
