//! Apply a policy: compare it with the one in force, write what changed, and
//! bring the limits of open periods in line, all in one transaction under the
//! policy's lock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use super::audit::Said;
use super::database::run_once;
use super::policy::{Failure, PolicyInForce, read};
use super::{Context, Error, Ledger};
use crate::model::policy::{Account, Budget, Operation, Policy, Pricing};
use crate::model::refusal::FieldFault;
use crate::model::{Name, Refusal};
use crate::policy::file::PolicyFile;
use crate::policy::{Change, PolicyRefused, check, compare};

/// How long applying a policy may take.
const APPLY_WITHIN: Duration = Duration::from_secs(60);

/// What applying a policy did, or would do.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The version in force afterwards.
    pub version: i64,
    /// What was added, changed and retired.
    pub changes: Vec<Change>,
}

enum Outcome {
    Applied(Applied),
    Refused(PolicyRefused),
}

impl Ledger {
    /// Applies a policy file; with `dry_run` says only what it would change. A
    /// policy that changes nothing makes no new version.
    ///
    /// # Errors
    ///
    /// `Invalid` with every fault of the file, or the world.
    pub async fn apply_policy(&self, context: &Context, source: &str, dry_run: bool) -> Result<Applied, Error> {
        // Reading a large file takes seconds: not under the policy's lock, and not
        // on a thread that answers requests.
        let text = source.to_owned();
        let file = tokio::task::spawn_blocking(move || crate::policy::read(&text))
            .await
            .map_err(|error| Error::Unexpected(error.to_string()))?
            .map_err(as_refusal)?;
        let outcome = // Applied again, it would say that nothing changed.
run_once!(self.database.with_patience(APPLY_WITHIN), context, |connection| {
                match apply(connection, &context.actor, source, &file, dry_run).await {
                    Ok(outcome) => Ok(Ok(outcome)),
                    Err(Failure::Database(error)) if is_out_of_range(&error) => {
                        Ok(Err(Refusal::invalid("", "a limit would take a balance out of range").into()))
                    }
                    Err(Failure::Database(error)) => Err(error),
                    Err(Failure::Stored(error)) => Ok(Err(error)),
                }
            })??;
        match outcome {
            Outcome::Applied(applied) => {
                self.refresh_policy(context, applied.version).await?;
                Ok(applied)
            }
            Outcome::Refused(refused) => Err(as_refusal(refused).into()),
        }
    }
}

fn as_refusal(refused: PolicyRefused) -> Refusal {
    Refusal::Invalid(refused.faults.into_iter().map(|fault| FieldFault::new(fault.place, fault.message)).collect())
}

/// numeric_value_out_of_range
fn is_out_of_range(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|reported| reported.code()).as_deref() == Some("22003")
}

async fn apply(
    connection: &mut PgConnection,
    actor: &str,
    source: &str,
    file: &PolicyFile,
    dry_run: bool,
) -> Result<Outcome, Failure> {
    let mut transaction = connection.begin().await?;
    // A large policy takes longer than a request may; nothing else waits for it
    // but the opening of periods.
    sqlx::query("set local statement_timeout = '60s'").execute(&mut *transaction).await?;
    sqlx::query("set local idle_in_transaction_session_timeout = '60s'").execute(&mut *transaction).await?;
    sqlx::query!("select version from policy_state for update").fetch_one(&mut *transaction).await?;
    let (before, known) = read(&mut transaction).await?;
    let after = match check(file, &known) {
        Ok(after) => after,
        Err(refused) => return Ok(Outcome::Refused(refused)),
    };
    let changes = compare(&before.policy, &after);
    if changes.is_empty() || dry_run {
        return Ok(Outcome::Applied(Applied { version: before.version, changes }));
    }
    let version = before.version + 1;
    write(&mut transaction, &before, &after).await?;
    sqlx::query_file!("src/ledger/limits.sql", actor, format!("policy version {version}"))
        .fetch_optional(&mut *transaction)
        .await?;
    let listed = json!(changes);
    sqlx::query!(
        "insert into policy_version (version, applied_at, actor, changes, source)
         values ($1, ledger_clock(), $2, $3, $4)",
        version,
        actor,
        listed,
        source
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!("update policy_state set version = $1", version).execute(&mut *transaction).await?;
    Said { action: "policy_applied", subject: &format!("policy version {version}"), detail: &listed }
        .write(&mut transaction, actor)
        .await?;
    transaction.commit().await?;
    Ok(Outcome::Applied(Applied { version, changes }))
}

/// The items that are new or differ.
fn differing<'a, T: PartialEq>(
    before: &'a BTreeMap<Name, T>,
    after: &'a BTreeMap<Name, T>,
) -> impl Iterator<Item = (&'a Name, &'a T)> {
    after.iter().filter(|(name, item)| before.get(*name) != Some(*item))
}

