//! Keeps a job's lease.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::{Error, read};
use crate::inner::Inner;
use crate::job::JobState;
use crate::view::Reservation;
use crate::wire::{Patience, Request};

/// The pause after a renewal that stayed without an answer, however often it was tried.
const PAUSE: Duration = Duration::from_secs(1);

/// Renews the lease after every third of it until the job must stop; the answers
/// say when that is. A service that does not answer is asked for as long as the
/// job lives: that a lease has run out changes nothing by itself.
pub(crate) async fn keep(inner: Arc<Inner>) {
    let lease = Duration::from_secs(inner.core.lease_seconds.into());
    let third = lease / 3;
    let whole = inner.core.wire.patience();
    // A try that hangs must not cost the lease.
    let patience = Patience { try_timeout: whole.try_timeout.min(third), retry_for: third };
    let mut body = inner.body();
    body.insert("lease_seconds".to_owned(), inner.core.lease_seconds.into());
    let request = Request::post(inner.url(&["renew"]), &Value::Object(body));
    let mut next = inner.lease_until().checked_sub(third * 2).unwrap_or_else(Instant::now);
    loop {
        sleep_until(next).await;
        if inner.state() != JobState::Running {
            return;
        }
        let asked = Instant::now();
        match renew(&inner, &request, patience).await {
            Ok(()) => {
                inner.leased(asked);
                next = asked + third;
            }
            Err(Error::Unreachable { reason, retry_after, .. }) => {
                tracing::warn!(reason, "the lease could not be renewed yet");
                sleep(retry_after.unwrap_or_default().max(PAUSE)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the lease was not renewed");
                next = asked + third;
            }
        }
    }
}

async fn renew(inner: &Inner, request: &Request, patience: Patience) -> Result<(), Error> {
    let answer = inner.learn(inner.core.wire.send_within(request, patience).await)?;
    inner.saw(read::<Reservation>(&answer)?);
    Ok(())
}
