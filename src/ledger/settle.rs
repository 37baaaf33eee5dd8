//! Settle: replace a reservation by its actual usage, exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rust_decimal::Decimal;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use super::group::{Grouped, Subject, column};
use super::verdict::{Seen, Target, Verdict};
use super::{By, Context, Error, Ledger};
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

/// A report as the statement takes it.
pub(super) struct Settlement {
    settle: Settle,
    units: Option<Units>,
    /// What it is kept as if it comes too late.
    late_id: Uuid,
    by: By,
}

impl Settlement {
    pub(super) fn new(context: &Context, settle: &Settle, units: Option<Units>) -> Self {
        Self { settle: settle.clone(), units, late_id: Uuid::now_v7(), by: By::of(context) }
    }
}

impl Grouped for Settlement {
    type Verdict = Verdict;
    const VERB: &'static str = "settle";

    fn account(&self) -> &Name {
        &self.settle.account
    }

    fn subject(&self) -> Subject {
        Subject::Reservation(self.settle.account.clone(), self.settle.id)
    }

    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, sqlx::Error>> {
        Box::pin(async move {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/settle.sql",
                &column(items, |item| item.settle.account.to_string()),
                &column(items, |item| item.settle.id),
                &column(items, |item| item.settle.attempt.clone()),
                &column(items, |item| item.units.map(Units::get)) as &[Option<Decimal>],
                &column(items, |item| item.settle.r#final),
                &column(items, |item| item.settle.provider_request_id.clone()) as &[Option<String>],
                &column(items, |item| item.by.actor.clone()),
                &column(items, |item| item.late_id),
                &column(items, |item| item.by.key) as &[Option<Uuid>],
            )
            .fetch_all(connection)
            .await
        })
    }
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
        let settlement = Settlement::new(context, settle, units);
        let sent = self.groups.settle.decide(context, settlement).await;
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
