//! The options of `spend-ledger bench`, and the plan that they make.

use std::path::PathBuf;
use std::time::Duration;

use spend_ledger_client::ServiceUrl;

use super::stand::Times;
use super::workload::{Cycle, Workload};

/// Closing words of `--help`.
const EXAMPLES: &str = "\
Without a URL it starts what it needs: a private Postgres with durable settings in a
temporary directory, and this program's own service as a process beside it, on a fresh
database for each variant. All of it is removed at the end.

Variants that are compared are measured in turns (A B, B A, …), several rounds each;
a ratio is the middle of the rounds' own ratios, and its spread is told. Afterwards
the books of every database are checked: a run whose books do not hold prints no
figures and exits with 1.

Examples:
  Everything, with 5 million settled reservations where history is measured (takes
  half an hour or more, and some 30 GB for as long):
    spend-ledger bench --json run.json --svg run.svg
  Without history:
    spend-ledger bench --prefill 0
  Only one hot account, only two numbers of clients:
    spend-ledger bench --workload hot --cycle settle --clients 1,64 --prefill 0
  A look at whether it works, in a minute; its figures mean little:
    spend-ledger bench --quick
  On a server of your own, as a user that may make databases and roles. Nothing else
  may run on it: WAL is counted for the whole server:
    spend-ledger bench --database-url postgres://owner@db.example/postgres
  A service that is running, from outside (it needs the policy that --print-policy
  prints, and a worker's key for all accounts):
    spend-ledger bench --url http://127.0.0.1:8080 --key \"$KEY\"
  The same, with the WAL and the books of its database:
    spend-ledger bench --url … --key … --database-url postgres://owner@db.example/ledger

What is measured and why it is measured like that is in docs/performance.md.";

/// What to measure, on what, and for how long.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct BenchArgs {
    /// Whose budgets are asked for; every one has an account budget and a pool
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["hot", "zipf", "refusals"],
          env = "SPEND_LEDGER_BENCH_WORKLOAD", help_heading = "What")]
    pub workload: Vec<Workload>,
    /// What is done with what was admitted: reserve, settle; or reserve, admit a call,
    /// settle the call, settle
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["settle", "call"],
          env = "SPEND_LEDGER_BENCH_CYCLE", help_heading = "What")]
    pub cycle: Vec<Cycle>,
    /// Clients that ask at the same time, each one request after another
    /// [default: 1,16,64,256; with --quick 1,8]
    #[arg(long, value_name = "N", value_delimiter = ',', env = "SPEND_LEDGER_BENCH_CLIENTS",
          value_parser = clap::value_parser!(u16).range(1..=512), help_heading = "What")]
    pub clients: Vec<u16>,
    /// Accounts of the workload zipf [default: 1000; with --quick 50]
    #[arg(long, value_name = "N", env = "SPEND_LEDGER_BENCH_ACCOUNTS",
          value_parser = clap::value_parser!(u32).range(16..=100_000), help_heading = "What")]
    pub accounts: Option<u32>,
    /// Settled reservations in the database on which history is measured; 0 leaves
    /// that out [default: 5000000; with --quick 2000]
    #[arg(long, value_name = "N", env = "SPEND_LEDGER_BENCH_PREFILL",
          value_parser = clap::value_parser!(u64).range(..=100_000_000), help_heading = "What")]
    pub prefill: Option<u64>,

    /// Seconds for each measurement, after a warm-up of a fifth of that, of a second
    /// at most [default: 5; with --quick 0.5]
    #[arg(long, value_name = "SECONDS", env = "SPEND_LEDGER_BENCH_DURATION", value_parser = seconds,
          help_heading = "How long")]
    pub duration: Option<Duration>,
    /// How often each variant is measured [default: 3; with --quick 1]
    #[arg(long, value_name = "N", env = "SPEND_LEDGER_BENCH_ROUNDS",
          value_parser = clap::value_parser!(u16).range(1..=99), help_heading = "How long")]
    pub rounds: Option<u16>,
    /// Short and small, to see whether it works
    #[arg(long, env = "SPEND_LEDGER_BENCH_QUICK", help_heading = "How long")]
    pub quick: bool,

    /// A Postgres of somebody else's to make the databases on; with --url, the
    /// database of that service
    #[arg(
        long,
        value_name = "URL",
        env = "SPEND_LEDGER_BENCH_DATABASE_URL",
        hide_env_values = true,
        help_heading = "On what"
    )]
    pub database_url: Option<String>,
    /// A service that is already running: measured from outside
    #[arg(long, value_name = "URL", env = "SPEND_LEDGER_BENCH_URL", requires = "key", help_heading = "On what")]
    pub url: Option<ServiceUrl>,
    /// A worker's key for all accounts, for --url
    #[arg(long, env = "SPEND_LEDGER_BENCH_KEY", hide_env_values = true, requires = "url", help_heading = "On what")]
    pub key: Option<String>,
    /// Where the private Postgres is put; a disk that keeps what it acknowledges, as
    /// the service's would [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR", env = "SPEND_LEDGER_BENCH_DIR", help_heading = "On what")]
    pub dir: Option<PathBuf>,
    /// Print the policy that a service needs for --url, and do nothing else
    #[arg(long, help_heading = "On what")]
    pub print_policy: bool,

    /// Also write everything that was measured to this file, as JSON
    #[arg(long, value_name = "FILE", env = "SPEND_LEDGER_BENCH_JSON", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Also draw it to this file, as SVG
    #[arg(long, value_name = "FILE", env = "SPEND_LEDGER_BENCH_SVG", help_heading = "Output")]
    pub svg: Option<PathBuf>,
}

