//! API keys: made, listed, revoked, and recognised. Only a hash is stored. A
//! revocation works at once: every request asks the database, or has its key looked
//! at by the statement that decides it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::attempts::random;
use super::audit::Said;
use super::database::{run, run_once};
use super::{Context, Error, Ledger};
use crate::model::refusal::FieldFault;
use crate::model::role::{Accounts, Role};
use crate::model::{Name, Refusal};

/// What every key begins with, so that a leaked one is recognised.
const PREFIX: &str = "sl_";

/// Who a valid key stands for.
#[derive(Debug, Clone)]
pub struct Credential {
    /// The key's id.
    pub id: Uuid,
    /// What it may do.
    pub role: Role,
    /// For which accounts; operators and finance see all.
    pub accounts: Accounts,
}

/// A key to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// A person's name for it.
    pub name: Option<String>,
    /// What it may do.
    pub role: Role,
    /// For which accounts.
    pub accounts: Accounts,
    /// From when on it is refused.
    pub expires_at: Option<DateTime<Utc>>,
}

/// The longest name of a key, in characters.
const MAX_NAME: usize = 255;

impl NewKey {
    /// A key as it may be made: a worker's is bound to the accounts that are named,
    /// or to all of them if that is said; the others are bound to none.
    ///
    /// # Errors
    ///
    /// The field that is not as it must be.
    pub fn new(
        name: Option<String>,
        role: Role,
        accounts: Option<Vec<Name>>,
        all_accounts: bool,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<Self, FieldFault> {
        let accounts = match (role, accounts, all_accounts) {
            (Role::Worker, Some(names), false) if !names.is_empty() => Accounts::These(names),
            (Role::Worker, None, true) => Accounts::All,
            (Role::Worker, _, _) => {
                let message = "a worker's key is for at least one account that is named, or for all accounts, not both";
                return Err(FieldFault::new("accounts", message));
            }
            (_, None, false) => Accounts::All,
            _ => return Err(FieldFault::new("accounts", "only workers' keys are bound to accounts")),
        };
        if name.as_ref().is_some_and(|name| name.chars().count() > MAX_NAME || name.chars().any(char::is_control)) {
            let message = format!("must be at most {MAX_NAME} characters, none of them control characters");
            return Err(FieldFault::new("name", message));
        }
        Ok(Self { name, role, accounts, expires_at })
    }
}

/// A key as it is listed: everything but the secret.
#[derive(Debug, Clone)]
pub struct Key {
    /// Its id.
    pub id: Uuid,
    /// A person's name for it.
    pub name: Option<String>,
    /// What it may do.
    pub role: Role,
    /// For which accounts; none means all.
    pub accounts: Option<Vec<String>>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// By whom.
    pub created_by: String,
    /// From when on it is refused.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl Ledger {
    /// Who this key stands for, as far as can be told without asking the database
    /// again: what a key stands for never changes, but it may have been revoked.
    /// Only for what ends in a statement that looks at the context's `key`.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn recognise(&self, context: &Context, secret: &str) -> Result<Option<Credential>, Error> {
        let hash = hash(secret);
        if let Some(credential) = self.known.keys.get(&hash) {
            return Ok(Some(credential));
        }
        let credential = self.authenticate(context, secret).await?;
        if let Some(credential) = &credential
            && credential.role == Role::Worker
        {
            self.known.keys.insert(hash, credential.clone());
        }
        Ok(credential)
    }

    /// Whether the context's key is valid at this moment, before an answer that no
    /// deciding statement has been asked for.
    pub(super) async fn still_valid(&self, context: &Context) -> Result<(), Error> {
        let Some(key) = context.key else { return Ok(()) };
        let void = run!(self.database, context, |connection| {
            sqlx::query_scalar!("select void_keys($1)", &[key]).fetch_optional(&mut *connection).await
        })?;
        if void.is_some() { Err(self.unauthenticated(context)) } else { Ok(()) }
    }

    /// Forgets the key of this context, which is not valid any more.
    pub(super) fn unauthenticated(&self, context: &Context) -> Error {
        self.known.keys.retain(|_, credential| Some(credential.id) != context.key);
        Error::Unauthenticated
    }

