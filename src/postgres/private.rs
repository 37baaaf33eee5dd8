//! The private Postgres, and the thread that owns its server.
//!
//! The server belongs to a thread rather than to a task for two reasons: what
//! starts and stops it blocks, and on Linux the server is told to end when the
//! thread that spawned it ends. That thread must therefore live as long as the
//! server should, which no thread of a runtime promises.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::cluster;
use super::error::PrivatePostgresError;
use super::place::{self, Place};
use super::programs::Programs;
use super::server;

/// The superuser of a private Postgres, which is the owner of all that is in it.
pub const OWNER: &str = "spend_ledger_owner";

/// The login of the service, with the rights of `spend_ledger_service` and no
/// others. The service makes it.
pub const LOGIN: &str = "spend_ledger";

/// The name of the service's database. A new cluster has only `postgres`: the
/// service creates its own.
pub const DATABASE: &str = "spend_ledger";

/// How often the owning thread looks whether its server still runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// At most so many restarts in a minute.
const RESTARTS_A_MINUTE: usize = 6;

/// A Postgres server that only this process uses, and that lives as long.
///
/// [`stop`](Self::stop) ends it in an orderly way. Dropping the value asks for
/// the same and does not wait. When the process is killed the server ends by
/// itself (Linux), or is ended by the next start.
#[derive(Debug)]
pub struct PrivatePostgres {
    data_dir: PathBuf,
    socket_dir: PathBuf,
    requests: Sender<StopRequest>,
}

type Stopped = Result<(), PrivatePostgresError>;
type StopRequest = oneshot::Sender<Stopped>;

impl PrivatePostgres {
    /// Whether there is a cluster in a data directory.
    #[must_use]
    pub fn is_there(data_dir: &Path) -> bool {
        data_dir.join(place::CLUSTER).join("PG_VERSION").exists()
    }

    /// Starts the server on a data directory, making both if need be, and
    /// returns once it accepts connections. It is restarted when it dies.
    ///
    /// # Errors
    ///
    /// Everything that [`PrivatePostgresError`] names; nothing is left running.
    pub async fn start(data_dir: &Path) -> Result<Self, PrivatePostgresError> {
        let (requests, receiver) = channel();
        let (ready, started) = oneshot::channel();
        let wanted = data_dir.to_owned();
        std::thread::Builder::new()
            .name("postgres-owner".to_owned())
            .spawn(move || own(&wanted, Control { requests: receiver, ending: None }, ready))
            .map_err(PrivatePostgresError::Thread)?;
        // The thread answers in bounded time, since all that it does is bounded.
        let (data_dir, socket_dir) = started.await.unwrap_or(Err(PrivatePostgresError::Interrupted))?;
        Ok(Self { data_dir, socket_dir, requests })
    }

    /// The URL of a database for a user. The owner is [`OWNER`]; a new cluster
    /// has the database `postgres`.
    #[must_use]
    pub fn url(&self, database: &str, user: &str) -> String {
        place::url(&self.socket_dir, database, user)
    }

    /// The directory of the Unix socket, which only the owner and root can enter.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// The data directory, as an absolute path.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Stops the server: sessions end, everything is written out, and the data
    /// directory is free for the next owner. Stopping again does nothing.
    ///
    /// # Errors
    ///
    /// [`PrivatePostgresError::StaysUp`] if it does not end by any means short
    /// of killing it, within about 40 seconds.
    pub async fn stop(&self) -> Result<(), PrivatePostgresError> {
        let (answer, stopped) = oneshot::channel();
        if self.requests.send(answer).is_err() {
            return Ok(());
        }
        // An answer that never comes: it had been stopped already.
        stopped.await.unwrap_or(Ok(()))
    }
}

/// The owning thread's ear: whether it is to go on.
pub(super) struct Control {
    requests: Receiver<StopRequest>,
    ending: Option<Ending>,
}

enum Ending {
    Asked(StopRequest),
    Dropped,
}

impl Control {
    /// Waits so long, or until the end is wanted; says whether to go on.
    pub(super) fn pause(&mut self, duration: Duration) -> bool {
        if self.ending.is_none() {
            self.ending = match self.requests.recv_timeout(duration) {
                Ok(request) => Some(Ending::Asked(request)),
                Err(RecvTimeoutError::Disconnected) => Some(Ending::Dropped),
                Err(RecvTimeoutError::Timeout) => None,
            };
        }
        !self.ended()
    }

    /// Whether the end is wanted.
    pub(super) fn ended(&self) -> bool {
        self.ending.is_some()
    }

