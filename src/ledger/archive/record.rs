//! A journal entry as a line of a file, and the chain that goes through the lines.

use std::str::FromStr as _;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sha2::{Digest as _, Sha256};
use sqlx::PgConnection;
use uuid::Uuid;

use super::super::chain::{Chain, Entry, Stored};

/// The columns of the file, which are those of the table.
pub(super) const COLUMNS: [&str; 17] = [
    "account",
    "period_id",
    "entry_no",
    "at",
    "event",
    "actor",
    "source",
    "target",
    "amount",
    "available",
    "reserved",
    "liability",
    "settled",
    "reservation_account",
    "reservation_id",
    "reservation_version",
    "reason",
];

/// The entries of a stretch as they are written, in their order.
pub(super) fn entries_of(stretch: &str) -> String {
    format!(
        r#"select e.period_id,
                  array[e.account, e.period_id::text, e.entry_no::text,
                        to_char(e.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), e.event, e.actor, e.source,
                        e.target, trim_scale(e.amount)::text, trim_scale(e.available)::text,
                        trim_scale(e.reserved)::text, trim_scale(e.liability)::text, trim_scale(e.settled)::text,
                        e.reservation_account, e.reservation_id::text, e.reservation_version::text, e.reason] as fields
           from {stretch} e
           order by e.account collate "C", e.period_id, e.entry_no"#
    )
}

/// A checkpoint, where there is one.
#[derive(Debug, Clone, sqlx::FromRow)]
pub(super) struct Checkpoint {
    pub entry_no: i64,
    pub at: DateTime<Utc>,
    pub available: Decimal,
    pub reserved: Decimal,
    pub liability: Decimal,
    pub settled: Decimal,
    pub granted: Decimal,
    pub limit_units: Decimal,
    pub carried: Decimal,
    pub head: Vec<u8>,
}

impl Checkpoint {
    pub(super) fn stored(&self) -> Stored {
        Stored {
            available: Some(self.available),
            reserved: Some(self.reserved),
            liability: Some(self.liability),
            settled: Some(self.settled),
            granted: Some(self.granted),
            limit: Some(self.limit_units),
            carried: Some(self.carried),
        }
    }
}

/// One period's entries in a file: the chain of their numbers and balances, and that
/// of their lines.
pub(super) struct Thread {
    pub account: String,
    pub period: Uuid,
    pub chain: Chain,
    pub head: [u8; 32],
}

impl Thread {
    /// Where the archived months before this one left the period. None if there is no
    /// such period.
    pub(super) async fn pick_up(
        connection: &mut PgConnection,
        account: &str,
        period: Uuid,
        month: chrono::NaiveDate,
        say: &mut impl FnMut(String),
    ) -> Result<Option<Self>, sqlx::Error> {
        let budget: Option<String> =
            sqlx::query_scalar("select budget from budget_period where account = $1 and id = $2")
                .bind(account)
                .bind(period)
                .fetch_optional(&mut *connection)
                .await?;
        let Some(budget) = budget else { return Ok(None) };
        let before = checkpoint(connection, "month < $3 order by month desc limit 1", account, period, month).await?;
        let mut thread =
            Self { account: account.to_owned(), period, chain: Chain::new(account, &budget, period), head: [0; 32] };
        if let Some(before) = before {
            let stored = before.stored();
            thread.chain = thread.chain.going_on_from(before.entry_no, Some(before.at), &stored, say);
            thread.head = before.head.try_into().unwrap_or_default();
        }
        Ok(Some(thread))
    }

    /// The next entry, with the line that it is written as.
    pub(super) fn add(&mut self, fields: &[Option<&str>], line: &[u8], say: &mut impl FnMut(String)) {
        self.head = Sha256::new().chain_update(self.head).chain_update(line).finalize().into();
        self.chain.add(&entry(fields), say);
    }
}

/// The checkpoint of a period for an archived month.
pub(super) async fn checkpoint(
    connection: &mut PgConnection,
    of: &str,
    account: &str,
    period: Uuid,
    month: chrono::NaiveDate,
) -> Result<Option<Checkpoint>, sqlx::Error> {
    let query = format!("select * from journal_checkpoint where account = $1 and period_id = $2 and {of}");
    sqlx::query_as(sqlx::AssertSqlSafe(query)).bind(account).bind(period).bind(month).fetch_optional(connection).await
}

/// An entry as its line says.
fn entry(fields: &[Option<&str>]) -> Entry {
    let text = |column: usize| fields.get(column).copied().flatten();
    let amount = |column: usize| text(column).and_then(|text| Decimal::from_str(text).ok());
    let owned = |column: usize| text(column).map(str::to_owned);
    Entry {
        number: text(2).and_then(|number| number.parse().ok()).unwrap_or(0),
        at: text(3).and_then(|at| DateTime::parse_from_rfc3339(at).ok()).map(|at| at.to_utc()),
        event: owned(4),
        source: owned(6),
        target: owned(7),
        amount: amount(8),
        available: amount(9),
        reserved: amount(10),
        liability: amount(11),
        settled: amount(12),
    }
}
