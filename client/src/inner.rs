//! What a job and everything that it started have in common: what is known of the
//! reservation, and what the service has yet to be told about its calls.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Url;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Report;
use crate::client::Core;
use crate::error::{Error, Refusal, accepted, read};
use crate::held::lock;
use crate::job::JobState;
use crate::view::{CallView, Reservation, ReservationState, Token};
use crate::wire::{self, Answer, Exchange};

/// What this process knows of a call's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its admission has been asked for.
    Asking,
    /// Its admission was asked for and the answer never came: it may be admitted,
    /// and nothing has been paid for it.
    Unanswered,
    /// It was admitted. There is no second time.
    Used,
}

/// What a job and everything that it started have in common.
pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) id: String,
    pub(crate) number: u32,
    token: Token,
    /// Whether no call can have been made under this attempt before this job.
    pub(crate) fresh: bool,
    pub(crate) state: watch::Sender<JobState>,
    latest: Mutex<Reservation>,
    lease_until: Mutex<Instant>,
    pub(crate) calls: Mutex<HashMap<String, Known>>,
    /// How calls ended that the service does not know of yet.
    reports: Mutex<BTreeMap<String, Value>>,
}

impl Inner {
    pub(crate) fn new(
        core: Arc<Core>,
        reservation: Reservation,
        number: u32,
        token: Token,
        fresh: bool,
        lease_until: Instant,
    ) -> Self {
        let state = reservation.state;
        let inner = Self {
            core,
            id: reservation.id.clone(),
            number,
            token,
            fresh,
            state: watch::Sender::new(JobState::Running),
            latest: Mutex::new(reservation),
            lease_until: Mutex::new(lease_until),
            calls: Mutex::default(),
            reports: Mutex::default(),
        };
        inner.saw_state(state);
        inner
    }

    pub(crate) fn url(&self, rest: &[&str]) -> Url {
        let path: Vec<&str> = [self.id.as_str()].iter().chain(rest).copied().collect();
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
            "stale_attempt" if refusal.reservation.is_none() => self.become_at_least(JobState::Lost),
            "not_active" if refusal.reservation.is_none() => self.become_at_least(JobState::Cancelled),
            _ => {}
        }
    }

    /// Remembers what a reservation has become.
    pub(crate) fn saw(&self, reservation: Reservation) {
        let lost = reservation.attempt.as_ref().is_some_and(|attempt| attempt.number > self.number);
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
            ReservationState::Active | ReservationState::Waiting | ReservationState::Other => {}
            ReservationState::Cancelling | ReservationState::Fenced => self.become_at_least(JobState::Cancelled),
            ReservationState::Settled | ReservationState::Expired | ReservationState::Cancelled => {
                self.become_at_least(JobState::Over);
            }
        }
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
    pub(crate) async fn deliver(&self, call: &str, report: &Value) -> Report {
        let request = wire::Request::post(self.url(&["calls", call, "settle"]), report);
        let answer = self.learn(self.core.wire.send(&request).await);
        match answer.and_then(|answer| read::<CallView>(&answer)) {
            Ok(view) => {
                self.saw_state(view.reservation_state);
                Report::Acknowledged(Box::new(view))
            }
            Err(Error::Refused(refusal)) => Report::Refused(refusal),
            Err(error) => Report::Pending(error),
        }
    }

    /// Keeps how a call ended until the service knows.
    pub(crate) fn remember(&self, call: &str, report: Value) {
        lock(&self.reports).insert(call.to_owned(), report);
    }

    /// Delivers what was remembered about a call. It is forgotten once it is known,
    /// unless something else has been remembered meanwhile.
    pub(crate) async fn deliver_remembered(&self, call: &str) -> Result<(), Error> {
        let Some(report) = lock(&self.reports).get(call).cloned() else { return Ok(()) };
        if let Report::Pending(error) = self.deliver(call, &report).await {
            return Err(error);
        }
        let mut reports = lock(&self.reports);
        if reports.get(call) == Some(&report) {
            reports.remove(call);
        }
        Ok(())
    }

    /// Delivers all that was remembered.
    pub(crate) async fn deliver_all(&self) -> Result<(), Error> {
        let calls: Vec<String> = lock(&self.reports).keys().cloned().collect();
        for call in calls {
            self.deliver_remembered(&call).await?;
        }
        Ok(())
    }

    /// Gives up what may have been admitted without an answer, so that it does not
    /// stay in flight: nothing was paid for it here. That nobody else has paid for
    /// it is known only of an attempt that nobody else had.
    pub(crate) fn withdraw(&self) {
        let report = if self.fresh { self.not_sent() } else { unknown() };
        let mut calls = lock(&self.calls);
        for (call, known) in calls.iter_mut().filter(|(_, known)| **known == Known::Unanswered) {
            *known = Known::Used;
            self.remember(call, report.clone());
        }
    }

    pub(crate) fn not_sent(&self) -> Value {
        let mut body = self.body();
        body.insert("outcome".to_owned(), "not_sent".into());
        Value::Object(body)
    }
}

/// Any attempt's call may be said to have an unknown outcome.
pub(crate) fn unknown() -> Value {
    json!({ "outcome": "unknown" })
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
