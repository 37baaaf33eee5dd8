//! Connections to Postgres, with bounds on every wait.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::time::Instant;
use uuid::Uuid;

use super::Error;
use super::schema::{self, SchemaError};
use crate::telemetry::Metrics;

/// Sends a statement, again if need be: when the database rolled it back for the
/// sake of others (40001, 40P01), or when its connection turns out to be dead.
/// Every verb may be repeated, so running it again is how to find out what became
/// of it. Bounded, jittered and counted; never waited for longer than its timeout,
/// whatever the network does.
///
/// (A macro, since the compiler cannot yet prove that what a closure would return
/// may move between threads.)
macro_rules! run {
    ($database:expr, $context:expr, |$connection:ident| $statement:block) => {
        $crate::ledger::database::run!($database, $context, again, |$connection| $statement)
    };
    ($database:expr, $context:expr, $again:ident, |$connection:ident| $statement:block) => {{
        let database = &$database;
        let context = $context;
        let mut tries = database.tries(&context);
        loop {
            let mut held = match tries.connection().await {
                Ok(held) => held,
                Err(error) => break Err(error),
            };
            let sent = tries.bounded(async {
                let $connection: &mut sqlx::PgConnection = &mut held;
                $statement
            });
            match sent.await {
                Some(Ok(answer)) => {
                    tries.give_back(held);
                    break Ok(answer);
                }
                Some(Err(error)) => {
                    tries.give_back(held);
                    if let Err(error) = tries.$again(error).await {
                        break Err(error);
                    }
                }
                None => {
                    // Nobody knows what this connection will say next, or when: it
                    // is closed, not given back.
                    drop(held.detach());
                    break Err($crate::ledger::Error::DeadlineExceeded("the database did not answer in time"));
                }
            }
        }
    }};
}

/// The same for what must not be done twice: sent again only if the database says
/// that it was rolled back.
macro_rules! run_once {
    ($database:expr, $context:expr, |$connection:ident| $statement:block) => {
        $crate::ledger::database::run!($database, $context, again_if_rolled_back, |$connection| $statement)
    };
}

pub(super) use {run, run_once};

/// Who asks, and until when an answer is of use.
#[derive(Debug, Clone)]
pub struct Context {
    /// Who is written down as having acted, such as `key:0190…` or `cli`.
    pub actor: String,
    /// The API key that the deciding statement has to find valid; none if nobody's
    /// key is to be relied on.
    pub key: Option<Uuid>,
    /// After this instant nothing more is sent to the database.
    pub deadline: Instant,
}

impl Context {
    /// Work of the service itself or of the command line, with a minute's time.
    #[must_use]
    pub fn system(actor: &str) -> Self {
        Self { actor: actor.to_owned(), key: None, deadline: Instant::now() + Duration::from_secs(60) }
    }
}

/// How to connect, and how long to wait for anything.
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// `postgres://user@host/database`, as sqlx reads it.
    pub url: String,
    /// The most connections that this process opens: half of them for the statements
    /// of the busy path, half for everything else; one is for both.
    pub max_connections: u32,
    /// The longest that one statement may run.
    pub statement_timeout: Duration,
    /// Whether requests that wait are decided together by one statement; if not,
    /// each by a statement of its own.
    pub grouping: bool,
}

impl DatabaseOptions {
    /// Sensible bounds for a URL: 16 connections, statements of at most 4 s, which
    /// decide together what waits.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), max_connections: 16, statement_timeout: Duration::from_secs(4), grouping: true }
    }
}

