//! Verify: recompute every balance from the journal and check every invariant of
//! RULES.md, section 2. Streams in constant memory, all as of one instant, and
//! names each difference.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use rust_decimal::Decimal;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::Error;
use crate::model::Units;

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Budget periods.
    pub periods: u64,
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

/// What a database can say by itself, one sentence a row.
const CHECKS: [&str; 7] = [
    include_str!("verify/held_by_reservations.sql"),
    include_str!("verify/entries_of_reservations.sql"),
    include_str!("verify/reservation_versions.sql"),
    include_str!("verify/reservation_formula.sql"),
    include_str!("verify/own_periods.sql"),
    include_str!("verify/periods_follow.sql"),
    include_str!("verify/negative_available.sql"),
];

/// One journal entry, or a period without any, in the order of entry numbers.
#[derive(sqlx::FromRow)]
struct Line {
    account: String,
    period_id: Uuid,
    budget: String,
    period_available: Decimal,
    period_reserved: Decimal,
    period_liability: Decimal,
    period_settled: Decimal,
    period_granted: Decimal,
    period_limit: Decimal,
    period_carried: Decimal,
    period_entry_no: i64,
    period_last_entry_at: DateTime<Utc>,
    entry_no: Option<i64>,
    at: Option<DateTime<Utc>>,
    source: Option<String>,
    target: Option<String>,
    amount: Option<Decimal>,
    available: Option<Decimal>,
    reserved: Option<Decimal>,
    liability: Option<Decimal>,
    settled: Option<Decimal>,
}

/// The balances of one period as its entries so far make them.
struct Running {
    first: Line,
    balances: BTreeMap<&'static str, Units>,
    entry_no: i64,
    at: Option<DateTime<Utc>>,
}

const BUCKETS: [&str; 5] = ["granted", "available", "reserved", "liability", "settled"];

async fn verify_journal(
    connection: &mut PgConnection,
    verified: &mut Verified,
    say: &mut impl FnMut(String),
) -> Result<(), Error> {
    let mut lines = sqlx::query_as::<_, Line>(include_str!("verify/journal.sql")).fetch(connection);
    let mut running: Option<Running> = None;
    while let Some(line) = lines.try_next().await? {
        let same =
            running.as_ref().is_some_and(|r| r.first.account == line.account && r.first.period_id == line.period_id);
        if !same {
            if let Some(done) = running.take() {
                done.finish(say);
            }
            verified.periods += 1;
        }
        let has_entry = line.entry_no.is_some();
        if same {
            if let Some(current) = running.as_mut() {
                current.add(&line, say);
            }
        } else {
            let mut started = Running::new(line);
            started.add_first(say);
            running = Some(started);
        }
        verified.entries += u64::from(has_entry);
    }
    if let Some(done) = running {
        done.finish(say);
    }
    Ok(())
}

impl Running {
    fn new(first: Line) -> Self {
        let balances = BUCKETS.into_iter().map(|bucket| (bucket, Units::ZERO)).collect();
        Self { first, balances, entry_no: 0, at: None }
    }

    fn place(&self) -> String {
        let owner = if self.first.account.is_empty() { "pool" } else { self.first.account.as_str() };
        format!("{owner} {} period {}", self.first.budget, self.first.period_id)
    }

    fn add_first(&mut self, say: &mut impl FnMut(String)) {
        if self.first.entry_no.is_some() {
            let line = Line {
                account: String::new(),
                budget: String::new(),
                source: self.first.source.take(),
                target: self.first.target.take(),
                ..self.first
            };
            self.add(&line, say);
        }
    }

    /// Applies one entry and compares the balances it stores.
    fn add(&mut self, line: &Line, say: &mut impl FnMut(String)) {
        let place = self.place();
        let number = line.entry_no.unwrap_or_default();
        if number != self.entry_no + 1 {
            say(format!("{place}: entry {number} follows entry {}", self.entry_no));
        }
        self.entry_no = number;
        if self.at.zip(line.at).is_some_and(|(before, at)| at < before) {
            say(format!("{place}: the time of entry {number} is before that of the entry before it"));
        }
        self.at = line.at;
        let amount = line.amount.and_then(|amount| Units::from_decimal(amount).ok());
        match (amount, line.source.as_deref(), line.target.as_deref()) {
            (Some(amount), Some(source), Some(target)) => {
                // What comes from granted adds to what the buckets add up to.
                self.change(source, amount, source == "granted");
                self.change(target, amount, target != "granted");
            }
            _ => say(format!("{place}: entry {number} is no transfer of an amount")),
        }
        let stored = [
            ("available", line.available),
            ("reserved", line.reserved),
            ("liability", line.liability),
            ("settled", line.settled),
        ];
        for (bucket, stored) in stored {
            let computed = self.balances[bucket];
            if stored != Some(computed.get()) {
                let stored = stored.map_or_else(|| "nothing".to_owned(), |stored| stored.normalize().to_string());
                say(format!("{place}: entry {number} stores {bucket} {stored}, its entries make {computed}"));
            }
        }
    }

    fn change(&mut self, bucket: &str, amount: Units, up: bool) {
        if let Some(balance) = self.balances.get_mut(bucket) {
            let changed = if up { balance.checked_add(amount) } else { balance.checked_sub(amount) };
            // Beyond the range of the columns it differs from any stored balance.
            *balance = changed.unwrap_or(Units::MAX);
        }
    }

    /// Compares the balances of the period itself.
    fn finish(self, say: &mut impl FnMut(String)) {
        let place = self.place();
        let first = &self.first;
        let stored = [
            ("available", first.period_available),
            ("reserved", first.period_reserved),
            ("liability", first.period_liability),
            ("settled", first.period_settled),
            ("granted", first.period_granted),
        ];
        for (bucket, stored) in stored {
            let computed = self.balances[bucket];
            if stored != computed.get() {
                say(format!("{place}: {bucket} is {}, its entries make {computed}", stored.normalize()));
            }
        }
        let granted = first.period_limit.checked_sub(first.period_carried);
        if granted != Some(first.period_granted) {
            say(format!("{place}: granted is not the limit less what is carried"));
        }
        if first.period_entry_no != self.entry_no {
            say(format!("{place}: says {} entries, the journal has {}", first.period_entry_no, self.entry_no));
        }
        if self.at.is_some_and(|at| at != first.period_last_entry_at) {
            say(format!("{place}: the time of its last entry is not the one that it says"));
        }
    }
}
