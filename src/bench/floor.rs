//! The floor: the statements of the program without HTTP, sent from one connection in
//! ready-made groups of the mean size that was observed. What the service reaches of
//! that is what its own part costs.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sqlx::PgConnection;

use super::BenchError;
use super::figures::{Cost, Measured, Series, each, measured};
use super::load::{SLOWEST_US, Tally};
use super::stand::Times;
use super::workload::{ACTUAL, Cycle, HOT, OPERATION, RESERVED, Workload};
use crate::ledger::reserve::Reserve;
use crate::ledger::{Context, Database, DatabaseOptions, Ledger};
use crate::model::request::ReservationRequest;
use crate::model::{Name, Units};
use crate::telemetry::Metrics;

/// What the floor is measured with.
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
pub(super) enum Outcome {
    Measured(Box<Series>),
    NotMeasured(&'static str),
}

/// Measures it, in so many rounds.
pub(super) async fn measure(asked: &Floor, rounds: u16) -> Result<Outcome, BenchError> {
    let (Some(reserve), Some(settle)) = (asked.reserve_group, asked.settle_group) else {
        return Ok(Outcome::NotMeasured("not measured: the service does not say how large its groups are"));
    };
    let group = middle(reserve, settle);
    let metrics = Metrics::new();
    let options = DatabaseOptions::new(&asked.database_url);
    let ledger = Ledger::open(Database::connect_lazily(&options, metrics.clone())?, metrics).await?;
    let mut series = Series {
        name: format!("bare statements, groups of {group}"),
        workload: Some(Workload::Hot),
        cycle: Some(Cycle::Settle),
        clients: 1,
        grouping: None,
        prefilled: 0,
        rounds: Vec::new(),
        beside: Vec::new(),
    };
    // Its period is open before it is measured.
    ledger.reserve(&context(), &ask("first".to_owned())?).await?;
    let mut connection = ledger.database().deciding_pool().acquire().await?;
    for round in 0..rounds {
        series.rounds.push(once(&ledger, &mut connection, asked.times, group, round).await?);
    }
    drop(connection);
    ledger.close().await;
    Ok(Outcome::Measured(Box::new(series)))
}

/// The size between the two, of one item at least.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a mean of small numbers, not an amount"
)]
fn middle(reserve: f64, settle: f64) -> usize {
    ((reserve + settle) / 2.0).round().max(1.0) as usize
}

async fn once(
    ledger: &Ledger,
    connection: &mut PgConnection,
    times: Times,
    group: usize,
    round: u16,
) -> Result<Measured, BenchError> {
    let latency = Histogram::new_with_bounds(1, SLOWEST_US, 3)?;
    let mut tally = Tally { requests: 0, cycles: 0, refused: 0, failed: 0, first_error: None, latency };
    let mut busy = Duration::ZERO;
    let mut made = 0_u64;
    let begun = Instant::now();
    while begun.elapsed() < times.warm_up + times.duration {
        let reserves = (0..group).map(|n| ask(format!("{round}-{made}-{n}"))).collect::<Result<Vec<_>, _>>()?;
        made += 1;
        let took = ledger.bare_cycle(&context(), connection, &reserves, units(ACTUAL)?).await?;
        if begun.elapsed() < times.warm_up {
            continue;
        }
        let items = u64::try_from(group).unwrap_or(u64::MAX);
        for statement in took {
            busy += statement;
            tally.requests += items;
            tally.latency.saturating_record_n(u64::try_from(statement.as_micros()).unwrap_or(u64::MAX), items);
        }
        tally.cycles += items;
    }
    // The time of the statements: making groups ready is not counted.
    let cost = Cost { statements_per_operation: each(1, u64::try_from(group).unwrap_or(1)), ..Cost::default() };
    Ok(measured(&tally, busy, cost))
}

fn context() -> Context {
    Context::system("bench")
}

fn ask(key: String) -> Result<Reserve, BenchError> {
    let name = |text: &str| text.parse::<Name>().map_err(|error| BenchError::Load(format!("{text} {error}")));
    let request = ReservationRequest {
        operation: name(OPERATION)?,
        quantities: [].into(),
        units: Some(units(RESERVED)?),
        member: None,
        provider_key: None,
        reference: None,
        labels: [].into(),
    };
    let (account, holder) = (name(HOT)?, "bench".to_owned());
    Ok(Reserve { account, key: format!("floor-{key}"), request, holder, lease_seconds: 60 })
}

fn units(text: &str) -> Result<Units, BenchError> {
    Units::parse(text).map_err(|error| BenchError::Load(error.to_string()))
}
