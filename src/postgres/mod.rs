//! A Postgres of one's own: what `spend-ledger serve` runs on when it is given
//! no database URL, and what the tests run on.
//!
//! [`PrivatePostgres::start`] finds the Postgres programs of the machine, makes
//! a cluster in the data directory the first time, and runs it for as long as
//! the value lives. Nobody else can reach it: it listens on a Unix socket in a
//! directory of its own and nowhere else.
//!
//! | file | what it answers |
//! |---|---|
//! | `programs` | which `initdb` and `postgres` to run |
//! | `account` | as which user of the system, and how a child is started as it |
//! | `place` | where cluster, socket and log are, and that only one process owns them |
//! | `cluster` | making the cluster, and what earlier owners left behind |
//! | `server` | one run of the server: start, ready, stop |
//! | `private` | the thread that owns the server and restarts it |
//!
//! The data directory holds `lock` (held by the owner, naming its process),
//! `cluster`, `socket` and `postgres.log`. What keeps it safe:
//!
//! - One owner: everything below happens under the lock on `lock`.
//! - `cluster` is whole or absent: it is renamed into place once made.
//! - The server ends with its owner, or is ended by the next one before it
//!   starts its own.

mod account;
mod cluster;
mod error;
mod place;
mod private;
mod process;
mod programs;
mod server;
#[cfg(test)]
mod tests;

pub use error::PrivatePostgresError;
pub use private::{DATABASE, LOGIN, OWNER, PrivatePostgres};
