//! Renew: the holder of the current attempt is still there.

use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::verdict::{Seen, Target, Verdict};
use super::{Context, Error, Ledger};
use crate::model::Name;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};

/// A request to renew a lease.
#[derive(Debug, Clone)]
pub struct Renew {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The token of the current attempt.
    pub attempt: String,
    /// When the lease ends, in seconds from now.
    pub lease_seconds: i32,
}

impl Ledger {
    /// Moves the end of the lease of an active reservation. The answer's state
    /// tells the holder of a cancel. No balance ever follows from a lease.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `NotFound`, or the world.
    pub async fn renew(&self, context: &Context, renew: &Renew) -> Result<Reservation, Error> {
        let sent = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/renew.sql",
                &[renew.account.to_string()],
                &[renew.id],
                std::slice::from_ref(&renew.attempt),
                &[renew.lease_seconds],
            )
            .fetch_optional(&mut *connection)
            .await
        });
        let concluded = self
            .conclude(context, Target { account: &renew.account, id: renew.id, token: Some(&renew.attempt) }, sent)
            .await?;
        match (concluded.outcome.as_str(), concluded.refusal()) {
            ("renewed", _) => Ok(concluded.reservation),
            (_, Some(refusal)) => Err(self.refuse_on(concluded.reservation, refusal)),
            (_, None) => Err(concluded.unexpected("a renewal")),
        }
    }
}
