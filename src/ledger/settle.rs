//! Settle: replace a reservation by its actual usage, exactly once.

use std::collections::BTreeMap;

use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::verdict::{Seen, Target, Verdict};
use super::{Context, Error, Ledger};
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Refusal, Units};

/// A report of usage.
#[derive(Debug, Clone)]
pub struct Settle {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The token of the current attempt.
    pub attempt: String,
    /// What the attempt has used so far, cumulative. Left out, it is what its
    /// calls have been settled at, where the ledger admits calls.
    pub usage: Option<Usage>,
    /// Whether the job is done.
    pub r#final: bool,
    /// The provider's own name for the work.
    pub provider_request_id: Option<String>,
}

/// How usage is stated.
#[derive(Debug, Clone)]
pub enum Usage {
    /// In units.
    Units(Units),
    /// In quantities, to be priced by the cost map that the estimate was made
    /// by.
    Quantities(BTreeMap<Name, Units>),
}

impl Ledger {
    /// Records the attempt's actual usage. The same settlement again returns the
    /// same answer and changes nothing. With something still outstanding the
    /// reservation stays `fenced` until that is known. An amount that comes too
    /// late to be charged is kept as late usage.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `AlreadySettled` at another amount, `UsageDecreases`,
    /// `CallsInFlight`, `NotActive` of a job that never started, usage that is
    /// invalid or beyond the range of the columns, or the world.
    pub async fn settle(&self, context: &Context, settle: &Settle) -> Result<Reservation, Error> {
        let target = Target { account: &settle.account, id: settle.id, token: Some(&settle.attempt) };
        let units = match &settle.usage {
            Some(usage) => Some(self.actual_units(context, target, usage).await?),
            None => None,
        };
        let sent = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/settle.sql",
                &[settle.account.to_string()],
                &[settle.id],
                std::slice::from_ref(&settle.attempt),
                &[units.map(Units::get)] as &[Option<rust_decimal::Decimal>],
                &[settle.r#final],
                std::slice::from_ref(&settle.provider_request_id) as &[Option<String>],
                std::slice::from_ref(&context.actor),
                &[Uuid::now_v7()],
            )
            .fetch_optional(&mut *connection)
            .await
        });
        let concluded = self.conclude(context, target, sent).await?;
        let refusal = match concluded.outcome.as_str() {
            "settled" | "repeated" => return Ok(concluded.reservation),
            "units_missing" => {
                Refusal::invalid("units", "is missing: this provider's usage is reported by its workers")
            }
            "not_progressive" => {
                Refusal::invalid("final", "the provider's usage is reported by its calls, not progressively")
            }
            _ => match concluded.refusal() {
                Some(refusal) => refusal,
                None => return Err(concluded.unexpected("a settlement")),
            },
        };
        Err(self.refuse_on(concluded.reservation, refusal))
    }

    /// What usage comes to in units.
    ///
    /// # Errors
    ///
    /// Quantities that are not those of the operation, `NotFound`, or the world.
    pub(super) async fn actual_units(
        &self,
        context: &Context,
        target: Target<'_>,
        usage: &Usage,
    ) -> Result<Units, Error> {
        match usage {
            Usage::Units(units) => Ok(*units),
            Usage::Quantities(quantities) => {
                match self.pricing_of(context, target.account, target.id).await?.actual(quantities) {
                    Ok(units) => Ok(units),
                    Err(refusal) => Err(self.refuse(context, target, refusal).await),
                }
            }
        }
    }
}
