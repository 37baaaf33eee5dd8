//! `spend-ledger fence`: release what abandoned work has not spent.

use chrono::TimeDelta;
use clap::Args;
use uuid::Uuid;

use super::commands::{ACTOR, open};
use super::{DatabaseArgs, Failure, span};
use crate::ledger::fence::Fence;
use crate::ledger::liabilities::Overdue;
use crate::ledger::{Context, Error, Ledger};
use crate::model::policy::Enforcement;
use crate::model::refusal::Conflict;
use crate::model::reservation::Reservation;
use crate::model::{Name, Refusal, Units};

/// How many reservations are read at a time.
const PAGE: i64 = 500;

#[derive(Debug, Args)]
pub(super) struct FenceArgs {
    /// For how long a lease must have run out: a span like 1h, 30m or 2d.
    #[arg(long, value_name = "SPAN", value_parser = span)]
    overdue: TimeDelta,
    /// Only work at this provider.
    #[arg(long, value_name = "NAME")]
    provider: Option<Name>,
    /// Only print what would be fenced, and what that would release.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// What was done so far.
#[derive(Default)]
struct Done {
    fenced: u64,
    came_back: u64,
    failed: u64,
}

pub(super) async fn fence(args: FenceArgs) -> Result<(), Failure> {
    let (home, ledger) = open(&args.database.place()).await?;
    let done = fence_all(&ledger, &args).await;
    ledger.close().await;
    home.close().await?;
    let Done { fenced, came_back, failed } = done?;
    if args.dry_run {
        eprintln!("dry run: {fenced} would be fenced");
        return Ok(());
    }
    let back = if came_back > 0 { format!("; {came_back} came back and were left alone") } else { String::new() };
    let said = format!("{fenced} fenced{back}");
    if failed > 0 {
        return Err(Failure::Failed(format!("{said}; {failed} could not be fenced: run it again")));
    }
    eprintln!("{said}");
    Ok(())
}

async fn fence_all(ledger: &Ledger, args: &FenceArgs) -> Result<Done, Failure> {
    if let Some(provider) = &args.provider {
        must_be_fenceable(ledger, provider)?;
    }
    let mut done = Done::default();
    let mut after = None;
    loop {
        let overdue = Overdue { at_least: args.overdue, provider: args.provider.clone(), after, limit: PAGE };
        let found = ledger.overdue(&Context::system(ACTOR), &overdue).await?;
        for reservation in &found {
            if args.dry_run {
                done.fenced += 1;
                tell(reservation, reservation.record.remaining());
            } else {
                fence_one(ledger, args, reservation, &mut done).await;
            }
        }
        match found.last() {
            Some(last) if found.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX) => after = Some(last.record.id),
            _ => return Ok(done),
        }
    }
}

/// Whether the ledger is the enforcement point of the provider: else nothing would be
/// found, and a mistyped name looks like good order.
fn must_be_fenceable(ledger: &Ledger, provider: &Name) -> Result<(), Failure> {
    match ledger.policy().policy.providers.get(provider) {
        // Retired, it may still have open work.
        None => eprintln!("the policy in force has no provider {provider}"),
        Some(known) if known.enforcement == Enforcement::Worker => {
            let message = format!("workers call {provider} directly: only evidence fences them, one by one, over HTTP");
            return Err(Failure::Usage(message));
        }
        Some(_) => {}
    }
    Ok(())
}

/// Fences one. What cannot be fenced is said, and does not stop the others.
async fn fence_one(ledger: &Ledger, args: &FenceArgs, reservation: &Reservation, done: &mut Done) {
    let record = &reservation.record;
    let fence = Fence {
        account: record.account.clone(),
        id: record.id,
        attempt_number: record.attempt_number.unwrap_or(0),
        evidence: None,
        outstanding: None,
        overdue_for: Some(args.overdue),
    };
    match ledger.fence(&Context::system(ACTOR), &fence).await {
        Ok(fenced) if fenced.not_overdue => done.came_back += 1,
        Ok(fenced) => {
            done.fenced += 1;
            tell(&fenced.reservation, fenced.released);
        }
        // Taken over since it was read: somebody works on it.
        Err(Error::RefusedOn { refusal: Refusal::Conflict(Conflict::StaleAttempt), .. }) => done.came_back += 1,
        Err(error) => {
            done.failed += 1;
            eprintln!("{}: {error}", record.id);
        }
    }
}

/// One line: what it is, whose, and what is released and stays charged.
fn tell(reservation: &Reservation, released: Units) {
    let record = &reservation.record;
    let holder = record.attempt_holder.as_deref().unwrap_or("-");
    let since = record.lease_expires_at.map_or_else(String::new, |at| at.format("%Y-%m-%dT%H:%M:%SZ").to_string());
    let id: Uuid = record.id;
    println!(
        "{id}  {}  {}  holder {holder} overdue since {since}  released {released} {}",
        record.account, record.operation, record.unit
    );
}
