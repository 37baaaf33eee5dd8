//! The command line: one file for each command that has more than a few lines.

mod archive;
mod commands;
mod fence;
mod quickstart;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Parser, Subcommand};
use uuid::Uuid;

use crate::boot::Place;
use crate::model::Name;
use crate::model::role::Role;
use crate::telemetry::{LogFormat, log_to_stderr};

/// The ledger between a company's workers and every paid provider they call.
///
/// Workers reserve units before they spend, extend before they cross their
/// ceiling, and settle what they used, exactly once. Finance reads an append-only
/// journal that always adds up.
///
/// Messages go to stderr, results to stdout. Exit code 0 is success, 1 a failure,
/// 2 bad usage.
#[derive(Debug, Parser)]
#[command(name = "spend-ledger", version, max_term_width = 100)]
pub struct Cli {
    /// How log lines are written; RUST_LOG says which.
    #[arg(long, global = true, env = "SPEND_LEDGER_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the HTTP service.
    ///
    /// Without a database URL it runs on its own private Postgres, started from the Postgres
    /// programs on this machine and stopped with the service; a second start finds the same data.
    /// It logs one line with the address when it is ready, and stops on SIGTERM or Ctrl-C after
    /// answering what is in flight.
    Serve(serve::ServeArgs),
    /// Bring the schema up to date. Safe to run from several places at once.
    Migrate {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Apply a policy file and print the difference.
    ///
    /// What the file leaves out is retired, not deleted. A file that asks for something the
    /// service cannot do is refused whole, with the places named.
    Apply {
        /// The policy file, in YAML.
        file: PathBuf,
        /// Only print what would change.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Make, list and revoke API keys.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Fence in bulk what has been overdue for a stated time.
    ///
    /// Releases what abandoned work has not spent: only where the ledger is the enforcement point
    /// (`enforcement: calls`), because there it knows what is outstanding and lets no more through.
    /// What is outstanding stays charged. A holder that has renewed its lease in the meantime is
    /// left alone. Every fence is in the audit log. Prints one line for each reservation.
    Fence(fence::FenceArgs),
    /// Recompute every balance from the journal and check every invariant.
    ///
    /// Prints what differs; exit code 1 if anything does. Streams in constant memory, as of one
    /// instant; safe on a running ledger. A budget period whose first entries are archived starts
    /// from its newest checkpoint. What an archived file says, and the head of its chain, only
    /// `archive --check` proves.
    Verify {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Archive months that have passed: write them to files, and take them out of the tables.
    ///
    /// The journal and the calls lie in months. For each month before the one named, oldest first,
    /// this writes a CSV file into the directory (journal_entry_2026_03.csv, call_2026_03.csv),
    /// checks on the way that the entries follow one another, leaves a checkpoint for each budget
    /// period, from which `verify` goes on, and detaches the month without stopping the service.
    /// Reservations, their keys and their history stay. A month of calls is taken once every
    /// reservation made in it has ended.
    ///
    /// A detached month is a table of its own until it is dropped; --drop drops it after reading
    /// its file once more. Interrupted at any point, run it again. Needs the owner of the schema.
    ///
    /// Examples:
    ///   spend-ledger archive --before 2026-04 --to /backup/ledger --dry-run
    ///   spend-ledger archive --before 2026-04 --to /backup/ledger
    ///   spend-ledger archive --check /backup/ledger/*.csv
    #[command(verbatim_doc_comment)]
    Archive(archive::ArchiveArgs),
    /// Replay a trace of requests against a running service, as its workers would.
    Replay(Box<crate::replay::ReplayArgs>),
    /// Measure the service: what it does in a second, how long that takes, what it costs.
    ///
    /// Prints the ratios that it is judged by, each with what it should be, and then absolute
    /// figures. The books of everything that was measured are checked: if they do not hold there is
    /// no result, and the exit code is 1. A target that is missed is a result.
    Bench(Box<crate::bench::BenchArgs>),
    /// Answer everything at once, for the calibration of the load generator.
    #[command(hide = true)]
    BenchEmpty,
    /// Print the contract of the HTTP API.
    #[command(hide = true)]
    Openapi,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key and print it, alone on stdout, once. Only its hash is kept.
    Create(KeyArgs),
    /// List the keys, newest first, without their secrets.
    List {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Revoke a key, at once and for good.
    Revoke {
        /// The key's id, as `keys list` prints it.
        id: Uuid,
        #[command(flatten)]
        database: DatabaseArgs,
    },
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// What the key may do: worker, operator or finance.
    #[arg(long)]
    role: Role,
    /// An account that a worker's key may act for; may be given several times.
    #[arg(long = "account", value_name = "NAME", conflicts_with = "all_accounts")]
    accounts: Vec<Name>,
    /// A worker's key for every account, as an internal fleet of workers has.
    #[arg(long)]
    all_accounts: bool,
    /// A person's name for the key.
    #[arg(long)]
    name: Option<String>,
    /// From when on it is refused: a time (2026-12-31T00:00:00Z) or a span from now (90d, 12h, 30m).
    #[arg(long, value_name = "TIME|SPAN", value_parser = expiry)]
    expires: Option<DateTime<Utc>>,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Where the database is.
#[derive(Debug, Clone, Args)]
struct DatabaseArgs {
    /// The database, as postgres://user:password@host/database. Without it: the private Postgres
    /// in the data directory.
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Where the private Postgres keeps its data.
    #[arg(long, value_name = "DIR", env = "SPEND_LEDGER_DATA_DIR", default_value = ".spend-ledger")]
    data_dir: PathBuf,
}

impl DatabaseArgs {
    fn place(&self) -> Place {
        match &self.database_url {
            Some(url) => Place::Url(url.clone()),
            None => Place::Private(self.data_dir.clone()),
        }
    }
}

/// A failure of a command: a message for stderr, and exit code 1; 2 for bad
/// usage.
#[derive(Debug)]
enum Failure {
    Failed(String),
    Usage(String),
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs the command to its end.
pub async fn run(cli: Cli) -> ExitCode {
    log_to_stderr(cli.log_format);
    let done = match cli.command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Migrate { database } => commands::migrate(&database.place()).await,
        Command::Apply { file, dry_run, database } => commands::apply(&database.place(), &file, dry_run).await,
        Command::Keys(KeysCommand::Create(args)) => commands::create_key(args).await,
        Command::Keys(KeysCommand::List { database }) => commands::list_keys(&database.place()).await,
        Command::Keys(KeysCommand::Revoke { id, database }) => commands::revoke_key(&database.place(), id).await,
        Command::Fence(args) => fence::fence(args).await,
        Command::Verify { database } => commands::verify(&database.place()).await,
        Command::Archive(args) => archive::archive(args).await,
        Command::Replay(args) => crate::replay::command(*args).await.map_err(Failure::from),
        Command::Bench(args) => crate::bench::command(*args).await.map_err(Failure::from),
        Command::BenchEmpty => crate::bench::serve_nothing().await.map_err(Failure::from),
        Command::Openapi => {
            print!("{}", crate::http::document());
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => {
            eprintln!("spend-ledger: {message}");
            ExitCode::FAILURE
        }
        Err(Failure::Usage(message)) => {
            eprintln!("spend-ledger: {message}");
            ExitCode::from(2)
        }
    }
}

/// A time, or a span from now.
fn expiry(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.with_timezone(&Utc));
    }
    let usage = || format!("{text:?} is neither a time like 2026-12-31T00:00:00Z nor a span like 90d, 12h or 30m");
    span(text).ok().and_then(|span| Utc::now().checked_add_signed(span)).ok_or_else(usage)
}

/// A span of time.
fn span(text: &str) -> Result<TimeDelta, String> {
    let usage = || format!("{text:?} is no span like 90d, 12h or 30m, of at most 36500d");
    let unit = text.chars().next_back().ok_or_else(usage)?;
    let number = text.strip_suffix(unit).and_then(|number| number.parse::<u32>().ok()).ok_or_else(usage)?;
    let number = i64::from(number);
    let span = match unit {
        'd' => TimeDelta::try_days(number),
        'h' => TimeDelta::try_hours(number),
        'm' => TimeDelta::try_minutes(number),
        _ => None,
    };
    // Longer than anything has been, and short enough for every type that holds it.
    span.filter(|span| *span <= TimeDelta::days(36_500)).ok_or_else(usage)
}
