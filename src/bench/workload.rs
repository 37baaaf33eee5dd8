//! What the clients do: the policy they work under, their accounts, their cycles.

use std::fmt::Write as _;

use serde::Serialize;

/// The operation that every request reserves for.
pub(super) const OPERATION: &str = "bench";
/// The account that everybody uses in the workload `hot`.
pub(super) const HOT: &str = "bench-hot";
/// The account whose budget is used up.
pub(super) const EXHAUSTED: &str = "bench-exhausted";
/// What a request reserves, and all that the exhausted account ever had.
pub(super) const RESERVED: &str = "10";
/// What it turns out to have used: less, as estimates are made to be.
pub(super) const ACTUAL: &str = "8";

/// Whose budgets are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// One account that everybody uses.
    Hot,
    /// Many accounts, some far more popular than others.
    Zipf,
    /// One account whose budget is used up: every request is refused.
    Refusals,
}

/// What is done with an admitted reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Cycle {
    /// Reserve, settle.
    Settle,
    /// Reserve, have a call admitted, settle the call, settle.
    Call,
    /// Reserve and nothing else: for comparing admissions with refusals.
    #[value(skip)]
    Reserve,
}

impl Workload {
    /// As it is written in options and reports.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Zipf => "zipf",
            Self::Refusals => "refusals",
        }
    }
}

impl Cycle {
    /// As it is written in options and reports.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Settle => "settle",
            Self::Call => "call",
            Self::Reserve => "reserve",
        }
    }
}

/// The name of one of the many accounts, from zero.
pub(super) fn account(number: u32) -> String {
    format!("bench-{number:04}")
}

/// The policy of a run: every account has a budget of its own and draws on a pool
/// that all share, and none of them ends while it is measured.
pub(super) fn policy(accounts: u32) -> String {
    let mut text = format!(
        "providers:
  bench: {{ unit: bench-unit, enforcement: calls }}
operations:
  {OPERATION}: {{ provider: bench, explicit: true, max_units: 100 }}
plans:
  bench:
    budgets:
      account: {{ unit: bench-unit, limit: 1000000000000, period: total }}
  bench-exhausted:
    budgets:
      account: {{ unit: bench-unit, limit: {RESERVED}, period: total }}
pools:
  bench-pool: {{ provider: bench, unit: bench-unit, limit: 1000000000000, period: total }}
accounts:
  {HOT}: {{ plan: bench }}
  {EXHAUSTED}: {{ plan: bench-exhausted }}
"
    );
    for number in 0..accounts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}: {{ plan: bench }}", account(number));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_one() {
        let read = crate::policy::parse(&policy(1000), &crate::policy::KnownBudgets::default()).unwrap();
        assert_eq!(read.accounts.len(), 1002);
    }
}
