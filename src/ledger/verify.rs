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

/// What a database can say by itself, one sentence a row. The first says where a
/// column holds no number at all; what is computed from it is then not compared.
const CHECKS: [&str; 9] = [
    include_str!("verify/numbers.sql"),
    include_str!("verify/held_by_reservations.sql"),
    include_str!("verify/entries_of_reservations.sql"),
    include_str!("verify/reservation_versions.sql"),
    include_str!("verify/reservation_formula.sql"),
    include_str!("verify/calls.sql"),
    include_str!("verify/own_periods.sql"),
    include_str!("verify/periods_follow.sql"),
    include_str!("verify/negative_available.sql"),
];

/// One journal entry, or a period without any, in the order of entry numbers.
#[derive(sqlx::FromRow)]
struct Line {
    #[sqlx(flatten)]
    period: Period,
    #[sqlx(flatten)]
    entry: Entry,
}

/// A budget period as it stands. What is not a number is absent.
#[derive(sqlx::FromRow)]
struct Period {
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
}

/// A journal entry; without a number there is none.
#[derive(sqlx::FromRow)]
struct Entry {
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

/// The balances of one period as its entries so far make them.
struct Running {
    period: Period,
    balances: BTreeMap<&'static str, Units>,
    entry_no: i64,
    at: Option<DateTime<Utc>>,
}

/// The buckets, and the two amounts that granted is made of.
const AMOUNTS: [&str; 7] = ["granted", "available", "reserved", "liability", "settled", "limit", "carried"];

async fn verify_journal(
    connection: &mut PgConnection,
    verified: &mut Verified,
    say: &mut impl FnMut(String),
) -> Result<(), Error> {
    let mut lines = sqlx::query_as::<_, Line>(include_str!("verify/journal.sql")).fetch(connection);
    let mut running: Option<Running> = None;
    while let Some(Line { period, entry }) = lines.try_next().await? {
        let mut current = match running.take() {
            Some(current) if current.is_of(&period) => current,
            before => {
                if let Some(done) = before {
                    done.finish(say);
                }
                verified.periods += 1;
                Running::new(period)
            }
        };
        if let Some(number) = entry.entry_no {
            verified.entries += 1;
            current.add(number, &entry, say);
        }
        running = Some(current);
    }
    if let Some(done) = running {
        done.finish(say);
    }
    Ok(())
}

impl Running {
    fn new(period: Period) -> Self {
        let balances = AMOUNTS.into_iter().map(|amount| (amount, Units::ZERO)).collect();
        Self { period, balances, entry_no: 0, at: None }
    }

    fn is_of(&self, period: &Period) -> bool {
        (&self.period.account, self.period.period_id) == (&period.account, period.period_id)
    }

    fn place(&self) -> String {
        let owner = if self.period.account.is_empty() { "pool" } else { self.period.account.as_str() };
        format!("{owner} {} period {}", self.period.budget, self.period.period_id)
    }

    /// Applies one entry and compares the balances it stores.
    fn add(&mut self, number: i64, entry: &Entry, say: &mut impl FnMut(String)) {
        let place = self.place();
        if number != self.entry_no + 1 {
            say(format!("{place}: entry {number} follows entry {}", self.entry_no));
        }
        self.entry_no = number;
        if self.at.zip(entry.at).is_some_and(|(before, at)| at < before) {
            say(format!("{place}: the time of entry {number} is before that of the entry before it"));
        }
        self.at = entry.at;
        let amount = entry.amount.and_then(|amount| Units::from_decimal(amount).ok());
        match (amount, entry.source.as_deref(), entry.target.as_deref()) {
            (Some(amount), Some(source), Some(target)) => {
                // What comes from granted adds to what the buckets add up to.
                self.change(source, amount, source == "granted");
                self.change(target, amount, target != "granted");
                match entry.event.as_deref() {
                    Some("period_opened" | "limit_raised") => self.change("limit", amount, true),
                    Some("limit_lowered") => self.change("limit", amount, false),
                    Some("carried_in") => self.change("carried", amount, true),
                    Some("given_back") => self.change("carried", amount, false),
                    _ => {}
                }
            }
            _ => say(format!("{place}: entry {number} is no transfer of an amount")),
        }
        let stored = [
            ("available", entry.available),
            ("reserved", entry.reserved),
            ("liability", entry.liability),
            ("settled", entry.settled),
        ];
        for (bucket, stored) in stored {
            self.compare(bucket, stored, &format!("entry {number} stores {bucket}"), say);
        }
    }

    fn change(&mut self, amount: &str, by: Units, up: bool) {
        if let Some(balance) = self.balances.get_mut(amount) {
            let changed = if up { balance.checked_add(by) } else { balance.checked_sub(by) };
            // Beyond the range of the columns it differs from any stored balance.
            *balance = changed.unwrap_or(Units::MAX);
        }
    }

    fn compare(&self, amount: &str, stored: Option<Decimal>, what: &str, say: &mut impl FnMut(String)) {
        let computed = self.balances.get(amount).copied().unwrap_or_default();
        if stored != Some(computed.get()) {
            let stored = stored.map_or_else(|| "no number".to_owned(), |stored| stored.normalize().to_string());
            say(format!("{}: {what} {stored}, its entries make {computed}", self.place()));
        }
    }

    /// Compares the period itself.
    fn finish(self, say: &mut impl FnMut(String)) {
        let place = self.place();
        let period = &self.period;
        let stored = [
            ("available", period.period_available),
            ("reserved", period.period_reserved),
            ("liability", period.period_liability),
            ("settled", period.period_settled),
            ("granted", period.period_granted),
            ("limit", period.period_limit),
            ("carried", period.period_carried),
        ];
        for (amount, stored) in stored {
            self.compare(amount, stored, &format!("{amount} is"), say);
        }
        if period.period_entry_no != self.entry_no {
            say(format!("{place}: says {} entries, the journal has {}", period.period_entry_no, self.entry_no));
        }
        if self.at.is_some_and(|at| at != period.period_last_entry_at) {
            say(format!("{place}: the time of its last entry is not the one that it says"));
        }
    }
}
