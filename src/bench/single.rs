//! The single-statement shape: the least that a reservation could be. One budget; the
//! budget's check, the reservation's row and the journal's row in one statement, and
//! the settlement in another, on tables of their own. As many connections as clients,
//! and nothing else: no HTTP, no keys, no pools, no history of states.
//!
//! On one account this is bound by the disk: the next statement waits for the row's
//! lock, which is released when the one before it has been flushed.

use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection};
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::BenchError;
use super::arena::Arena;
use super::args::Plan;
use super::figures::{Cost, Measured, Series, each, measured};
use super::load::{SLOWEST_US, Tally, Window};
use super::place::Database;
use super::workload::{Cycle, Workload};
use super::{counters, workload};

/// Connections that a server has for one of its many users.
const MOST_CONNECTIONS: u16 = 150;

const TABLES: &str = "
    create schema bench_single;
    create table bench_single.budget (
        account text primary key, granted numeric(28, 12) not null, reserved numeric(28, 12) not null,
        settled numeric(28, 12) not null, check (reserved + settled <= granted)) with (fillfactor = 50);
    create table bench_single.reservation (
        account text not null, id uuid not null, idempotency_key text not null, units numeric(28, 12) not null,
        settled numeric(28, 12), primary key (account, id), unique (account, idempotency_key));
    create table bench_single.journal (
        account text not null, id uuid not null, event text not null, units numeric(28, 12) not null,
        at timestamptz not null, primary key (account, id, event));
    insert into bench_single.budget values ('bench-hot', 1000000000000, 0, 0);";

const RESERVE: &str = "
    with budget as (
        update bench_single.budget
        set reserved = reserved + $3
        where account = $1 and reserved + settled + $3 <= granted
        returning account),
    reservation as (
        insert into bench_single.reservation (account, id, idempotency_key, units)
        select account, $2, $2::text, $3 from budget
        returning account, id)
    insert into bench_single.journal (account, id, event, units, at)
    select account, id, 'reserve', $3, clock_timestamp() from reservation";

const SETTLE: &str = "
    with reservation as (
        update bench_single.reservation
        set settled = $3
        where account = $1 and id = $2 and settled is null
        returning account, id, units),
    budget as (
        update bench_single.budget b
        set reserved = b.reserved - r.units, settled = b.settled + $3
        from reservation r
        where b.account = r.account)
    insert into bench_single.journal (account, id, event, units, at)
    select account, id, 'settle', $3, clock_timestamp() from reservation";

/// The tables add up: to no row, if they do.
const BOOKS: &str = "
    select count(*)
    from bench_single.budget b
    cross join lateral (
        select coalesce(sum(units) filter (where settled is null), 0) as reserved, coalesce(sum(settled), 0) as settled
        from bench_single.reservation r where r.account = b.account) r
    where (b.reserved, b.settled) is distinct from (r.reserved, r.settled)";

/// Measures it for the number of clients that ratios are about.
pub(super) async fn measure(arena: &Arena, plan: &Plan, database: &Database) -> Result<Series, BenchError> {
    let mut sampler = PgConnection::connect(&database.owner_url).await?;
    sampler.execute(TABLES).await?;
    let clients = plan.judged.min(MOST_CONNECTIONS);
    let mut series = Series {
        name: format!("single statements, {clients} connections"),
        workload: Some(Workload::Hot),
        cycle: Some(Cycle::Settle),
        clients,
        grouping: None,
        prefilled: 0,
        rounds: Vec::new(),
        beside: Vec::new(),
    };
    for round in 0..plan.rounds {
        arena.progress.doing(&format!("{}, round {}", series.name, round + 1));
        series.rounds.push(once(plan, database, clients, &mut sampler).await?);
        arena.progress.step();
    }
    let wrong: i64 = sqlx::query_scalar(BOOKS).fetch_one(&mut sampler).await?;
    sampler.close().await?;
    if wrong > 0 {
        let database = "single statements".to_owned();
        return Err(BenchError::Books { database, differences: 1, quoted: "the budget is not the sum".to_owned() });
    }
    Ok(series)
}

async fn once(
    plan: &Plan,
    database: &Database,
    clients: u16,
    sampler: &mut PgConnection,
) -> Result<Measured, BenchError> {
    let options: PgConnectOptions = database.owner_url.parse()?;
    let latency = Histogram::new_with_bounds(1, SLOWEST_US, 3)?;
    let tally = Tally { requests: 0, cycles: 0, refused: 0, failed: 0, first_error: None, latency };
    let tally = Arc::new(Mutex::new(tally));
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(options.connect().await?);
    }
    let begins = Instant::now() + plan.times.warm_up;
    let window = Window { begins, ends: begins + plan.times.duration };
    let mut running = JoinSet::new();
    for connection in connections {
        running.spawn(client(connection, window, Arc::clone(&tally)));
    }
    tokio::time::sleep_until(window.begins).await;
    let before = counters::postgres(sampler).await?;
    tokio::time::sleep_until(window.ends).await;
    let after = counters::postgres(sampler).await?;
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    let cost = Cost {
        statements_per_operation: Some(1.0),
        wal_bytes_per_operation: each(after.wal_bytes.saturating_sub(before.wal_bytes), tally.requests),
        writing_transactions_per_operation: each(after.ids.saturating_sub(before.ids), tally.requests),
        ..Cost::default()
    };
    Ok(measured(&tally, plan.times.duration, cost))
}

/// Reserves and settles until the window ends.
async fn client(mut connection: PgConnection, window: Window, tally: Arc<Mutex<Tally>>) -> Result<(), sqlx::Error> {
    while Instant::now() < window.ends {
        let id = Uuid::now_v7();
        for (statement, units) in [(RESERVE, workload::RESERVED), (SETTLE, workload::ACTUAL)] {
            let units: rust_decimal::Decimal = units.parse().unwrap_or_default();
            let sent = Instant::now();
            let query = sqlx::query(statement).bind(workload::HOT).bind(id).bind(units);
            let rows = query.execute(&mut connection).await?.rows_affected();
            let answered = Instant::now();
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            if rows != 1 {
                tally.failed += 1;
                tally.first_error.get_or_insert_with(|| format!("{rows} rows"));
            }
            if window.contains(answered) {
                let micros = answered.duration_since(sent).as_micros();
                tally.requests += 1;
                tally.latency.saturating_record(u64::try_from(micros).unwrap_or(u64::MAX));
                tally.cycles += u64::from(statement == SETTLE);
            }
        }
    }
    connection.close().await
}
