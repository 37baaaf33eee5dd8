//! Fence: release what an attempt that cannot spend more has not spent.

use chrono::TimeDelta;
use sqlx::postgres::types::PgInterval;
use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::verdict::{Seen, Target, Verdict, out_of_range_is_about};
use super::{Context, Error, Ledger};
use crate::model::evidence::Evidence;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Units};

/// A request to fence.
#[derive(Debug, Clone)]
pub struct Fence {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The attempt that it is about.
    pub attempt_number: i32,
    /// Why that attempt cannot spend more, where the ledger cannot stop it.
    pub evidence: Option<Evidence>,
    /// What it may have spent beyond what is settled, where the ledger does not
    /// know; everything that it had, if it is not stated.
    pub outstanding: Option<Units>,
    /// Only if it is active and its lease ran out at least so long ago.
    pub overdue_for: Option<TimeDelta>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub struct Fenced {
    /// The reservation as it is now.
    pub reservation: Reservation,
    /// How much became available.
    pub released: Units,
    /// Whether it was passed over: its holder has come back.
    pub not_overdue: bool,
}

impl Ledger {
    /// Releases what is neither settled nor outstanding. A later fence of the same
    /// attempt can only lower what it was said to have outstanding.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `EvidenceRequired`, an amount that the ledger computes
    /// itself, or the world.
    pub async fn fence(&self, context: &Context, fence: &Fence) -> Result<Fenced, Error> {
        let evidence = fence.evidence.as_ref().map(|evidence| serde_json::json!(evidence));
        let overdue_for = fence.overdue_for.map(interval).transpose()?;
        let sent = run!(self.database, context, |connection| {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/fence.sql",
                &[fence.account.to_string()],
                &[fence.id],
                &[fence.attempt_number],
                std::slice::from_ref(&evidence) as &[Option<serde_json::Value>],
                &[fence.outstanding.map(Units::get)] as &[Option<rust_decimal::Decimal>],
                std::slice::from_ref(&overdue_for) as &[Option<PgInterval>],
                std::slice::from_ref(&context.actor),
                &[Uuid::now_v7()],
            )
            .fetch_optional(&mut *connection)
            .await
        });
        let sent = out_of_range_is_about("outstanding", sent);
        let concluded =
            self.conclude(context, Target { account: &fence.account, id: fence.id, token: None }, sent).await?;
        let not_overdue = concluded.outcome == "not_overdue";
        match (concluded.outcome.as_str(), concluded.refusal()) {
            ("fenced" | "unchanged" | "not_overdue", _) => Ok(Fenced {
                released: concluded.seen.released.unwrap_or_default(),
                reservation: concluded.reservation,
                not_overdue,
            }),
            (_, Some(refusal)) => Err(self.refuse_on(concluded.reservation, refusal)),
            (_, None) => Err(concluded.unexpected("a fence")),
        }
    }
}

/// A span as the database takes it.
pub(super) fn interval(span: TimeDelta) -> Result<PgInterval, Error> {
    PgInterval::try_from(span).map_err(|error| Error::Unexpected(format!("{span} is no interval: {error}")))
}
