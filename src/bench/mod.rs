//! `spend-ledger bench`: the load test of docs/performance.md.
//!
//! It starts what it needs: a Postgres (`place`), the service as a process of its own
//! (`service`), a fresh database for each variant (`arena`). Clients on a thread of
//! their own (`load`, `client`, `wire`) send what a workload says (`workload`, `zipf`);
//! a `stand` measures that and reads what Postgres, the service and the system have
//! counted (`counters`, `process`). Variants take turns (`turns`); `stages` says what
//! is measured, and `ratios` what it is judged by. `floor` and `single` are yardsticks
//! without HTTP, `empty` is one without a ledger. Afterwards the books are checked, and
//! only then is anything told: `report` in words, `draw` as a picture, `findings` as
//! JSON.

mod arena;
mod args;
mod client;
mod counters;
mod draw;
mod empty;
mod facts;
mod figures;
mod findings;
mod floor;
mod load;
mod outside;
mod place;
mod prefill;
mod process;
mod progress;
mod ratios;
mod report;
mod service;
mod single;
mod stages;
mod stand;
mod turns;
mod wire;
mod workload;
mod zipf;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

pub use args::BenchArgs;
pub use empty::serve_nothing;
pub use workload::{Cycle, Workload};

use crate::boot::BootError;
use crate::ledger::Error;
use crate::ledger::schema::SchemaError;
use crate::postgres::PrivatePostgresError;
use arena::{Arena, Keys};
use args::Plan;
use facts::Facts;
use figures::Measured;
use findings::{Findings, Options};
use load::{Group, Who};
use place::Server;
use progress::Progress;
use service::Service;
use stages::Stages;
use stand::Stand;
use wire::Target;
use workload::HOT;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The books of a database do not hold: whatever was measured on it is no result.
    #[error("the books do not hold, so there is no result. {database}: {differences} differences, such as\n  {quoted}")]
    Books {
        /// What was measured on it.
        database: String,
        /// How many there are.
        differences: u64,
        /// The first of them.
        quoted: String,
    },
    /// The service did not start, or did not stop. What it said last.
    #[error("the service that was to be measured: {0}")]
    Service(String),
    /// No process or thread.
    #[error("cannot run a part of the program: {0}")]
    Program(std::io::Error),
    /// The load generator failed.
    #[error("the load generator: {0}")]
    Load(String),
    /// A key or a name that cannot be used.
    #[error("the key is not one that can be sent")]
    Key,
    /// Nobody is at the address of `--url`.
    #[error("no service at {0}")]
    Unreachable(String),
    /// The private Postgres.
    #[error(transparent)]
    Postgres(#[from] PrivatePostgresError),
    /// A database could not be prepared.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A schema could not be brought up to date.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// The database.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// No histogram.
    #[error("cannot set up the statistics: {0}")]
    Statistics(#[from] hdrhistogram::CreationError),
    /// A part of the program failed.
    #[error("a task of the bench failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A file cannot be written.
    #[error("{file} cannot be written: {error}")]
    Write {
        /// Which.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// The findings cannot be written as JSON.
    #[error("the findings cannot be written down: {0}")]
    Json(#[from] serde_json::Error),
    /// Ctrl-C.
    #[error("interrupted; there is no result")]
    Interrupted,
}

/// The command: measures, checks the books, and tells.
///
/// # Errors
///
/// What keeps a run from its end; most of all [`BenchError::Books`].
pub async fn command(args: BenchArgs) -> Result<(), BenchError> {
    let plan = Plan::new(&args);
    if args.print_policy {
        print!("{}", workload::policy(plan.accounts));
        return Ok(());
    }
    let findings = if args.url.is_some() { outside::run(&args, &plan).await? } else { inside(&args, &plan).await? };
    let mut out = std::io::stdout().lock();
    let printed = write!(out, "{}", report::text(&findings));
    printed.map_err(|error| BenchError::Write { file: "the report".to_owned(), error })?;
    if let Some(file) = &args.json {
        save(file, &serde_json::to_string_pretty(&findings)?)?;
    }
    if let Some(file) = &args.svg {
        save(file, &draw::svg(&findings))?;
    }
    Ok(())
}

fn save(file: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(file, text).map_err(|error| BenchError::Write { file: file.display().to_string(), error })
}

/// Everything on a server and services of its own.
async fn inside(args: &BenchArgs, plan: &Plan) -> Result<Findings, BenchError> {
    let knows_grouping = service::knows_grouping().await?;
    let progress = Arc::new(Progress::new(plan.measurements()));
    progress.doing("starting Postgres");
    let server = match &args.database_url {
        Some(url) => Server::Given { url: url.clone() },
        None => Server::start(args.dir.as_deref().unwrap_or(&std::env::temp_dir())).await?,
    };
    let mut arena = Arena::new(server, Arc::clone(&progress));
    let outcome = tokio::select! {
        outcome = measure(args, plan, &mut arena, knows_grouping) => outcome,
        _ = tokio::signal::ctrl_c() => Err(BenchError::Interrupted),
    };
    progress.doing("cleaning up");
    let closed = arena.close().await;
    progress.end();
    let findings = outcome?;
    closed?;
    Ok(findings)
}

async fn measure(
    args: &BenchArgs,
    plan: &Plan,
    arena: &mut Arena,
    knows_grouping: bool,
) -> Result<Findings, BenchError> {
    let keys = arena.prepare(plan.accounts).await?;
    let database = arena.copy("facts").await?;
    let facts = Facts::gather(Some(&database.owner_url), true, knows_grouping).await?;
    arena.end_database("facts", database).await?;
    let mut findings = found_nothing(args, plan, facts);
    arena.progress.doing("what the load generator can drive");
    findings.generator = Some(calibrate(plan, &keys).await?);
    Stages { plan, arena, keys: &keys, findings: &mut findings }.run().await?;
    findings.books.clone_from(&arena.books);
    Ok(findings)
}

fn found_nothing(args: &BenchArgs, plan: &Plan, facts: Facts) -> Findings {
    let options = Options {
        quick: args.quick,
        seconds: plan.times.duration.as_secs_f64(),
        warm_up_seconds: plan.times.warm_up.as_secs_f64(),
        rounds: plan.rounds,
        clients: plan.clients.clone(),
        accounts: plan.accounts,
        prefill: plan.prefill,
    };
    Findings { facts, options, ratios: Vec::new(), generator: None, series: Vec::new(), books: Vec::new() }
}

/// Drives an empty handler: what the load generator can do at most.
async fn calibrate(plan: &Plan, keys: &Keys) -> Result<Measured, BenchError> {
    let empty = Service::start_empty().await?;
    let group = Group {
        clients: plan.judged,
        cycle: Cycle::Settle,
        who: Who::One(HOT.to_owned()),
        authorization: keys.hot.clone(),
        per_second: None,
    };
    let mut stand = Stand::outside("empty", Target::at(empty.address), None);
    let measured = stand.measure(vec![group], plan.times).await;
    empty.stop().await?;
    measured.map(|(measured, _)| measured)
}
