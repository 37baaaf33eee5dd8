//! Tells the service how calls ended. What it cannot be told yet is kept as long
//! as the process lives.

use serde_json::{Value, json};

use crate::call::Report;
use crate::client::Core;
use crate::error::{Error, accepted, read};
use crate::held::{AttemptId, Untold};
use crate::view::CallView;
use crate::wire;

/// Any attempt's call may be said to have an unknown outcome.
pub(crate) fn unknown() -> Value {
    json!({ "outcome": "unknown" })
}

impl Core {
    /// Says how a call ended.
    pub(crate) async fn deliver(&self, attempt: &AttemptId, call: &str, body: &Value) -> Report {
        let url = self.url.reservation(&[&attempt.0, "calls", call, "settle"]);
        let answer = accepted(self.wire.send(&wire::Request::post(url, body)).await);
        match answer.and_then(|answer| read::<CallView>(&answer)) {
            Ok(view) => {
                if view.reservation_state.is_over() {
                    self.held.end(attempt);
                }
                Report::Acknowledged(Box::new(view))
            }
            Err(Error::Refused(refusal)) => {
                refusal.reservation.iter().for_each(|reservation| self.held.saw(reservation));
                // Anything else is not about the call: a key that was revoked, for example.
                let is_final = matches!(refusal.status, 400 | 404 | 409 | 413 | 422);
                if is_final { Report::Refused(refusal) } else { Report::Pending(Error::Refused(refusal)) }
            }
            Err(error) => Report::Pending(error),
        }
    }

    /// Says how a call ended that is remembered until the service knows.
    pub(crate) async fn tell(&self, attempt: &AttemptId, call: &str, untold: &Untold) -> Report {
        let told = self.deliver(attempt, call, &untold.body).await;
        match &told {
            Report::Pending(_) => {}
            Report::Acknowledged(_) => self.held.told(attempt, call, untold),
            Report::Refused(refusal) if refusal.status == 404 && untold.withdrawn => {
                self.held.not_there(attempt, call, untold);
            }
            Report::Refused(refusal) => {
                tracing::warn!(reservation = attempt.0, call, %refusal, "how a call ended was refused");
                let no_amount = matches!(refusal.status, 400 | 413 | 422);
                if no_amount && untold.body != unknown() {
                    // The call must not stay in flight.
                    self.held.tell_instead(attempt, call, untold, unknown());
                } else {
                    self.held.told(attempt, call, untold);
                }
            }
        }
        told
    }

    /// Says how a call ended if that is remembered, until nothing is left to say of it.
    pub(crate) async fn tell_remembered(
        &self,
        attempt: &AttemptId,
        call: &str,
        learn: impl Fn(&Report),
    ) -> Result<(), Error> {
        // The second time, that what was no amount is unknown.
        for _ in 0..2 {
            let Some(untold) = self.held.untold(attempt, call) else { break };
            let told = self.tell(attempt, call, &untold).await;
            learn(&told);
            if let Report::Pending(error) = told {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Says all that is remembered of an attempt.
    pub(crate) async fn tell_all(&self, attempt: &AttemptId, learn: impl Fn(&Report)) -> Result<(), Error> {
        for call in self.held.untold_calls(attempt) {
            self.tell_remembered(attempt, &call, &learn).await?;
        }
        Ok(())
    }
}
