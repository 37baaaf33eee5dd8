//! One client: a cycle, and the next one.

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::load::{Shared, Who};
use super::wire::{Answered, Asked, Target, Wire};
use super::workload::{ACTUAL, Cycle, RESERVED};
use super::zipf::Draws;

/// Failures in a row after which a client gives up.
const PATIENCE: u32 = 20;
/// How long a client waits after a failure.
const AFTER_A_FAILURE: Duration = Duration::from_millis(50);

/// All that a client reads of a reservation.
#[derive(Deserialize)]
struct Admitted<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    attempt: Attempt<'a>,
}

#[derive(Deserialize)]
struct Attempt<'a> {
    #[serde(borrow)]
    token: Cow<'a, str>,
}

pub(super) struct Client {
    wire: Wire,
    shared: Rc<Shared>,
    number: u16,
    /// Cycles that were begun.
    made: u64,
    draws: Draws,
}

impl Client {
    pub(super) fn new(target: Target, shared: Rc<Shared>, number: u16) -> Self {
        Self { wire: Wire::new(target), shared, number, made: 0, draws: Draws::new(u64::from(number) + 1) }
    }

    pub(super) async fn connect(&mut self) -> Result<(), String> {
        self.wire.connect().await.map(|_| ())
    }

    /// One cycle after another until the window ends, or there is nothing left to do.
    pub(super) async fn run(mut self) {
        let ends = self.shared.window.get().ends;
        let (every, mut due) = self.pace();
        let mut failures = 0;
        while Instant::now() < ends {
            if let Some(every) = every {
                sleep_until(due).await;
                // Who is late is late; it does not send twice as fast afterwards.
                due = (due + every).max(Instant::now());
            }
            let Some(body) = self.next_body() else { return };
            match self.cycle(body).await {
                Ok(()) => failures = 0,
                Err(reason) => {
                    failures += 1;
                    self.failed(reason);
                    if failures >= PATIENCE {
                        return;
                    }
                    sleep(AFTER_A_FAILURE).await;
                }
            }
        }
    }

    /// How long from one cycle to the next, and when the first one is due: spread
    /// evenly over the clients.
    fn pace(&self) -> (Option<Duration>, Instant) {
        let now = Instant::now();
        let Some(per_second) = self.shared.group.per_second else { return (None, now) };
        let each = Duration::from_secs(1) / u32::try_from(per_second.max(1)).unwrap_or(u32::MAX);
        let every = each * u32::from(self.shared.group.clients);
        (Some(every), now + each * u32::from(self.number))
    }

    /// The reservation that the next cycle asks for.
    fn next_body(&mut self) -> Option<Bytes> {
        let bodies = &self.shared.bodies;
        let at = match &self.shared.group.who {
            Who::One(_) => 0,
            Who::Own(_) => usize::from(self.number) % bodies.len().max(1),
            Who::Popular(zipf, _) => zipf.pick(self.draws.draw()),
            Who::Once(_) => {
                let at = self.shared.taken.get();
                self.shared.taken.set(at + 1);
                at
            }
        };
        bodies.get(at).cloned()
    }

    async fn cycle(&mut self, body: Bytes) -> Result<(), String> {
        self.made += 1;
        let key = format!("{}-{}-{}", self.shared.name, self.number, self.made);
        let key = HeaderValue::from_str(&key).map_err(|error| error.to_string())?;
        let answer = self.post("/v1/reservations", Some(key), body).await?;
        if answer.status == 429 {
            if self.counts() {
                self.shared.tally.borrow_mut().refused += 1;
            }
            return Ok(());
        }
        let said = succeeded("reserve", answer)?;
        let admitted: Admitted<'_> = serde_json::from_slice(&said).map_err(|error| format!("reserve: {error}"))?;
        let (path, attempt) = (format!("/v1/reservations/{}", admitted.id), &admitted.attempt.token);
        let end = match self.shared.group.cycle {
            Cycle::Reserve => None,
            Cycle::Settle => Some(format!(r#"{{"attempt":"{attempt}","units":"{ACTUAL}"}}"#)),
            Cycle::Call => {
                let call = format!(r#"{{"attempt":"{attempt}","call":"c","units":"{RESERVED}"}}"#);
                succeeded("call", self.post(&format!("{path}/calls"), None, call.into()).await?)?;
                let cost = format!(r#"{{"attempt":"{attempt}","units":"{ACTUAL}"}}"#);
                succeeded("settle call", self.post(&format!("{path}/calls/c/settle"), None, cost.into()).await?)?;
                // The sum of its calls.
                Some(format!(r#"{{"attempt":"{attempt}"}}"#))
            }
        };
        if let Some(end) = end {
            succeeded("settle", self.post(&format!("{path}/settle"), None, end.into()).await?)?;
        }
        if self.counts() {
            self.shared.tally.borrow_mut().cycles += 1;
        }
        Ok(())
    }

    async fn post(&mut self, path: &str, key: Option<HeaderValue>, body: Bytes) -> Result<Answered, String> {
        let authorization = Some(&self.shared.group.authorization);
        let sent = Instant::now();
        let answer = self.wire.send(Asked { method: Method::POST, path, authorization, key, body }).await?;
        let answered = Instant::now();
        if self.shared.window.get().contains(answered) {
            let micros = answered.duration_since(sent).as_micros();
            let mut tally = self.shared.tally.borrow_mut();
            tally.requests += 1;
            tally.latency.saturating_record(u64::try_from(micros).unwrap_or(u64::MAX));
        }
        Ok(answer)
    }

    fn failed(&self, reason: String) {
        let mut tally = self.shared.tally.borrow_mut();
        tally.failed += 1;
        tally.first_error.get_or_insert(reason);
    }

    fn counts(&self) -> bool {
        self.shared.window.get().contains(Instant::now())
    }
}

/// The body of an answer that is as it should be.
fn succeeded(what: &str, answer: Answered) -> Result<Bytes, String> {
    if (200..300).contains(&answer.status) {
        return Ok(answer.body);
    }
    let said = String::from_utf8_lossy(&answer.body);
    Err(format!("{what}: answered {}: {said}", answer.status))
}
