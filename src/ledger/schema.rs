//! The schema: brought up to date under a lock, and checked before the service
//! relies on it.

use refinery_core::traits::r#async::{AsyncMigrate, AsyncQuery, AsyncTransaction};
use refinery_core::{Migration, Runner};
use sqlx::{Connection as _, Executor as _, PgConnection};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::months;

mod embedded {
    #![allow(missing_docs, reason = "generated")]
    refinery::embed_migrations!("migrations");
}

/// Whoever changes the tables of a database, to migrate or to archive, takes turns by
/// this lock. (The money path takes no advisory lock.)
pub(super) const MIGRATION_LOCK: i64 = 0x7370_656e_646c_6467;
/// The oldest Postgres that the statements run on.
const OLDEST_POSTGRES: i32 = 14;
const HISTORY: &str = "refinery_schema_history";

/// Why the schema could not be brought up to date, or the database is refused.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The database cannot be reached or said no.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A migration failed; what came before it stays.
    #[error("a migration failed: {0}")]
    Migration(#[from] refinery_core::Error),
    /// The server is too old.
    #[error("Postgres {found} is too old: version {OLDEST_POSTGRES} or newer is needed")]
    TooOld {
        /// The server's version.
        found: String,
    },
    /// A setting that could lose what was acknowledged.
    #[error(
        "the database is not durable: {setting} is {found}. A crash could lose what was acknowledged. \
         Set {setting} = on for this server, database and user, and start again"
    )]
    NotDurable {
        /// Which setting.
        setting: &'static str,
        /// What it is.
        found: String,
    },
    /// A standby, or set to read-only.
    #[error(
        "the database is read-only ({reason}). Point the service at the primary, or make it writable, and start again"
    )]
    ReadOnly {
        /// In which way.
        reason: &'static str,
    },
    /// The user may not do what the service does.
    #[error(
        "the user {user} may not write to the ledger: `grant spend_ledger_service to {user}`, or connect as another"
    )]
    NotPermitted {
        /// The user that was connected as.
        user: String,
    },
    /// There is no schema, or an old one.
    #[error(
        "the database's schema is at version {found} and this program needs {needed}: run `spend-ledger migrate` \
         as the owner of the schema, then start again"
    )]
    Behind {
        /// The schema's version; 0 is none.
        found: u32,
        /// The newest that this program knows.
        needed: u32,
    },
    /// The schema was made by a newer program.
    #[error(
        "the database's schema is at version {found}, which is newer than this program knows ({known}): \
         start a newer spend-ledger"
    )]
    Newer {
        /// The schema's version.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
}

/// The newest schema version that this program knows.
#[must_use]
pub fn newest_version() -> u32 {
    runner().get_migrations().iter().map(version_of).max().unwrap_or(0)
}

fn runner() -> Runner {
    embedded::migrations::runner()
}

fn version_of(migration: &Migration) -> u32 {
    u32::try_from(migration.version()).unwrap_or(u32::MAX)
}

/// Brings the schema up to date, and opens the months to come. Safe to run from
/// several places at once: they take turns. Answers the versions that were applied.
///
/// # Errors
///
/// The database, a migration that failed, a server that is too old, or a schema
/// that is newer than this program.
pub async fn migrate(url: &str) -> Result<Vec<u32>, SchemaError> {
    let mut connection = PgConnection::connect(url).await?;
    check_version(&mut connection).await?;
    // Another migrator may take its time, but not for ever.
    connection.execute("set lock_timeout = '120s'").await?;
    sqlx::query("select pg_advisory_lock($1)").bind(MIGRATION_LOCK).execute(&mut connection).await?;
    let found = schema_version(&mut connection).await?;
    let known = newest_version();
    if found > known {
        return Err(SchemaError::Newer { found, known });
    }
    let mut migrator = Migrator(connection);
    let report = runner().run_async(&mut migrator).await?;
    let Migrator(mut connection) = migrator;
    // The service compares the version; it may not change it.
    connection
        .execute(sqlx::AssertSqlSafe(format!(
            "grant select on {HISTORY} to spend_ledger_service, spend_ledger_finance"
        )))
        .await?;
    months::open_all(&mut connection).await?;
    // Closing the session releases the lock.
    connection.close().await?;
    Ok(report.applied_migrations().iter().map(version_of).collect())
}

