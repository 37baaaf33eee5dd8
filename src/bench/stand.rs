//! One service on one database, and measuring it.

use std::time::Duration;

use hyper::header::HeaderValue;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::BenchError;
use super::counters::{self, Postgres, Service as Counted};
use super::figures::{Cost, Measured, cores, each, group_sizes, measured};
use super::load::{Group, Load, Ran, Tally, Who, Window, start};
use super::place::Database;
use super::process::Usage;
use super::service::{Grouping, Service};
use super::wire::{Target, Wire};
use super::workload::Cycle;

/// How long accounts may take to be used for the first time, and by how many clients
/// they are.
const PRIME_WITHIN: Duration = Duration::from_secs(300);
const PRIMERS: u16 = 16;
/// How long what was begun in a window may take to be answered after it.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// How long a service may take to show its counters.
const COUNTED_WITHIN: Duration = Duration::from_secs(5);

/// A service that can be measured. What is not this process's child, or has no
/// database that may be asked, is measured from outside only.
pub(super) struct Stand {
    pub(super) name: String,
    pub(super) grouping: Option<Grouping>,
    pub(super) database: Option<Database>,
    /// Settled reservations that the database held before.
    pub(super) prefilled: u64,
    target: Target,
    service: Option<Service>,
    sampler: Option<PgConnection>,
    metrics: Wire,
    /// Loads so far: each has keys of its own.
    loads: u64,
}

/// How long a measurement takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
}

/// What was counted up to an instant.
struct Sample {
    usage: Option<Usage>,
    postgres: Option<Postgres>,
    counted: Option<Counted>,
}

impl Stand {
    /// A child of this process on a database of the run.
    pub(super) async fn start(name: &str, database: Database, grouping: Grouping) -> Result<Self, BenchError> {
        let service = Service::start(&database.service_url, grouping).await?;
        let target = Target::at(service.address);
        let sampler = Some(PgConnection::connect(&database.owner_url).await?);
        let mut stand = Self::outside(name, target, sampler);
        stand.grouping = Some(grouping);
        stand.database = Some(database);
        stand.service = Some(service);
        Ok(stand)
    }

    /// A service that somebody else runs.
    pub(super) fn outside(name: &str, target: Target, sampler: Option<PgConnection>) -> Self {
        Self {
            name: name.to_owned(),
            grouping: None,
            database: None,
            prefilled: 0,
            metrics: Wire::new(target.clone()),
            target,
            service: None,
            sampler,
            loads: 0,
        }
    }

    /// Stops the service and answers its database, which nobody uses any more.
    pub(super) async fn stop(self) -> Result<Option<Database>, BenchError> {
        if let Some(service) = self.service {
            service.stop().await?;
        }
        if let Some(sampler) = self.sampler {
            sampler.close().await?;
        }
        Ok(self.database)
    }

    /// One measurement. The first group is what it is about; what the others did is
    /// answered beside it.
    pub(super) async fn measure(
        &mut self,
        groups: Vec<Group>,
        times: Times,
    ) -> Result<(Measured, Vec<Measured>), BenchError> {
        let load = self.load(groups, times);
        let running = start(load).map_err(BenchError::Program)?;
        let Ok(window) = running.window.await else {
            // It has ended before it began: why, it says itself.
            return Err(BenchError::Load(running.ran.await.map_or_else(|_| GONE.to_owned(), failed)));
        };
        sleep_until(window.begins).await;
        let before = self.sample().await?;
        sleep_until(window.ends).await;
        let after = self.sample().await?;
        let ran = drained(running.ran, DRAINED_WITHIN).await?;
        Ok(conclude(&ran, window, &before, &after))
    }

