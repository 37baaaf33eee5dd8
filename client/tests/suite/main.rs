//! The library against a small service that follows the contract.

#![allow(clippy::unwrap_used, missing_docs)]

mod calls;
mod dropped;
mod leases;
mod lost_answers;
mod reserving;
mod support;
