//! The rules, proven on real Postgres, through HTTP.
//!
//! One Postgres server for the run, one database for each test, made from a
//! migrated template; tests run in parallel and in any order. After every
//! scenario the books are verified.

#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::float_arithmetic, missing_docs)]

mod access;
mod amounts;
mod attempts;
mod bench;
mod calls;
mod closing;
mod contract;
mod crashes;
mod faults;
mod grouping;
mod growth;
mod histories;
mod identity;
mod killed;
mod liabilities;
mod library;
mod overdue;
mod periods;
mod plans;
mod policies;
mod races;
mod refusals;
mod schema;
mod settling;
mod stopping;
mod support;
mod verifying;
mod worked_cases;
mod years;
