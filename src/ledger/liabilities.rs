//! What is open and needs somebody: overdue work, and everything in liability.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::reservations::{names, units};
use super::{Context, Error, Ledger};
use crate::model::Units;
use crate::model::liability::{Parts, Why};
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::role::Accounts;

/// A reservation that needs somebody.
#[derive(Debug, Clone)]
pub struct Liability {
    /// The reservation, without its token.
    pub reservation: Reservation,
    /// Why.
    pub why: Vec<Why>,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// What one budget is charged for such reservations, over all of its periods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Total {
    /// The account; none of a pool.
    pub account: Option<String>,
    /// The budget's or the pool's name.
    pub budget: String,
    /// The member, of a budget per member.
    pub member: Option<String>,
    /// What the amounts count.
    pub unit: String,
    /// By reason.
    pub parts: Parts,
    /// What is in liability: all parts but the overdue one.
    pub liability: Units,
}

/// What a list is narrowed to.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The accounts that are asked for.
    pub accounts: Accounts,
    /// Only what is open for this reason.
    pub why: Option<Why>,
    /// Only those after this one in the list.
    pub after: Option<Uuid>,
    /// At most so many.
    pub limit: i64,
}

struct Row {
    record: Json<Record>,
    budgets: Json<Vec<ChargedPeriod>>,
    at: DateTime<Utc>,
    why: Vec<String>,
    since: DateTime<Utc>,
}

struct TotalRow {
    account: String,
    budget: String,
    member: String,
    unit: String,
    overdue: Decimal,
    cancelled: Decimal,
    unknown_calls: Decimal,
    earlier_attempts: Decimal,
    fenced: Decimal,
    liability: Decimal,
}

impl Ledger {
    /// Reservations that need somebody, oldest first.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn liabilities(&self, context: &Context, filter: &Filter) -> Result<Vec<Liability>, Error> {
        let accounts = names(&filter.accounts);
        let rows = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Row,
                "src/ledger/liabilities.sql",
                accounts.as_deref(),
                filter.why.map(Why::as_str),
                filter.after,
                filter.limit
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        rows.into_iter()
            .map(|row| {
                let why = row.why.iter().map(|why| why.parse()).collect::<Result<_, _>>().map_err(Error::Unexpected)?;
                let reservation = Reservation { record: row.record.0, budgets: row.budgets.0, at: row.at };
                Ok(Liability { reservation: reservation.without_token(), why, since: row.since })
            })
            .collect()
    }

    /// The sums of what such reservations hold, for each budget of these accounts
    /// and for each pool.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn liability_totals(&self, context: &Context, accounts: &Accounts) -> Result<Vec<Total>, Error> {
        let accounts = names(accounts);
        let rows = run!(self.database, context, |connection| {
            sqlx::query_file_as!(TotalRow, "src/ledger/liability_totals.sql", accounts.as_deref())
                .fetch_all(&mut *connection)
                .await
        })?;
        rows.into_iter().map(Total::try_from).collect()
    }
}

impl TryFrom<TotalRow> for Total {
    type Error = Error;

    fn try_from(row: TotalRow) -> Result<Self, Error> {
        let named = |name: String| (!name.is_empty()).then_some(name);
        Ok(Self {
            account: named(row.account),
            budget: row.budget,
            member: named(row.member),
            unit: row.unit,
            parts: Parts {
                overdue: units(row.overdue)?,
                cancelled: units(row.cancelled)?,
                unknown_calls: units(row.unknown_calls)?,
                earlier_attempts: units(row.earlier_attempts)?,
                fenced: units(row.fenced)?,
            },
            liability: units(row.liability)?,
        })
    }
}
