//! Where a run takes place: a server, a database that all others are copied from, and
//! the books of each.

use std::sync::Arc;

use hyper::header::HeaderValue;
use serde::Serialize;

use super::BenchError;
use super::place::{Database, Server};
use super::prefill::prefill;
use super::progress::Progress;
use super::service::Grouping;
use super::stand::Stand;
use super::wire::authorization;
use super::workload::{EXHAUSTED, HOT, account, policy};
use crate::ledger::keys::NewKey;
use crate::ledger::{Context, Database as Connections, DatabaseOptions, Ledger, verify};
use crate::model::role::{Accounts, Role};
use crate::telemetry::Metrics;

/// Who acts on the databases of a run.
const ACTOR: &str = "bench";
/// How many differences in the books are quoted.
const QUOTED: usize = 5;

/// The keys that the clients use: a customer's own, as it is for one account, and
/// that of a fleet which works for all of them.
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) hot: HeaderValue,
    pub(super) exhausted: HeaderValue,
    pub(super) fleet: HeaderValue,
}

/// Books that were checked, and hold.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Books {
    pub(super) database: String,
    pub(super) periods: u64,
    pub(super) entries: u64,
    pub(super) reservations: u64,
}

pub(super) struct Arena {
    server: Server,
    prefix: String,
    template: String,
    /// The databases that there are.
    names: Vec<String>,
    made: u32,
    pub(super) books: Vec<Books>,
    pub(super) progress: Arc<Progress>,
}

impl Arena {
    /// A server on which nothing has been made yet.
    pub(super) fn new(server: Server, progress: Arc<Progress>) -> Self {
        let prefix = format!("spend_ledger_bench_{}", std::process::id());
        let template = format!("{prefix}_template");
        Self { server, prefix, template, names: Vec::new(), made: 0, books: Vec::new(), progress }
    }

    /// Prepares the database that the others are copied from: the policy in force,
    /// and every account used once.
    pub(super) async fn prepare(&mut self, accounts: u32) -> Result<Keys, BenchError> {
        self.progress.doing("preparing a database");
        self.names.push(self.template.clone());
        let database = self.server.prepare(&self.template).await?;
        let keys = furnish(&database.service_url, accounts).await?;
        self.progress.doing("using each account once");
        let mut stand = Stand::start("prime", database, Grouping::On).await?;
        let primed = async {
            stand.prime(&keys.hot, vec![HOT.to_owned()]).await?;
            stand.prime(&keys.exhausted, vec![EXHAUSTED.to_owned()]).await?;
            stand.prime(&keys.fleet, (0..accounts).map(account).collect()).await
        }
        .await;
        stand.stop().await?;
        primed.map(|()| keys)
    }

    /// A service on a fresh copy.
    pub(super) async fn stand(&mut self, name: &str, grouping: Grouping) -> Result<Stand, BenchError> {
        let database = self.copy(name).await?;
        Stand::start(name, database, grouping).await
    }

    /// The same, with a history of so many settled reservations.
    pub(super) async fn prefilled(
        &mut self,
        name: &str,
        grouping: Grouping,
        reservations: u64,
    ) -> Result<Stand, BenchError> {
        let database = self.copy(name).await?;
        let bar = self.progress.counting("settled reservations put there", reservations);
        let filled = prefill(&database.owner_url, reservations, |there| bar.set_position(there)).await;
        bar.finish_and_clear();
        filled?;
        self.server.settle_down().await;
        let mut stand = Stand::start(name, database, grouping).await?;
        stand.prefilled = reservations;
        Ok(stand)
    }

    /// A fresh copy without a service.
    pub(super) async fn copy(&mut self, name: &str) -> Result<Database, BenchError> {
        self.made += 1;
        let copied = format!("{}_{}", self.prefix, self.made);
        self.progress.doing(&format!("{name}: a fresh database"));
        self.names.push(copied.clone());
        self.server.copy(&self.template, &copied).await
    }

    /// Ends a stand: its books are checked, and its database is removed.
    pub(super) async fn end(&mut self, stand: Stand) -> Result<(), BenchError> {
        let name = stand.name.clone();
        if let Some(database) = stand.stop().await? {
            self.end_database(&name, database).await?;
        }
        Ok(())
    }

    /// The same for a database without a service.
    pub(super) async fn end_database(&mut self, name: &str, database: Database) -> Result<(), BenchError> {
        self.progress.doing(&format!("{name}: checking the books"));
        self.books.push(check(name, &database.owner_url).await?);
        self.server.remove(&database.name).await?;
        self.names.retain(|known| *known != database.name);
        Ok(())
    }

    /// Removes what is left.
    pub(super) async fn close(self) -> Result<(), BenchError> {
        if matches!(self.server, Server::Given { .. }) {
            for name in &self.names {
                self.server.remove(name).await?;
            }
        }
        self.server.close().await
    }
}

/// Checks every invariant of the books.
///
/// # Errors
///
/// They do not hold: then there is no result.
pub(super) async fn check(name: &str, url: &str) -> Result<Books, BenchError> {
    let mut quoted = Vec::new();
    let verified = verify::verify(url, |difference| {
        if quoted.len() < QUOTED {
            quoted.push(difference.to_owned());
        }
    })
    .await?;
    if verified.differences > 0 {
        let (database, differences) = (name.to_owned(), verified.differences);
        return Err(BenchError::Books { database, differences, quoted: quoted.join("\n  ") });
    }
    Ok(Books {
        database: name.to_owned(),
        periods: verified.periods,
        entries: verified.entries,
        reservations: verified.reservations,
    })
}

/// Applies the policy of the run and makes its keys.
async fn furnish(url: &str, accounts: u32) -> Result<Keys, BenchError> {
    let metrics = Metrics::new();
    let mut options = DatabaseOptions::new(url);
    options.max_connections = 2;
    let ledger = Ledger::open(Connections::connect_lazily(&options, Arc::clone(&metrics))?, metrics).await?;
    let furnished = async {
        let context = Context::system(ACTOR);
        ledger.apply_policy(&context, &policy(accounts), false).await?;
        let of = async |accounts: Accounts| {
            let new = NewKey { name: None, role: Role::Worker, accounts, expires_at: None };
            let (_, secret) = ledger.create_key(&context, &new).await?;
            authorization(&secret).ok_or(BenchError::Key)
        };
        let one = |name: &str| name.parse().map(|name| Accounts::These(vec![name])).map_err(|_| BenchError::Key);
        Ok(Keys { hot: of(one(HOT)?).await?, exhausted: of(one(EXHAUSTED)?).await?, fleet: of(Accounts::All).await? })
    }
    .await;
    ledger.close().await;
    furnished
}