/// Refuses a database that the ledger cannot be kept in.
///
/// # Errors
///
/// In which way it is unfit, with what to do about it.
pub async fn check(connection: &mut PgConnection) -> Result<(), SchemaError> {
    check_version(connection).await?;
    for setting in ["fsync", "full_page_writes", "synchronous_commit"] {
        let found: String =
            sqlx::query_scalar("select current_setting($1)").bind(setting).fetch_one(&mut *connection).await?;
        if found == "off" {
            return Err(SchemaError::NotDurable { setting, found });
        }
    }
    let (standby, read_only): (bool, String) =
        sqlx::query_as("select pg_is_in_recovery(), current_setting('transaction_read_only')")
            .fetch_one(&mut *connection)
            .await?;
    if standby {
        return Err(SchemaError::ReadOnly { reason: "it is a standby" });
    }
    if read_only == "on" {
        return Err(SchemaError::ReadOnly { reason: "default_transaction_read_only is on" });
    }
    known(connection).await?;
    let (user, may): (String, bool) =
        sqlx::query_as("select current_user::text, has_table_privilege('journal_entry', 'insert')")
            .fetch_one(connection)
            .await?;
    if may { Ok(()) } else { Err(SchemaError::NotPermitted { user }) }
}

/// Refuses a database whose schema this program does not know.
///
/// # Errors
///
/// In which way, with what to do about it; or the database.
pub async fn expect_known(url: &str) -> Result<(), SchemaError> {
    let mut connection = PgConnection::connect(url).await?;
    known(&mut connection).await?;
    connection.close().await?;
    Ok(())
}

async fn known(connection: &mut PgConnection) -> Result<(), SchemaError> {
    let (user, may): (String, bool) =
        sqlx::query_as("select current_user::text, coalesce(has_table_privilege(to_regclass($1), 'select'), true)")
            .bind(HISTORY)
            .fetch_one(&mut *connection)
            .await?;
    if !may {
        return Err(SchemaError::NotPermitted { user });
    }
    let (found, needed) = (schema_version(connection).await?, newest_version());
    if found < needed {
        return Err(SchemaError::Behind { found, needed });
    }
    if found > needed {
        return Err(SchemaError::Newer { found, known: needed });
    }
    Ok(())
}

async fn check_version(connection: &mut PgConnection) -> Result<(), SchemaError> {
    let (number, found): (String, String) =
        sqlx::query_as("select current_setting('server_version_num'), current_setting('server_version')")
            .fetch_one(connection)
            .await?;
    if number.parse::<i32>().is_ok_and(|number| number < OLDEST_POSTGRES * 10_000) {
        return Err(SchemaError::TooOld { found });
    }
    Ok(())
}

/// The schema's version; 0 if there is none.
///
/// # Errors
///
/// The database.
pub async fn schema_version(connection: &mut PgConnection) -> Result<u32, SchemaError> {
    let exists: bool =
        sqlx::query_scalar("select to_regclass($1) is not null").bind(HISTORY).fetch_one(&mut *connection).await?;
    if !exists {
        return Ok(0);
    }
    let version: Option<i64> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select max(version)::bigint from {HISTORY}")))
            .fetch_one(connection)
            .await?;
    Ok(version.and_then(|version| u32::try_from(version).ok()).unwrap_or(0))
}

/// A connection as refinery drives it.
struct Migrator(PgConnection);

/// A failure of the database while migrating.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct MigratorError(#[from] sqlx::Error);

impl AsyncTransaction for Migrator {
    type Error = MigratorError;

    async fn execute<'a, T: Iterator<Item = &'a str> + Send + 'a>(
        &'a mut self,
        queries: T,
    ) -> Result<usize, MigratorError> {
        let mut transaction = self.0.begin().await?;
        let mut count = 0;
        for query in queries {
            transaction.execute(sqlx::AssertSqlSafe(query.to_owned())).await?;
            count += 1;
        }
        transaction.commit().await?;
        Ok(count)
    }
}

impl AsyncQuery<Vec<Migration>> for Migrator {
    async fn query<'a>(&'a mut self, query: &'a str) -> Result<Vec<Migration>, MigratorError> {
        let rows: Vec<(i32, String, String, String)> =
            sqlx::query_as(sqlx::AssertSqlSafe(query.to_owned())).fetch_all(&mut self.0).await?;
        let unreadable = |what: String| sqlx::Error::Protocol(format!("{HISTORY} holds {what}"));
        rows.into_iter()
            .map(|(version, name, applied_on, checksum)| {
                let applied_on = OffsetDateTime::parse(&applied_on, &Rfc3339)
                    .map_err(|_| unreadable(format!("the time {applied_on:?}")))?;
                let checksum = checksum.parse().map_err(|_| unreadable(format!("the checksum {checksum:?}")))?;
                Ok(Migration::applied(version, name, applied_on, checksum))
            })
            .collect()
    }
}

impl AsyncMigrate for Migrator {}
