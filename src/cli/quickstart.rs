//! Keys and curl lines for whoever tries the service out.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::commands::ACTOR;
use super::{DatabaseArgs, Failure};
use crate::ledger::keys::NewKey;
use crate::ledger::{Context, Ledger};
use crate::model::Name;
use crate::model::role::{Accounts, Role};

/// The account of the example policy.
const ACCOUNT: &str = "northstar";
const FILE: &str = "quickstart-keys";

/// Prints a key of each role and the calls to make. The keys are made at the
/// first start, kept in the data directory, readable by its owner only, and
/// found there by the next start.
pub(super) async fn print(ledger: &Ledger, address: SocketAddr, database: &DatabaseArgs) -> Result<(), Failure> {
    let roles = [Role::Operator, Role::Finance, Role::Worker];
    let file = database.data_dir.join(FILE);
    let keys = match stored(ledger, &file, &roles).await? {
        Some(keys) => keys,
        None => create(ledger, &file, &roles).await?,
    };
    let [operator, finance, worker] = keys.as_slice() else {
        return Err(Failure::Failed(format!("{} does not hold three keys", file.display())));
    };
    println!("{}", text(address, operator, finance, worker));
    Ok(())
}

/// The keys of an earlier start, if all of them are still valid.
async fn stored(ledger: &Ledger, file: &Path, roles: &[Role]) -> Result<Option<Vec<String>>, Failure> {
    let Ok(text) = std::fs::read_to_string(file) else { return Ok(None) };
    let keys: Vec<String> = text.lines().map(str::to_owned).collect();
    if keys.len() != roles.len() {
        return Ok(None);
    }
    for (key, role) in keys.iter().zip(roles) {
        match ledger.authenticate(&Context::system(ACTOR), key).await? {
            Some(credential) if credential.role == *role => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(keys))
}

async fn create(ledger: &Ledger, file: &PathBuf, roles: &[Role]) -> Result<Vec<String>, Failure> {
    let context = Context::system(ACTOR);
    let account: Name = ACCOUNT.parse()?;
    let mut keys = Vec::new();
    for role in roles {
        let accounts = match role {
            Role::Worker => Accounts::These(vec![account.clone()]),
            Role::Operator | Role::Finance => Accounts::All,
        };
        let new = NewKey { name: Some("quickstart".to_owned()), role: *role, accounts, expires_at: None };
        let (_, secret) = ledger.create_key(&context, &new).await?;
        keys.push(secret);
    }
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut kept = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    writeln!(kept, "{}", keys.join("\n"))?;
    Ok(keys)
}

fn text(address: SocketAddr, operator: &str, finance: &str, worker: &str) -> String {
    format!(
        r#"
spend-ledger is at http://{address}

  operator key   {operator}
  finance key    {finance}
  worker key     {worker}   (account {ACCOUNT})

Paste these into another shell, in this order:

# 1. reserve 36 transformations (3 formats x weight 12) for one job
R=$(curl -s http://{address}/v1/reservations -H 'Authorization: Bearer {worker}' -H 'Content-Type: application/json' -H "Idempotency-Key: job-$(date +%s)" -d '{{"operation":"export","quantities":{{"formats":3,"weight":12}},"holder":"w-1"}}'); echo "$R"
ID=$(echo "$R" | sed 's/.*"id":"\([^"]*\)".*/\1/'); ATTEMPT=$(echo "$R" | sed 's/.*"token":"\([^"]*\)".*/\1/')

# 2. raise its ceiling to 40 before it crosses 36
curl -s http://{address}/v1/reservations/$ID/extend -H 'Authorization: Bearer {worker}' -H 'Content-Type: application/json' -d "{{\"attempt\":\"$ATTEMPT\",\"ceiling\":\"40\"}}"; echo

# 3. settle what it used: 24; the other 16 come back
curl -s http://{address}/v1/reservations/$ID/settle -H 'Authorization: Bearer {worker}' -H 'Content-Type: application/json' -d "{{\"attempt\":\"$ATTEMPT\",\"units\":\"24\"}}"; echo

# 4. look at it, with its history
curl -s "http://{address}/v1/reservations/$ID?events=true" -H 'Authorization: Bearer {finance}'; echo

# 5. the account's budgets
curl -s http://{address}/v1/accounts/{ACCOUNT}/budgets -H 'Authorization: Bearer {worker}'; echo
"#
    )
}
