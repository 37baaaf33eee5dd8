//! `spend-ledger replay`: drives a running service as its workers would, from a
//! trace of real requests.
//!
//! One task reads the trace and starts a worker for each row when it is due and
//! one of `--concurrency` places is free; each worker lives its row's life
//! (`worker`) through the workers' own library, whose requests are repeated until
//! they are answered. What each did is counted (`tally`) and printed (`report`). This
//! room knows the service by its HTTP interface only, as any worker does.

mod args;
mod choices;
#[cfg(test)]
mod fake;
mod progress;
mod report;
mod summary;
mod tally;
#[cfg(test)]
mod tests;
mod trace;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

pub use args::{ArgumentError, ReplayArgs, RunName, Share, SpeedUp};
pub use summary::{Book, Latencies, Latency, Stopped, Summary, Tokens};
pub use trace::TraceError;

use crate::model::Units;
use crate::model::amount::AmountError;
use progress::Progress;
use tally::Tally;
use trace::{Row, Trace};
use worker::{End, Fleet, Kind, RowReport};

/// Rows that are read ahead of the workers.
const READ_AHEAD: usize = 64;
/// Fewest failures in a row that end a run. More with more workers: when the
/// service is gone, each of them gives up once.
const FEWEST_FAILURES: u64 = 8;

