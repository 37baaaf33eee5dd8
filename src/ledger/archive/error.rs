//! Why an archive does not go on.

use std::fmt;

use super::file::FileError;

/// Why it does not go on. What was done before stays done.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database said no, or cannot be reached.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A file cannot be written or read, or is another one.
    #[error(transparent)]
    File(#[from] FileError),
    /// The months that were asked for have not all passed.
    #[error(
        "the months before {asked} have not all passed for at least an hour, by the database's clock ({now}): \
         only what has wholly passed can be archived"
    )]
    NotPassed {
        /// The first month that is to stay.
        asked: String,
        /// The database's clock.
        now: String,
    },
    /// Only who owns the tables can take months out of them.
    #[error("the user {user} does not own the ledger's tables: archive as the owner of the schema")]
    NotOwner {
        /// Who is connected.
        user: String,
    },
    /// Another one is at work.
    #[error("another archive or migration of this database is under way")]
    UnderWay,
    /// The journal of a month is not as it must be.
    #[error("{0} differences in {1}: nothing of it was archived; see `spend-ledger verify`")]
    Differences(u64, String),
    /// A stretch is being detached that was never archived.
    #[error("{0} is being detached, and not by this program: finalize that first")]
    NotOurs(String),
    /// A table is not what was archived.
    #[error("{stretch} has {found} rows, and {recorded} were archived: {left}")]
    NotAsArchived {
        /// The table.
        stretch: String,
        /// How many it has.
        found: i64,
        /// How many its file has.
        recorded: i64,
        /// Where that leaves it.
        left: Left,
    },
    /// The file has a name that no archived month has.
    #[error("{0}: no month was archived under this name")]
    NotArchived(String),
}

/// Where a table is left that is not what was archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Among the others, as if it had not been archived.
    InPlace,
    /// By itself, since its time has another place by now.
    Apart,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => {
                "rows have come since, by a clock that is wrong. It stays in use: set the clock right, forget that \
                 month's record as the README says under Archiving, and archive it again"
            }
            Self::Apart => "it was left as it is, a table of its own: see what is not in its file before it is dropped",
        })
    }
}
