//! What makes requests meet: several processes of the service, and locks that
//! are held until all who are to meet wait for them
//! ([`Service::waiting_for_a_lock`](super::Service::waiting_for_a_lock)).

use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::JoinHandle;

use super::Client;
use super::process::ServiceProcess;
use super::server::TestDatabase;

/// Processes of the service on one database.
pub struct Replicas {
    pub processes: Vec<ServiceProcess>,
}

impl Replicas {
    pub async fn start(database: &TestDatabase, count: usize) -> Self {
        Self::start_with(database, count, &[]).await
    }

    /// Each request with a statement, and so a session, of its own.
    pub async fn with_sessions(database: &TestDatabase, count: usize) -> Self {
        Self::start_with(database, count, &["--grouping", "off", "--max-connections", "40"]).await
    }

    async fn start_with(database: &TestDatabase, count: usize, more: &[&str]) -> Self {
        // As patient as the service in this process: machines are slow and shared.
        let patience = ["--deadline-ms", "30000", "--statement-timeout-ms", "20000"];
        let arguments = [&["--database-url", database.service_url.as_str()], &patience[..], more].concat();
        let starting = (0..count).map(|_| ServiceProcess::start(&arguments));
        Self { processes: futures_util::future::join_all(starting).await }
    }

    /// The client at the process whose turn it is.
    pub fn at(&self, client: &Client, turn: usize) -> Client {
        client.at(self.processes[turn % self.processes.len()].address)
    }

    /// Stops all of them, as on SIGTERM.
    pub async fn terminate(self) {
        for process in self.processes {
            assert!(process.terminate().await, "it ends with success");
        }
    }
}

/// A row lock that is held by a session of its own.
pub struct HeldLock {
    connection: PgConnection,
    pid: i32,
}

impl HeldLock {
    /// Runs a statement that locks rows (`select … for update`) and keeps its
    /// transaction open.
    pub async fn hold(database: &TestDatabase, statement: &str) -> Self {
        let mut connection = database.connect().await;
        connection.execute("begin").await.unwrap();
        let query = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()));
        let locked = query.fetch_all(&mut connection).await.unwrap();
        assert!(!locked.is_empty(), "nothing was locked by {statement}");
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut connection).await.unwrap();
        Self { connection, pid }
    }

    /// How many sessions wait for this lock, or for one that does. Who waits for whom
    /// is dear to find out, and is asked only once so many wait for any lock.
    async fn waiting(&self, observer: &mut PgConnection, wanted: usize) -> usize {
        let waiting: i64 = sqlx::query_scalar(
            "with locked as materialized (
                 select pid
                 from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock'),
             waiting as materialized (
                 select pid, pg_blocking_pids(pid) as behind
                 from locked
                 where (select count(*) from locked) >= $2)
             select count(*)
             from waiting w
             where $1 = any (w.behind)
                or exists (select from waiting v where v.pid = any (w.behind) and $1 = any (v.behind))",
        )
        .bind(self.pid)
        .bind(wanted as i64)
        .fetch_one(observer)
        .await
        .unwrap();
        usize::try_from(waiting).unwrap()
    }

    /// Waits until each of these requests has been answered or waits for this lock.
    /// Says of each whether it waits.
    pub async fn met_by<T>(&self, observer: &mut PgConnection, requests: &[JoinHandle<T>]) -> Vec<bool> {
        let pending = || requests.iter().map(|request| !request.is_finished()).collect::<Vec<_>>();
        let count = |pending: &[bool]| pending.iter().filter(|&&pending| pending).count();
        for _ in 0..3000 {
            let waiting = self.waiting(observer, count(&pending())).await;
            let pending = pending();
            if count(&pending) == waiting {
                return pending;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("requests were neither answered nor did they wait for the lock");
    }

    /// Lets go.
    pub async fn release(mut self) {
        self.connection.execute("rollback").await.unwrap();
        self.connection.close().await.unwrap();
    }
}