    fn answer(self, stopped: Stopped) {
        match (self.ending, stopped) {
            (Some(Ending::Asked(request)), stopped) => {
                // Whoever asked may have stopped waiting.
                let _ = request.send(stopped);
            }
            (_, Err(error)) => tracing::error!(%error, "Postgres"),
            (_, Ok(())) => {}
        }
    }
}

type Started = Result<(PathBuf, PathBuf), PrivatePostgresError>;

/// The life of the owning thread.
fn own(data_dir: &Path, mut control: Control, ready: oneshot::Sender<Started>) {
    let (place, programs, child) = match start(data_dir, &mut control) {
        Ok(started) => started,
        Err(error) => {
            // Whoever started it may have given up.
            let _ = ready.send(Err(error));
            return;
        }
    };
    // Given up or not, the channel of requests says so below.
    let _ = ready.send(Ok((place.data_dir.clone(), place.socket_dir.clone())));
    let stopped = supervise(&place, &programs, child, &mut control);
    // Free for the next owner before the answer says so.
    drop(place);
    control.answer(stopped);
}

fn start(data_dir: &Path, control: &mut Control) -> Result<(Place, Programs, Child), PrivatePostgresError> {
    let mut place = Place::take(data_dir)?;
    cluster::remove_unfinished(&place.home);
    let major = cluster::major_version(&place.cluster)?;
    let programs = Programs::find(&place.account, major)?;
    if major.is_none() {
        cluster::create(&place, &programs)?;
    }
    place.leave_pointer()?;
    let child = server::launch(&place, &programs, control)?;
    match place.publish() {
        Ok(()) => Ok((place, programs, child)),
        Err(error) => {
            let mut child = child;
            server::stop(&mut child)?;
            Err(error)
        }
    }
}

/// Keeps the server running until the end is wanted.
fn supervise(place: &Place, programs: &Programs, mut child: Child, control: &mut Control) -> Stopped {
    let mut restarts = Restarts::default();
    while control.pause(LOOK_EVERY) {
        let ended = match child.try_wait() {
            Ok(None) => continue,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%ended, log = %place.log().display(), "Postgres ended unexpectedly; restarting it");
        match restart(place, programs, &mut restarts, control) {
            Ok(again) => child = again,
            Err(PrivatePostgresError::Interrupted) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    server::stop(&mut child)
}

/// Tries until the server runs again, or the end is wanted.
fn restart(
    place: &Place,
    programs: &Programs,
    restarts: &mut Restarts,
    control: &mut Control,
) -> Result<Child, PrivatePostgresError> {
    while control.pause(restarts.next(Instant::now())) {
        match server::launch(place, programs, control) {
            Ok(child) => {
                tracing::info!(pid = child.id(), "Postgres runs again");
                return Ok(child);
            }
            Err(error) if control.ended() => return Err(error),
            Err(error) => tracing::error!(%error, "Postgres cannot be restarted; trying again"),
        }
    }
    Err(PrivatePostgresError::Interrupted)
}

/// The restarts of the last minute, and how long to wait before another. It
/// never gives up: what keeps a server from starting (a full disk) may pass.
#[derive(Debug, Default)]
struct Restarts(VecDeque<Instant>);

impl Restarts {
    fn next(&mut self, now: Instant) -> Duration {
        const MINUTE: Duration = Duration::from_secs(60);
        const FIRST: Duration = Duration::from_millis(100);
        self.0.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        let doubled = u32::try_from(self.0.len()).unwrap_or(u32::MAX).min(8);
        let backoff = FIRST.saturating_mul(2_u32.saturating_pow(doubled));
        let delay = match self.0.front() {
            Some(oldest) if self.0.len() >= RESTARTS_A_MINUTE => {
                backoff.max(MINUTE.saturating_sub(now.saturating_duration_since(*oldest)))
            }
            _ => backoff,
        };
        self.0.push_back(now + delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_bounded_but_never_given_up() {
        let mut restarts = Restarts::default();
        let mut now = Instant::now();
        let began = now;
        let mut when = Vec::new();
        for _ in 0..20 {
            now += restarts.next(now);
            when.push(now - began);
        }
        assert_eq!(when[0], Duration::from_millis(100));
        for (at, next) in when.iter().zip(when.iter().skip(RESTARTS_A_MINUTE)) {
            assert!(*next - *at >= Duration::from_secs(60), "{when:?}");
        }
        now += Duration::from_secs(120);
        assert_eq!(restarts.next(now), Duration::from_millis(100));
    }
}
