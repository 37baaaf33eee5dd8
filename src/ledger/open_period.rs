//! Open the period of a budget that a decision found missing. A transaction of
//! its own, repeatable: whoever comes second finds the period open.
//!
//! Locks, in this order: the policy (shared), so that no limit changes between
//! reading it and writing it into the period; then the period of the
//! budget before it, so that what it holds is final for what is carried forward. An
//! admission that gets that lock later finds by the clock that the period has
//! ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::database::run;
use super::{Context, Error, Ledger};
use crate::model::admission::{Charge, Estimate};
use crate::model::period::{Calendar, PeriodKind};
use crate::model::policy::Rollover;
use crate::model::{Name, Units};

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// A period is open, by this call or by another.
    Open,
    /// The policy is not the one that the caller decided by.
    PolicyChanged,
}

/// The columns of a budget period's name.
struct Key<'a> {
    account: &'a str,
    budget: &'a str,
    member: &'a str,
}

/// The period before the one to be opened.
struct Before {
    ends_at: Option<DateTime<Utc>>,
}

/// The other periods of the budget.
struct Others {
    /// The database's clock.
    at: DateTime<Utc>,
    /// Whether one contains it.
    open: bool,
    newest_ordinal: i64,
    next_starts_at: Option<DateTime<Utc>>,
}

/// How often this process has opened periods for an account: when a day begins, many
/// requests find the same periods missing, and one of them opens them for all.
#[derive(Default)]
pub(super) struct Openings(std::sync::Mutex<HashMap<Name, Arc<Opening>>>);

#[derive(Default)]
struct Opening {
    times: AtomicU64,
    turn: tokio::sync::Mutex<()>,
}

impl Openings {
    /// To be asked before a decision.
    pub(super) fn so_far(&self, account: &Name) -> u64 {
        self.of(account).times.load(Ordering::Acquire)
    }

    fn of(&self, account: &Name) -> Arc<Opening> {
        let mut openings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opening) = openings.get(account) {
            return Arc::clone(opening);
        }
        // Those that nobody is waiting for say nothing that matters.
        if openings.len() >= MAX_OPENINGS {
            openings.retain(|_, opening| Arc::strong_count(opening) > 1);
        }
        Arc::clone(openings.entry(account.clone()).or_default())
    }
}

/// For how many accounts openings are remembered.
const MAX_OPENINGS: usize = 10_000;

impl Ledger {
    /// Opens the periods that a decision found missing, unless another request of
    /// this account has opened some since `so_far`: then deciding again finds out
    /// whether they were the same.
    pub(super) async fn open_missing(
        &self,
        context: &Context,
        account: &Name,
        so_far: Option<u64>,
        estimate: &Estimate,
        policy_version: i64,
    ) -> Result<Opened, Error> {
        let opening = self.openings.of(account);
        let Ok(_turn) = tokio::time::timeout_at(context.deadline, opening.turn.lock()).await else {
            return Err(Error::DeadlineExceeded("periods are being opened"));
        };
        if so_far.is_some_and(|so_far| opening.times.load(Ordering::Acquire) != so_far) {
            return Ok(Opened::Open);
        }
        for charge in &estimate.charges {
            if self.open_period(context, charge, policy_version).await? == Opened::PolicyChanged {
                return Ok(Opened::PolicyChanged);
            }
        }
        opening.times.fetch_add(1, Ordering::AcqRel);
        Ok(Opened::Open)
    }

    /// Opens the period that contains the database's present, if none is open.
    pub(super) async fn open_period(
        &self,
        context: &Context,
        charge: &Charge,
        policy_version: i64,
    ) -> Result<Opened, Error> {
        run!(self.database, context, |connection| {
            match open(connection, &context.actor, charge, policy_version).await {
                Ok(opened) => Ok(Ok(opened)),
                Err(OpenError::Calendar(message)) => Ok(Err(Error::Unexpected(message))),
                Err(OpenError::Database(error)) => Err(error),
            }
        })?
    }
}