/// Why there is no summary.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file is no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The service did not answer before the first row.
    #[error("no service at {url} within {} s: {reason}", .retry_for.as_secs())]
    Unreachable {
        /// Where it should be.
        url: String,
        /// How long it was tried.
        retry_for: Duration,
        /// What went wrong last.
        reason: String,
    },
    /// The service does not know the key.
    #[error("the service does not accept the key: {0}")]
    Key(String),
    /// The operation prices a row differently from its tokens.
    #[error(
        "operation {operation} does not count one unit per token: it estimates {estimate} units \
         for {asked} tokens. What was reserved has been given back"
    )]
    NotTokens {
        /// The operation.
        operation: String,
        /// Tokens of the row, prompt and reserved output.
        asked: u64,
        /// The service's estimate.
        estimate: Units,
    },
    /// Ctrl-C before the first row.
    #[error("interrupted before the first row")]
    Interrupted,
    /// The tokens of the trace add up to more than an amount can be.
    #[error("the sum of the tokens {0}")]
    Sum(AmountError),
    /// Rows were given up on, or left in flight. The summary has been printed.
    #[error("{0} rows were not brought to an end; the same --run and options again take them up")]
    GaveUp(u64),
    /// The summary cannot be printed.
    #[error("cannot print the summary: {0}")]
    Print(#[from] std::io::Error),
    /// No random name for the run.
    #[error("no random numbers for the name of the run: {0}")]
    Random(#[from] getrandom::Error),
    /// No HTTP client.
    #[error(transparent)]
    Client(#[from] spend_ledger_client::BuildError),
    /// No histogram.
    #[error("cannot set up the statistics: {0}")]
    Statistics(#[from] hdrhistogram::CreationError),
    /// A part of the program failed.
    #[error("a task of the replay failed: {0}")]
    Task(#[from] JoinError),
}

/// The command: replays and prints the summary to stdout.
///
/// # Errors
///
/// As [`run`], and [`ReplayError::GaveUp`].
pub async fn command(args: ReplayArgs) -> Result<(), ReplayError> {
    let json = args.json;
    let summary = run(args).await?;
    summary.print(json, &mut std::io::stdout().lock())?;
    if summary.is_success() { Ok(()) } else { Err(ReplayError::GaveUp(summary.failed + summary.left_in_flight)) }
}

/// Replays a trace until it ends or somebody presses Ctrl-C. Prints nothing but
/// the progress bar.
///
/// # Errors
///
/// What keeps a run from beginning, and a trace that turns out to be none. Rows
/// that fail are in the summary: [`Summary::is_success`].
pub async fn run(args: ReplayArgs) -> Result<Summary, ReplayError> {
    let (sender, interrupts) = mpsc::channel(2);
    let listener =
        tokio::spawn(async move { while tokio::signal::ctrl_c().await.is_ok() && sender.send(()).await.is_ok() {} });
    let outcome = replay(args, interrupts).await;
    listener.abort();
    outcome
}

async fn replay(args: ReplayArgs, mut interrupts: mpsc::Receiver<()>) -> Result<Summary, ReplayError> {
    let limit = args.limit.unwrap_or(u64::MAX);
    let path = args.file.clone();
    let total = tokio::task::spawn_blocking(move || trace::survey(&path, limit)).await??;
    let name = args.run.clone().map_or_else(RunName::random, Ok)?;
    let tally = Tally::new(name.as_str(), args.account.as_str())?;
    let fleet = Arc::new(Fleet::new(&args, name)?);
    tokio::select! {
        known = introduce(&fleet, &args) => known?,
        Some(()) = interrupts.recv() => return Err(ReplayError::Interrupted),
    }
    let started = Instant::now();
    let mut drive = Drive {
        rows: read_ahead(args.file.clone(), limit),
        next: None,
        exhausted: false,
        workers: JoinSet::new(),
        places: usize::from(args.concurrency),
        patience: u64::from(args.concurrency).max(FEWEST_FAILURES),
        pace: Pace { args: &args, started, first: None },
        fleet: Arc::clone(&fleet),
        tally,
        error: None,
        progress: Progress::new(total),
    };
    drive.finish(&mut interrupts).await?;
    let Drive { tally, error, .. } = drive;
    if let Some(error) = error {
        return Err(error);
    }
    let elapsed = started.elapsed();
    let books = tokio::select! {
        books = fleet.books() => Some(books),
        Some(()) = interrupts.recv() => None,
    };
    Ok(tally.finish(elapsed, books))
}

/// Finds out whether somebody is there and knows the key, before a thousand rows
/// find out one by one. Anything else the rows' own answers tell better.
async fn introduce(fleet: &Fleet, args: &ReplayArgs) -> Result<(), ReplayError> {
    match fleet.books().await.outcome {
        Ok(answer) if answer.status == 401 => Err(ReplayError::Key(worker::told(Kind::Books, &answer))),
        Ok(_) => Ok(()),
        Err(reason) => Err(ReplayError::Unreachable { url: args.url.to_string(), retry_for: args.retry_for, reason }),
    }
}

/// Reads the trace on a thread of its own, as far ahead as the channel is long.
/// The thread ends with the trace or with the receiver.
fn read_ahead(path: PathBuf, limit: u64) -> mpsc::Receiver<Result<Row, TraceError>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    std::thread::spawn(move || match Trace::open(&path) {
        Ok(trace) => {
            for row in trace.take(limit) {
                if sender.blocking_send(row).is_err() {
                    return;
                }
            }
        }
        Err(error) => {
            // Whoever is gone needs no error.
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}

/// When rows are due.
struct Pace<'a> {
    args: &'a ReplayArgs,
    started: Instant,
    first: Option<DateTime<Utc>>,
}

impl Pace<'_> {
    /// Rows that came before the first one, or together with it, are due at once.
    fn due(&mut self, row: &Row) -> Instant {
        let first = *self.first.get_or_insert(row.at);
        let elapsed = row.at.signed_duration_since(first).to_std().unwrap_or_default();
        let after = self.args.speed_up.compress(elapsed);
        self.started.checked_add(after).unwrap_or(self.started)
    }
}

/// A run under way.
struct Drive<'a> {
    rows: mpsc::Receiver<Result<Row, TraceError>>,
    /// The row that waits for its time and for a place.
    next: Option<(Row, Instant)>,
    exhausted: bool,
    workers: JoinSet<RowReport>,
    places: usize,
    /// Failures in a row that end the run.
    patience: u64,
    pace: Pace<'a>,
    fleet: Arc<Fleet>,
    tally: Tally,
    /// What ends the run without a summary.
    error: Option<ReplayError>,
    progress: Progress,
}

impl Drive<'_> {
    /// Starts no more rows once it has to stop, and ends when the last worker has.
    async fn finish(&mut self, interrupts: &mut mpsc::Receiver<()>) -> Result<(), ReplayError> {
        loop {
            let stopping = self.error.is_some() || self.tally.summary.stopped.is_some();
            if self.workers.is_empty() && (stopping || (self.exhausted && self.next.is_none())) {
                self.progress.end();
                return Ok(());
            }
            let room = !stopping && self.workers.len() < self.places;
            let due = self.next.as_ref().map_or(self.pace.started, |(_, due)| *due);
            tokio::select! {
                biased;
                Some(()) = interrupts.recv() => self.interrupt(),
                Some(ended) = self.workers.join_next() => self.ended(ended)?,
                () = sleep_until(due), if room && self.next.is_some() => self.start()?,
                read = self.rows.recv(), if room && self.next.is_none() && !self.exhausted => {
                    self.read(read);
                }
            }
        }
    }

    fn interrupt(&mut self) {
        let again = self.tally.summary.stopped.replace(Stopped::Interrupted).is_some();
        if again {
            self.workers.abort_all();
        } else {
            self.progress.say("Finishing what is in flight; Ctrl-C again leaves it.");
        }
    }

    fn read(&mut self, read: Option<Result<Row, TraceError>>) {
        match read {
            Some(Ok(row)) => {
                let due = self.pace.due(&row);
                self.next = Some((row, due));
            }
            Some(Err(error)) => self.error = Some(error.into()),
            None => self.exhausted = true,
        }
    }

    fn start(&mut self) -> Result<(), ReplayError> {
        if let Some((row, _)) = self.next.take() {
            self.tally.begin(row.actual())?;
            let fleet = Arc::clone(&self.fleet);
            self.workers.spawn(async move { fleet.work(&row).await });
        }
        Ok(())
    }

    fn ended(&mut self, ended: Result<RowReport, JoinError>) -> Result<(), ReplayError> {
        match ended {
            Ok(report) => {
                if let End::NotTokens { asked, estimate } = report.end {
                    let operation = self.pace.args.operation.to_string();
                    self.error.get_or_insert(ReplayError::NotTokens { operation, asked, estimate });
                }
                self.tally.record(report)?;
            }
            Err(error) if error.is_cancelled() => self.tally.summary.left_in_flight += 1,
            Err(error) => self.tally.fail(&error.to_string()),
        }
        self.progress.row_ended(&self.tally.summary);
        if self.tally.failed_in_a_row >= self.patience {
            self.tally.summary.stopped.get_or_insert(Stopped::TooManyFailures);
        }
        Ok(())
    }
}