    /// Uses each of the accounts once, so that their periods are open.
    pub(super) async fn prime(&mut self, authorization: &HeaderValue, accounts: Vec<String>) -> Result<(), BenchError> {
        let group = Group {
            clients: PRIMERS,
            cycle: Cycle::Settle,
            who: Who::Once(accounts),
            authorization: authorization.clone(),
            per_second: None,
        };
        let load = self.load(vec![group], Times { warm_up: Duration::ZERO, duration: PRIME_WITHIN });
        let running = start(load).map_err(BenchError::Program)?;
        let began = Instant::now();
        // Held for as long as it takes: who drops it is taken to watch no more.
        let window = running.window.await;
        let ran = drained(running.ran, PRIME_WITHIN + DRAINED_WITHIN).await?;
        drop(window);
        match ran.tallies.into_iter().next() {
            Some(Tally { failed: 0, .. }) if began.elapsed() < PRIME_WITHIN => Ok(()),
            Some(Tally { first_error: Some(error), .. }) => Err(BenchError::Load(error)),
            _ => Err(BenchError::Load("the accounts could not be used in time".to_owned())),
        }
    }

    fn load(&mut self, groups: Vec<Group>, times: Times) -> Load {
        self.loads += 1;
        Load {
            target: self.target.clone(),
            groups,
            warm_up: times.warm_up,
            duration: times.duration,
            name: format!("{}-{}", self.name, self.loads),
        }
    }

    async fn sample(&mut self) -> Result<Sample, BenchError> {
        let postgres = match &mut self.sampler {
            Some(connection) => Some(counters::postgres(connection).await?),
            None => None,
        };
        // A service that shows no metrics is measured without.
        let shown = tokio::time::timeout(COUNTED_WITHIN, self.metrics.get("/metrics")).await;
        let counted = shown.ok().and_then(Result::ok).map(|text| Counted::parse(&text));
        Ok(Sample { usage: self.service.as_ref().and_then(Service::usage), postgres, counted })
    }
}

const GONE: &str = "it has failed";

/// What a load came to, once everything that it sent has been answered.
async fn drained(ran: oneshot::Receiver<Result<Ran, String>>, within: Duration) -> Result<Ran, BenchError> {
    match tokio::time::timeout(within, ran).await {
        Ok(Ok(ran)) => ran.map_err(BenchError::Load),
        Ok(Err(_)) => Err(BenchError::Load(GONE.to_owned())),
        Err(_) => Err(BenchError::Load("requests are still not answered, long after the end".to_owned())),
    }
}

fn failed(ran: Result<Ran, String>) -> String {
    ran.err().unwrap_or_else(|| GONE.to_owned())
}

fn conclude(ran: &Ran, window: Window, before: &Sample, after: &Sample) -> (Measured, Vec<Measured>) {
    let length = window.ends.duration_since(window.begins);
    let requests = ran.tallies.iter().map(|tally| tally.requests).sum();
    let mut cost = Cost { generator_cores: ran.cpu.map(|cpu| cores(cpu, length)), ..Cost::default() };
    if let (Some(before), Some(after)) = (before.postgres, after.postgres) {
        let grown = |figure: fn(&Postgres) -> i64| each(figure(&after).saturating_sub(figure(&before)), requests);
        cost.wal_bytes_per_operation = grown(|counted| counted.wal_bytes);
        cost.transactions_per_operation = grown(|counted| counted.transactions);
        cost.writing_transactions_per_operation = grown(|counted| counted.ids);
    }
    if let (Some(before), Some(after)) = (before.usage, after.usage) {
        cost.service_cores = Some(cores(after.cpu.saturating_sub(before.cpu), length));
        cost.service_resident_kib = Some(after.resident_kib);
        cost.service_peak_kib = Some(after.peak_kib);
    }
    if let (Some(before), Some(after)) = (&before.counted, &after.counted) {
        let counted = after.since(before);
        let sent: u64 = counted.statements.values().sum();
        cost.decisions_per_statement = group_sizes(&counted.statements, &counted.decisions);
        let counts = !counted.statements.is_empty();
        cost.statements_per_operation =
            counts.then(|| each(i64::try_from(sent).unwrap_or(i64::MAX), requests)).flatten();
    }
    let mut groups = ran.tallies.iter();
    let first = groups.next().map(|tally| measured(tally, length, cost)).unwrap_or_default();
    (first, groups.map(|tally| measured(tally, length, Cost::default())).collect())
}
