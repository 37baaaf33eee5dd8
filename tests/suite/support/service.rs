//! A service in this process, on a database of its own.

use std::net::SocketAddr;
use std::time::Duration;

use spend_ledger::http::{HttpOptions, serve};
use spend_ledger::ledger::keys::NewKey;
use spend_ledger::ledger::{Context, Database, DatabaseOptions, Ledger};
use spend_ledger::model::role::{Accounts, Role};
use spend_ledger::telemetry::Metrics;
use tokio::net::TcpListener;

use super::server::TestDatabase;
use super::{Books, Client};

/// How a test's service differs from the usual one.
#[derive(Debug, Clone)]
pub struct Options {
    pub deadline: Duration,
    pub statement_timeout: Duration,
    pub max_connections: u32,
    pub max_in_flight: usize,
    /// As `serve --grouping` has it: the suite passes both ways.
    pub grouping: bool,
}

impl Options {
    /// Each request with a statement, and so a session, of its own: for tests in
    /// which requests of one verb and account have to meet at a lock.
    pub fn sessions() -> Self {
        Self { grouping: false, ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // Machines are slow and shared: what is not about deadlines has time.
            deadline: Duration::from_secs(30),
            statement_timeout: Duration::from_secs(20),
            max_connections: 8,
            max_in_flight: HttpOptions::default().max_in_flight,
            grouping: std::env::var("SPEND_LEDGER_GROUPING").as_deref() != Ok("off"),
        }
    }
}

/// A running service.
pub struct Service {
    pub database: TestDatabase,
    pub ledger: Ledger,
    pub address: SocketAddr,
    options: Options,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Service {
    /// On a new database, with this policy applied.
    pub async fn with_policy(policy: &str) -> Self {
        let service = Self::on(TestDatabase::new().await, Options::default()).await;
        service.apply(policy).await;
        service
    }

    /// The same, with a session for each request that is under way.
    pub async fn with_sessions(policy: &str) -> Self {
        let service = Self::on(TestDatabase::new().await, Options::sessions()).await;
        service.apply(policy).await;
        service
    }

    /// On this database, as another process of the service would be.
    pub async fn on(database: TestDatabase, options: Options) -> Self {
        let url = database.service_url.clone();
        Self::at(database, url, options).await
    }

    /// On this database, reached through another URL (a proxy that misbehaves).
    pub async fn at(database: TestDatabase, url: String, options: Options) -> Self {
        let metrics = Metrics::new();
        let connect = DatabaseOptions {
            url,
            max_connections: options.max_connections,
            statement_timeout: options.statement_timeout,
            grouping: options.grouping,
        };
        let pool = Database::connect_lazily(&connect, metrics.clone()).unwrap();
        let ledger = Ledger::open(pool, metrics).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let http =
            HttpOptions { deadline: options.deadline, max_in_flight: options.max_in_flight, ..HttpOptions::default() };
        tokio::spawn(serve(listener, ledger.clone(), http, async {
            let _ = stopped.await;
        }));
        Self { database, ledger, address, options, stop: Some(stop) }
    }

    /// Another process of the service on the same database.
    pub async fn another(&self) -> Self {
        Self::on(self.database.clone(), self.options.clone()).await
    }

    /// Applies a policy.
    pub async fn apply(&self, policy: &str) {
        self.ledger.apply_policy(&Context::system("test"), policy, false).await.unwrap();
    }

    /// A client with a new key for these accounts.
    pub async fn worker(&self, accounts: &[&str]) -> Client {
        let names = accounts.iter().map(|name| name.parse().unwrap()).collect();
        self.client(Role::Worker, Accounts::These(names)).await
    }

    /// A client with a new key for all accounts.
    pub async fn fleet(&self) -> Client {
        self.client(Role::Worker, Accounts::All).await
    }

    /// A client with a new operator key.
    pub async fn operator(&self) -> Client {
        self.client(Role::Operator, Accounts::All).await
    }

    /// A client with a new finance key.
    pub async fn finance(&self) -> Client {
        self.client(Role::Finance, Accounts::All).await
    }

    async fn client(&self, role: Role, accounts: Accounts) -> Client {
        let new = NewKey { name: None, role, accounts, expires_at: None };
        let (_, secret) = self.ledger.create_key(&Context::system("test"), &new).await.unwrap();
        Client::new(self.address, &secret)
    }

    /// The books, read past the service.
    pub async fn books(&self) -> Books {
        Books::read(&self.database).await
    }

    /// Waits until so many sessions of this database wait for a lock.
    pub async fn waiting_for_a_lock(&self, sessions: i64) {
        let mut connection = self.database.connect().await;
        for _ in 0..1000 {
            let waiting: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity
                 where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap();
            if waiting >= sessions {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{sessions} sessions never waited for a lock");
    }

    /// Stops serving, as on SIGTERM.
    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}
