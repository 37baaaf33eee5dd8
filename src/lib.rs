//! spend-ledger: the ledger that a company puts between its workers and every
//! provider it pays.

pub mod http;
pub mod ledger;
pub mod model;
pub mod policy;
pub mod postgres;
pub mod replay;
pub mod telemetry;
