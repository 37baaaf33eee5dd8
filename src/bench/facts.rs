//! On what a run took place: figures of another machine are other figures.

use std::fs;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::Instant;

use super::BenchError;
use super::figures::Latency;

/// Commits by which the time of a flush is measured.
const COMMITS: u32 = 200;
/// A disk that acknowledges faster keeps nothing through a loss of power.
const TOO_FAST: u64 = 20;

/// The machine, the server and its settings.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Facts {
    pub(super) program: &'static str,
    /// Whether the program is built for speed.
    pub(super) optimised: bool,
    /// Whether the service knows groups: if not, on and off are the same.
    pub(super) knows_grouping: bool,
    pub(super) cores: usize,
    pub(super) processor: Option<String>,
    pub(super) memory_kib: Option<u64>,
    pub(super) system: Option<String>,
    pub(super) postgres: Option<Postgres>,
    pub(super) warnings: Vec<String>,
}

/// The server that it took place on.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Postgres {
    pub(super) version: String,
    pub(super) settings: Vec<(String, String)>,
    /// One small commit on one connection, in microseconds: the time of a flush, and
    /// of the way there. Not asked of a database that somebody else uses.
    pub(super) commit_us: Option<Latency>,
}

const SETTINGS: [&str; 9] = [
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "max_connections",
];

impl Facts {
    /// Of this machine, and of the server with this database, in which a table may be
    /// made and removed again if it is the run's `own`.
    pub(super) async fn gather(url: Option<&str>, own: bool, knows_grouping: bool) -> Result<Self, BenchError> {
        let postgres = match url {
            Some(url) => Some(Postgres::ask(url, own).await?),
            None => None,
        };
        let mut facts = Self {
            program: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            knows_grouping,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_kib: field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok()),
            system: fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
            postgres,
            warnings: Vec::new(),
        };
        facts.warn();
        Ok(facts)
    }

    fn warn(&mut self) {
        if !self.optimised {
            self.warnings.push("this program is built for debugging: build it with --release".to_owned());
        }
        if !self.knows_grouping {
            self.warnings.push("this program's service knows no grouping: on and off are the same".to_owned());
        }
        let Some(postgres) = &self.postgres else { return };
        if postgres.commit_us.is_some_and(|commit| commit.p50 < TOO_FAST) {
            self.warnings.push("a commit takes no time: the disk does not keep what it acknowledges".to_owned());
        }
        for (name, value) in &postgres.settings {
            if matches!(name.as_str(), "fsync" | "full_page_writes" | "synchronous_commit") && value != "on" {
                self.warnings.push(format!("the server is not durable: {name} is {value}"));
            }
        }
    }
}

impl Postgres {
    async fn ask(url: &str, own: bool) -> Result<Self, BenchError> {
        let mut connection = PgConnection::connect(url).await?;
        let version = sqlx::query_scalar("select current_setting('server_version')").fetch_one(&mut connection).await?;
        let mut settings = Vec::new();
        for name in SETTINGS {
            let value = sqlx::query_scalar("select current_setting($1)").bind(name).fetch_one(&mut connection).await?;
            settings.push((name.to_owned(), value));
        }
        let commit_us = if own { Some(commits(&mut connection).await?) } else { None };
        connection.close().await?;
        Ok(Self { version, settings, commit_us })
    }
}

/// Commits one small change after another, in a table that is removed again.
async fn commits(connection: &mut PgConnection) -> Result<Latency, BenchError> {
    connection.execute("create table bench_commit (n bigint not null)").await?;
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
    for n in 0..i64::from(COMMITS) {
        let sent = Instant::now();
        sqlx::query("insert into bench_commit values ($1)").bind(n).execute(&mut *connection).await?;
        let took: Duration = sent.elapsed();
        histogram.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
    connection.execute("drop table bench_commit").await?;
    Ok(Latency::of(&histogram))
}

/// A field of a file of `name : value` lines.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}
