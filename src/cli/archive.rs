//! `spend-ledger archive`: months that have passed, into files and out of the tables.

use std::path::PathBuf;

use chrono::{DateTime, NaiveDate, Utc};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::commands::ACTOR;
use super::{DatabaseArgs, Failure};
use crate::boot::Home;
use crate::ledger::archive::{self, Ask, Checked, Watcher};
use crate::ledger::schema;

#[derive(Debug, Args)]
pub(super) struct ArchiveArgs {
    /// The first month that stays. All before it must have passed, by the database's clock.
    #[arg(long, value_name = "YYYY-MM", value_parser = month, required_unless_present = "check")]
    before: Option<DateTime<Utc>>,
    /// The directory that the files are written to. It is made if it is not there.
    #[arg(long, value_name = "DIR", required_unless_present = "check")]
    to: Option<PathBuf>,
    /// Drop what has been detached, now or by an earlier run, if its file in the directory is the
    /// one that was written.
    #[arg(long)]
    drop: bool,
    /// Only print what would be done.
    #[arg(long, conflicts_with = "drop")]
    dry_run: bool,
    /// Prove files against what was recorded when they were written: their SHA-256, and of the
    /// journal every number, balance and line. Changes nothing.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["before", "to", "drop", "dry_run"])]
    check: Vec<PathBuf>,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(super) async fn archive(args: ArchiveArgs) -> Result<(), Failure> {
    let home = Home::for_command(&args.database.place()).await?;
    let done = async {
        schema::expect_known(&home.owner_url).await?;
        match (args.before, args.to) {
            (Some(before), Some(to)) => {
                let ask = Ask { before, to, drop: args.drop, dry_run: args.dry_run, actor: ACTOR.to_owned() };
                let mut screen = Screen::new();
                let archived = archive::archive(&home.owner_url, &ask, &mut screen).await;
                screen.bar.finish_and_clear();
                archived?;
                if !screen.said {
                    println!("there is nothing left to archive before {}", ask.before.format("%Y-%m"));
                }
                Ok(())
            }
            _ => check_all(&home.owner_url, &args.check).await,
        }
    }
    .await;
    home.close().await?;
    done
}

/// Checks each file. One that cannot be read does not stop the others.
async fn check_all(url: &str, files: &[PathBuf]) -> Result<(), Failure> {
    let mut failed = 0;
    for file in files {
        match archive::check(url, file, |difference| println!("{difference}")).await {
            Ok(Checked { differences: 0, rows, periods }) => {
                let of = if periods > 0 { format!(" of {periods} budget periods") } else { String::new() };
                println!("{}: is as it was written: {rows} rows{of}", file.display());
            }
            Ok(Checked { differences, .. }) => {
                failed += 1;
                println!("{}: {differences} differences", file.display());
            }
            Err(error) => {
                failed += 1;
                println!("{error}");
            }
        }
    }
    if failed > 0 {
        return Err(Failure::Failed(format!("{failed} of {} files could not be proven: see above", files.len())));
    }
    Ok(())
}

/// Steps on stdout, and where somebody can see it, rows on stderr.
struct Screen {
    bar: ProgressBar,
    said: bool,
}

impl Screen {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} rows  {per_sec}") {
            bar.set_style(style);
        }
        Self { bar, said: false }
    }
}

impl Watcher for Screen {
    fn say(&mut self, line: &str) {
        self.said = true;
        self.bar.suspend(|| println!("{line}"));
    }

    fn row(&mut self) {
        self.bar.inc(1);
    }
}

/// The first instant of a month, in UTC.
fn month(text: &str) -> Result<DateTime<Utc>, String> {
    let usage = || format!("{text:?} is no month like 2026-03");
    if text.len() != 7 {
        return Err(usage());
    }
    let first = NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d").map_err(|_| usage())?;
    Ok(first.and_hms_opt(0, 0, 0).ok_or_else(usage)?.and_utc())
}
