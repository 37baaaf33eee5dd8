//! `spend-ledger serve`.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::commands::{ACTOR, policy_failure, read_policy};
use super::{DatabaseArgs, Failure, quickstart};
use crate::boot::Home;
use crate::http::{self, HttpOptions};
use crate::ledger::{Context, Database, DatabaseOptions, Ledger};
use crate::telemetry::Metrics;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The address to listen on.
    #[arg(long, value_name = "ADDR", env = "SPEND_LEDGER_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// A policy file that is applied to a database that has no policy yet.
    #[arg(long, value_name = "FILE", env = "SPEND_LEDGER_POLICY")]
    policy: Option<PathBuf>,
    /// The most connections to the database: half of them for reserving, extending, calls and
    /// settling, half for everything else.
    #[arg(long, value_name = "N", env = "SPEND_LEDGER_MAX_CONNECTIONS", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_connections: u32,
    /// How long a request may take, in milliseconds, until it is answered 503.
    #[arg(long, value_name = "MS", env = "SPEND_LEDGER_DEADLINE_MS", default_value_t = 8000,
          value_parser = clap::value_parser!(u64).range(100..=300_000))]
    deadline_ms: u64,
    /// How long one statement may take, in milliseconds.
    #[arg(long, value_name = "MS", env = "SPEND_LEDGER_STATEMENT_TIMEOUT_MS", default_value_t = 4000,
          value_parser = clap::value_parser!(u64).range(50..=300_000))]
    statement_timeout_ms: u64,
    /// The most requests in flight; more are answered 503 at once.
    #[arg(long, value_name = "N", env = "SPEND_LEDGER_MAX_IN_FLIGHT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_in_flight: u32,
    /// Whether requests that wait while a statement is in flight are decided together by the next
    /// one. Off, each has a statement of its own: for comparing.
    #[arg(long, value_name = "ON|OFF", env = "SPEND_LEDGER_GROUPING", default_value = "on")]
    grouping: Grouping,
    /// Make a key of each role, and print curl lines that use them. For trying it out.
    #[arg(long)]
    quickstart: bool,
}

/// Whether requests are decided together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Grouping {
    On,
    Off,
}

pub(super) async fn serve(args: ServeArgs) -> Result<(), Failure> {
    let stop = stop_signal()?;
    tokio::pin!(stop);
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        Failure::Failed(format!("cannot listen on {}: {error}; --listen names another address", args.listen))
    })?;
    let place = args.database.place();
    let home = tokio::select! {
        home = Home::for_service(&place) => home?,
        () = &mut stop => return Ok(()),
    };
    let served = serve_from(&args, listener, &home.service_url, stop).await;
    // Also after a failure: nothing is left running.
    home.close().await?;
    served
}

async fn serve_from(
    args: &ServeArgs,
    listener: TcpListener,
    url: &str,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Failure> {
    let metrics = Metrics::new();
    let options = DatabaseOptions {
        url: url.to_owned(),
        max_connections: args.max_connections,
        statement_timeout: Duration::from_millis(args.statement_timeout_ms),
        grouping: args.grouping == Grouping::On,
    };
    let ledger = Ledger::open(Database::connect_lazily(&options, metrics.clone())?, metrics).await?;
    if let Some(file) = &args.policy {
        apply_first_policy(&ledger, file).await?;
    }
    let address = listener.local_addr()?;
    if args.quickstart {
        quickstart::print(&ledger, address, &args.database).await?;
    }
    tracing::info!("listening on http://{address}");
    let months = ledger.keep_months_open();
    let options = HttpOptions {
        deadline: Duration::from_millis(args.deadline_ms),
        max_in_flight: usize::try_from(args.max_in_flight).unwrap_or(usize::MAX),
        max_connections: connections_that_fit(args.max_connections),
    };
    let served = until_stopped(listener, ledger, options, stop).await;
    months.abort();
    served
}

/// Serves until `stop`, then answers what is in flight, for no longer than its
/// deadline.
async fn until_stopped(
    listener: TcpListener,
    ledger: Ledger,
    options: HttpOptions,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Failure> {
    let (stopping, told) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(http::serve(listener, ledger.clone(), options, async {
        // An error means that the sender is gone: also a reason to stop.
        let _ = told.await;
    }));
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => Some(ended),
        () = stop => None,
    };
    let ended = match ended {
        Some(ended) => Some(ended),
        None => {
            tracing::info!("stopping: answering what is in flight");
            let _ = stopping.send(());
            tokio::time::timeout(options.deadline + Duration::from_secs(1), &mut serving).await.ok()
        }
    };
    ledger.close().await;
    match ended {
        None => tracing::warn!("connections that were still open have been dropped"),
        Some(Ok(result)) => result?,
        Some(Err(error)) => return Err(Failure::Failed(format!("the service has failed: {error}"))),
    }
    tracing::info!("stopped");
    Ok(())
}

/// Ready when the process is told to stop.
fn stop_signal() -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// A database that has a policy keeps it.
async fn apply_first_policy(ledger: &Ledger, file: &Path) -> Result<(), Failure> {
    let source = read_policy(file)?;
    let context = Context::system(ACTOR);
    let version = ledger.current_policy(&context).await?.version;
    if version > 0 {
        let file = file.display();
        tracing::info!(version, "the database has a policy already; `spend-ledger apply {file}` would apply this one");
        return Ok(());
    }
    let applied = ledger.apply_policy(&context, &source, false).await.map_err(|error| policy_failure(file, &error))?;
    tracing::info!(version = applied.version, "policy applied from {}", file.display());
    Ok(())
}

/// How many clients' connections fit beside the database's and the files that the
/// process has open, once it may have as many descriptors as the system lets it.
fn connections_that_fit(database: u32) -> usize {
    const SPARE: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    let most = HttpOptions::default().max_connections;
    let Some(descriptors) = getrlimit(Resource::Nofile).current else { return most };
    let fit = descriptors.saturating_sub(SPARE + u64::from(database)).max(1);
    usize::try_from(fit).unwrap_or(usize::MAX).min(most)
}
