//! The floor: the statements of the program without HTTP, sent from one connection in
//! ready-made groups of the mean size that was observed. What the service reaches of
//! that is what its own part costs.

use super::BenchError;
use super::figures::Series;
use super::stand::Times;

/// What the floor is measured with.
#[expect(dead_code, reason = "read once the ledger can send ready-made groups")]
pub(super) struct Floor {
    /// A fresh database of the run, as the service connects.
    pub(super) database_url: String,
    pub(super) times: Times,
    /// The mean number of decisions in one statement, as the service counted them
    /// with grouping on; absent where it counts none.
    pub(super) reserve_group: Option<f64>,
    pub(super) settle_group: Option<f64>,
}

/// What came of it.
#[expect(dead_code, reason = "measured once the ledger can send ready-made groups")]
pub(super) enum Outcome {
    Measured(Box<Series>),
    NotMeasured(&'static str),
}

/// Measures it, in so many rounds.
pub(super) async fn measure(asked: &Floor, rounds: u16) -> Result<Outcome, BenchError> {
    let Floor { database_url: _, times: _, reserve_group: Some(_), settle_group: Some(_) } = asked else {
        return Ok(Outcome::NotMeasured("not measured: the service does not say how large its groups are"));
    };
    let _ = rounds;
    Ok(Outcome::NotMeasured("not measured: the ledger has no way to send ready-made groups yet"))
}
