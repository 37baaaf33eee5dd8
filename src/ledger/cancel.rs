//! Cancel: no more may be spent, and everything stays charged until it is proven
//! harmless.

use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::verdict::{Seen, Target, Verdict};
use super::{Context, Error, Ledger};
use crate::model::Name;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};

/// A request to cancel.
#[derive(Debug, Clone)]
pub struct Cancel {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// Why, if there is something to say.
    pub reason: Option<String>,
}

impl Ledger {
    /// Moves everything unsettled of an active reservation to liability and lets
    /// no more calls and extensions through. It releases nothing. What is not
    /// active any more stays as it is, so a second cancel changes nothing.
    ///
    /// # Errors
    ///
    /// `NotFound`, or the world.
    pub async fn cancel(&self, context: &Context, cancel: &Cancel) -> Result<Reservation, Error> {
        let sent = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/cancel.sql",
                &[cancel.account.to_string()],
                &[cancel.id],
                std::slice::from_ref(&cancel.reason) as &[Option<String>],
                std::slice::from_ref(&context.actor),
            )
            .fetch_optional(&mut *connection)
            .await
        });
        let concluded =
            self.conclude(context, Target { account: &cancel.account, id: cancel.id, token: None }, sent).await?;
        match concluded.outcome.as_str() {
            "cancelled" | "unchanged" => Ok(concluded.reservation),
            _ => Err(concluded.unexpected("a cancel")),
        }
    }
}
