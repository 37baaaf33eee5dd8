//! The balances of an account: for each of its budgets the period that contains
//! an instant, as it is or as it would open.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::database::run;
use super::reservations::units;
use super::{Context, Error, Ledger};
use crate::model::policy::{Budget, Mode, Rollover};
use crate::model::{Name, Refusal, Units};

/// The balances of one budget in one period.
#[derive(Debug, Clone)]
pub struct Balance {
    /// The budget's name.
    pub budget: Name,
    /// Whose, for a budget per member.
    pub member: Option<String>,
    /// What is counted.
    pub unit: Name,
    /// The period; none if nobody has opened it yet.
    pub period_id: Option<Uuid>,
    /// Its first instant.
    pub starts_at: DateTime<Utc>,
    /// The first instant after it; never, if absent.
    pub ends_at: Option<DateTime<Utc>>,
    /// The limit in force.
    pub limit: Units,
    /// What may still be admitted.
    pub available: Units,
    /// Authorised and not settled.
    pub reserved: Units,
    /// Charged with the usage not known.
    pub liability: Units,
    /// Actual usage.
    pub settled: Units,
    /// Whether it refuses or only records.
    pub mode: Mode,
}

struct Row {
    budget: String,
    member: String,
    id: Uuid,
    starts_at: DateTime<Utc>,
    ends_at: Option<DateTime<Utc>>,
    limit_units: Decimal,
    available: Decimal,
    reserved: Decimal,
    liability: Decimal,
    settled: Decimal,
}

impl Ledger {
    /// The balances of an account at an instant; at the database's present if
    /// none is given. A budget per member is listed for each member that has a
    /// period.
    ///
    /// # Errors
    ///
    /// `NotFound` for an account the policy does not have, an instant beyond
    /// the calendar; or the world.
    pub async fn balances(
        &self,
        context: &Context,
        account: &Name,
        at: Option<DateTime<Utc>>,
    ) -> Result<Vec<Balance>, Error> {
        let in_force = self.current_policy(context).await?;
        let customer = in_force.policy.accounts.get(account).ok_or(Refusal::NotFound("account"))?;
        let plan = in_force.policy.plans.get(&customer.plan).ok_or(Refusal::NotFound("plan"))?;
        let (at, rows) = self.open_periods(context, account, at).await?;
        let mut balances = Vec::new();
        for (name, budget) in &plan.budgets {
            let mut open = false;
            for row in rows.iter().filter(|row| row.budget == name.as_str()) {
                open = true;
                balances.push(as_it_is(name, budget, row)?);
            }
            if !open && !budget.per_member {
                let limit = customer.limits.get(name).copied().unwrap_or(budget.limit);
                balances.extend(self.as_it_would_open(context, account, name, budget, limit, at).await?);
            }
        }
        Ok(balances)
    }

    async fn open_periods(
        &self,
        context: &Context,
        account: &Name,
        at: Option<DateTime<Utc>>,
    ) -> Result<(DateTime<Utc>, Vec<Row>), Error> {
        run!(self.database, context, |connection| {
            let at = match at {
                Some(at) => at,
                None => sqlx::query_scalar!(r#"select ledger_clock() as "at!""#).fetch_one(&mut *connection).await?,
            };
            let rows = sqlx::query_as!(
                Row,
                "select budget, member, id, starts_at, ends_at, limit_units, available, reserved, liability,
                            settled
                     from budget_period
                     where account = $1 and starts_at <= $2 and (ends_at is null or ends_at > $2)
                     order by budget, member",
                account.as_str(),
                at
            )
            .fetch_all(&mut *connection)
            .await?;
            Ok((at, rows))
        })
    }

    /// The period as it would open; none if the budget's one period begins later.
    async fn as_it_would_open(
        &self,
        context: &Context,
        account: &Name,
        name: &Name,
        budget: &Budget,
        limit: Units,
        at: DateTime<Utc>,
    ) -> Result<Option<Balance>, Error> {
        let interval = budget.calendar.interval(at).map_err(|error| Refusal::invalid("at", error.to_string()))?;
        let known = self.periods_around(context, account, name, at).await?;
        if interval.ends_at.is_none() && known.later {
            return Ok(None);
        }
        let carried = match budget.rollover {
            Rollover::OriginalPeriod => Units::ZERO,
            // More than the columns hold leaves nothing available either way.
            Rollover::CarryForward => Units::from_decimal(known.held).unwrap_or(Units::MAX),
        };
        let available = limit.checked_sub(carried).map_err(|error| Error::Unexpected(format!("a carry {error}")))?;
        Ok(Some(Balance {
            budget: name.clone(),
            member: None,
            unit: budget.unit.clone(),
            period_id: None,
            starts_at: known.ended_at.map_or(interval.starts_at, |ended| ended.max(interval.starts_at)),
            ends_at: interval.ends_at,
            limit,
            available,
            reserved: Units::ZERO,
            liability: Units::ZERO,
            settled: Units::ZERO,
            mode: budget.mode,
        }))
    }

    async fn periods_around(
        &self,
        context: &Context,
        account: &Name,
        budget: &Name,
        at: DateTime<Utc>,
    ) -> Result<Around, Error> {
        run!(self.database, context, |connection| {
            sqlx::query_as!(
                Around,
                r#"select coalesce(sum(reserved + liability) filter (where starts_at <= $3), 0) as "held!",
                          max(ends_at) filter (where ends_at <= $3) as ended_at,
                          count(*) filter (where starts_at > $3) > 0 as "later!"
                   from budget_period
                   where account = $1 and budget = $2 and member = ''"#,
                account.as_str(),
                budget.as_str(),
                at
            )
            .fetch_one(&mut *connection)
            .await
        })
    }
}

/// What is known of the other periods of a budget, seen from an instant in none
/// of them.
struct Around {
    /// What those before still hold.
    held: Decimal,
    /// When the one before ended.
    ended_at: Option<DateTime<Utc>>,
    /// Whether there are any after it.
    later: bool,
}

fn as_it_is(name: &Name, budget: &Budget, row: &Row) -> Result<Balance, Error> {
    Ok(Balance {
        budget: name.clone(),
        member: (!row.member.is_empty()).then(|| row.member.clone()),
        unit: budget.unit.clone(),
        period_id: Some(row.id),
        starts_at: row.starts_at,
        ends_at: row.ends_at,
        limit: units(row.limit_units)?,
        available: units(row.available)?,
        reserved: units(row.reserved)?,
        liability: units(row.liability)?,
        settled: units(row.settled)?,
        mode: budget.mode,
    })
}
