//! When the database is unreachable, slow, read-only or full, nothing new is
//! admitted: 503 with Retry-After within the deadline, and recovery by itself
//! (RULES.md, section 10).

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use sqlx::{Connection as _, Executor as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::contention::HeldLock;
use crate::support::proxy::{Proxy, Weather};
use crate::support::server::TestDatabase;
use crate::support::{Answer, Client, NORTHSTAR, Options, Service};

/// Short enough to be waited for, long enough for a slow machine.
fn short() -> Options {
    Options {
        deadline: Duration::from_secs(3),
        statement_timeout: Duration::from_millis(1500),
        max_connections: 4,
        ..Options::default()
    }
}

/// A service behind a proxy, with a policy and a worker.
async fn behind_a_proxy() -> (Service, Proxy, Client) {
    behind_a_proxy_with(short()).await
}

async fn behind_a_proxy_with(options: Options) -> (Service, Proxy, Client) {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start().await;
    let service = Service::at(database.clone(), proxy.url(&database), options).await;
    service.apply(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let first = worker.reserve_bulk("first", "10").await.expect(201);
    worker.settle(&first, "10").await.expect(200);
    (service, proxy, worker)
}

/// A reservation of 20 that must be answered 503, and in time.
async fn unavailable(worker: &Client, key: &str, codes: &[&str]) -> Answer {
    let begun = Instant::now();
    let answer = worker.reserve_bulk(key, "20").await.expect(503);
    // The deadline, and what a busy machine takes to say so.
    assert!(begun.elapsed() < short().deadline + Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(codes.contains(&answer.text("code")), "{:#}", answer.body);
    assert_eq!((answer.text("retry"), answer.headers.contains_key("retry-after")), ("transient", true));
    answer
}

/// Asks again, as a worker would, until the answer is not 503.
async fn recovered(worker: &Client, key: &str) -> Answer {
    for _ in 0..50 {
        let answer = worker.reserve_bulk(key, "20").await;
        if answer.status != 503 {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not recover by itself");
}

const BEFORE: &str = "northstar daily : 100 90 0 0 10";
const AFTER: &str = "northstar daily : 100 70 20 0 10";

#[tokio::test]
async fn unreachable() {
    let (service, proxy, worker) = behind_a_proxy().await;
    proxy.set(Weather::Down).await;
    unavailable(&worker, "job", &["ledger_unavailable"]).await;
    let ready = worker.get("/readyz").await.expect(503);
    assert_eq!(ready.text("status"), "unavailable");
    worker.get("/healthz").await.expect(200);
    assert_eq!(service.books().await.periods, [BEFORE]);
    proxy.set(Weather::Fair).await;
    recovered(&worker, "job").await.expect(201);
    worker.get("/readyz").await.expect(200);
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn silent() {
    let (service, proxy, worker) = behind_a_proxy().await;
    proxy.set(Weather::Stalled).await;
    unavailable(&worker, "job", &["deadline_exceeded", "ledger_unavailable", "overloaded"]).await;
    proxy.set(Weather::Fair).await;
    // What was sent before may arrive at last.
    let answer = recovered(&worker, "job").await;
    assert!([200, 201].contains(&answer.status.as_u16()), "{:#}", answer.body);
    assert_eq!((answer.text("state"), answer.text("charged")), ("active", "20"));
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn the_answer_is_lost_after_the_commit() {
    let (service, proxy, worker) = behind_a_proxy().await;
    proxy.set(Weather::DeafTo("-- Reserve")).await;
    let lost = unavailable(&worker, "job", &["deadline_exceeded"]).await;
    assert!(lost.text("detail").contains("outcome is not known"));
    // It is there, and nobody knows.
    assert_eq!(service.books().await.periods, [AFTER]);
    let there = "select id || ' ' || attempt_token from reservation where idempotency_key = 'job'";
    let there = service.database.lines(there).await;
    proxy.set(Weather::Fair).await;
    let repeated = recovered(&worker, "job").await.expect(200);
    assert_eq!(repeated.headers["idempotency-replayed"], "true");
    assert_eq!([format!("{} {}", repeated.id(), repeated.token())], there[..]);
    let books = service.books().await;
    assert_eq!(books.periods, [AFTER]);
    assert_eq!(books.entries_of("reserve").len(), 2);
}

/// The statement was committed, the connection broke before the answer, and the
/// service has sent it again by itself: the one who asked is told what its own request
/// did, not that it was done before. (A worker sends nothing after a repeat.)
#[tokio::test]
async fn what_the_service_sends_again_is_not_a_repeat() {
    let (service, proxy, worker) = behind_a_proxy().await;
    let job = worker.reserve_bulk("job", "20").await.expect(201);
    let path = format!("/v1/reservations/{}", job.id());
    let call = json!({"attempt": job.token(), "call": "c", "units": 5});
    let take_over = json!({"previous": 1, "holder": "w-2"});
    for (statement, verb, body, done) in [
        ("-- Admit calls", "calls", call, "select key from call"),
        ("-- Take over", "attempts", take_over, "select 'x' from reservation where attempt_number = 2"),
    ] {
        service
            .database
            .execute("update reservation set lease_expires_at = ledger_clock() where state = 'active'")
            .await;
        proxy.set(Weather::DeafTo(statement)).await;
        let (client, path) = (worker.clone(), format!("{path}/{verb}"));
        let asking = tokio::spawn(async move { client.post(&path, body).await });
        for _ in 0..200 {
            if !service.database.lines(done).await.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The next connection is well, however long this takes.
        proxy.set(Weather::Fair).await;
        proxy.cut_those_there_are();
        asking.await.unwrap().expect(201);
    }
    let books = service.books().await;
    assert_eq!(books.reservations, ["first settled 2 10 10 0 0", "job active 3 20 0 20 0"]);
}

/// More requests than there are connections, each of which hears nothing.
#[tokio::test]
async fn a_network_that_goes_silent_does_not_wear_the_pool_out() {
    let (service, proxy, worker) = behind_a_proxy_with(Options { grouping: false, ..short() }).await;
    service.apply(&NORTHSTAR.replace("limit: 100,", "limit: 1000,")).await;
    proxy.set(Weather::Deaf).await;
    let asking = async |wave: u32| {
        let keys: Vec<String> = (0..6).map(|n| format!("{wave}-{n}")).collect();
        let codes = ["deadline_exceeded", "ledger_unavailable", "overloaded"];
        join_all(keys.iter().map(|key| unavailable(&worker, key, &codes))).await;
    };
    for wave in 0..3 {
        asking(wave).await;
    }
    // What was sent may have been admitted, unheard.
    let unheard = service.books().await.reservations.len() as i64 - 1;
    proxy.set(Weather::Fair).await;
    let job = tokio::time::timeout(short().deadline * 3, recovered(&worker, "job")).await.expect("it recovers");
    job.expect(201);
    // Not by one connection only.
    let held = HeldLock::hold(&service.database, "select from budget_period for update").await;
    let all = short().max_connections / 2;
    let settled: Vec<_> = (0..all)
        .map(|n| {
            let worker = worker.clone();
            tokio::spawn(async move { worker.reserve_bulk(&format!("again-{n}"), "1").await })
        })
        .collect();
    service.waiting_for_a_lock(all.into()).await;
    held.release().await;
    for answer in join_all(settled).await {
        answer.unwrap().expect(201);
    }
    let reserved = 20 * unheard + 20 + i64::from(all);
    let periods = [format!("northstar daily : 1000 {} {reserved} 0 10", 990 - reserved)];
    assert_eq!(service.books().await.periods, periods);
}

/// Head and half of the body, then nothing.
async fn trickle(service: &Service, worker: &Client) -> TcpStream {
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    let head = format!(
        "POST /v1/reservations HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: slow\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{\"operation\": \"bulk\", ",
        worker.key
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_body_that_never_ends_is_answered_in_time_and_holds_nothing() {
    let service = Service::with_policy(NORTHSTAR).await;
    let options = Options { max_in_flight: 1, max_connections: 1, ..short() };
    let narrow = Service::on(service.database.clone(), options).await;
    let worker = service.worker(&["northstar"]).await.at(narrow.address);
    let begun = Instant::now();
    let mut stream = trickle(&narrow, &worker).await;
    let mut answer = String::new();
    let answered = async {
        let mut bytes = [0; 4096];
        while !answer.contains("retry_after_seconds") {
            let read = stream.read(&mut bytes).await.unwrap();
            assert!(read > 0, "closed after {answer}");
            answer += &String::from_utf8_lossy(&bytes[..read]);
        }
    };
    tokio::time::timeout(short().deadline + Duration::from_secs(3), answered).await.expect("answered in time");
    assert!(begun.elapsed() > Duration::from_secs(1), "it had its time: {answer}");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("application/problem+json") && answer.contains("\"deadline_exceeded\""), "{answer}");
    // With its connection still open, the one place and the one connection to the
    // database are free.
    for key in ["one", "two"] {
        worker.reserve_bulk(key, "10").await.expect(201);
    }
    assert_eq!(service.books().await.periods, ["northstar daily : 100 80 20 0 0"]);
}

#[tokio::test]
async fn too_many_in_flight_are_refused_at_once() {
    let service = Service::with_policy(NORTHSTAR).await;
    let narrow = Service::on(service.database.clone(), Options { max_in_flight: 2, ..Options::sessions() }).await;
    let worker = service.worker(&["northstar"]).await.at(narrow.address);
    worker.reserve_bulk("first", "10").await.expect(201);
    let held = HeldLock::hold(&service.database, "select from budget_period for update").await;
    let waiting = ["second", "third"].map(|key| {
        let worker = worker.clone();
        tokio::spawn(async move { worker.reserve_bulk(key, "10").await })
    });
    service.waiting_for_a_lock(2).await;
    let begun = Instant::now();
    let refused = worker.reserve_bulk("fourth", "10").await.problem(503, "overloaded");
    assert!(begun.elapsed() < Duration::from_secs(5), "at once, not at the deadline: {:?}", begun.elapsed());
    assert_eq!((refused.text("retry"), refused.headers.contains_key("retry-after")), ("transient", true));
    held.release().await;
    for answer in waiting {
        answer.await.unwrap().expect(201);
    }
    worker.reserve_bulk("fourth", "10").await.expect(201);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 60 40 0 0"]);
}

#[tokio::test]
async fn slow_past_the_deadline() {
    let (service, _proxy, worker) = behind_a_proxy().await;
    let mut holder = service.database.connect().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("select from budget_period for update").await.unwrap();
    let refused = unavailable(&worker, "job", &["deadline_exceeded"]).await;
    assert!(refused.text("detail").contains("outcome is not known"));
    held.rollback().await.unwrap();
    // What was sent has timed out: nothing comes late.
    assert_eq!(service.books().await.periods, [BEFORE]);
    recovered(&worker, "job").await.expect(201);
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn settling_slow_past_the_deadline() {
    let (service, _proxy, worker) = behind_a_proxy().await;
    let job = worker.reserve_bulk("job", "20").await.expect(201);
    let mut holder = service.database.connect().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("select from reservation for update").await.unwrap();
    worker.settle(&job, "15").await.problem(503, "deadline_exceeded");
    worker.extend(&job, "25").await.problem(503, "deadline_exceeded");
    held.rollback().await.unwrap();
    assert_eq!(service.books().await.periods, [AFTER]);
    worker.settle(&job, "15").await.expect(200);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 75 0 0 25"]);
}

#[tokio::test]
async fn read_only() {
    let (service, proxy, worker) = behind_a_proxy().await;
    let name: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut service.database.connect().await).await.unwrap();
    let set =
        |value: &str| sqlx::AssertSqlSafe(format!("alter database {name} set default_transaction_read_only = {value}"));
    let mut owner = service.database.connect().await;
    owner.execute(set("on")).await.unwrap();
    proxy.cut().await;
    unavailable(&worker, "job", &["ledger_unavailable"]).await;
    owner.execute("set default_transaction_read_only = off").await.unwrap();
    owner.execute(set("off")).await.unwrap();
    assert_eq!(service.books().await.periods, [BEFORE]);
    proxy.cut().await;
    recovered(&worker, "job").await.expect(201);
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn not_durable_any_more() {
    let (service, proxy, worker) = behind_a_proxy().await;
    let name: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut service.database.connect().await).await.unwrap();
    let set = |value: &str| sqlx::AssertSqlSafe(format!("alter database {name} set synchronous_commit = {value}"));
    let mut owner = service.database.connect().await;
    owner.execute(set("off")).await.unwrap();
    proxy.cut().await;
    unavailable(&worker, "job", &["ledger_unavailable", "deadline_exceeded", "overloaded"]).await;
    assert_eq!(service.books().await.periods, [BEFORE]);
    owner.execute(set("on")).await.unwrap();
    recovered(&worker, "job").await.expect(201);
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn out_of_connections() {
    let (service, proxy, worker) = behind_a_proxy().await;
    let name: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut service.database.connect().await).await.unwrap();
    let limit = |limit: i32| sqlx::AssertSqlSafe(format!("alter database {name} connection limit {limit}"));
    let mut owner = service.database.connect().await;
    owner.execute(limit(0)).await.unwrap();
    proxy.cut().await;
    unavailable(&worker, "job", &["ledger_unavailable"]).await;
    owner.execute(limit(-1)).await.unwrap();
    recovered(&worker, "job").await.expect(201);
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn all_connections_of_the_process_are_busy() {
    let service = Service::with_policy(NORTHSTAR).await;
    let options = Options { max_connections: 1, statement_timeout: Duration::from_secs(20), ..short() };
    let narrow = Service::on(service.database.clone(), options).await;
    let worker = service.worker(&["northstar"]).await.at(narrow.address);
    let first = worker.reserve_bulk("first", "10").await.expect(201);
    let busy = narrow.ledger.database().pool().acquire().await.unwrap();
    // It is not sent, so its outcome is known: nothing.
    worker.reserve_bulk("second", "10").await.problem(503, "overloaded");
    worker.settle(&first, "10").await.problem(503, "overloaded");
    drop(busy);
    worker.settle(&first, "10").await.expect(200);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 90 0 0 10"]);
}

#[tokio::test]
async fn connections_that_the_server_has_closed_cost_nobody_an_answer() {
    let (service, _proxy, worker) = behind_a_proxy().await;
    service
        .database
        .connect()
        .await
        .execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'spend_ledger' and datname = current_database()")
        .await
        .unwrap();
    worker.reserve_bulk("job", "20").await.expect(201);
    assert_eq!(service.books().await.periods, [AFTER]);
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight() {
    let mut service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("first", "10").await.expect(201);
    let mut holder = service.database.connect().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("select from budget_period for update").await.unwrap();
    let reserving = tokio::spawn({
        let worker = worker.clone();
        async move { worker.reserve_bulk("second", "20").await }
    });
    service.waiting_for_a_lock(1).await;
    service.stop();
    held.rollback().await.unwrap();
    reserving.await.unwrap().expect(201);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 70 30 0 0"]);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_half_done() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("first", "10").await.expect(201);
    let mut holder = service.database.connect().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("select from budget_period for update").await.unwrap();
    let request = worker.reserve_request("second", json!({"operation": "bulk", "units": 20, "holder": "w-1"}));
    let reserving = tokio::spawn(async move { request.send().await });
    service.waiting_for_a_lock(1).await;
    reserving.abort();
    held.rollback().await.unwrap();
    // It was sent, so it is there; the repeat says so and takes nothing more.
    let repeated = worker.reserve_bulk("second", "20").await.expect(200);
    assert_eq!(repeated.headers["idempotency-replayed"], "true");
    assert_eq!(service.books().await.periods, ["northstar daily : 100 70 30 0 0"]);
}

/// The statements read again what was committed while they waited for a lock;
/// under another isolation level they would not, and would fail instead of wait.
#[tokio::test]
async fn another_default_isolation_level_changes_nothing() {
    let database = TestDatabase::new().await;
    let mut owner = database.connect().await;
    let name: String = sqlx::query_scalar("select current_database()").fetch_one(&mut owner).await.unwrap();
    let set = format!("alter database {name} set default_transaction_isolation = 'serializable'");
    owner.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
    let service = Service::on(database, Options::default()).await;
    service.apply(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let reservations = (0..20).map(|n| {
        let worker = worker.clone();
        async move { worker.reserve_bulk(&format!("job-{n}"), "5").await.expect(201) }
    });
    join_all(reservations).await;
    assert_eq!(service.books().await.periods, ["northstar daily : 100 0 100 0 0"]);
    assert!(!worker.get("/metrics").await.body.as_str().unwrap().contains("serialization_failure"));
}
