//! The policy in force: read from its tables, and kept in memory by version.
//!
//! The tables decide. What this process has in memory makes estimates; the
//! deciding statement compares the version and sends stale ones back.

use std::collections::BTreeMap;
use std::time::Duration;

use rust_decimal::Decimal;
use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection};

use super::database::run;
use super::reservations::units;
use super::{Context, Database, Error, Ledger};
use crate::model::period::{Calendar, PeriodKind};
use crate::model::policy::{Account, Budget, BudgetIdentity, Operation, Plan, Policy, Pricing, Provider, Scope};
use crate::model::{Name, Units};
use crate::policy::KnownBudgets;

/// How long a large policy may take to be read.
const LOAD_WITHIN: Duration = Duration::from_secs(30);

/// The policy of one version.
#[derive(Debug, Clone)]
pub struct PolicyInForce {
    /// Its version; 0 is the empty policy of a new database.
    pub version: i64,
    /// What it says.
    pub policy: Policy,
    /// Which revision of its cost map each operation is estimated by.
    revisions: BTreeMap<Name, i32>,
}

impl PolicyInForce {
    /// The revision of the cost map of an operation that is in force.
    pub(super) fn revision(&self, operation: &Name) -> i32 {
        self.revisions.get(operation).copied().unwrap_or(1)
    }
}

impl Ledger {
    /// Takes the policy in force from the database if it is not the one with
    /// this version. Answers whether the version differed.
    pub(super) async fn refresh_policy(&self, context: &Context, version: i64) -> Result<bool, Error> {
        let in_force = self.policy_version(context).await?;
        if in_force != self.policy().version {
            let _reading = self.reading.lock().await;
            if in_force == self.policy().version {
                return Ok(in_force != version);
            }
            self.policy.store(std::sync::Arc::new(load(&self.database, context).await?));
        }
        Ok(in_force != version)
    }

    /// The policy in force, as the database has it at this moment.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn current_policy(&self, context: &Context) -> Result<std::sync::Arc<PolicyInForce>, Error> {
        self.refresh_policy(context, self.policy().version).await?;
        Ok(self.policy())
    }

    async fn policy_version(&self, context: &Context) -> Result<i64, Error> {
        run!(self.database, context, |connection| {
            sqlx::query_scalar!("select version from policy_state").fetch_one(connection).await
        })
    }
}

/// Reads the policy in force, all of it as of one instant.
pub(super) async fn load(database: &Database, context: &Context) -> Result<PolicyInForce, Error> {
    run!(database.with_patience(LOAD_WITHIN), context, |connection| {
        let mut transaction = connection.begin_with("begin isolation level repeatable read read only").await?;
        sqlx::query("set local statement_timeout = '30s'").execute(&mut *transaction).await?;
        match read(&mut transaction).await {
            Ok((policy, _)) => Ok(Ok(policy)),
            Err(Failure::Stored(error)) => Ok(Err(error)),
            Err(Failure::Database(error)) => Err(error),
        }
    })?
}

/// Why a policy could not be read: the database, or what is stored in it.
pub(super) enum Failure {
    Database(sqlx::Error),
    Stored(Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Stored(error)
    }
}

/// Reads the policy in force and what every budget name has ever stood for.
pub(super) async fn read(connection: &mut PgConnection) -> Result<(PolicyInForce, KnownBudgets), Failure> {
    let version = sqlx::query_scalar!("select version from policy_state").fetch_one(&mut *connection).await?;
    let (operations, revisions) = operations(connection).await?;
    let (plans, budgets) = plans(connection).await?;
    let (pools, known_pools) = pools(connection).await?;
    let policy = Policy {
        providers: providers(connection).await?,
        operations,
        plans,
        accounts: accounts(connection).await?,
        pools,
    };
    Ok((PolicyInForce { version, policy, revisions }, KnownBudgets { budgets, pools: known_pools }))
}

async fn providers(connection: &mut PgConnection) -> Result<BTreeMap<Name, Provider>, Failure> {
    let rows = sqlx::query!("select name, unit, enforcement, keys from provider where retired_at is null")
        .fetch_all(connection)
        .await?;
    let mut providers = BTreeMap::new();
    for row in rows {
        let provider = Provider {
            unit: name(&row.unit)?,
            enforcement: word(&row.enforcement)?,
            keys: row.keys.iter().map(|key| name(key)).collect::<Result<_, _>>()?,
        };
        providers.insert(name(&row.name)?, provider);
    }
    Ok(providers)
}

async fn operations(
    connection: &mut PgConnection,
) -> Result<(BTreeMap<Name, Operation>, BTreeMap<Name, i32>), Failure> {
    let rows = sqlx::query!(
        r#"select o.name, o.provider, o.revision, o.max_units, o.mode, r.pricing as "pricing: Json<Pricing>"
           from operation o
           join operation_revision r on r.operation = o.name and r.revision = o.revision
           where o.retired_at is null"#
    )
    .fetch_all(connection)
    .await?;
    let mut operations = BTreeMap::new();
    let mut revisions = BTreeMap::new();
    for row in rows {
        revisions.insert(name(&row.name)?, row.revision);
        let operation = Operation {
            provider: name(&row.provider)?,
            pricing: row.pricing.0,
            max_units: units(row.max_units)?,
            mode: word(&row.mode)?,
        };
        operations.insert(name(&row.name)?, operation);
    }
    Ok((operations, revisions))
}

