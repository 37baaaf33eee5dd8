//! What one measurement comes to, and what several of the same come to.

#![expect(clippy::float_arithmetic, reason = "rates and ratios of measurements; no amount is among them")]

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::load::Tally;
use super::service::Grouping;
use super::workload::{Cycle, Workload};

/// From sending a request to its whole answer, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Latency {
    pub(super) p50: u64,
    pub(super) p95: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) max: u64,
}

impl Latency {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.50),
            p95: histogram.value_at_quantile(0.95),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// One measurement. What could not be asked for is absent.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    /// Requests answered, refusals included.
    pub(super) requests: u64,
    pub(super) requests_per_second: f64,
    /// Whole cycles.
    pub(super) cycles: u64,
    pub(super) cycles_per_second: f64,
    pub(super) refused: u64,
    pub(super) refused_per_second: f64,
    /// Requests that were not answered as they should be.
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
    pub(super) latency_us: Latency,
    #[serde(flatten)]
    pub(super) cost: Cost,
}

/// What the requests of a measurement cost, each for one request.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Cost {
    /// Statements of the verbs, as the service counts them.
    pub(super) statements_per_operation: Option<f64>,
    /// How many decisions one statement made, by verb.
    pub(super) decisions_per_statement: BTreeMap<String, f64>,
    /// Transactions, as Postgres counts them: also those that only read.
    pub(super) transactions_per_operation: Option<f64>,
    /// Transactions that wrote anything.
    pub(super) writing_transactions_per_operation: Option<f64>,
    pub(super) wal_bytes_per_operation: Option<f64>,
    /// Cores that the service kept busy.
    pub(super) service_cores: Option<f64>,
    pub(super) service_resident_kib: Option<u64>,
    pub(super) service_peak_kib: Option<u64>,
    /// The part of a core that the load generator kept busy.
    pub(super) generator_cores: Option<f64>,
}

/// A rate, as the generator saw it.
pub(super) fn measured(tally: &Tally, window: Duration, cost: Cost) -> Measured {
    let seconds = window.as_secs_f64();
    Measured {
        seconds,
        requests: tally.requests,
        requests_per_second: per(tally.requests, seconds),
        cycles: tally.cycles,
        cycles_per_second: per(tally.cycles, seconds),
        refused: tally.refused,
        refused_per_second: per(tally.refused, seconds),
        failed: tally.failed,
        first_error: tally.first_error.clone(),
        latency_us: Latency::of(&tally.latency),
        cost,
    }
}

/// What was counted, for each of so many.
pub(super) fn each(counted: i64, operations: u64) -> Option<f64> {
    (operations > 0).then(|| to_f64(u64::try_from(counted).unwrap_or(0)) / to_f64(operations))
}

/// Cores kept busy by this much processor time.
pub(super) fn cores(cpu: Duration, window: Duration) -> f64 {
    cpu.as_secs_f64() / window.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Decisions per statement, of the verbs that sent any.
pub(super) fn group_sizes(
    statements: &BTreeMap<String, u64>,
    decisions: &BTreeMap<String, u64>,
) -> BTreeMap<String, f64> {
    let size = |(verb, sent): (&String, &u64)| {
        let made = decisions.get(verb)?;
        (*sent > 0).then(|| (verb.clone(), to_f64(*made) / to_f64(*sent)))
    };
    statements.iter().filter_map(size).collect()
}

fn per(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { to_f64(count) / seconds } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(super) fn to_f64(count: u64) -> f64 {
    count as f64
}

/// The middle one; of an even number, the lower of the two in the middle.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

/// The same, measured several times.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) workload: Option<Workload>,
    pub(super) cycle: Option<Cycle>,
    pub(super) clients: u16,
    pub(super) grouping: Option<Grouping>,
    /// Settled reservations that the database held before.
    pub(super) prefilled: u64,
    pub(super) rounds: Vec<Measured>,
    /// What others did at the same time, round by round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) beside: Vec<Measured>,
}

impl Series {
    /// The middle of a figure over the rounds.
    pub(super) fn middle(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        median(self.rounds.iter().filter_map(figure))
    }

    pub(super) fn failed(&self) -> u64 {
        self.rounds.iter().map(|round| round.failed).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_one_of_the_values() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.0));
        assert_eq!(median([f64::NAN, 5.0]), Some(5.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!(each(10, 0), None);
        assert_eq!(each(10, 4), Some(2.5));
        assert_eq!(each(-1, 4), Some(0.0));
        let sizes =
            |sent: u64| group_sizes(&[("reserve".to_owned(), sent)].into(), &[("reserve".to_owned(), 6)].into());
        assert_eq!(sizes(4)["reserve"], 1.5);
        assert!(sizes(0).is_empty());
    }
}