    /// Who this key stands for, if it is valid at this moment.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn authenticate(&self, context: &Context, secret: &str) -> Result<Option<Credential>, Error> {
        if !secret.starts_with(PREFIX) {
            return Ok(None);
        }
        let hash = hash(secret).to_vec();
        let row = run!(self.database, context, |connection| {
            sqlx::query!(
                "select id, role, accounts
                 from api_key
                 where key_hash = $1 and revoked_at is null and (expires_at is null or expires_at > ledger_clock())",
                hash
            )
            .fetch_optional(&mut *connection)
            .await
        })?;
        row.map(|row| {
            Ok(Credential {
                id: row.id,
                role: row.role.parse().map_err(Error::Unexpected)?,
                accounts: accounts(row.accounts)?,
            })
        })
        .transpose()
    }

    /// Makes a key. The secret is in the answer and nowhere else.
    ///
    /// # Errors
    ///
    /// A worker's key that names an account the policy does not have; or the
    /// world.
    pub async fn create_key(&self, context: &Context, new: &NewKey) -> Result<(Key, String), Error> {
        let names = match &new.accounts {
            Accounts::All => None,
            Accounts::These(names) => Some(names.iter().map(Name::to_string).collect::<Vec<_>>()),
        };
        let secret = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<32>()?));
        let hash = hash(&secret).to_vec();
        let id = Uuid::now_v7();
        // Made again, the first one would be left over, known to nobody.
        let created_at = run_once!(self.database, context, |connection| {
            use sqlx::Connection as _;
            let mut transaction = connection.begin().await?;
            let unknown = sqlx::query_scalar!(
                r#"select wanted as "wanted!" from unnest($1::text[]) wanted
                       where not exists (select from account a where a.name = wanted and a.retired_at is null)
                       limit 1"#,
                names.as_deref().unwrap_or_default()
            )
            .fetch_optional(&mut *transaction)
            .await?;
            if let Some(unknown) = unknown {
                return Ok(Err(Refusal::UnknownAccount(unknown)));
            }
            let created_at = sqlx::query_scalar!(
                "insert into api_key (id, name, role, accounts, key_hash, created_at, created_by, expires_at)
                 select $1, $2, $3, $4, $5, ledger_clock(), $6, $7
                 where $7::timestamptz is null or $7 > (select ledger_clock())
                 returning created_at",
                id,
                new.name,
                new.role.as_str(),
                names.as_deref(),
                hash,
                context.actor,
                new.expires_at
            )
            .fetch_optional(&mut *transaction)
            .await?;
            let Some(created_at) = created_at else {
                return Ok(Err(Refusal::invalid("expires_at", "is in the past: the key would be good for nothing")));
            };
            let detail = serde_json::json!({
                "name": new.name, "role": new.role, "accounts": names, "expires_at": new.expires_at,
            });
            Said { action: "key_created", subject: &id.to_string(), detail: &detail }
                .write(&mut transaction, &context.actor)
                .await?;
            transaction.commit().await?;
            Ok(Ok(created_at))
        })??;
        let key = Key {
            id,
            name: new.name.clone(),
            role: new.role,
            accounts: names.clone(),
            created_at,
            created_by: context.actor.clone(),
            expires_at: new.expires_at,
            revoked_at: None,
        };
        Ok((key, secret))
    }

    /// The keys, newest first, from before this one.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn keys(&self, context: &Context, before: Option<Uuid>, limit: i64) -> Result<Vec<Key>, Error> {
        let rows = run!(self.database, context, |connection| {
            sqlx::query!(
                "select id, name, role, accounts, created_at, created_by, expires_at, revoked_at
                 from api_key
                 where $1::uuid is null or id < $1
                 order by id desc
                 limit $2",
                before,
                limit
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        rows.into_iter()
            .map(|row| {
                Ok(Key {
                    id: row.id,
                    name: row.name,
                    role: row.role.parse().map_err(Error::Unexpected)?,
                    accounts: row.accounts,
                    created_at: row.created_at,
                    created_by: row.created_by,
                    expires_at: row.expires_at,
                    revoked_at: row.revoked_at,
                })
            })
            .collect()
    }

    /// Revokes a key, at once and for good. Revoking it again changes nothing.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the world.
    pub async fn revoke_key(&self, context: &Context, id: Uuid) -> Result<(), Error> {
        let known = run!(self.database, context, |connection| {
            use sqlx::Connection as _;
            let mut transaction = connection.begin().await?;
            let known = sqlx::query_scalar!(
                r#"select revoked_at is not null as "revoked!" from api_key where id = $1 for no key update"#,
                id
            )
            .fetch_optional(&mut *transaction)
            .await?;
            if known == Some(false) {
                sqlx::query!("update api_key set revoked_at = ledger_clock() where id = $1", id)
                    .execute(&mut *transaction)
                    .await?;
                Said { action: "key_revoked", subject: &id.to_string(), detail: &serde_json::json!({}) }
                    .write(&mut transaction, &context.actor)
                    .await?;
            }
            transaction.commit().await?;
            Ok(known.is_some())
        })?;
        if known { Ok(()) } else { Err(Refusal::NotFound("key").into()) }
    }
}

fn accounts(stored: Option<Vec<String>>) -> Result<Accounts, Error> {
    let Some(stored) = stored else { return Ok(Accounts::All) };
    let names = stored.iter().map(|name| name.parse()).collect::<Result<Vec<Name>, _>>();
    names.map(Accounts::These).map_err(|error| Error::Unexpected(format!("a key's account {error}")))
}
