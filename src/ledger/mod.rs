//! The verbs, one file each, with its SQL in a file beside it. The only floor
//! that knows Postgres; it does not know HTTP.
//!
//! Every verb takes a [`Context`] (who asks, and until when an answer is of use)
//! and answers with what happened or with an [`Error`]. Whatever depends on
//! balances or states is decided by the verb's one SQL statement; Rust decides
//! only what depends on the request and the policy.

pub mod apply;
pub mod archive;
mod attempts;
pub mod audit;
pub mod bare;
pub mod budgets;
pub mod calls;
pub mod cancel;
pub mod carry;
mod chain;
mod charges;
pub mod close;
mod database;
mod error;
pub mod extend;
pub mod fence;
mod group;
pub mod keys;
mod known;
pub mod late_usage;
pub mod liabilities;
pub mod months;
pub mod open_period;
pub mod policy;
pub mod refusals;
pub mod renew;
pub mod reservations;
pub mod reserve;
pub mod schema;
pub mod settle;
pub mod take_over;
mod verdict;
pub mod verify;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

pub use database::{Context, Database, DatabaseOptions};
pub use error::Error;
use group::Group;
use known::Known;
use open_period::Openings;
pub use policy::PolicyInForce;
pub use refusals::Recorder;

use crate::telemetry::Metrics;

/// How long refusals may take to be written at the end.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// The ledger: the database, the policy in force as this process last saw it,
/// and the recorder of refusals. Cheap to clone; shared by all requests.
#[derive(Clone)]
pub struct Ledger {
    database: Database,
    policy: Arc<ArcSwap<PolicyInForce>>,
    /// Held while the policy is read anew: one request reads it for all.
    reading: Arc<Mutex<()>>,
    refusals: Recorder,
    metrics: Arc<Metrics>,
    groups: Arc<Groups>,
    openings: Arc<Openings>,
    known: Arc<Known>,
    /// When what is open was last counted for the metrics; held while it is.
    counted: Arc<Mutex<Option<Instant>>>,
}

/// The requests that wait, by verb.
struct Groups {
    reserve: Group<reserve::Item>,
    renew: Group<renew::Renewal>,
    extend: Group<extend::Extension>,
    admit_call: Group<calls::Admission>,
    end_call: Group<calls::Ending>,
    settle: Group<settle::Settlement>,
}

impl Groups {
    fn new(database: &Database) -> Self {
        // These change the account's budget periods, whose rows are the busy ones. A
        // renewal and a call within the ceiling change only their reservation; a call
        // that raises the ceiling may meet the others at a lock.
        let periods = Arc::default();
        Self {
            reserve: Group::new(database, &periods),
            renew: Group::new(database, &Arc::default()),
            extend: Group::new(database, &periods),
            admit_call: Group::new(database, &Arc::default()),
            end_call: Group::new(database, &periods),
            settle: Group::new(database, &periods),
        }
    }
}

/// Who has asked for one item of a statement.
struct By {
    actor: String,
    key: Option<Uuid>,
}

impl By {
    fn of(context: &Context) -> Self {
        Self { actor: context.actor.clone(), key: context.key }
    }
}

impl Ledger {
    /// A ledger over a migrated database, with the policy in force loaded.
    ///
    /// # Errors
    ///
    /// The database cannot be reached or read.
    pub async fn open(database: Database, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let loaded = policy::load(&database, &Context::system("start")).await?;
        let refusals = Recorder::start(database.clone(), Arc::clone(&metrics));
        let groups = Arc::new(Groups::new(&database));
        Ok(Self {
            database,
            policy: Arc::new(ArcSwap::from_pointee(loaded)),
            reading: Arc::default(),
            refusals,
            metrics,
            groups,
            openings: Arc::default(),
            known: Arc::default(),
            counted: Arc::default(),
        })
    }

    /// The policy as this process last saw it. Nothing is decided by it alone:
    /// the deciding statement compares its version with the database's.
    #[must_use]
    pub fn policy(&self) -> Arc<PolicyInForce> {
        self.policy.load_full()
    }

    /// The database behind it.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// What is counted about it.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Writes down the refusals that are still waiting to be, then lets go of
    /// the database. Takes seconds at most, also when the database is silent.
    pub async fn close(&self) {
        if tokio::time::timeout(FLUSH_WITHIN, self.refusals.flush()).await.is_err() {
            tracing::warn!("refusals that were waiting to be recorded are lost");
        }
        self.database.close().await;
    }
}
