//! Close: finance settles what nobody else will, or can.

use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::verdict::{Seen, Target, Verdict};
use super::{Context, Error, Ledger};
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Units};

/// A settlement by finance.
#[derive(Debug, Clone)]
pub struct Close {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The actual usage of the whole reservation.
    pub units: Units,
    /// Why. It shows in the journal, the history and the audit log.
    pub reason: String,
}

impl Ledger {
    /// Settles a reservation at this amount, whatever is outstanding: the audited
    /// way to end anything. Usage that arrives later is kept as late usage. The
    /// same again changes nothing.
    ///
    /// # Errors
    ///
    /// `AlreadySettled` at another amount, `UsageDecreases` below what is settled
    /// already, `NotActive` of a job that never started, an amount beyond the range
    /// of the columns, or the world.
    pub async fn close_reservation(&self, context: &Context, close: &Close) -> Result<Reservation, Error> {
        let sent = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/close.sql",
                &[close.account.to_string()],
                &[close.id],
                &[close.units.get()],
                std::slice::from_ref(&close.reason),
                std::slice::from_ref(&context.actor),
                &[Uuid::now_v7()],
            )
            .fetch_optional(&mut *connection)
            .await
        });
        let concluded =
            self.conclude(context, Target { account: &close.account, id: close.id, token: None }, sent).await?;
        match (concluded.outcome.as_str(), concluded.refusal()) {
            ("closed" | "repeated", _) => Ok(concluded.reservation),
            (_, Some(refusal)) => Err(self.refuse_on(concluded.reservation, refusal)),
            (_, None) => Err(concluded.unexpected("a closing")),
        }
    }
}