/// The longest measurement, in seconds.
const LONGEST: f64 = 3600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let usage = || format!("must be a number of seconds above 0 and up to {LONGEST}");
    let number: f64 = text.parse().map_err(|_| usage())?;
    let sane = number > 0.0 && number <= LONGEST;
    if sane { Duration::try_from_secs_f64(number).map_err(|_| usage()) } else { Err(usage()) }
}

/// What will be measured.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) workloads: Vec<Workload>,
    pub(super) cycles: Vec<Cycle>,
    pub(super) clients: Vec<u16>,
    /// The number of clients that most ratios are about.
    pub(super) judged: u16,
    pub(super) accounts: u32,
    pub(super) prefill: u64,
    pub(super) times: Times,
    pub(super) rounds: u16,
    /// Clients that hammer an exhausted account while `others` work.
    pub(super) hammers: u16,
    pub(super) others: u16,
    /// Connections under which memory is looked at.
    pub(super) crowd: u16,
}

/// How many times more often one client alone is measured.
const ALONE: u16 = 4;
/// The number of clients that the ratios are stated for, if it is measured.
const STATED: u16 = 64;

impl Plan {
    pub(super) fn new(args: &BenchArgs) -> Self {
        let quick = args.quick;
        let mut clients = match args.clients.as_slice() {
            [] if quick => vec![1, 8],
            [] => vec![1, 16, 64, 256],
            given => given.to_vec(),
        };
        clients.sort_unstable();
        clients.dedup();
        let judged = if clients.contains(&STATED) { STATED } else { clients.last().copied().unwrap_or(1) };
        let duration = args.duration.unwrap_or(Duration::from_millis(if quick { 500 } else { 5000 }));
        let warm_up = (duration / 5).min(Duration::from_secs(1));
        Self {
            workloads: args.workload.clone(),
            cycles: args.cycle.clone(),
            clients,
            judged,
            accounts: args.accounts.unwrap_or(if quick { 50 } else { 1000 }),
            prefill: args.prefill.unwrap_or(if quick { 2000 } else { 5_000_000 }),
            times: Times { warm_up, duration },
            rounds: args.rounds.unwrap_or(if quick { 1 } else { 3 }),
            hammers: if quick { 16 } else { 256 },
            others: if quick { 4 } else { 16 },
            crowd: if quick { 32 } else { 512 },
        }
    }

    pub(super) fn has(&self, workload: Workload, cycle: Cycle) -> bool {
        self.workloads.contains(&workload) && self.cycles.contains(&cycle)
    }

    /// How often so many clients are measured: one client alone makes few requests in
    /// a round, and a twentieth of their latency is to be told apart.
    pub(super) fn rounds_of(&self, clients: u16) -> u16 {
        if clients == 1 { self.rounds.saturating_mul(ALONE) } else { self.rounds }
    }

    /// How many measurements a run of all this has.
    pub(super) fn measurements(&self) -> u64 {
        let rounds = u64::from(self.rounds);
        let sizes = u64::try_from(self.clients.len()).unwrap_or(0);
        let grouped: u64 = self.clients.iter().map(|clients| u64::from(self.rounds_of(*clients))).sum();
        let cycles = u64::try_from(self.cycles.len()).unwrap_or(0);
        let admitting =
            u64::from(self.workloads.contains(&Workload::Hot)) + u64::from(self.workloads.contains(&Workload::Zipf));
        let refusing = u64::from(self.workloads.contains(&Workload::Refusals));
        let hot = u64::from(self.has(Workload::Hot, Cycle::Settle));
        // On and off, each of them; beside the refusals: admissions on and off, the
        // WAL, and two kinds of storm.
        let matrix = admitting * cycles * grouped * 2 + refusing * (sizes * 2 + 5) * rounds;
        // The yardsticks, history and none, memory.
        matrix + hot * (2 * rounds + if self.prefill > 0 { 2 * rounds } else { 0 } + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(options: &[&str]) -> Plan {
        let line = Line::try_parse_from(["bench"].iter().chain(options)).unwrap();
        Plan::new(&line.bench)
    }

    #[test]
    fn the_ratios_are_about_64_clients_where_there_are_any() {
        assert_eq!(plan(&[]).judged, 64);
        assert_eq!(plan(&["--clients", "256,1"]).judged, 256);
        assert_eq!(plan(&["--clients", "256,1"]).clients, [1, 256]);
        assert_eq!(plan(&["--quick"]).judged, 8);
    }

    #[test]
    fn durations_are_seconds() {
        assert_eq!(plan(&["--duration", "0.25"]).times.duration, Duration::from_millis(250));
        for text in ["0", "-1", "NaN", "inf", "3601", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_goes_with_a_url() {
        assert!(Line::try_parse_from(["bench", "--key", "sl_x"]).is_err());
        assert!(Line::try_parse_from(["bench", "--url", "http://127.0.0.1:1"]).is_err());
    }
}
