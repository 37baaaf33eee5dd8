//! The Postgres server of the run, and a database for each test.

use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use spend_ledger::boot::{SERVICE_LOGIN, prepare};
use spend_ledger::postgres::{OWNER, PrivatePostgres};
use sqlx::{Connection as _, Executor as _, PgConnection};

const TEMPLATE: &str = "template_for_tests";

/// The server of this run. It ends with the process.
pub fn server() -> &'static PrivatePostgres {
    static SERVER: OnceLock<PrivatePostgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        // A thread of its own, since a test already runs in a runtime.
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let postgres = PrivatePostgres::start(&directory()).await.unwrap();
                prepare(&postgres, TEMPLATE).await.unwrap();
                with_a_clock_that_can_be_shifted(&postgres).await;
                postgres
            })
        })
        .join()
        .unwrap()
    })
}

/// Directories of runs that have ended are removed; this run's is new. A run
/// holds the lock of its directory for as long as it lives, also where its
/// process cannot be seen, as in another container.
fn directory() -> PathBuf {
    let base = std::env::temp_dir();
    for entry in std::fs::read_dir(&base).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("spend-ledger-tests-")
            && let Ok(lock) = File::options().write(true).open(entry.path().join("lock"))
            && lock.try_lock().is_ok()
        {
            // Another run may be removing it as well.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    base.join(format!("spend-ledger-tests-{}-{}", std::process::id(), started.as_millis()))
}

/// In the databases of tests the one clock that decides can be moved, so that no
/// test waits for time to pass. Only the owner of the schema can do this.
async fn with_a_clock_that_can_be_shifted(postgres: &PrivatePostgres) {
    let mut connection = PgConnection::connect(&postgres.url(TEMPLATE, OWNER)).await.unwrap();
    connection
        .execute(
            "create table test_clock (shift interval not null);
             insert into test_clock values ('0');
             grant select on test_clock to spend_ledger_service, spend_ledger_finance;
             create or replace function ledger_clock() returns timestamptz language sql volatile
                 return clock_timestamp() + (select shift from test_clock);",
        )
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// A database of its own for one test.
#[derive(Debug, Clone)]
pub struct TestDatabase {
    /// As the service connects: with no more rights than it has in production.
    pub service_url: String,
    /// As the owner of the schema.
    pub owner_url: String,
}

impl TestDatabase {
    /// A new one, migrated and empty.
    pub async fn new() -> Self {
        Self::made_from(TEMPLATE).await
    }

    /// A new one with nothing in it, not even the schema.
    pub async fn empty() -> Self {
        Self::made_from("template1").await
    }

    async fn made_from(template: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let server = tokio::task::spawn_blocking(server).await.unwrap();
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&server.url("postgres", OWNER)).await.unwrap();
        let statement = format!("create database {name} template {template}");
        connection.execute(sqlx::AssertSqlSafe(statement)).await.unwrap();
        connection.close().await.unwrap();
        Self { service_url: server.url(&name, SERVICE_LOGIN), owner_url: server.url(&name, OWNER) }
    }

    /// A connection as the owner.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.owner_url).await.unwrap()
    }

    /// Moves the database's clock so that it shows this time now (RFC 3339).
    pub async fn set_clock(&self, time: &str) {
        sqlx::query("update test_clock set shift = $1::timestamptz - clock_timestamp()")
            .bind(chrono::DateTime::parse_from_rfc3339(time).unwrap())
            .execute(&mut self.connect().await)
            .await
            .unwrap();
    }

    /// Stops the database's clock at this time (RFC 3339), to the microsecond.
    /// Asked again, it stands at another.
    pub async fn stop_clock(&self, time: &str) {
        let time = chrono::DateTime::parse_from_rfc3339(time).unwrap().to_utc().to_rfc3339();
        self.execute(&format!(
            "create or replace function ledger_clock() returns timestamptz language sql volatile
                 return timestamptz '{time}'"
        ))
        .await;
    }

    /// Runs statements as the owner.
    pub async fn execute(&self, statements: &str) {
        self.connect().await.execute(sqlx::AssertSqlSafe(statements.to_owned())).await.unwrap();
    }

    /// The one text column of a query, read as the owner.
    pub async fn lines(&self, query: &str) -> Vec<String> {
        let query = sqlx::query_scalar(sqlx::AssertSqlSafe(query.to_owned()));
        query.fetch_all(&mut self.connect().await).await.unwrap()
    }
}