async fn plans(
    connection: &mut PgConnection,
) -> Result<(BTreeMap<Name, Plan>, BTreeMap<Name, BudgetIdentity>), Failure> {
    let rows =
        sqlx::query!("select name, unbounded from plan where retired_at is null").fetch_all(&mut *connection).await?;
    let mut plans = BTreeMap::new();
    for row in rows {
        let unbounded = row.unbounded.iter().map(|unit| name(unit)).collect::<Result<_, _>>()?;
        plans.insert(name(&row.name)?, Plan { budgets: BTreeMap::new(), unbounded });
    }
    let rows = sqlx::query!(
        r#"select plan, name, unit, limit_units, period, timezone, rollover, mode, per_member, provider, operation,
                  retired_at is not null as "retired!"
           from budget"#
    )
    .fetch_all(connection)
    .await?;
    let mut known = BTreeMap::new();
    for row in rows {
        let budget = Stored {
            unit: &row.unit,
            limit_units: row.limit_units,
            period: &row.period,
            timezone: &row.timezone,
            rollover: &row.rollover,
            mode: &row.mode,
            per_member: row.per_member,
            provider: row.provider.as_deref(),
            provider_key: None,
            operation: row.operation.as_deref(),
        }
        .budget()?;
        remember(&mut known, &row.name, &budget)?;
        if !row.retired
            && let Some(plan) = plans.get_mut(row.plan.as_str())
        {
            plan.budgets.insert(name(&row.name)?, budget);
        }
    }
    Ok((plans, known))
}

async fn pools(
    connection: &mut PgConnection,
) -> Result<(BTreeMap<Name, Budget>, BTreeMap<Name, BudgetIdentity>), Failure> {
    let rows = sqlx::query!(
        r#"select name, unit, limit_units, period, timezone, rollover, mode, provider, provider_key, operation,
                  retired_at is not null as "retired!"
           from pool"#
    )
    .fetch_all(connection)
    .await?;
    let mut pools = BTreeMap::new();
    let mut known = BTreeMap::new();
    for row in rows {
        let pool = Stored {
            unit: &row.unit,
            limit_units: row.limit_units,
            period: &row.period,
            timezone: &row.timezone,
            rollover: &row.rollover,
            mode: &row.mode,
            per_member: false,
            provider: row.provider.as_deref(),
            provider_key: row.provider_key.as_deref(),
            operation: row.operation.as_deref(),
        }
        .budget()?;
        remember(&mut known, &row.name, &pool)?;
        if !row.retired {
            pools.insert(name(&row.name)?, pool);
        }
    }
    Ok((pools, known))
}

async fn accounts(connection: &mut PgConnection) -> Result<BTreeMap<Name, Account>, Failure> {
    let rows = sqlx::query!(
        r#"select name, plan, limits as "limits: Json<BTreeMap<Name, Units>>"
           from account where retired_at is null"#
    )
    .fetch_all(connection)
    .await?;
    let mut accounts = BTreeMap::new();
    for row in rows {
        accounts.insert(name(&row.name)?, Account { plan: name(&row.plan)?, limits: row.limits.0 });
    }
    Ok(accounts)
}

/// The columns that a plan's budget and a pool have in common.
struct Stored<'a> {
    unit: &'a str,
    limit_units: Decimal,
    period: &'a str,
    timezone: &'a str,
    rollover: &'a str,
    mode: &'a str,
    per_member: bool,
    provider: Option<&'a str>,
    provider_key: Option<&'a str>,
    operation: Option<&'a str>,
}

impl Stored<'_> {
    fn budget(&self) -> Result<Budget, Error> {
        let kind: PeriodKind =
            self.period.parse().map_err(|_| Error::Unexpected(format!("a stored period {:?}", self.period)))?;
        Ok(Budget {
            unit: name(self.unit)?,
            limit: units(self.limit_units)?,
            calendar: Calendar::new(kind, self.timezone)
                .map_err(|error| Error::Unexpected(format!("a stored calendar {error}")))?,
            rollover: word(self.rollover)?,
            mode: word(self.mode)?,
            per_member: self.per_member,
            scope: Scope {
                provider: self.provider.map(name).transpose()?,
                provider_key: self.provider_key.map(name).transpose()?,
                operation: self.operation.map(name).transpose()?,
            },
        })
    }
}

/// A name that once became `total` stays so, whatever retired rows say.
fn remember(known: &mut BTreeMap<Name, BudgetIdentity>, stored: &str, budget: &Budget) -> Result<(), Error> {
    let identity = budget.identity();
    let total = identity.total;
    known.entry(name(stored)?).or_insert(identity).total |= total;
    Ok(())
}

/// A word of the policy file as a column holds it.
fn word<T: serde::de::DeserializeOwned>(stored: &str) -> Result<T, Error> {
    serde_json::from_value(serde_json::Value::from(stored))
        .map_err(|error| Error::Unexpected(format!("a stored word {stored:?}: {error}")))
}

fn name(stored: &str) -> Result<Name, Error> {
    stored.parse().map_err(|error| Error::Unexpected(format!("a stored name {error}")))
}
