//! Connections to Postgres, with bounds on every wait.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres};
use tokio::time::Instant;

use super::Error;
use crate::telemetry::Metrics;

/// Who asks, and until when an answer is of use.
#[derive(Debug, Clone)]
pub struct Context {
    /// Who is written down as having acted, such as `key:0190…` or `cli`.
    pub actor: String,
    /// After this instant nothing more is sent to the database.
    pub deadline: Instant,
}

impl Context {
    /// Work of the service itself or of the command line, with a minute's time.
    #[must_use]
    pub fn system(actor: &str) -> Self {
        Self { actor: actor.to_owned(), deadline: Instant::now() + Duration::from_secs(60) }
    }
}

/// How to connect, and how long to wait for anything.
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// `postgres://user@host/database`, as sqlx reads it.
    pub url: String,
    /// The most connections that this process opens.
    pub max_connections: u32,
    /// The longest that one statement may run.
    pub statement_timeout: Duration,
}

impl DatabaseOptions {
    /// Sensible bounds for a URL: 16 connections, statements of at most 4 s.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), max_connections: 16, statement_timeout: Duration::from_secs(4) }
    }
}

/// A pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pool: PgPool,
    metrics: Arc<Metrics>,
}

impl Database {
    /// A pool that connects when it is first used.
    ///
    /// # Errors
    ///
    /// The URL cannot be read.
    pub fn connect_lazily(options: &DatabaseOptions, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let milliseconds = options.statement_timeout.as_millis().to_string();
        let connect: PgConnectOptions = options
            .url
            .parse::<PgConnectOptions>()
            .map_err(|error| Error::Unexpected(format!("the database URL cannot be read: {error}")))?
            .application_name("spend-ledger")
            .options([
                ("statement_timeout", milliseconds.as_str()),
                ("lock_timeout", milliseconds.as_str()),
                ("idle_in_transaction_session_timeout", milliseconds.as_str()),
                ("TimeZone", "UTC"),
                // Statements of a millisecond gain nothing from being compiled,
                // and a wrong estimate would cost them a second.
                ("jit", "off"),
            ]);
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections)
            // The context's deadline bounds the wait; this is only a backstop.
            .acquire_timeout(Duration::from_secs(60))
            .test_before_acquire(false)
            .connect_lazy_with(connect);
        Ok(Self { pool, metrics })
    }

    /// The pool, for reading without a deadline: verify and the schema checks.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Lets go of all connections, waiting for those in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// The tries at one statement within the context's deadline.
    pub(super) fn tries<'a>(&'a self, context: &'a Context) -> Tries<'a> {
        Tries { database: self, context, made: 0 }
    }

    async fn connection(&self, deadline: Instant) -> Result<PoolConnection<Postgres>, Error> {
        if Instant::now() >= deadline {
            return Err(Error::DeadlineExceeded("nothing was sent to the database"));
        }
        match tokio::time::timeout_at(deadline, self.pool.acquire()).await {
            Ok(connection) => Ok(connection?),
            Err(_) if self.pool.num_idle() == 0 && self.pool.size() >= self.pool.options().get_max_connections() => {
                Err(Error::Overloaded)
            }
            Err(_) => Err(Error::Unavailable("no connection could be made in time".to_owned())),
        }
    }
}

/// The most times that one statement is sent.
const MAX_TRIES: u32 = 6;

/// A bounded, counted and jittered series of tries at one statement:
///
/// ```text
/// let mut tries = database.tries(context);
/// let rows = loop {
///     let mut connection = tries.connection().await?;
///     match statement.fetch_all(&mut *connection).await {
///         Ok(rows) => break rows,
///         Err(error) => tries.again(error).await?,
///     }
/// };
/// ```
///
/// A statement is run again when the database rolled it back for the sake of
/// others (40001, 40P01), and once when its connection turns out to be dead:
/// every verb may be repeated, so running it again is how to find out what
/// became of it.
pub(super) struct Tries<'a> {
    database: &'a Database,
    context: &'a Context,
    made: u32,
}

impl Tries<'_> {
    /// A connection for the next try.
    pub(super) async fn connection(&mut self) -> Result<PoolConnection<Postgres>, Error> {
        self.made += 1;
        self.database.connection(self.context.deadline).await
    }

    /// The same for what must not be done twice: tried again only if the
    /// database says that it was rolled back.
    ///
    /// # Errors
    ///
    /// The error itself, if it may not be tried again, or not any more.
    pub(super) async fn again_if_rolled_back(&mut self, error: sqlx::Error) -> Result<(), Error> {
        let code = error.as_database_error().and_then(|reported| reported.code());
        if matches!(code.as_deref(), Some("40001" | "40P01")) { self.again(error).await } else { Err(error.into()) }
    }

    /// Waits a little if the statement may be tried again.
    ///
    /// # Errors
    ///
    /// The error itself, if it may not, or not any more.
    pub(super) async fn again(&mut self, error: sqlx::Error) -> Result<(), Error> {
        let reason = match &error {
            sqlx::Error::Database(reported) => match reported.code().as_deref() {
                Some("40001") => "serialization_failure",
                Some("40P01") => "deadlock",
                // The server is going down or starting: this connection is of
                // no more use.
                Some("57P01" | "57P02" | "57P03") => "connection_lost",
                _ => return Err(error.into()),
            },
            sqlx::Error::Io(_) => "connection_lost",
            _ => return Err(error.into()),
        };
        if self.made >= MAX_TRIES {
            return Err(error.into());
        }
        self.database.metrics.statement_retried(reason);
        tracing::debug!(reason, made = self.made, "statement is tried again");
        let ceiling = 2_u64.saturating_pow(self.made) * 2;
        let pause = Duration::from_millis(1 + jitter() % ceiling);
        if Instant::now() + pause >= self.context.deadline {
            return Err(error.into());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// A number that differs between processes and moments: enough to keep two
/// retries apart, and nothing more depends on it.
fn jitter() -> u64 {
    let mut bytes = [0_u8; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}
