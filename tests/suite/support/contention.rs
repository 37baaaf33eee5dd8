//! What makes requests meet: several processes of the service, and locks that
//! are held until all who are to meet wait for them
//! ([`Service::waiting_for_a_lock`](super::Service::waiting_for_a_lock)).

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::Client;
use super::process::ServiceProcess;
use super::server::TestDatabase;

/// Processes of the service on one database.
pub struct Replicas {
    pub processes: Vec<ServiceProcess>,
}

impl Replicas {
    pub async fn start(database: &TestDatabase, count: usize) -> Self {
        // As patient as the service in this process: machines are slow and shared.
        let patience = ["--deadline-ms", "30000", "--statement-timeout-ms", "20000"];
        let arguments = [&["--database-url", database.service_url.as_str()], &patience[..]].concat();
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
}

impl HeldLock {
    /// Runs a statement that locks rows (`select … for update`) and keeps its
    /// transaction open.
    pub async fn hold(database: &TestDatabase, statement: &'static str) -> Self {
        let mut connection = database.connect().await;
        connection.execute("begin").await.unwrap();
        let locked = sqlx::query(statement).fetch_all(&mut connection).await.unwrap();
        assert!(!locked.is_empty(), "nothing was locked by {statement}");
        Self { connection }
    }

    /// Lets go.
    pub async fn release(mut self) {
        self.connection.execute("rollback").await.unwrap();
        self.connection.close().await.unwrap();
    }
}