enum OpenError {
    Database(sqlx::Error),
    Calendar(String),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

async fn open(
    connection: &mut PgConnection,
    actor: &str,
    charge: &Charge,
    policy_version: i64,
) -> Result<Opened, OpenError> {
    use sqlx::Connection as _;
    let key = Key {
        account: charge.owner.as_ref().map_or("", |name| name.as_str()),
        budget: charge.budget.as_str(),
        member: charge.member.as_ref().map_or("", |name| name.as_str()),
    };
    let mut transaction = connection.begin().await?;
    let in_force =
        sqlx::query_scalar!("select version from policy_state for share").fetch_one(&mut *transaction).await?;
    if in_force != policy_version {
        return Ok(Opened::PolicyChanged);
    }
    let before = before_now(&mut transaction, &key).await?;
    // A statement of its own, after the lock: what there is, and then the clock.
    let others = others(&mut transaction, &key).await?;
    if others.open {
        return Ok(Opened::Open);
    }
    let at = others.at;
    let (starts_at, ends_at) = bounds(&charge.definition.calendar, at, before.as_ref(), others.next_starts_at)?;
    let id = insert(&mut transaction, &key, charge, others.newest_ordinal + 1, starts_at, ends_at, at).await?;
    if let Some(id) = id {
        grant(&mut transaction, &key, id, charge, actor).await?;
    }
    transaction.commit().await?;
    Ok(Opened::Open)
}

/// Locks the newest period that has begun.
async fn before_now(transaction: &mut Transaction<'_, Postgres>, key: &Key<'_>) -> Result<Option<Before>, sqlx::Error> {
    sqlx::query_as!(
        Before,
        "select ends_at from budget_period
         where account = $1 and budget = $2 and member = $3 and starts_at <= (select ledger_clock())
         order by starts_at desc limit 1
         for no key update",
        key.account,
        key.budget,
        key.member
    )
    .fetch_optional(&mut **transaction)
    .await
}

async fn others(transaction: &mut Transaction<'_, Postgres>, key: &Key<'_>) -> Result<Others, sqlx::Error> {
    sqlx::query_as!(
        Others,
        // Three rows, each found by an index: an hourly budget has thousands in a year.
        // Periods do not overlap, so only the newest that has begun can be open.
        r#"with instant as materialized (select ledger_clock() as at)
           select i.at as "at!",
                  coalesce((select p.ordinal
                            from budget_period p
                            where p.account = $1 and p.budget = $2 and p.member = $3
                            order by p.ordinal desc
                            limit 1), 0) as "newest_ordinal!",
                  (select p.starts_at
                   from budget_period p
                   where p.account = $1 and p.budget = $2 and p.member = $3 and p.starts_at > i.at
                   order by p.starts_at
                   limit 1) as next_starts_at,
                  coalesce((select p.ends_at is null or p.ends_at > i.at
                            from budget_period p
                            where p.account = $1 and p.budget = $2 and p.member = $3 and p.starts_at <= i.at
                            order by p.starts_at desc
                            limit 1), false) as "open!"
           from instant i"#,
        key.account,
        key.budget,
        key.member
    )
    .fetch_one(&mut **transaction)
    .await
}

/// The calendar interval that contains `at`, from the end of the period before it
/// at the earliest (a change of calendar begins when the open period ends) to the
/// beginning of the period after it at the latest (there is one only when the
/// clock has been set back).
fn bounds(
    calendar: &Calendar,
    at: DateTime<Utc>,
    before: Option<&Before>,
    next_starts_at: Option<DateTime<Utc>>,
) -> Result<(DateTime<Utc>, Option<DateTime<Utc>>), OpenError> {
    let interval = calendar.interval(at).map_err(|error| OpenError::Calendar(error.to_string()))?;
    let previous_end = before.and_then(|period| period.ends_at);
    let starts_at = previous_end.map_or(interval.starts_at, |end| end.max(interval.starts_at));
    let ends_at = match (interval.ends_at, next_starts_at) {
        (Some(end), Some(next)) => Some(end.min(next)),
        (end, next) => end.or(next),
    };
    Ok((starts_at, ends_at))
}

async fn insert(
    transaction: &mut Transaction<'_, Postgres>,
    key: &Key<'_>,
    charge: &Charge,
    ordinal: i64,
    starts_at: DateTime<Utc>,
    ends_at: Option<DateTime<Utc>>,
    at: DateTime<Utc>,
) -> Result<Option<Uuid>, sqlx::Error> {
    let definition = &charge.definition;
    sqlx::query_scalar!(
        "insert into budget_period (account, id, budget, member, ordinal, unit, period, timezone, starts_at,
                                    ends_at, limit_units, carried, granted, available, reserved, liability,
                                    settled, entry_no, last_entry_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, 0, 0, 0, 0, 0, 0, 0, $11)
         on conflict do nothing
         returning id",
        key.account,
        Uuid::now_v7(),
        key.budget,
        key.member,
        ordinal,
        definition.unit.as_str(),
        definition.calendar.kind.as_str(),
        definition.calendar.zone_name(),
        starts_at,
        ends_at,
        at
    )
    .fetch_optional(&mut **transaction)
    .await
}

/// Grants the limit to the new period, and takes back what earlier periods hold
/// if the budget carries forward.
async fn grant(
    transaction: &mut Transaction<'_, Postgres>,
    key: &Key<'_>,
    id: Uuid,
    charge: &Charge,
    actor: &str,
) -> Result<(), sqlx::Error> {
    let definition = &charge.definition;
    let carries = definition.rollover == Rollover::CarryForward && definition.calendar.kind != PeriodKind::Total;
    let limit: Units = definition.limit;
    sqlx::query_scalar!(
        // Earlier periods are read only by a budget that carries forward.
        "with held as (
             select coalesce(sum(reserved + liability), 0) as units
             from budget_period
             where $7 and account = $1 and budget = $2 and member = $3
               and starts_at < (select starts_at from budget_period where account = $1 and id = $4))
         select post(array[
             row (1, $1, $4, 'period_opened', $6, $5, 0, 0, 0, $5, 0, null, null, null, null)::posting,
             row (2, $1, $4, 'carried_in', $6, -held.units, 0, 0, 0, 0, held.units, null, null, null, null)::posting], 2)
         from held",
        key.account,
        key.budget,
        key.member,
        id,
        limit.get(),
        actor,
        carries
    )
    .fetch_one(&mut **transaction)
    .await?;
    Ok(())
}
