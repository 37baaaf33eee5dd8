//! What boots it: a database that is ready to be relied on, from a URL or on a
//! private Postgres.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::ledger::schema::{self, SchemaError};
use crate::postgres::{DATABASE, LOGIN, OWNER, PrivatePostgres, PrivatePostgresError};

pub use crate::postgres::LOGIN as SERVICE_LOGIN;

/// The login of people who only read on a private Postgres.
pub const READER_LOGIN: &str = "spend_ledger_reader";

/// How long a database may take to answer at start.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Why there is no database to work on.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The private Postgres did not start.
    #[error(transparent)]
    Postgres(#[from] PrivatePostgresError),
    /// The database is unfit, or its schema could not be brought up to date.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// There is nothing to command.
    #[error("there is no ledger in {}: `spend-ledger serve` makes one; or name another --data-dir or --database-url", .0.display())]
    NoLedger(PathBuf),
    /// The database does not answer.
    #[error("the database did not answer within {} s: check the URL and that the server is up", ANSWER_WITHIN.as_secs())]
    Silent,
}

/// Where the database is.
#[derive(Debug, Clone)]
pub enum Place {
    /// At this URL, kept by somebody else.
    Url(String),
    /// On a private Postgres in this directory.
    Private(PathBuf),
}

/// A migrated database, and the private Postgres if it is on one.
pub struct Home {
    /// For the service.
    pub service_url: String,
    /// For commands that administer: migrate, verify.
    pub owner_url: String,
    /// Stopped when the service stops.
    pub postgres: Option<PrivatePostgres>,
}

impl Home {
    /// For the service: a private Postgres is started and brought up to date; a
    /// database of somebody else's is only checked, because its schema belongs
    /// to its owner (`spend-ledger migrate`).
    ///
    /// # Errors
    ///
    /// The database cannot be reached, is unfit, or is not up to date.
    pub async fn for_service(place: &Place) -> Result<Self, BootError> {
        let home = match place {
            Place::Url(url) => Self { service_url: url.clone(), owner_url: url.clone(), postgres: None },
            Place::Private(directory) => {
                let postgres = PrivatePostgres::start(directory).await?;
                let (service_url, owner_url) = prepare(&postgres, DATABASE).await?;
                Self { service_url, owner_url, postgres: Some(postgres) }
            }
        };
        answer(async {
            let mut connection = PgConnection::connect(&home.service_url).await?;
            schema::check(&mut connection).await
        })
        .await?;
        Ok(home)
    }

    /// For a command beside the service: joins the private Postgres of a service
    /// that is running, or starts it for as long as the command takes. It makes
    /// none: a mistyped directory must not be found in good order.
    ///
    /// # Errors
    ///
    /// There is no ledger; the database cannot be reached or prepared.
    pub async fn for_command(place: &Place) -> Result<Self, BootError> {
        if let Place::Private(directory) = place
            && !PrivatePostgres::is_there(directory)
        {
            return Err(BootError::NoLedger(directory.clone()));
        }
        Self::for_migration(place).await
    }

    /// For bringing a schema up to date, also of a ledger that is not there yet.
    ///
    /// # Errors
    ///
    /// The database cannot be reached or prepared.
    pub async fn for_migration(place: &Place) -> Result<Self, BootError> {
        match place {
            Place::Url(url) => Ok(Self { service_url: url.clone(), owner_url: url.clone(), postgres: None }),
            Place::Private(directory) => match PrivatePostgres::start(directory).await {
                Ok(postgres) => {
                    let (service_url, owner_url) = prepare(&postgres, DATABASE).await?;
                    Ok(Self { service_url, owner_url, postgres: Some(postgres) })
                }
                Err(PrivatePostgresError::InUse { url: Some(service_url), .. }) => {
                    let owner_url = service_url.replacen(&format!("//{LOGIN}@"), &format!("//{OWNER}@"), 1);
                    Ok(Self { service_url, owner_url, postgres: None })
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Stops the private Postgres, if there is one.
    ///
    /// # Errors
    ///
    /// It does not stop.
    pub async fn close(self) -> Result<(), BootError> {
        if let Some(postgres) = self.postgres {
            postgres.stop().await?;
        }
        Ok(())
    }
}

/// Makes the database on a private Postgres if it is not there, brings its
/// schema up to date, and makes the logins. Answers the URLs for the service
/// and for the owner.
///
/// # Errors
///
/// The database.
pub async fn prepare(postgres: &PrivatePostgres, database: &str) -> Result<(String, String), BootError> {
    let owner_url = postgres.url(database, OWNER);
    answer(async {
        let mut connection = PgConnection::connect(&postgres.url("postgres", OWNER)).await?;
        let exists: bool = sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
            .bind(database)
            .fetch_one(&mut connection)
            .await?;
        if !exists {
            let statement = format!("create database \"{}\"", database.replace('"', "\"\""));
            connection.execute(sqlx::AssertSqlSafe(statement)).await?;
        }
        connection.close().await?;
        Ok(())
    })
    .await?;
    // Bounded by the wait for other migrators, and by what the migrations take.
    let applied = schema::migrate(&owner_url).await?;
    if !applied.is_empty() {
        tracing::info!(versions = ?applied, "schema brought up to date");
    }
    answer(async {
        let mut connection = PgConnection::connect(&owner_url).await?;
        for (login, role) in [(LOGIN, "spend_ledger_service"), (READER_LOGIN, "spend_ledger_finance")] {
            let exists: bool = sqlx::query_scalar("select exists (select from pg_roles where rolname = $1)")
                .bind(login)
                .fetch_one(&mut connection)
                .await?;
            if !exists {
                let statement = format!("create role {login} login in role {role}");
                connection.execute(sqlx::AssertSqlSafe(statement)).await?;
            }
        }
        connection.close().await?;
        Ok(())
    })
    .await?;
    Ok((postgres.url(database, LOGIN), owner_url))
}

async fn answer<T>(work: impl Future<Output = Result<T, SchemaError>>) -> Result<T, BootError> {
    match tokio::time::timeout(ANSWER_WITHIN, work).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(BootError::Silent),
    }
}
