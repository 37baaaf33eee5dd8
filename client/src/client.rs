//! A worker's connection to the service.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::endpoint::{Key, ServiceUrl};
use crate::error::{BuildError, Error, accepted, read};
use crate::held::{AttemptId, Held, Taken};
use crate::inner::Inner;
use crate::job::Job;
use crate::request::{Request, TakeOver, put};
use crate::view::{Enforcement, Reservation, ReservationState, Token};
use crate::wire::{self, Patience, Wire};

/// A worker's connection to the service. Cloning it is cheap, and clones share
/// their connections and their holder's name: one for a process is enough.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Core>);

pub(crate) struct Core {
    pub(crate) wire: Wire,
    pub(crate) url: ServiceUrl,
    account: Option<String>,
    holder: String,
    /// Whether no other process can have the holder's name.
    made_up: bool,
    pub(crate) lease_seconds: u32,
    pub(crate) held: Held,
}

/// How a client is set up.
#[derive(Clone)]
pub struct Builder {
    url: String,
    key: String,
    account: Option<String>,
    holder: Option<String>,
    patience: Patience,
    lease_seconds: u32,
}

impl Builder {
    /// The account that jobs are for, for a key that may act for several.
    #[must_use]
    pub fn account(self, account: impl Into<String>) -> Self {
        Self { account: Some(account.into()), ..self }
    }

    /// The name of this process, 1 to 128 characters, instead of a made-up one
    /// that no other process has. A name that survives a restart lets the
    /// restarted process go on with its jobs without taking them over. No two
    /// processes that live at the same time may have the same name, nor two clients
    /// in one process: the service would take them for one.
    #[must_use]
    pub fn holder(self, name: impl Into<String>) -> Self {
        Self { holder: Some(name.into()), ..self }
    }

    /// How long one try of a request may take; 15 seconds unless said otherwise.
    #[must_use]
    pub fn try_timeout(mut self, timeout: Duration) -> Self {
        self.patience.try_timeout = timeout;
        self
    }

    /// How long a request is repeated that got no answer, or one that says that
    /// the service is in trouble; a minute unless said otherwise.
    #[must_use]
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.patience.retry_for = time;
        self
    }

    /// How long a lease is, 5 to 3600 seconds; 60 unless said otherwise. It is
    /// renewed after each third of it. A job whose process has vanished can be
    /// taken over once its lease has run out.
    #[must_use]
    pub fn lease_seconds(self, seconds: u32) -> Self {
        Self { lease_seconds: seconds, ..self }
    }

    /// The client. It connects to nothing yet.
    ///
    /// # Errors
    ///
    /// If the address or the key cannot be one.
    pub fn build(self) -> Result<Client, BuildError> {
        let url: ServiceUrl = self.url.parse().map_err(BuildError::Url)?;
        let key: Key = self.key.parse().map_err(BuildError::Key)?;
        let wire = Wire::new(&key, self.patience)?;
        let (account, lease_seconds) = (self.account, self.lease_seconds);
        let made_up = self.holder.is_none();
        let holder = self.holder.unwrap_or_else(made_up_name);
        let held = Held::default();
        Ok(Client(Arc::new(Core { wire, url, account, holder, made_up, lease_seconds, held })))
    }
}

