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

#[cfg(test)]
impl Findings {
    /// Findings with names that no document may take for its own marks.
    pub(super) fn example() -> Self {
        use super::figures::Latency;
        use super::ratios::Target;
        use super::service::Grouping;
        let round = Measured {
            requests_per_second: 4321.0,
            latency_us: Latency { p50: 800, p95: 2000, p99: 3000, p999: 9000, max: 12_000 },
            ..Measured::default()
        };
        let series = |name: &str, grouping| Series {
            name: name.to_owned(),
            workload: None,
            cycle: None,
            clients: 64,
            grouping,
            prefilled: 0,
            rounds: vec![round.clone()],
            beside: Vec::new(),
        };
        let facts = Facts {
            program: "0",
            optimised: true,
            knows_grouping: true,
            cores: 2,
            processor: None,
            memory_kib: None,
            system: None,
            postgres: None,
            warnings: Vec::new(),
        };
        let options = Options {
            quick: false,
            seconds: 5.0,
            warm_up_seconds: 1.0,
            rounds: 1,
            clients: vec![1, 64],
            accounts: 1000,
            prefill: 0,
        };
        Self {
            facts,
            options,
            ratios: vec![
                Ratio::new("a", "a < b & \"c\"", Some(Target::AtLeast(6.0)), vec![7.0]),
                Ratio::new("b", "not measured", Some(Target::AtMost(1.0)), Vec::new()),
            ],
            generator: Some(round.clone()),
            series: vec![series("<on> & 'on'", Some(Grouping::On)), series("off", Some(Grouping::Off))],
            books: Vec::new(),
        }
    }
}
