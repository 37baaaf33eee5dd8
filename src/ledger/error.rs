//! What can go wrong in a verb: a refusal, or the world.

use crate::model::Refusal;
use crate::model::reservation::Reservation;

/// Why a verb has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A rule said no. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A rule said no to a verb on a reservation. Nothing was changed.
    #[error("{refusal}")]
    RefusedOn {
        /// Why.
        refusal: Refusal,
        /// The reservation as it is, so that a worker can decide without another
        /// request.
        reservation: Box<Reservation>,
    },
    /// The API key is not valid any more. Nothing was changed.
    #[error("the API key is not valid any more")]
    Unauthenticated,
    /// The database cannot be reached, or cannot write. If a statement had been
    /// sent, its outcome is not known.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// All connections of this process are busy, or too many requests wait already.
    /// Nothing was sent.
    #[error("too much is waiting for the database already")]
    Overloaded,
    /// The request's deadline passed. If a statement had been sent, its outcome
    /// is not known.
    #[error("the deadline passed: {0}")]
    DeadlineExceeded(&'static str),
    /// The database holds, or says, what it never should.
    #[error("unexpected: {0}")]
    Unexpected(String),
}

/// What an SQLSTATE or a driver error means for the caller.
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(reported) => {
                let code = reported.code().unwrap_or_default().into_owned();
                match code.as_str() {
                    // statement_timeout, lock_timeout
                    "57014" | "55P03" => Self::DeadlineExceeded("a statement took too long"),
                    // numeric_value_out_of_range: a balance that the columns cannot
                    // hold. Nothing was changed.
                    "22003" => Refusal::invalid("units", "would take a balance out of range").into(),
                    // Serialization failures and deadlocks that outlived their
                    // retries; read-only; a database that is not there; a session
                    // that was ended; connections, logins, resources, shutting
                    // down, and the disk.
                    "40001" | "40P01" | "25006" | "25P03" | "3D000" | "55000" => Self::Unavailable(error.to_string()),
                    code if ["08", "28", "53", "57", "58"].iter().any(|class| code.starts_with(class)) => {
                        Self::Unavailable(error.to_string())
                    }
                    _ => Self::Unexpected(error.to_string()),
                }
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => Self::Unavailable(error.to_string()),
            _ => Self::Unexpected(error.to_string()),
        }
    }
}
