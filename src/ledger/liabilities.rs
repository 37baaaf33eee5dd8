//! What is open and needs somebody: overdue work, and everything in liability.

use std::collections::BTreeMap;
use std::time::Duration;

use bigdecimal::{BigDecimal, ToPrimitive as _};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::types::Json;
use tokio::time::Instant;
use uuid::Uuid;

use super::database::run;
use super::fence::interval;
use super::reservations::{Found, names};
use super::{Context, Error, Ledger};
use crate::model::Name;
use crate::model::liability::{Parts, Why};
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::role::Accounts;
use crate::telemetry::Open;

/// How long a count for the metrics is good for.
const COUNTED_FOR: Duration = Duration::from_secs(5);

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
    pub liability: String,
}

/// What a list is narrowed to.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The accounts that are asked for.
    pub accounts: Accounts,
    /// Only what is open for this reason.
    pub why: Option<Why>,
    /// Only those after this one in the list: since when it is open, and its id.
    pub after: Option<(DateTime<Utc>, Uuid)>,
    /// At most so many.
    pub limit: i64,
}

/// Abandoned work where the ledger is the enforcement point.
#[derive(Debug, Clone)]
pub struct Overdue {
    /// For how long its lease has run out.
    pub at_least: TimeDelta,
    /// Only at this provider.
    pub provider: Option<Name>,
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
    overdue: String,
    cancelled: String,
    unknown_calls: String,
    earlier_attempts: String,
    fenced: String,
    liability: String,
}

impl Ledger {
    /// Reservations that need somebody; what has been open for longest is first.
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
                filter.after.map(|(since, _)| since),
                filter.after.map(|(_, id)| id),
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

    /// Active reservations whose lease ran out at least so long ago, of providers
    /// whose calls the ledger admits, oldest first.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn overdue(&self, context: &Context, overdue: &Overdue) -> Result<Vec<Reservation>, Error> {
        let at_least = interval(overdue.at_least)?;
        let rows = run!(self.database, context, |connection| {
            sqlx::query_as!(
                Found,
                r#"select reservation_json(r) as "record!: Json<Record>",
                          reservation_periods(r) as "budgets!: Json<Vec<ChargedPeriod>>",
                          clock.at as "at!"
                   from reservation r
                   cross join (select ledger_clock() as at) clock
                   where r.state = 'active'
                     and r.enforcement = 'calls'
                     and r.lease_expires_at <= clock.at - $1::interval
                     and ($2::text is null or r.provider = $2)
                     and ($3::uuid is null or r.id > $3)
                   order by r.id
                   limit $4"#,
                at_least,
                overdue.provider.as_ref().map(Name::as_str),
                overdue.after,
                overdue.limit
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        Ok(rows.into_iter().map(|row| Reservation::from(row).without_token()).collect())
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
        Ok(rows.into_iter().map(Total::from).collect())
    }
}

impl Ledger {
    /// Shows the totals of what is open in the metrics. Counted at most once in
    /// some seconds, however often it is asked.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn show_open(&self, context: &Context) -> Result<(), Error> {
        // Whoever comes while somebody counts shows what was counted before.
        let Ok(mut counted) = self.counted.try_lock() else { return Ok(()) };
        if counted.is_some_and(|at| at.elapsed() < COUNTED_FOR) {
            return Ok(());
        }
        // Also if it fails: a database in trouble is not asked at every scrape.
        *counted = Some(Instant::now());
        let totals = self.liability_totals(context, &Accounts::All).await?;
        let late_usage = self.late_usage_count(context, &Accounts::All).await?;
        self.metrics.show_open(open_units(&totals)?, late_usage);
        Ok(())
    }
}

/// The totals for the metrics: over the members of an account, whose names are a
/// client's to make up.
fn open_units(totals: &[Total]) -> Result<Vec<Open>, Error> {
    let mut sums = BTreeMap::new();
    for total in totals {
        for (why, units) in total.parts.each().into_iter().filter(|(_, units)| *units != "0") {
            let account = total.account.as_deref().unwrap_or_default();
            let units: BigDecimal =
                units.parse().map_err(|error| Error::Unexpected(format!("the total {units}: {error}")))?;
            *sums.entry((account, &total.budget, &total.unit, why.as_str())).or_insert_with(BigDecimal::default) +=
                units;
        }
    }
    let open = sums.into_iter().map(|((account, budget, unit, why), units)| Open {
        account: account.to_owned(),
        budget: budget.clone(),
        unit: unit.clone(),
        why,
        units: units.to_f64().unwrap_or(f64::MAX),
    });
    Ok(open.collect())
}

impl From<TotalRow> for Total {
    fn from(row: TotalRow) -> Self {
        let named = |name: String| (!name.is_empty()).then_some(name);
        Self {
            account: named(row.account),
            budget: row.budget,
            member: named(row.member),
            unit: row.unit,
            parts: Parts {
                overdue: row.overdue,
                cancelled: row.cancelled,
                unknown_calls: row.unknown_calls,
                earlier_attempts: row.earlier_attempts,
                fenced: row.fenced,
            },
            liability: row.liability,
        }
    }
}
