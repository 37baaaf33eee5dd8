//! Variants that are compared are measured in turns, so that what else happens on the
//! machine happens to all of them.

use super::BenchError;
use super::arena::Keys;
use super::args::Plan;
use super::figures::Series;
use super::load::{Group, Who};
use super::progress::Progress;
use super::stand::{Stand, Times};
use super::workload::{Cycle, EXHAUSTED, HOT, Workload, account};
use super::zipf::Zipf;

/// One variant: what is offered to which of the stands, and what came of it.
pub(super) struct Turn {
    pub(super) stand: usize,
    pub(super) groups: Vec<Group>,
    pub(super) series: Series,
}

impl Turn {
    /// One group of clients on one of the stands.
    pub(super) fn new(stands: &[Stand], stand: usize, workload: Workload, group: Group) -> Self {
        let on = stands.get(stand);
        let grouping = on.and_then(|stand| stand.grouping);
        let prefilled = on.map_or(0, |stand| stand.prefilled);
        let word = grouping.map_or("given", |grouping| grouping.as_str());
        let (cycle, clients) = (group.cycle, group.clients);
        let series = Series {
            name: format!("{}/{}/{clients}/{word}", workload.as_str(), cycle.as_str()),
            workload: Some(workload),
            cycle: Some(cycle),
            clients,
            grouping,
            prefilled,
            rounds: Vec::new(),
            beside: Vec::new(),
        };
        Self { stand, groups: vec![group], series }
    }

    /// Under another name than the workload's.
    pub(super) fn named(mut self, name: impl Into<String>) -> Self {
        self.series.name = name.into();
        self
    }

    /// With others at the same time.
    pub(super) fn beside(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }
}

/// Measures every variant so many times, forwards and backwards in turn.
pub(super) async fn take(
    progress: &Progress,
    times: Times,
    rounds: u16,
    stands: &mut [Stand],
    mut turns: Vec<Turn>,
) -> Result<Vec<Series>, BenchError> {
    for round in 0..rounds {
        let mut order: Vec<&mut Turn> = turns.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for turn in order {
            let Some(stand) = stands.get_mut(turn.stand) else { continue };
            progress.doing(&format!("{}, round {}", turn.series.name, round + 1));
            let (measured, beside) = stand.measure(turn.groups.clone(), times).await?;
            turn.series.rounds.push(measured);
            turn.series.beside.extend(beside);
            progress.step();
        }
    }
    Ok(turns.into_iter().map(|turn| turn.series).collect())
}

/// The clients of a workload.
pub(super) fn clients(plan: &Plan, keys: &Keys, workload: Workload, cycle: Cycle, clients: u16) -> Group {
    let (who, authorization) = match workload {
        Workload::Hot => (Who::One(HOT.to_owned()), &keys.hot),
        Workload::Zipf => {
            let accounts = (0..plan.accounts).map(account).collect();
            (Who::Popular(Zipf::new(plan.accounts), accounts), &keys.fleet)
        }
        Workload::Refusals => (Who::One(EXHAUSTED.to_owned()), &keys.exhausted),
    };
    Group { clients, cycle, who, authorization: authorization.clone(), per_second: None }
}