/// The names that are no longer there.
fn missing<T>(before: &BTreeMap<Name, T>, after: &BTreeMap<Name, T>) -> Vec<String> {
    before.keys().filter(|name| !after.contains_key(*name)).map(Name::to_string).collect()
}

/// Writes what differs. What is left out is retired, never deleted.
async fn write(connection: &mut PgConnection, before: &PolicyInForce, after: &Policy) -> Result<(), sqlx::Error> {
    let old = &before.policy;
    for (name, provider) in differing(&old.providers, &after.providers) {
        let keys: Vec<String> = provider.keys.iter().map(Name::to_string).collect();
        sqlx::query!(
            "insert into provider (name, unit, enforcement, keys) values ($1, $2, $3, $4)
             on conflict (name) do update
             set unit = excluded.unit, enforcement = excluded.enforcement, keys = excluded.keys, retired_at = null",
            name.as_str(),
            provider.unit.as_str(),
            provider.enforcement.as_str(),
            &keys
        )
        .execute(&mut *connection)
        .await?;
    }
    for (name, operation) in differing(&old.operations, &after.operations) {
        let known = old.operations.get(name).map(|operation| &operation.pricing);
        write_operation(connection, name, operation, known).await?;
    }
    for (name, plan) in differing(&old.plans, &after.plans) {
        let unbounded: Vec<String> = plan.unbounded.iter().map(Name::to_string).collect();
        sqlx::query!(
            "insert into plan (name, unbounded) values ($1, $2)
             on conflict (name) do update set unbounded = excluded.unbounded, retired_at = null",
            name.as_str(),
            &unbounded
        )
        .execute(&mut *connection)
        .await?;
        let none = BTreeMap::new();
        let budgets = old.plans.get(name).map_or(&none, |plan| &plan.budgets);
        for (budget, definition) in differing(budgets, &plan.budgets) {
            write_budget(connection, name, budget, definition).await?;
        }
        sqlx::query!(
            "update budget set retired_at = ledger_clock()
             where plan = $1 and name = any ($2) and retired_at is null",
            name.as_str(),
            &missing(budgets, &plan.budgets)
        )
        .execute(&mut *connection)
        .await?;
    }
    write_accounts(connection, differing(&old.accounts, &after.accounts)).await?;
    for (name, pool) in differing(&old.pools, &after.pools) {
        write_pool(connection, name, pool).await?;
    }
    retire(connection, old, after).await
}

