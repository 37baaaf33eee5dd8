//! Verify: recompute every balance from the journal and check every invariant of
//! RULES.md, section 2. Streams in constant memory, all as of one instant, and
//! names each difference. A period whose first entries are archived starts from its
//! newest checkpoint: what the archived file says is `archive --check`'s to prove.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use rust_decimal::Decimal;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::Error;
use super::chain::{Chain, Entry, Stored};

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Budget periods.
    pub periods: u64,
    /// Those of them whose first entries are archived: they started from a
    /// checkpoint.
    pub checkpoints: u64,
    /// Journal entries.
    pub entries: u64,
    /// Reservations.
    pub reservations: u64,
    /// Things that are not as they must be.
    pub differences: u64,
}

/// Checks every invariant; `report` is told each difference as a sentence.
///
/// # Errors
///
/// The database cannot be read.
pub async fn verify(url: &str, mut report: impl FnMut(&str)) -> Result<Verified, Error> {
    let mut connection = PgConnection::connect(url).await?;
    // Reading a large journal takes as long as it takes.
    sqlx::query("set statement_timeout = 0").execute(&mut connection).await?;
    let mut transaction = connection.begin_with("begin isolation level repeatable read read only").await?;
    let mut verified = Verified::default();
    let mut differences = 0;
    let mut say = |difference: String| {
        differences += 1;
        report(&difference);
    };
    verify_journal(&mut transaction, &mut verified, &mut say).await?;
    for check in CHECKS {
        let mut rows = sqlx::query_scalar::<_, String>(check).fetch(&mut *transaction);
        while let Some(difference) = rows.try_next().await? {
            say(difference);
        }
    }
    let count: i64 = sqlx::query_scalar("select count(*) from reservation").fetch_one(&mut *transaction).await?;
    verified.reservations = u64::try_from(count).unwrap_or(0);
    verified.differences = differences;
    Ok(verified)
}

/// What a database can say by itself, one sentence a row. The first says where a
/// column holds no number at all; what is computed from it is then not compared.
const CHECKS: [&str; 11] = [
    include_str!("verify/numbers.sql"),
    include_str!("verify/checkpoints.sql"),
    include_str!("verify/stretches.sql"),
    include_str!("verify/held_by_reservations.sql"),
    include_str!("verify/entries_of_reservations.sql"),
    include_str!("verify/reservation_versions.sql"),
    include_str!("verify/reservation_formula.sql"),
    include_str!("verify/calls.sql"),
    include_str!("verify/own_periods.sql"),
    include_str!("verify/periods_follow.sql"),
    include_str!("verify/negative_available.sql"),
];

/// One journal entry, or a period without any, in the order of entry numbers. What
/// is not a number is absent.
#[derive(sqlx::FromRow)]
struct Line {
    account: String,
    period_id: Uuid,
    budget: String,
    period_available: Option<Decimal>,
    period_reserved: Option<Decimal>,
    period_liability: Option<Decimal>,
    period_settled: Option<Decimal>,
    period_granted: Option<Decimal>,
    period_limit: Option<Decimal>,
    period_carried: Option<Decimal>,
    period_entry_no: i64,
    period_last_entry_at: DateTime<Utc>,
    #[sqlx(flatten)]
    checkpoint: Checkpoint,
    entry_no: Option<i64>,
    at: Option<DateTime<Utc>>,
    event: Option<String>,
    source: Option<String>,
    target: Option<String>,
    amount: Option<Decimal>,
    available: Option<Decimal>,
    reserved: Option<Decimal>,
    liability: Option<Decimal>,
    settled: Option<Decimal>,
}

/// Where the period's newest archived month left it; without a number it has none.
#[derive(sqlx::FromRow)]
struct Checkpoint {
    from_entry_no: Option<i64>,
    from_at: Option<DateTime<Utc>>,
    from_available: Option<Decimal>,
    from_reserved: Option<Decimal>,
    from_liability: Option<Decimal>,
    from_settled: Option<Decimal>,
    from_granted: Option<Decimal>,
    from_limit: Option<Decimal>,
    from_carried: Option<Decimal>,
}

/// A period, and the chain of its entries so far.
struct Running {
    account: String,
    period_id: Uuid,
    stored: Stored,
    entry_no: i64,
    last_entry_at: DateTime<Utc>,
    chain: Chain,
}

async fn verify_journal(
    connection: &mut PgConnection,
    verified: &mut Verified,
    say: &mut impl FnMut(String),
) -> Result<(), Error> {
    let mut lines = sqlx::query_as::<_, Line>(include_str!("verify/journal.sql")).fetch(connection);
    let mut running: Option<Running> = None;
    while let Some(line) = lines.try_next().await? {
        let mut current = match running.take() {
            Some(current) if (&current.account, current.period_id) == (&line.account, line.period_id) => current,
            before => {
                if let Some(done) = before {
                    done.finish(say);
                }
                verified.periods += 1;
                verified.checkpoints += u64::from(line.checkpoint.from_entry_no.is_some());
                Running::new(&line, say)
            }
        };
        if let Some(entry) = line.into_entry() {
            verified.entries += 1;
            current.chain.add(&entry, say);
        }
        running = Some(current);
    }
    if let Some(done) = running {
        done.finish(say);
    }
    Ok(())
}

impl Line {
    fn into_entry(self) -> Option<Entry> {
        Some(Entry {
            number: self.entry_no?,
            at: self.at,
            event: self.event,
            source: self.source,
            target: self.target,
            amount: self.amount,
            available: self.available,
            reserved: self.reserved,
            liability: self.liability,
            settled: self.settled,
        })
    }
}

impl Running {
    fn new(line: &Line, say: &mut impl FnMut(String)) -> Self {
        let chain = Chain::new(&line.account, &line.budget, line.period_id);
        let from = &line.checkpoint;
        let chain = match from.from_entry_no {
            None => chain,
            Some(entry_no) => {
                let stored = Stored {
                    available: from.from_available,
                    reserved: from.from_reserved,
                    liability: from.from_liability,
                    settled: from.from_settled,
                    granted: from.from_granted,
                    limit: from.from_limit,
                    carried: from.from_carried,
                };
                chain.going_on_from(entry_no, from.from_at, &stored, say)
            }
        };
        let stored = Stored {
            available: line.period_available,
            reserved: line.period_reserved,
            liability: line.period_liability,
            settled: line.period_settled,
            granted: line.period_granted,
            limit: line.period_limit,
            carried: line.period_carried,
        };
        Self {
            account: line.account.clone(),
            period_id: line.period_id,
            stored,
            entry_no: line.period_entry_no,
            last_entry_at: line.period_last_entry_at,
            chain,
        }
    }

    /// Compares the period itself.
    fn finish(self, say: &mut impl FnMut(String)) {
        let chain = &self.chain;
        chain.compare_all(&self.stored, "is", say);
        if self.entry_no != chain.entry_no {
            say(format!("{}: says {} entries, the journal has {}", chain.place, self.entry_no, chain.entry_no));
        }
        if chain.at.is_some_and(|at| at != self.last_entry_at) {
            say(format!("{}: the time of its last entry is not the one that it says", chain.place));
        }
    }
}