impl Client {
    /// A client as it is unless said otherwise.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn new(url: impl Into<String>, key: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder(url, key).build()
    }

    /// A client of the service at this address (`http://…`), with an API key of
    /// the role `worker`.
    pub fn builder(url: impl Into<String>, key: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            key: key.into(),
            account: None,
            holder: None,
            patience: Patience::default(),
            lease_seconds: 60,
        }
    }

    /// The name of this process, as the service shows it.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.0.holder
    }

    /// Reserves what a job may cost. `job` is the job's identity within its
    /// account, 1 to 255 visible ASCII characters: the same job again, after
    /// whatever happened, gets the same reservation, and takes nothing more.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it is not admitted, for example with the code
    /// `budget_exhausted`; [`Error::Held`], [`Error::Busy`] or [`Error::Ended`] if
    /// the job was admitted before and is not this caller's to work on; and what
    /// may happen to every request.
    pub async fn reserve(&self, job: &str, request: Request) -> Result<Job, Error> {
        let core = &self.0;
        let body = request.body(core.account.as_deref(), &core.holder, core.lease_seconds);
        self.start(wire::Request::post(core.url.reservation(&[]), &body).with_key(job)?).await
    }

    /// Goes on with the job of a holder that has vanished. `previous` is the number
    /// of the attempt that this one replaces: from then on the service refuses
    /// whatever that one asks for. Both are in [`Error::Held`].
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], with the code `lease_current` while the old lease has
    /// not run out, `evidence_required` where only evidence can say that the old
    /// attempt spends no more, `stale_attempt` if somebody else was faster,
    /// `not_active` if the job has ended; and what may happen to every request.
    pub async fn take_over(&self, reservation: &str, previous: u32, stated: TakeOver) -> Result<Job, Error> {
        let core = &self.0;
        let body = stated.body(previous, &core.holder, core.lease_seconds);
        let url = core.url.reservation(&[reservation, "attempts"]);
        self.start(wire::Request::post(url, &body)).await
    }

    /// Tells the service how calls ended that it could not be told before
    /// ([`Report::Pending`](crate::Report::Pending)), of all jobs of this client:
    /// also of those that were dropped or lost, and will not settle any more. A
    /// process that ends in an orderly way does it last.
    ///
    /// # Errors
    ///
    /// What may happen to every request, if something still cannot be told. It is
    /// still remembered then.
    pub async fn deliver_reports(&self) -> Result<(), Error> {
        for attempt in self.0.held.untold_attempts() {
            self.0.tell_all(&attempt, |_| ()).await?;
        }
        Ok(())
    }

    /// A reservation as it is now.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if there is none; and what may happen to every request.
    pub async fn reservation(&self, reservation: &str) -> Result<Reservation, Error> {
        let url = self.0.url.reservation(&[reservation]);
        self.0.show(&wire::Request::get(url)).await
    }

    /// Cancels a job, whoever works on it: its holder learns of it when it next
    /// renews its lease or asks for a call. Until it is settled or fenced all of
    /// it stays charged.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if there is none; and what may happen to every request.
    pub async fn cancel(&self, reservation: &str, reason: Option<&str>) -> Result<Reservation, Error> {
        let url = self.0.url.reservation(&[reservation, "cancel"]);
        let mut body = Map::new();
        put(&mut body, "reason", reason);
        self.0.show(&wire::Request::post(url, &Value::Object(body))).await
    }

    /// Asks for an attempt, and makes a job of it.
    async fn start(&self, request: wire::Request) -> Result<Job, Error> {
        let core = &self.0;
        let asked = Instant::now();
        let answer = accepted(core.wire.send(&request).await)?;
        let created = answer.status == 201;
        let reservation: Reservation = read(&answer)?;
        core.held.saw(&reservation);
        let (attempt, token) = core.to_work_on(&reservation)?;
        let taken = core.held.take(&attempt);
        if taken == Taken::Busy {
            return Err(Error::Busy(Box::new(reservation)));
        }
        // Nobody else can have made a call under this attempt: it was made just now,
        // or by a lost try for a name that only this process has.
        let active = reservation.state == ReservationState::Active;
        let fresh = active && taken == Taken::First && (created || core.made_up);
        // What was there before may have had its lease for a while.
        let lease_until = if created { asked + Duration::from_secs(core.lease_seconds.into()) } else { asked };
        Ok(Job::new(Inner::new(Arc::clone(core), reservation, attempt, token, fresh, lease_until)))
    }
}

impl Core {
    /// Sends what answers with a reservation.
    async fn show(&self, request: &wire::Request) -> Result<Reservation, Error> {
        let reservation: Reservation = read(&accepted(self.wire.send(request).await)?)?;
        self.held.saw(&reservation);
        Ok(reservation)
    }

    /// The attempt that a job can be made of.
    fn to_work_on(&self, reservation: &Reservation) -> Result<(AttemptId, Token), Error> {
        let token = reservation.attempt.as_ref().and_then(|it| Some((it.number, it.token.clone()?)));
        let attempt = token.map(|(number, token)| ((reservation.id.clone(), number), token));
        match (reservation.state, attempt) {
            // What was cancelled has still to be settled.
            (ReservationState::Active | ReservationState::Cancelling, Some(attempt)) => Ok(attempt),
            // Where the ledger admits the calls a fence leaves only those charged that
            // have not ended, and settling changes nothing. Where it does not, the
            // worker may know better than whoever fenced.
            (ReservationState::Fenced, Some(attempt)) => {
                if reservation.enforcement != Enforcement::Calls || self.held.is_unfinished(&attempt.0) {
                    return Ok(attempt);
                }
                self.held.end(&attempt.0);
                Err(Error::Ended(Box::new(reservation.clone())))
            }
            (ReservationState::Active | ReservationState::Waiting, None) => {
                Err(Error::Held(Box::new(reservation.clone())))
            }
            _ => Err(Error::Ended(Box::new(reservation.clone()))),
        }
    }
}

/// Without the key.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, account, holder, patience, lease_seconds, key: _ } = self;
        let mut debug = f.debug_struct("Builder");
        debug.field("url", url).field("account", account).field("holder", holder);
        debug.field("patience", patience).field("lease_seconds", lease_seconds).finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.0.url.to_string();
        f.debug_struct("Client").field("url", &url).field("holder", &self.0.holder).finish_non_exhaustive()
    }
}

/// Host, process and a random number: no other process has this name, and a person
/// can tell where it runs.
fn made_up_name() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-')).take(64).collect();
    format!("{host}/{}/{:016x}", std::process::id(), wire::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_shown() {
        let builder = Client::builder("http://127.0.0.1:1", "sl_secret");
        assert!(!format!("{builder:?} {:?}", builder.clone().build().unwrap()).contains("secret"));
    }

    #[test]
    fn made_up_names_are_names_and_differ() {
        let (one, two) = (made_up_name(), made_up_name());
        assert_ne!(one, two);
        assert!(one.len() <= 128 && one.is_ascii(), "{one}");
    }
}