/// An operation whose pricing changed gets a new revision; the old ones stay,
/// because what was estimated by them is settled by them.
async fn write_operation(
    connection: &mut PgConnection,
    name: &Name,
    operation: &Operation,
    known: Option<&Pricing>,
) -> Result<(), sqlx::Error> {
    let revision = sqlx::query_scalar!(
        r#"insert into operation (name, provider, revision, max_units, mode) values ($1, $2, 1, $3, $4)
           on conflict (name) do update
           set provider = excluded.provider, max_units = excluded.max_units, mode = excluded.mode,
               retired_at = null, revision = operation.revision + case when $5 then 0 else 1 end
           returning revision"#,
        name.as_str(),
        operation.provider.as_str(),
        operation.max_units.get(),
        operation.mode.as_str(),
        known == Some(&operation.pricing)
    )
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query!(
        "insert into operation_revision (operation, revision, pricing, defined_at)
         values ($1, $2, $3, ledger_clock())
         on conflict do nothing",
        name.as_str(),
        revision,
        json!(operation.pricing)
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_budget(
    connection: &mut PgConnection,
    plan: &Name,
    name: &Name,
    budget: &Budget,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into budget (plan, name, unit, limit_units, period, timezone, rollover, mode, per_member,
                             provider, operation)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
         on conflict (plan, name) do update
         set unit = excluded.unit, limit_units = excluded.limit_units, period = excluded.period,
             timezone = excluded.timezone, rollover = excluded.rollover, mode = excluded.mode,
             per_member = excluded.per_member, provider = excluded.provider, operation = excluded.operation,
             retired_at = null",
        plan.as_str(),
        name.as_str(),
        budget.unit.as_str(),
        budget.limit.get(),
        budget.calendar.kind.as_str(),
        budget.calendar.zone_name(),
        budget.rollover.as_str(),
        budget.mode.as_str(),
        budget.per_member,
        budget.scope.provider.as_ref().map(Name::as_str),
        budget.scope.operation.as_ref().map(Name::as_str)
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_pool(connection: &mut PgConnection, name: &Name, pool: &Budget) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into pool (name, unit, limit_units, period, timezone, rollover, mode,
                           provider, provider_key, operation)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         on conflict (name) do update
         set unit = excluded.unit, limit_units = excluded.limit_units, period = excluded.period,
             timezone = excluded.timezone, rollover = excluded.rollover, mode = excluded.mode,
             provider = excluded.provider, provider_key = excluded.provider_key, operation = excluded.operation,
             retired_at = null",
        name.as_str(),
        pool.unit.as_str(),
        pool.limit.get(),
        pool.calendar.kind.as_str(),
        pool.calendar.zone_name(),
        pool.rollover.as_str(),
        pool.mode.as_str(),
        pool.scope.provider.as_ref().map(Name::as_str),
        pool.scope.provider_key.as_ref().map(Name::as_str),
        pool.scope.operation.as_ref().map(Name::as_str)
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Accounts are many: all of them in one statement.
async fn write_accounts(
    connection: &mut PgConnection,
    accounts: impl Iterator<Item = (&Name, &Account)>,
) -> Result<(), sqlx::Error> {
    let (mut names, mut plans, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    for (name, account) in accounts {
        names.push(name.to_string());
        plans.push(account.plan.to_string());
        limits.push(json!(account.limits));
    }
    sqlx::query!(
        "insert into account (name, plan, limits)
         select * from unnest($1::text[], $2::text[], $3::jsonb[])
         on conflict (name) do update set plan = excluded.plan, limits = excluded.limits, retired_at = null",
        &names,
        &plans,
        &limits
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn retire(connection: &mut PgConnection, old: &Policy, after: &Policy) -> Result<(), sqlx::Error> {
    let plans = missing(&old.plans, &after.plans);
    sqlx::query!(
        "with retired as (update plan set retired_at = ledger_clock() where name = any ($1) and retired_at is null)
         update budget set retired_at = ledger_clock() where plan = any ($1) and retired_at is null",
        &plans
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "with providers as (
             update provider set retired_at = ledger_clock() where name = any ($1) and retired_at is null),
         operations as (
             update operation set retired_at = ledger_clock() where name = any ($2) and retired_at is null),
         accounts as (
             update account set retired_at = ledger_clock() where name = any ($3) and retired_at is null)
         update pool set retired_at = ledger_clock() where name = any ($4) and retired_at is null",
        &missing(&old.providers, &after.providers),
        &missing(&old.operations, &after.operations),
        &missing(&old.accounts, &after.accounts),
        &missing(&old.pools, &after.pools)
    )
    .execute(connection)
    .await?;
    Ok(())
}
