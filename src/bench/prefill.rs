//! A database with history: settled reservations, put there by SQL, as the service
//! would have left them.

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::BenchError;
use super::workload::HOT;

/// Reservations in one statement: constant memory, and a transaction that is not
/// felt by the disk for long.
const CHUNK: u64 = 20_000;

/// Puts so many settled reservations of the hot account into a database whose hot
/// account has been used and is at rest. `told` is told how many there are so far.
pub(super) async fn prefill(url: &str, wanted: u64, mut told: impl FnMut(u64)) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    // Only while this session fills it, and before anything is measured: what is
    // written is on disk before the first request, by the checkpoint that follows.
    connection.execute("set synchronous_commit = off").await?;
    connection.execute("set statement_timeout = 0").await?;
    connection.execute("set jit = off").await?;
    connection.execute("set work_mem = '64MB'").await?;
    let began = std::time::Instant::now();
    let mut there = 0;
    while there < wanted {
        let upto = wanted.min(there + CHUNK);
        let periods = sqlx::query(include_str!("prefill.sql"))
            .bind(i64::try_from(there + 1).unwrap_or(i64::MAX))
            .bind(i64::try_from(upto).unwrap_or(i64::MAX))
            .bind(HOT)
            .execute(&mut connection)
            .await?
            .rows_affected();
        if periods == 0 {
            return Err(BenchError::Load("there is no settled reservation to model the others on".to_owned()));
        }
        there = upto;
        told(there);
    }
    tracing::debug!(reservations = wanted, elapsed = ?began.elapsed(), "history put there");
    // As a database that has been in use for a while: statistics, and no page that
    // the first reader has to tidy up.
    connection.execute("vacuum (analyze)").await?;
    connection.close().await?;
    Ok(())
}
