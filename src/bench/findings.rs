//! All that a run has found, in the shape that its JSON has.

use serde::Serialize;

use super::arena::Books;
use super::facts::Facts;
use super::figures::{Measured, Series};
use super::ratios::Ratio;

/// What a run has found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Findings {
    pub(super) facts: Facts,
    pub(super) options: Options,
    pub(super) ratios: Vec<Ratio>,
    /// What the load generator can drive: an empty handler, in a process of its own.
    pub(super) generator: Option<Measured>,
    pub(super) series: Vec<Series>,
    /// The books of each database that was used, all of which hold.
    pub(super) books: Vec<Books>,
}

/// With what it was run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Options {
    pub(super) quick: bool,
    pub(super) seconds: f64,
    pub(super) warm_up_seconds: f64,
    pub(super) rounds: u16,
    pub(super) clients: Vec<u16>,
    pub(super) accounts: u32,
    pub(super) prefill: u64,
}
