//! The statements of the busy path as the program sends them, but without anything
//! around them: on one connection, in groups that are made ready before. What
//! combining requests can come to at best; the benchmark measures against it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::group::Grouped;
use super::reserve::{Item, Reserve};
use super::settle::{Settle, Settlement, Usage};
use super::{Context, Error, Ledger};
use crate::model::Units;

impl Ledger {
    /// Reserves all of these by one statement, then settles all of them at `used` by
    /// another. Answers how long each statement took.
    ///
    /// # Errors
    ///
    /// Not all of them were admitted and settled; or the world.
    pub async fn bare_cycle(
        &self,
        context: &Context,
        connection: &mut PgConnection,
        reserves: &[Reserve],
        used: Units,
    ) -> Result<[Duration; 2], Error> {
        let policy = self.policy();
        let mut items = Vec::with_capacity(reserves.len());
        for reserve in reserves {
            let estimate = policy.policy.estimate(&reserve.account, &reserve.request)?;
            items.push(Arc::new(Item::new(context, reserve, &policy, &estimate)?));
        }
        let begun = Instant::now();
        let verdicts = Item::send(connection, &items).await?;
        let reserving = begun.elapsed();
        if let Some(verdict) = verdicts.iter().find(|verdict| verdict.outcome != "admitted") {
            return Err(Error::Unexpected(format!("a ready-made request came out as {}", verdict.outcome)));
        }
        let settlements: Vec<_> = items
            .iter()
            .map(|item| {
                let settle = Settle {
                    account: item.account().clone(),
                    id: item.admission().id,
                    attempt: item.admission().token.clone(),
                    usage: Some(Usage::Units(used)),
                    r#final: true,
                    provider_request_id: None,
                };
                Arc::new(Settlement::new(context, &settle, Some(used)))
            })
            .collect();
        let begun = Instant::now();
        let verdicts = Settlement::send(connection, &settlements).await?;
        let settling = begun.elapsed();
        match verdicts.iter().find(|verdict| verdict.outcome != "settled") {
            None => Ok([reserving, settling]),
            Some(verdict) => Err(Error::Unexpected(format!("a settlement came out as {}", verdict.outcome))),
        }
    }
}
