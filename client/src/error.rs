//! Why something was not done.

use std::time::Duration;

use rust_decimal::Decimal;
use serde_json::{Map, Value};

use crate::endpoint::EndpointError;
use crate::view::Reservation;
use crate::wire::{Answer, Exchange};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The address of the service.
    #[error("the address {0}")]
    Url(EndpointError),
    /// The API key.
    #[error("the API key {0}")]
    Key(EndpointError),
    /// The HTTP client, for want of file descriptors for example.
    #[error("cannot set up the HTTP client: {0}")]
    Http(#[from] reqwest::Error),
}

/// Why something was not done, or is not known to be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service said no, and changed nothing.
    #[error(transparent)]
    Refused(#[from] Box<Refusal>),
    /// No answer, however often it was tried: nobody knows whether it was done.
    /// The same again, with the same keys and the same holder, finds out; not
    /// before `retry_after`, where the service has said so.
    #[error("no answer after {tries} tries: {reason}")]
    Unreachable {
        /// Tries, the first included.
        tries: u64,
        /// What went wrong last.
        reason: String,
        /// After how long the service asked to be asked again, if that was later
        /// than this request was repeated.
        retry_after: Option<Duration>,
    },
    /// An answer, but not one of a ledger: is something else at that address?
    #[error("not an answer of the ledger: {0}")]
    Protocol(String),
    /// Not sent: no request can be made of it.
    #[error("{field} {reason}")]
    Invalid {
        /// What is wrong.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The job was reserved before, and another process holds its attempt. To go
    /// on with the job it has to be taken over ([`Client::take_over`](crate::Client::take_over)).
    #[error("reservation {} is {}", .0.id, held_by(.0))]
    Held(Box<Reservation>),
    /// The job was reserved before, and there is nothing left to do: it is settled;
    /// or it is fenced, by its own settlement or by somebody else, where the ledger
    /// admits every call, and only calls that have not ended are still charged; or
    /// another process has it and it was cancelled or fenced. Who finds out what such
    /// a call has cost says so with a [`Handle`](crate::Handle) of the job that made
    /// it ([`settle_call`](crate::Handle::settle_call)); if there is none any more, it
    /// is finance's to settle.
    #[error("reservation {} has ended: {:?}", .0.id, .0.state)]
    Ended(Box<Reservation>),
    /// This process works on the reservation already: another [`Job`](crate::Job)
    /// of this client holds its attempt.
    #[error("this process works on reservation {} already", .0.id)]
    Busy(Box<Reservation>),
}

impl Error {
    /// The refusal, if the service said no.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The stable code of the refusal, such as `budget_exhausted`, if the service said no.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.refusal().map(|refusal| refusal.code.as_str())
    }
}

fn held_by(reservation: &Reservation) -> String {
    match &reservation.attempt {
        Some(attempt) => format!("held by {} (attempt {})", attempt.holder, attempt.number),
        None => "waiting".to_owned(),
    }
}

/// Whether asking again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// No.
    Never,
    /// Live work may give units or a slot back.
    AfterRelease,
    /// A budget period must end.
    AfterReset,
    /// Soon.
    Transient,
}

/// The service said no.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{code}: {detail}")]
#[non_exhaustive]
pub struct Refusal {
    /// The status code.
    pub status: u16,
    /// What is wrong, for a program. Stable.
    pub code: String,
    /// What is wrong, for a person.
    pub detail: String,
    /// Whether asking again can help.
    pub retry: Retry,
    /// After how long asking again may help, where a time is known.
    pub retry_after: Option<Duration>,
    /// The reservation as it is, once it is known which is meant.
    pub reservation: Option<Reservation>,
    /// The problem's members, such as `breaches`; the reservation apart.
    pub members: Map<String, Value>,
}

impl Refusal {
    /// A member of the problem that is an amount, such as `remaining` or `ceiling`
    /// of `ceiling_reached`, in the reservation's unit.
    #[must_use]
    pub fn amount(&self, member: &str) -> Option<Decimal> {
        Decimal::from_str_exact(self.members.get(member)?.as_str()?).ok()
    }
}

/// The answer if the service did what was asked.
pub(crate) fn accepted(exchange: Exchange) -> Result<Answer, Error> {
    let Exchange { tries, outcome, retry_after, .. } = exchange;
    let answer = outcome.map_err(|reason| Error::Unreachable { tries, reason, retry_after })?;
    if answer.is_success() { Ok(answer) } else { Err(refused(&answer)) }
}

/// The body of an answer, in the shape that was expected.
pub(crate) fn read<T: serde::de::DeserializeOwned>(answer: &Answer) -> Result<T, Error> {
    serde_json::from_slice(&answer.body)
        .map_err(|error| Error::Protocol(format!("answered {} with something else: {error}", answer.status)))
}

fn refused(answer: &Answer) -> Error {
    let (problem, members) = (answer.problem(), serde_json::from_slice::<Map<String, Value>>(&answer.body));
    let (Some(code), Ok(mut members)) = (problem.code, members) else {
        return Error::Protocol(format!("answered {} without a code", answer.status));
    };
    // Taken out: it may have a token, and members are shown.
    let reservation = members.remove("reservation").and_then(|it| serde_json::from_value(it).ok());
    Error::Refused(Box::new(Refusal {
        status: answer.status,
        code,
        detail: problem.detail.unwrap_or_default(),
        retry: match problem.retry.as_deref() {
            Some("after_release") => Retry::AfterRelease,
            Some("after_reset") => Retry::AfterReset,
            Some("transient") => Retry::Transient,
            _ => Retry::Never,
        },
        retry_after: answer.retry_after,
        reservation,
        members,
    }))
}
