//! The chain of one budget period's journal entries: what each must be to follow
//! the one before it, and the balances that they make. `verify` checks it in the
//! database; `archive` checks it on the way to a file, and in a file.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;

use crate::model::Units;

/// A journal entry as it is stored. What is not a number is absent.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub number: i64,
    pub at: Option<DateTime<Utc>>,
    pub event: Option<String>,
    pub source: Option<String>,
    pub target: Option<String>,
    pub amount: Option<Decimal>,
    pub available: Option<Decimal>,
    pub reserved: Option<Decimal>,
    pub liability: Option<Decimal>,
    pub settled: Option<Decimal>,
}

/// The four buckets, what they add up to, and the two amounts that this is made of:
/// as stored, in a period or a checkpoint. What is not a number is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub available: Option<Decimal>,
    pub reserved: Option<Decimal>,
    pub liability: Option<Decimal>,
    pub settled: Option<Decimal>,
    pub granted: Option<Decimal>,
    pub limit: Option<Decimal>,
    pub carried: Option<Decimal>,
}

impl Stored {
    fn named(&self) -> [(&'static str, Option<Decimal>); 7] {
        [
            ("available", self.available),
            ("reserved", self.reserved),
            ("liability", self.liability),
            ("settled", self.settled),
            ("granted", self.granted),
            ("limit", self.limit),
            ("carried", self.carried),
        ]
    }
}

/// The entries of one period so far, and the balances that they make.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    /// How the period is called in a difference.
    pub place: String,
    /// The number of the last entry.
    pub entry_no: i64,
    /// Its time.
    pub at: Option<DateTime<Utc>>,
    balances: BTreeMap<&'static str, Units>,
}

impl Chain {
    /// Of a period from its first entry on.
    pub(super) fn new(account: &str, budget: &str, period: uuid::Uuid) -> Self {
        let owner = if account.is_empty() { "pool" } else { account };
        let balances = Stored::default().named().map(|(amount, _)| (amount, Units::ZERO));
        Self {
            place: format!("{owner} {budget} period {period}"),
            entry_no: 0,
            at: None,
            balances: balances.into_iter().collect(),
        }
    }

    /// The same from where an archived month left it.
    pub(super) fn going_on_from(
        mut self,
        entry_no: i64,
        at: Option<DateTime<Utc>>,
        stored: &Stored,
        say: &mut impl FnMut(String),
    ) -> Self {
        self.entry_no = entry_no;
        self.at = at;
        for (amount, stored) in stored.named() {
            match stored.and_then(|stored| Units::from_decimal(stored).ok()) {
                Some(units) => {
                    self.balances.insert(amount, units);
                }
                None => say(format!("{}: the checkpoint's {amount} is no amount", self.place)),
            }
        }
        self
    }

    /// Applies one entry and compares the balances that it stores.
    pub(super) fn add(&mut self, entry: &Entry, say: &mut impl FnMut(String)) {
        let (place, number) = (&self.place, entry.number);
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

    /// Compares what the period, or a checkpoint, says of its balances.
    pub(super) fn compare_all(&self, stored: &Stored, says: &str, say: &mut impl FnMut(String)) {
        for (amount, stored) in stored.named() {
            self.compare(amount, stored, &format!("{amount} {says}"), say);
        }
    }

    /// One balance as the entries make it.
    pub(super) fn balance(&self, amount: &str) -> Decimal {
        self.balances.get(amount).copied().unwrap_or_default().get()
    }

    fn change(&mut self, amount: &str, by: Units, up: bool) {
        if let Some(balance) = self.balances.get_mut(amount) {
            let changed = if up { balance.checked_add(by) } else { balance.checked_sub(by) };
            // Beyond the range of the columns it differs from any stored balance.
            *balance = changed.unwrap_or(Units::MAX);
        }
    }

    fn compare(&self, amount: &str, stored: Option<Decimal>, what: &str, say: &mut impl FnMut(String)) {
        let computed = self.balance(amount);
        if stored != Some(computed) {
            let stored = stored.map_or_else(|| "no number".to_owned(), |stored| stored.normalize().to_string());
            say(format!("{}: {what} {stored}, its entries make {}", self.place, computed.normalize()));
        }
    }
}
