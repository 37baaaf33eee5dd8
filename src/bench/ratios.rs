//! What the run is judged by: ratios between measurements of the same run, each with
//! what it should be.

#![expect(clippy::float_arithmetic, reason = "ratios of measurements; no amount is among them")]

use serde::Serialize;

use super::figures::{Measured, Series, median};

/// What a ratio should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    pub(super) fn met_by(self, measured: f64) -> bool {
        match self {
            Self::AtLeast(least) => measured >= least,
            Self::AtMost(most) => measured <= most,
        }
    }
}

/// One of them.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ratio {
    pub(super) name: &'static str,
    pub(super) what: String,
    /// In what it is measured, where it is no bare number.
    pub(super) unit: Option<&'static str>,
    /// Absent for what is only told.
    pub(super) target: Option<Target>,
    /// The middle of the rounds; absent where it was not measured.
    pub(super) measured: Option<f64>,
    /// The lowest and the highest of the rounds.
    pub(super) spread: Option<(f64, f64)>,
    pub(super) rounds: Vec<f64>,
    pub(super) met: Option<bool>,
    /// Why it was not measured, or how to read it.
    pub(super) note: Option<String>,
}

impl Ratio {
    /// A ratio with a value for each round.
    pub(super) fn new(name: &'static str, what: impl Into<String>, target: Option<Target>, rounds: Vec<f64>) -> Self {
        let rounds: Vec<f64> = rounds.into_iter().filter(|round| round.is_finite()).collect();
        let measured = median(rounds.iter().copied());
        let lowest = rounds.iter().copied().min_by(f64::total_cmp);
        let highest = rounds.iter().copied().max_by(f64::total_cmp);
        let met = target.zip(measured).map(|(target, measured)| target.met_by(measured));
        let spread = lowest.zip(highest);
        Self { name, what: what.into(), unit: None, target, measured, spread, rounds, met, note: None }
    }

    /// Each round of one series against the same round of another.
    pub(super) fn paired(
        name: &'static str,
        what: impl Into<String>,
        target: Option<Target>,
        (over, under): (&Series, &Series),
        figure: impl Fn(&Measured) -> f64,
    ) -> Self {
        let rounds = over.rounds.iter().zip(&under.rounds).map(|(over, under)| figure(over) / figure(under));
        Self::new(name, what, target, rounds.collect())
    }

    pub(super) fn unit(mut self, unit: &'static str) -> Self {
        self.unit = Some(unit);
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rates: &[f64]) -> Series {
        let rounds = rates.iter().map(|rate| Measured { cycles_per_second: *rate, ..Measured::default() });
        Series {
            name: String::new(),
            workload: None,
            cycle: None,
            clients: 1,
            grouping: None,
            prefilled: 0,
            rounds: rounds.collect(),
            beside: Vec::new(),
        }
    }

    #[test]
    fn rounds_are_compared_with_their_own_pair() {
        let pair = (&series(&[600.0, 700.0, 100.0]), &series(&[100.0, 100.0, 100.0]));
        let ratio = Ratio::paired("x", "x", Some(Target::AtLeast(6.0)), pair, |round| round.cycles_per_second);
        assert_eq!((ratio.measured, ratio.spread, ratio.met), (Some(6.0), Some((1.0, 7.0)), Some(true)));
        let ratio = Ratio::paired("x", "x", Some(Target::AtMost(1.05)), pair, |round| round.cycles_per_second);
        assert_eq!(ratio.met, Some(false));
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let nothing = (&series(&[0.0]), &series(&[0.0]));
        let ratio = Ratio::paired("x", "x", Some(Target::AtLeast(6.0)), nothing, |round| round.cycles_per_second);
        assert_eq!((ratio.measured, ratio.met), (None, None));
    }
}
