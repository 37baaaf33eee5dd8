//! spend-ledger: the ledger that a company puts between its workers and every
//! provider it pays.
//!
//! The floors, from the bottom up; each knows only those named before it:
//!
//! - [`model`]: what the words mean. Pure: no I/O, no clock, no SQL.
//! - [`policy`]: the policy file: parse, check, compare.
//! - [`ledger`]: the verbs, each with its SQL beside it. The only floor that
//!   knows Postgres.
//! - [`http`]: one file per resource: parse, call one verb, answer. The only
//!   floor that knows status codes.
//!
//! Beside them: [`postgres`] starts a private Postgres, [`boot`] makes a database
//! ready to be relied on, [`replay`] drives a running service from a trace, [`mod@bench`]
//! measures one, [`telemetry`] counts and logs, [`cli`] is the command line.

pub mod bench;
pub mod boot;
pub mod cli;
pub mod http;
pub mod ledger;
pub mod model;
pub mod policy;
pub mod postgres;
pub mod replay;
pub mod telemetry;
