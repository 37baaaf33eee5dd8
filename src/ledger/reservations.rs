//! Look reservations up: by id, by key, in lists, and their history.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::{Context, Error, Ledger};
use crate::model::policy::Pricing;
use crate::model::reservation::{ChargedPeriod, Event, Record, Reservation, State};
use crate::model::role::Accounts;
use crate::model::{Name, Refusal, Units};

/// What a list is narrowed to.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The accounts that may be seen, or are asked for.
    pub accounts: Accounts,
    /// Only this state.
    pub state: Option<State>,
    /// Only this kind of work.
    pub operation: Option<Name>,
    /// Only this reference.
    pub reference: Option<String>,
    /// Only those whose lease has run out, or only those whose has not.
    pub overdue: Option<bool>,
    /// Only those before this one in the list.
    pub before: Option<Uuid>,
    /// At most so many.
    pub limit: i64,
}

/// A reservation as statements that only look have it.
pub(super) struct Found {
    pub record: Json<Record>,
    pub budgets: Json<Vec<ChargedPeriod>>,
    pub at: DateTime<Utc>,
}

struct KeyRow {
    record: Json<Record>,
    budgets: Json<Vec<ChargedPeriod>>,
    at: DateTime<Utc>,
    pricing: Json<Pricing>,
}

impl From<Found> for Reservation {
    fn from(row: Found) -> Self {
        Self { record: row.record.0, budgets: row.budgets.0, at: row.at }
    }
}

impl Ledger {
    /// The reservation, if the accounts include its own.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a reservation of another account; or the world.
    pub async fn reservation(&self, context: &Context, accounts: &Accounts, id: Uuid) -> Result<Reservation, Error> {
        Ok(self.reservation_with_token(context, accounts, id).await?.without_token())
    }

    /// The same with the token of its attempt, to be shown to whoever has it already.
    pub(super) async fn reservation_with_token(
        &self,
        context: &Context,
        accounts: &Accounts,
        id: Uuid,
    ) -> Result<Reservation, Error> {
        let names = names(accounts);
        let found = run!(self.database, context, |connection| {
            sqlx::query_as!(
                Found,
                r#"select reservation_json(r) as "record!: Json<Record>",
                          reservation_periods(r) as "budgets!: Json<Vec<ChargedPeriod>>",
                          ledger_clock() as "at!"
                   from reservation r
                   where r.id = $1 and ($2::text[] is null or r.account = any ($2))"#,
                id,
                names.as_deref()
            )
            .fetch_optional(&mut *connection)
            .await
        })?;
        found.map(Reservation::from).ok_or_else(|| Refusal::NotFound("reservation").into())
    }

    /// A list of reservations, newest first.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn reservations(&self, context: &Context, filter: &Filter) -> Result<Vec<Reservation>, Error> {
        let names = names(&filter.accounts);
        let rows = run!(self.database, context, |connection| {
            sqlx::query_as!(
                Found,
                r#"select reservation_json(r) as "record!: Json<Record>",
                          reservation_periods(r) as "budgets!: Json<Vec<ChargedPeriod>>",
                          clock.at as "at!"
                   from reservation r
                   cross join (select ledger_clock() as at) clock
                   where ($1::text[] is null or r.account = any ($1))
                     and ($2::text is null or r.state = $2)
                     and ($3::text is null or r.operation = $3)
                     and ($4::text is null or r.reference = $4)
                     and ($5::boolean is null or $5 = (r.state = 'active' and r.lease_expires_at <= clock.at))
                     and ($6::uuid is null or r.id < $6)
                   order by r.id desc
                   limit $7"#,
                names.as_deref(),
                filter.state.map(State::as_str),
                filter.operation.as_ref().map(Name::as_str),
                filter.reference.as_deref(),
                filter.overdue,
                filter.before,
                filter.limit
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        Ok(rows.into_iter().map(|row| Reservation::from(row).without_token()).collect())
    }

    /// The reservation with this key, with its token, and the pricing that its
    /// estimate was made by. A statement of its own, so that it sees what a
    /// racing copy has committed a moment ago.
    pub(super) async fn reservation_by_key(
        &self,
        context: &Context,
        account: &Name,
        key: &str,
    ) -> Result<Option<(Reservation, Pricing)>, Error> {
        let found = run!(self.database, context, |connection| {
            sqlx::query_as!(
                KeyRow,
                r#"select reservation_json(r) as "record!: Json<Record>",
                          reservation_periods(r) as "budgets!: Json<Vec<ChargedPeriod>>",
                          ledger_clock() as "at!", o.pricing as "pricing!: Json<Pricing>"
                   from reservation r
                   join operation_revision o on o.operation = r.operation and o.revision = r.operation_revision
                   where r.account = $1 and r.idempotency_key = $2"#,
                account.as_str(),
                key
            )
            .fetch_optional(&mut *connection)
            .await
        })?;
        Ok(found.map(|row| (Reservation { record: row.record.0, budgets: row.budgets.0, at: row.at }, row.pricing.0)))
    }

    /// The history of a reservation, oldest first: one line for each version.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn events(&self, context: &Context, account: &Name, id: Uuid) -> Result<Vec<Event>, Error> {
        let rows = run!(self.database, context, |connection| {
            sqlx::query!(
                "select version, event, at, actor, state, ceiling, settled, reserved, liability, attempt_number, detail
                 from reservation_event
                 where account = $1 and reservation_id = $2
                 order by version",
                account.as_str(),
                id
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        rows.into_iter()
            .map(|row| {
                Ok(Event {
                    version: row.version,
                    event: row.event,
                    at: row.at,
                    actor: row.actor,
                    state: row.state.parse().map_err(Error::Unexpected)?,
                    ceiling: units(row.ceiling)?,
                    settled: units(row.settled)?,
                    reserved: units(row.reserved)?,
                    liability: units(row.liability)?,
                    attempt_number: row.attempt_number,
                    detail: row.detail,
                })
            })
            .collect()
    }
}

/// An amount as a column holds it. The columns hold nothing else.
pub(super) fn units(column: Decimal) -> Result<Units, Error> {
    Units::from_decimal(column).map_err(|error| Error::Unexpected(format!("a stored amount {error}")))
}

pub(super) fn names(accounts: &Accounts) -> Option<Vec<String>> {
    match accounts {
        Accounts::All => None,
        Accounts::These(names) => Some(names.iter().map(Name::to_string).collect()),
    }
}
