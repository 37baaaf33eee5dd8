//! The Postgres server that is measured on, and databases of its own on it.

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::BenchError;
use crate::boot;
use crate::ledger::schema;
use crate::postgres::{OWNER, PrivatePostgres};

/// A server, and where its databases are reached.
pub(super) enum Server {
    /// Started for the run, in a directory that is removed with it.
    Private { postgres: PrivatePostgres, directory: PathBuf },
    /// Somebody else's, reached as a user that may make databases.
    Given { url: String },
}

/// One database of the run.
#[derive(Debug, Clone)]
pub(super) struct Database {
    pub(super) name: String,
    /// As the service connects.
    pub(super) service_url: String,
    /// As the owner of the schema.
    pub(super) owner_url: String,
}

impl Server {
    /// A server that nobody else uses, in a new directory under this one.
    pub(super) async fn start(under: &Path) -> Result<Self, BenchError> {
        let directory = under.join(format!("spend-ledger-bench-{}", std::process::id()));
        let postgres = PrivatePostgres::start(&directory).await?;
        Ok(Self::Private { postgres, directory })
    }

    /// Makes a database and brings its schema up to date.
    pub(super) async fn prepare(&self, name: &str) -> Result<Database, BenchError> {
        match self {
            Self::Private { postgres, .. } => {
                let (service_url, owner_url) = boot::prepare(postgres, name).await?;
                Ok(Database { name: name.to_owned(), service_url, owner_url })
            }
            Self::Given { .. } => {
                self.execute(&format!("create database {name}")).await?;
                let database = self.database(name);
                schema::migrate(&database.owner_url).await?;
                Ok(database)
            }
        }
    }

    /// Makes a copy of a database that nobody is connected to.
    pub(super) async fn copy(&self, template: &str, name: &str) -> Result<Database, BenchError> {
        self.execute(&format!("create database {name} template {template}")).await?;
        Ok(self.database(name))
    }

    /// Removes a database.
    pub(super) async fn remove(&self, name: &str) -> Result<(), BenchError> {
        self.execute(&format!("drop database if exists {name} with (force)")).await
    }

    /// Writes everything out, so that what was prepared is not paid for by what is
    /// measured. Not every user may ask for it.
    pub(super) async fn settle_down(&self) {
        if let Err(error) = self.execute("checkpoint").await {
            tracing::debug!(%error, "no checkpoint");
        }
    }

    /// Stops a private server and removes all that is its own.
    pub(super) async fn close(self) -> Result<(), BenchError> {
        let Self::Private { postgres, directory } = self else { return Ok(()) };
        postgres.stop().await?;
        // Where the user of Postgres cannot use the directory, the cluster is elsewhere.
        let own = std::fs::canonicalize(&directory).ok();
        let cluster = std::fs::canonicalize(directory.join("cluster")).ok();
        if let Some(home) = cluster.as_deref().and_then(Path::parent).filter(|home| own.as_deref() != Some(home)) {
            remove(home);
        }
        remove(&directory);
        Ok(())
    }

    fn database(&self, name: &str) -> Database {
        let (service_url, owner_url) = match self {
            Self::Private { postgres, .. } => (postgres.url(name, boot::SERVICE_LOGIN), postgres.url(name, OWNER)),
            Self::Given { url } => (with_database(url, name), with_database(url, name)),
        };
        Database { name: name.to_owned(), service_url, owner_url }
    }

    /// Runs a statement in the server's own database. Names are of this program's
    /// making.
    async fn execute(&self, statement: &str) -> Result<(), BenchError> {
        let url = match self {
            Self::Private { postgres, .. } => postgres.url("postgres", OWNER),
            Self::Given { url } => url.clone(),
        };
        let mut connection = PgConnection::connect(&url).await?;
        connection.execute(AssertSqlSafe(statement.to_owned())).await?;
        connection.close().await?;
        Ok(())
    }
}

fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, directory = %directory.display(), "what the run has left cannot be removed");
    }
}

/// The same URL with another database.
fn with_database(url: &str, name: &str) -> String {
    let (rest, query) = url.split_once('?').map_or((url, None), |(rest, query)| (rest, Some(query)));
    let after_scheme = rest.find("://").map_or(0, |at| at + 3);
    let authority = rest.get(after_scheme..).and_then(|rest| rest.find('/')).map_or(rest.len(), |at| after_scheme + at);
    let server = rest.get(..authority).unwrap_or(rest);
    match query {
        Some(query) => format!("{server}/{name}?{query}"),
        None => format!("{server}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server() {
        assert_eq!(with_database("postgres://me:pw@db:5432/ledger", "b"), "postgres://me:pw@db:5432/b");
        assert_eq!(with_database("postgres://me@db", "b"), "postgres://me@db/b");
        assert_eq!(
            with_database("postgres://me@localhost:5432/a?host=/tmp/s&sslmode=disable", "b"),
            "postgres://me@localhost:5432/b?host=/tmp/s&sslmode=disable"
        );
    }
}
