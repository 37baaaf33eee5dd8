//! Renew: the holder of the current attempt is still there.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use super::group::{Grouped, Subject, column};
use super::verdict::{Seen, Target, Verdict};
use super::{By, Context, Error, Ledger};
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

/// A renewal as the statement takes it.
pub(super) struct Renewal {
    renew: Renew,
    by: By,
}

impl Grouped for Renewal {
    type Verdict = Verdict;
    const VERB: &'static str = "renew";

    fn account(&self) -> &Name {
        &self.renew.account
    }

    fn subject(&self) -> Subject {
        Subject::Reservation(self.renew.account.clone(), self.renew.id)
    }

    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, sqlx::Error>> {
        Box::pin(async move {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/renew.sql",
                &column(items, |item| item.renew.account.to_string()),
                &column(items, |item| item.renew.id),
                &column(items, |item| item.renew.attempt.clone()),
                &column(items, |item| item.renew.lease_seconds),
                &column(items, |item| item.by.key) as &[Option<Uuid>],
            )
            .fetch_all(connection)
            .await
        })
    }
}

impl Ledger {
    /// Moves the end of the lease of an active reservation. The answer's state
    /// tells the holder of a cancel. No balance ever follows from a lease.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `NotFound`, or the world.
    pub async fn renew(&self, context: &Context, renew: &Renew) -> Result<Reservation, Error> {
        let renewal = Renewal { renew: renew.clone(), by: By::of(context) };
        let sent = self.groups.renew.decide(context, renewal).await;
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
