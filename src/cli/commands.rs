//! The commands that do one thing on the database and end.

use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use super::{Failure, KeyArgs};
use crate::boot::{Home, Place};
use crate::ledger::keys::NewKey;
use crate::ledger::{Context, Database, DatabaseOptions, Error, Ledger, schema, verify};
use crate::model::Refusal;
use crate::telemetry::Metrics;

/// Who is written down as having acted.
pub(super) const ACTOR: &str = "cli";

/// How many keys are read at a time.
const PAGE: i64 = 500;

pub(super) async fn migrate(place: &Place) -> Result<(), Failure> {
    // A private Postgres is brought up to date by being opened.
    let home = Home::for_migration(place).await?;
    let applied = schema::migrate(&home.owner_url).await?;
    let version = schema::newest_version();
    match applied.as_slice() {
        [] => println!("the schema is at version {version}"),
        applied => println!("the schema is at version {version}; applied {applied:?}"),
    }
    home.close().await?;
    Ok(())
}

pub(super) async fn apply(place: &Place, file: &Path, dry_run: bool) -> Result<(), Failure> {
    let source = read_policy(file)?;
    let (home, ledger) = open(place).await?;
    let applied = ledger.apply_policy(&Context::system(ACTOR), &source, dry_run).await;
    ledger.close().await;
    home.close().await?;
    let applied = applied.map_err(|error| policy_failure(file, &error))?;
    for change in &applied.changes {
        println!("{change}");
    }
    match (applied.changes.len(), dry_run) {
        (0, _) => println!("nothing to change; version {} stays in force", applied.version),
        (_, true) => println!("dry run: nothing was changed; version {} stays in force", applied.version),
        (_, false) => println!("version {} is in force", applied.version),
    }
    Ok(())
}

/// The text of a policy file. An empty one is taken for a mistake: what retires
/// everything is `{}`.
pub(super) fn read_policy(file: &Path) -> Result<String, Failure> {
    let source = std::fs::read_to_string(file)
        .map_err(|error| Failure::Failed(format!("{} cannot be read: {error}", file.display())))?;
    if source.trim().is_empty() {
        let message = format!("{} is empty: a policy that retires everything is `{{}}`", file.display());
        return Err(Failure::Failed(message));
    }
    Ok(source)
}

/// A refused policy, one fault a line.
pub(super) fn policy_failure(file: &Path, error: &Error) -> Failure {
    match error {
        Error::Refused(Refusal::Invalid(faults)) => {
            let lines: Vec<String> = faults
                .iter()
                .map(|fault| match fault.field.as_str() {
                    "" => format!("  {}", fault.message),
                    field => format!("  {field}: {}", fault.message),
                })
                .collect();
            Failure::Failed(format!("{} is refused:\n{}", file.display(), lines.join("\n")))
        }
        other => Failure::Failed(other.to_string()),
    }
}

pub(super) async fn create_key(args: KeyArgs) -> Result<(), Failure> {
    let accounts = (!args.accounts.is_empty()).then_some(args.accounts);
    let new = NewKey::new(args.name, args.role, accounts, args.all_accounts, args.expires)
        .map_err(|fault| Failure::Usage(format!("{} (--account NAME, or --all-accounts)", fault.message)))?;
    let (home, ledger) = open(&args.database.place()).await?;
    let made = ledger.create_key(&Context::system(ACTOR), &new).await;
    ledger.close().await;
    home.close().await?;
    let (key, secret) = made.map_err(|error| match error {
        Error::Refused(Refusal::Invalid(faults)) => {
            let lines: Vec<String> = faults.iter().map(|fault| format!("{} {}", fault.field, fault.message)).collect();
            Failure::Usage(lines.join("; "))
        }
        other => other.into(),
    })?;
    eprintln!("key {} ({}): it is shown this once", key.id, key.role.as_str());
    println!("{secret}");
    Ok(())
}

pub(super) async fn list_keys(place: &Place) -> Result<(), Failure> {
    let (home, ledger) = open(place).await?;
    println!("{:<36}  {:<8}  {:<20}  {:<20}  {:<9}  NAME", "ID", "ROLE", "ACCOUNTS", "CREATED", "STATE");
    let listed = print_keys(&ledger).await;
    ledger.close().await;
    home.close().await?;
    listed
}

async fn print_keys(ledger: &Ledger) -> Result<(), Failure> {
    let context = Context::system(ACTOR);
    let mut before = None;
    loop {
        let keys = ledger.keys(&context, before, PAGE).await?;
        for key in &keys {
            let accounts = key.accounts.as_ref().map_or_else(|| "all".to_owned(), |names| names.join(","));
            let state = match (key.revoked_at, key.expires_at) {
                (Some(_), _) => "revoked",
                (None, Some(expiry)) if expiry <= chrono::Utc::now() => "expired",
                _ => "valid",
            };
            let name = key.name.as_deref().unwrap_or("-");
            let created = key.created_at.format("%Y-%m-%dT%H:%M:%SZ");
            println!("{}  {:<8}  {accounts:<20}  {created}  {state:<9}  {name}", key.id, key.role.as_str());
        }
        match keys.last() {
            Some(last) if keys.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX) => before = Some(last.id),
            _ => return Ok(()),
        }
    }
}

pub(super) async fn revoke_key(place: &Place, id: Uuid) -> Result<(), Failure> {
    let (home, ledger) = open(place).await?;
    let revoked = ledger.revoke_key(&Context::system(ACTOR), id).await;
    ledger.close().await;
    home.close().await?;
    revoked?;
    eprintln!("key {id} is revoked");
    Ok(())
}

pub(super) async fn verify(place: &Place) -> Result<(), Failure> {
    let home = Home::for_command(place).await?;
    let verified = async {
        schema::expect_known(&home.owner_url).await?;
        let verified = verify::verify(&home.owner_url, |difference| println!("{difference}")).await?;
        Ok::<_, Failure>(verified)
    }
    .await;
    home.close().await?;
    let verified = verified?;
    let looked_at = format!(
        "{} budget periods, {} journal entries, {} reservations; started from {} checkpoints",
        verified.periods, verified.entries, verified.reservations, verified.checkpoints
    );
    if verified.differences > 0 {
        return Err(Failure::Failed(format!("{} differences in {looked_at}", verified.differences)));
    }
    println!("the books hold: {looked_at}");
    Ok(())
}

/// A ledger for a command.
pub(super) async fn open(place: &Place) -> Result<(Home, Ledger), Failure> {
    let home = Home::for_command(place).await?;
    let metrics: Arc<Metrics> = Metrics::new();
    let mut options = DatabaseOptions::new(&home.service_url);
    options.max_connections = 2;
    let database = Database::connect_lazily(&options, Arc::clone(&metrics))?;
    let ledger = Ledger::open(database, metrics).await?;
    Ok((home, ledger))
}