/// Pools of connections. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pool: PgPool,
    /// For the statements of the busy path, which are always the same and have one
    /// plan each: see [`Database::deciding`].
    deciding: PgPool,
    metrics: Arc<Metrics>,
    /// The longest that one statement is waited for.
    patience: Duration,
    /// The longest that a connection is asked whether it is well.
    ping_within: Duration,
    grouping: bool,
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
                // What a statement reads again after it has waited for a lock is
                // only newer at this level.
                ("default_transaction_isolation", "read committed"),
                ("default_transaction_deferrable", "off"),
                // Statements of a millisecond gain nothing from being compiled,
                // and a wrong estimate would cost them a second.
                ("jit", "off"),
            ]);
        let pool = |connections: u32, connect: PgConnectOptions| {
            PgPoolOptions::new()
                .max_connections(connections)
                // The context's deadline bounds the wait; this is only a backstop.
                .acquire_timeout(Duration::from_secs(60))
                .test_before_acquire(false)
                .after_connect(|connection, _| Box::pin(refuse_if_not_durable(connection)))
                .connect_lazy_with(connect)
        };
        let others = options.max_connections / 2;
        let (pool, deciding) = match others {
            0 => {
                let pool = pool(options.max_connections, connect);
                (pool.clone(), pool)
            }
            others => {
                let one_plan = connect.clone().options([("plan_cache_mode", "force_generic_plan")]);
                (pool(others, connect), pool(options.max_connections - others, one_plan))
            }
        };
        let patience = options.statement_timeout + GRACE;
        Ok(Self { pool, deciding, metrics, patience, ping_within: patience, grouping: options.grouping })
    }

    /// The pool, for reading without a deadline: verify and the schema checks.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The pool of [`Database::deciding`], for measuring the statements alone.
    pub(crate) fn deciding_pool(&self) -> &PgPool {
        &self.deciding
    }

    /// Lets go of all connections, waiting for those in use, but not for ever: a
    /// server that has gone silent must not keep the service from stopping.
    pub async fn close(&self) {
        let closing = async { tokio::join!(self.pool.close(), self.deciding.close()) };
        if tokio::time::timeout(CLOSE_WITHIN, closing).await.is_err() {
            tracing::warn!("database connections that did not close have been dropped");
        }
    }

    /// Whether requests that wait are decided together.
    pub(super) fn grouping(&self) -> bool {
        self.grouping
    }

    /// Counts a statement of a verb that has decided so many items.
    pub(super) fn decided(&self, verb: &'static str, items: usize) {
        self.metrics.decided(verb, items);
    }

    /// The connections that are kept for the statements of the busy path: half of
    /// them. Postgres would make a plan for each execution of them, because it takes
    /// an array of one item for cheaper than one of unknown length; on these
    /// connections it makes one plan, which takes less than half the time. Nothing
    /// else is sent on them: a list with a dozen optional filters needs a plan of its
    /// own, and has no business to wait behind decisions, nor they behind it.
    pub(super) fn deciding(&self) -> Self {
        Self { pool: self.deciding.clone(), ..self.clone() }
    }

    /// The same pool, for statements that may take longer than a request's.
    pub(super) fn with_patience(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// Whether the ledger can be kept in this database, at this moment.
    ///
    /// # Errors
    ///
    /// It does not answer. (In which way it is unfit is an answer.)
    pub async fn fitness(&self, context: &Context) -> Result<Result<(), SchemaError>, Error> {
        run!(self, context, |connection| {
            match schema::check(connection).await {
                Err(SchemaError::Database(error)) => Err(error),
                said => Ok(said),
            }
        })
    }

    /// The tries at one statement within the context's deadline, for [`run`].
    pub(super) fn tries<'a>(&'a self, context: &'a Context) -> Tries<'a> {
        Tries { database: self, context, made: 0 }
    }

    /// All connections of the pool may be dead at once, after a restart.
    fn most_tries(&self, reason: Again) -> u32 {
        match reason {
            Again::ConnectionLost => self.pool.options().get_max_connections().max(MAX_TRIES).saturating_add(2),
            Again::RolledBack | Again::Deadlock => MAX_TRIES,
        }
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

/// The tries at one statement: see [`run`].
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

    /// What the statement answers, if it does in time.
    pub(super) async fn bounded<T>(
        &self,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Option<Result<T, sqlx::Error>> {
        let until = self.context.deadline.min(Instant::now() + self.database.patience);
        tokio::time::timeout_at(until, statement).await.ok()
    }

    /// Gives a connection back to the pool, which asks it whether it is well: for
    /// no longer than a statement may take, or a network that has gone silent would
    /// keep its place for good.
    pub(super) fn give_back(&self, mut connection: PoolConnection<Postgres>) {
        let within = self.database.ping_within;
        tokio::spawn(async move {
            // After that it is closed, and its place is free.
            let _ = tokio::time::timeout(within, connection.return_to_pool()).await;
        });
    }

    /// Waits a little if the statement may be tried again.
    ///
    /// # Errors
    ///
    /// The error itself, if it may not, or not any more.
    pub(super) async fn again(&mut self, error: sqlx::Error) -> Result<(), Error> {
        let reason = Again::reason(&error);
        let Some(reason) = reason.filter(|reason| self.made < self.database.most_tries(*reason)) else {
            return Err(error.into());
        };
        self.database.metrics.statement_retried(reason.as_str());
        let pause = Duration::from_millis(1 + jitter() % (2 << self.made.min(6)));
        if Instant::now() + pause >= self.context.deadline {
            return Err(error.into());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The same, only if the database says that it rolled the statement back.
    ///
    /// # Errors
    ///
    /// The error itself, if it may not, or not any more.
    pub(super) async fn again_if_rolled_back(&mut self, error: sqlx::Error) -> Result<(), Error> {
        match Again::reason(&error) {
            Some(Again::RolledBack | Again::Deadlock) => self.again(error).await,
            _ => Err(error.into()),
        }
    }
}

/// The most times that one statement is sent when others are in its way.
const MAX_TRIES: u32 = 6;
/// How long connections may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);
/// What a statement may take beyond its timeout until its connection is given up.
const GRACE: Duration = Duration::from_secs(1);

/// Why a statement may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    RolledBack,
    Deadlock,
    ConnectionLost,
}

impl Again {
    fn reason(error: &sqlx::Error) -> Option<Self> {
        match error {
            sqlx::Error::Database(reported) => match reported.code().as_deref() {
                Some("40001") => Some(Self::RolledBack),
                Some("40P01") => Some(Self::Deadlock),
                // It has ended this session, or is going down or starting: the
                // connection is of no more use.
                Some("57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03") => Some(Self::ConnectionLost),
                _ => None,
            },
            sqlx::Error::Io(_) => Some(Self::ConnectionLost),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::RolledBack => "serialization_failure",
            Self::Deadlock => "deadlock",
            Self::ConnectionLost => "connection_lost",
        }
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

/// Asked of every new connection: a setting for the database or the user may have
/// changed since the service started. (Whether it can be written to, the first
/// statement that writes finds out.)
async fn refuse_if_not_durable(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let off: Option<String> = sqlx::query_scalar!(
        "select setting
         from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) setting
         where current_setting(setting) = 'off'
         limit 1"
    )
    .fetch_optional(connection)
    .await?
    .flatten();
    match off {
        None => Ok(()),
        Some(setting) => Err(sqlx::Error::Protocol(format!("the database is not durable: {setting} is off"))),
    }
}
