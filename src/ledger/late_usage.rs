//! Late usage: what was reported when it could not be charged any more. The report
//! changed no balance; finance adjusts.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::database::run;
use super::reservations::{names, units};
use super::{Context, Error, Ledger};
use crate::model::Units;
use crate::model::role::Accounts;

/// One report that came too late.
#[derive(Debug, Clone)]
pub struct LateUsage {
    /// Its id; ids rise with time.
    pub id: Uuid,
    /// Whose reservation it is.
    pub account: String,
    /// The reservation.
    pub reservation: Uuid,
    /// The attempt that reported it.
    pub attempt: i32,
    /// The call that it is the usage of; none of an attempt's own total.
    pub call: Option<String>,
    /// What the amount counts.
    pub unit: String,
    /// What was reported: of a call, or of an attempt in all.
    pub units: Units,
    /// What had been settled of that when it was reported.
    pub recorded: Units,
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// Who reported it.
    pub actor: String,
    /// The provider's own name for the work.
    pub provider_request_id: Option<String>,
    /// The reason with which the report was refused.
    pub refused_as: String,
}

/// What a list is narrowed to.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The accounts that are asked for.
    pub accounts: Accounts,
    /// Only of this reservation.
    pub reservation: Option<Uuid>,
    /// Only those before this one in the list.
    pub before: Option<Uuid>,
    /// At most so many.
    pub limit: i64,
}

impl Ledger {
    /// Late usage, newest first.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn late_usage(&self, context: &Context, filter: &Filter) -> Result<Vec<LateUsage>, Error> {
        let accounts = names(&filter.accounts);
        let rows = run!(self.database, context, |connection| {
            sqlx::query!(
                r#"select l.id, l.account, l.reservation_id, l.attempt_number, nullif(l.call_key, '') as call,
                          r.unit, l.units, l.recorded, l.at, l.actor, l.provider_request_id, l.refused_as
                   from late_usage l
                   join reservation r on r.account = l.account and r.id = l.reservation_id
                   where ($1::text[] is null or l.account = any ($1))
                     and ($2::uuid is null or l.reservation_id = $2)
                     and ($3::uuid is null or l.id < $3)
                   order by l.id desc
                   limit $4"#,
                accounts.as_deref(),
                filter.reservation,
                filter.before,
                filter.limit
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        rows.into_iter()
            .map(|row| {
                Ok(LateUsage {
                    id: row.id,
                    account: row.account,
                    reservation: row.reservation_id,
                    attempt: row.attempt_number,
                    call: row.call,
                    unit: row.unit,
                    units: units(row.units)?,
                    recorded: units(row.recorded)?,
                    at: row.at,
                    actor: row.actor,
                    provider_request_id: row.provider_request_id,
                    refused_as: row.refused_as,
                })
            })
            .collect()
    }

    /// How many reports came too late.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn late_usage_count(&self, context: &Context, accounts: &Accounts) -> Result<i64, Error> {
        let accounts = names(accounts);
        run!(self.database, context, |connection| {
            sqlx::query_scalar!(
                r#"select count(*) as "count!"
                   from late_usage l
                   where $1::text[] is null or l.account = any ($1)"#,
                accounts.as_deref()
            )
            .fetch_one(&mut *connection)
            .await
        })
    }
}
