//! The months that the tables lie in which grow with time: the next ones are opened
//! long before they are needed. Where that cannot be done at once it is done later;
//! until then there is a place for what comes later as well (`migrations/V8__months.sql`).

use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::JoinHandle;

use super::database::run;
use super::{Context, Error, Ledger};

/// The tables that lie in months.
const TABLES: [&str; 3] = ["journal_entry", "call", "refusal"];
/// How often the service sees to it that the next months are there.
const EVERY: Duration = Duration::from_secs(3600);
/// A transaction of its own for each table.
const OPEN: &str = "select opened, obstacle from open_months($1)";

/// What became of one table.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Months {
    /// The months that were opened.
    pub opened: Vec<String>,
    /// Why those that are missing could not be.
    pub obstacle: Option<String>,
}

impl Months {
    fn log(&self, table: &str) {
        if !self.opened.is_empty() {
            tracing::info!(table, months = ?self.opened, "months opened");
        }
        if let Some(obstacle) = &self.obstacle {
            tracing::warn!(
                table,
                obstacle,
                "months ahead could not be opened; this is tried again, and nothing is lost"
            );
        }
    }
}

/// Opens the months ahead, on a connection of the owner's.
pub(super) async fn open_all(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    for table in TABLES {
        sqlx::query_as::<_, Months>(OPEN).bind(table).fetch_one(&mut *connection).await?.log(table);
    }
    Ok(())
}

impl Ledger {
    /// Opens the months ahead of the tables that lie in months, where they are
    /// missing. The service does it by itself at its start and once an hour. What
    /// fails for one table does not keep the others from being looked at.
    ///
    /// # Errors
    ///
    /// The world, of the last table that failed.
    pub async fn open_months(&self) -> Result<Vec<Months>, Error> {
        let mut all = Vec::new();
        let mut failed = None;
        for table in TABLES {
            let months = run!(self.database, &Context::system("months"), |connection| {
                sqlx::query_as::<_, Months>(OPEN).bind(table).fetch_one(&mut *connection).await
            });
            match months {
                Ok(months) => {
                    months.log(table);
                    all.push(months);
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(all), Err)
    }

    /// Starts the task that does it, until it is aborted. What goes wrong is logged.
    #[must_use]
    pub fn keep_months_open(&self) -> JoinHandle<()> {
        let ledger = self.clone();
        tokio::spawn(async move {
            let mut hourly = tokio::time::interval(EVERY);
            hourly.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                hourly.tick().await;
                if let Err(error) = ledger.open_months().await {
                    tracing::warn!(%error, "not all of the months ahead were looked at");
                }
            }
        })
    }
}
