//! The record of refusals: written in batches beside the requests, never in
//! their way. A refusal costs the caller no write.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::database::run;
use super::{Context, Database, Error, Ledger};
use crate::model::refusal::Refusal;
use crate::model::{Name, Units};
use crate::telemetry::Metrics;

/// How many refusals may wait to be written. More are counted and dropped.
const QUEUE: usize = 10_000;
/// How many are written in one statement. No timer gathers them: what arrives
/// while one statement is in flight is the next batch.
const BATCH: usize = 500;
/// How long refusals are kept, in days.
const RETENTION_DAYS: i32 = 90;
/// How many are removed in one statement, and how many statements one sweep has.
const SWEEP_BATCH: i64 = 5_000;
const SWEEP_BATCHES: u32 = 1_000;
/// When those older than that are first removed, and how often then.
const FIRST_SWEEP: Duration = Duration::from_secs(60);
const SWEEP: Duration = Duration::from_secs(3600);

/// One refusal, or what an observing limit would have refused.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    id: Uuid,
    account: Option<String>,
    operation: String,
    code: &'static str,
    observed: bool,
    units: Option<Units>,
    detail: serde_json::Value,
}

impl Refused {
    pub(super) fn new(account: Option<&Name>, operation: &Name, refusal: &Refusal, observed: bool) -> Self {
        let (units, detail) = match refusal {
            Refusal::BudgetExhausted { breaches, .. } => {
                (breaches.first().map(|breach| breach.requested), json!({ "breaches": breaches }))
            }
            Refusal::TooExpensive { units, max_units, bound, .. } => {
                (Some(*units), json!({ "max_units": max_units, "bound": bound }))
            }
            Refusal::Invalid(faults) => (None, json!({ "errors": faults })),
            other => (None, json!({ "detail": other.to_string() })),
        };
        Self {
            id: Uuid::now_v7(),
            account: account.map(Name::to_string),
            operation: operation.to_string(),
            code: refusal.code(),
            observed,
            units,
            detail,
        }
    }

    /// The same, of a verb on this reservation.
    pub(super) fn of_reservation(mut self, id: Uuid) -> Self {
        self.detail["reservation"] = json!(id);
        self
    }
}

enum Message {
    Refused(Box<Refused>),
    Flush(oneshot::Sender<()>),
}

/// Where refusals are handed over. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

impl Recorder {
    /// Starts the task that writes.
    pub(super) fn start(database: Database, metrics: Arc<Metrics>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(write_all(database, waiting, Arc::clone(&metrics)));
        Self { queue, metrics }
    }

    /// Counts the refusal and hands it over to be written. Never waits.
    pub(super) fn record(&self, refused: Refused) {
        self.metrics.refused(refused.code, refused.observed);
        if self.queue.try_send(Message::Refused(Box::new(refused))).is_err() {
            self.metrics.refusal_not_recorded(1);
        }
    }

    /// Waits until what was handed over so far has been written, or could not
    /// be.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.queue.send(Message::Flush(done)).await.is_ok() {
            // An error means that the writer is gone, and nothing is waiting.
            let _ = written.await;
        }
    }
}

async fn write_all(database: Database, mut waiting: mpsc::Receiver<Message>, metrics: Arc<Metrics>) {
    // Not at once: a command that ends in a moment has no business to sweep.
    let mut sweep = tokio::time::interval_at(tokio::time::Instant::now() + FIRST_SWEEP, SWEEP);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut messages = Vec::new();
        tokio::select! {
            received = waiting.recv_many(&mut messages, BATCH) => {
                if received == 0 {
                    return;
                }
            }
            _ = sweep.tick() => {
                if let Err(error) = remove_old(&database).await {
                    tracing::warn!(%error, "old refusals were not removed");
                }
                continue;
            }
        }
        let mut flushes = Vec::new();
        let mut batch = Vec::new();
        for message in messages {
            match message {
                Message::Refused(refused) => batch.push(*refused),
                Message::Flush(done) => flushes.push(done),
            }
        }
        if !batch.is_empty()
            && let Err(error) = write(&database, &batch).await
        {
            metrics.refusal_not_recorded(batch.len());
            tracing::warn!(%error, refusals = batch.len(), "refusals were not recorded");
        }
        for done in flushes {
            // Whoever asked may have gone.
            let _ = done.send(());
        }
    }
}

async fn write(database: &Database, batch: &[Refused]) -> Result<(), Error> {
    let context = Context::system("refusals");
    let ids: Vec<Uuid> = batch.iter().map(|refused| refused.id).collect();
    let accounts: Vec<Option<String>> = batch.iter().map(|refused| refused.account.clone()).collect();
    let operations: Vec<String> = batch.iter().map(|refused| refused.operation.clone()).collect();
    let codes: Vec<String> = batch.iter().map(|refused| refused.code.to_owned()).collect();
    let observed: Vec<bool> = batch.iter().map(|refused| refused.observed).collect();
    let units: Vec<Option<rust_decimal::Decimal>> = batch.iter().map(|refused| refused.units.map(Units::get)).collect();
    let details: Vec<serde_json::Value> = batch.iter().map(|refused| refused.detail.clone()).collect();
    run!(database, &context, |connection| {
        sqlx::query!(
            "insert into refusal (id, at, account, operation, code, observed, units, detail)
             select r.id, ledger_clock(), r.account, r.operation, r.code, r.observed, r.units, r.detail
             from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::numeric[], $7::jsonb[])
                 as r (id, account, operation, code, observed, units, detail)
             on conflict (id) do nothing",
            &ids,
            &accounts as &[Option<String>],
            &operations,
            &codes,
            &observed,
            &units as &[Option<rust_decimal::Decimal>],
            &details
        )
        .execute(&mut *connection)
        .await?;
        Ok(())
    })
}

/// Removes what is older than the retention: whole months at once where that can be
/// done, and the rest a bounded number at a time, so that no sweep is too long for the
/// statement timeout. Answers how many rows are gone that were not in a whole month.
async fn remove_old(database: &Database) -> Result<u64, Error> {
    let dropped = run!(database, &Context::system("refusals"), |connection| {
        let query = sqlx::query_scalar::<_, i32>("select months from drop_refusals_older_than($1)");
        query.bind(RETENTION_DAYS).fetch_one(&mut *connection).await
    });
    match dropped {
        Ok(0) => {}
        Ok(months) => tracing::info!(months, "old months of refusals dropped"),
        Err(error) => {
            tracing::warn!(%error, "old months of refusals were not dropped: their rows are removed one by one");
        }
    }
    let mut removed = 0;
    for _ in 0..SWEEP_BATCHES {
        let gone = run!(database, &Context::system("refusals"), |connection| {
            let done = sqlx::query!(
                "delete from refusal
                     where id = any (array(
                         select r.id
                         from refusal r
                         where r.at < (select ledger_clock() - make_interval(days => $1))
                         order by r.at
                         limit $2))",
                RETENTION_DAYS,
                SWEEP_BATCH
            )
            .execute(&mut *connection)
            .await?;
            Ok(done.rows_affected())
        })?;
        removed += gone;
        if gone == 0 {
            break;
        }
    }
    Ok(removed)
}

impl Ledger {
    /// Removes the refusals that are older than 90 days. The service does it by
    /// itself once an hour. Answers how many are gone, apart from those that went with
    /// a whole month, which nobody counts.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn sweep_refusals(&self) -> Result<u64, Error> {
        remove_old(&self.database).await
    }
}
