//! What this process remembers of what never changes: who a worker's key stands
//! for, whose a reservation is, and the revision of the cost map that it was estimated
//! by (revisions are only ever added). Nothing that can become stale: whether the key
//! is still valid is for the deciding statement to see, and of a reservation neither
//! state nor amounts are here.

use std::sync::Arc;

use quick_cache::sync::Cache;
use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::keys::Credential;
use super::{Context, Error, Ledger};
use crate::model::policy::Pricing;
use crate::model::reservation::Record;
use crate::model::role::Accounts;
use crate::model::{Name, Refusal};

/// How many keys, reservations and cost maps are remembered. What is remembered no
/// more is asked for again.
const KEYS: usize = 4_096;
const RESERVATIONS: usize = 32_768;
const PRICINGS: usize = 1_024;

/// What is remembered, bounded.
pub(super) struct Known {
    /// Workers, by the hash of their secret.
    pub keys: Cache<[u8; 32], Credential>,
    reservations: Cache<Uuid, Arc<Identity>>,
    /// By operation and revision.
    pricings: Cache<(Name, i32), Arc<Pricing>>,
}

impl Default for Known {
    fn default() -> Self {
        Self { keys: Cache::new(KEYS), reservations: Cache::new(RESERVATIONS), pricings: Cache::new(PRICINGS) }
    }
}

/// What never changes of a reservation.
struct Identity {
    account: Name,
    operation: Name,
    revision: i32,
}

impl Ledger {
    /// Remembers a reservation that this process has just made.
    pub(super) fn remember(&self, record: &Record) {
        let (account, operation) = (record.account.clone(), record.operation.clone());
        let identity = Identity { account, operation, revision: record.operation_revision };
        self.known.reservations.insert(record.id, Arc::new(identity));
    }

    /// The account of a reservation, for a credential of several accounts: all
    /// that follows names the account.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a reservation of another account; or the world.
    pub async fn account_of(&self, context: &Context, accounts: &Accounts, id: Uuid) -> Result<Name, Error> {
        if let Some(account) = accounts.only() {
            return Ok(account.clone());
        }
        match self.identity(context, id).await? {
            Some(known) if accounts.include(&known.account) => Ok(known.account.clone()),
            _ => {
                self.still_valid(context).await?;
                Err(Refusal::NotFound("reservation").into())
            }
        }
    }

    /// The pricing that a reservation's estimate was made by.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the world.
    pub(super) async fn pricing_of(&self, context: &Context, account: &Name, id: Uuid) -> Result<Arc<Pricing>, Error> {
        let Some(known) = self.identity(context, id).await?.filter(|known| known.account == *account) else {
            self.still_valid(context).await?;
            return Err(Refusal::NotFound("reservation").into());
        };
        let key = (known.operation.clone(), known.revision);
        if let Some(pricing) = self.known.pricings.get(&key) {
            return Ok(pricing);
        }
        let stored = run!(self.database, context, |connection| {
            sqlx::query_scalar!(
                r#"select o.pricing as "pricing!: Json<Pricing>"
                   from operation_revision o
                   where o.operation = $1 and o.revision = $2"#,
                key.0.as_str(),
                key.1
            )
            .fetch_one(&mut *connection)
            .await
        })?;
        let pricing = Arc::new(stored.0);
        self.known.pricings.insert(key, Arc::clone(&pricing));
        Ok(pricing)
    }

    async fn identity(&self, context: &Context, id: Uuid) -> Result<Option<Arc<Identity>>, Error> {
        if let Some(known) = self.known.reservations.get(&id) {
            return Ok(Some(known));
        }
        let found = run!(self.database, context, |connection| {
            sqlx::query!("select account, operation, operation_revision from reservation where id = $1", id)
                .fetch_optional(&mut *connection)
                .await
        })?;
        let Some(found) = found else { return Ok(None) };
        let name = |text: String| text.parse().map_err(|error| Error::Unexpected(format!("a stored name {error}")));
        let (account, operation) = (name(found.account)?, name(found.operation)?);
        let identity = Arc::new(Identity { account, operation, revision: found.operation_revision });
        self.known.reservations.insert(id, Arc::clone(&identity));
        Ok(Some(identity))
    }
}
