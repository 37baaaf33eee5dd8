//! The record of refusals: everything that is refused is in it with its reason,
//! for ninety days, and what could not be written down is counted.

use std::time::Duration;

use serde_json::json;
use sqlx::Executor as _;

use crate::support::contention::HeldLock;
use crate::support::{Answer, Client, NORTHSTAR, Northstar, Options, Service};

/// `account operation code units` of what was refused, in order.
async fn recorded(service: &Service) -> Vec<String> {
    service.ledger.close().await;
    let query = "select format('%s %s %s %s', account, operation, code, coalesce(trim_scale(units)::text, '-'))
                 from refusal order by id";
    service.database.lines(query).await
}

#[tokio::test]
async fn a_key_that_is_reused_and_a_settlement_in_conflict_are_recorded() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = |units: u32| json!({"operation": "stream", "units": units, "holder": "w-1"});
    let job = worker.reserve("job", body(20)).await.expect(201);
    let conflict = |answer: Answer, code: &str| {
        let refused = answer.problem(409, code);
        assert_eq!(refused.body["reservation"]["id"], job.body["id"]);
    };
    worker.reserve("job", body(21)).await.problem(422, "idempotency_key_reused");
    worker.progress(&job, "5").await.expect(200);
    conflict(worker.progress(&job, "4").await, "usage_decreases");
    let path = format!("/v1/reservations/{}/settle", job.id());
    conflict(worker.post(&path, json!({"attempt": "1.stale", "units": "5"})).await, "stale_attempt");
    worker.settle(&job, "6").await.expect(200);
    conflict(worker.settle(&job, "7").await, "already_settled");
    conflict(worker.extend(&job, "30").await, "not_active");
    // A repeat is no refusal.
    worker.settle(&job, "6").await.expect(200);
    worker.reserve("job", body(20)).await.expect(200);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 94 0 0 6"]);
    assert_eq!(
        recorded(&service).await,
        [
            "northstar stream idempotency_key_reused -",
            "northstar stream usage_decreases -",
            "northstar stream stale_attempt -",
            "northstar stream already_settled -",
            "northstar stream not_active -",
        ]
    );
}

#[tokio::test]
async fn what_a_verb_refuses_is_recorded_with_the_reservation_that_it_is_about() {
    let day = Northstar::open().await;
    let (calls, stream) = (day.calls("calls", "30").await, day.stream("stream", "30").await);
    day.worker.call(&calls, "a", "10").await.expect(201);
    day.worker.call(&calls, "a", "11").await.problem(422, "idempotency_key_reused");
    day.worker.call(&calls, "b", "21").await.problem(409, "ceiling_reached");
    day.worker.call_extending(&calls, "b", "65").await.problem(429, "budget_exhausted");
    day.worker.call_extending(&calls, "b", "91").await.problem(400, "too_expensive");
    day.worker.finish(&calls).await.problem(409, "calls_in_flight");
    day.worker.settle_call(&calls, "a", "10").await.expect(200);
    day.worker.settle_call(&calls, "a", "11").await.problem(409, "call_already_settled");
    day.worker.take_over(&calls, 1, "w-2", json!({})).await.problem(409, "lease_current");
    day.worker.fence(&stream, 1, json!({})).await.problem(409, "evidence_required");
    day.worker.fence(&stream, 2, json!({})).await.problem(409, "stale_attempt");
    day.finance.close(&calls, "9", "lower").await.problem(409, "usage_decreases");
    // What cannot be read, and what is answered, is no refusal of a verb.
    day.worker.call(&calls, "c", "x").await.problem(400, "invalid_request");
    day.worker.call(&calls, "a", "10").await.expect(200);
    assert_eq!(day.daily().await, ["10", "50", "0", "40"]);
    day.books().await;
    day.service.ledger.close().await;
    let query = "select format('%s %s %s %s', account, operation, code, detail ->> 'reservation')
                 from refusal order by id";
    let expected: Vec<String> = [
        (&calls, "idempotency_key_reused"),
        (&calls, "ceiling_reached"),
        (&calls, "budget_exhausted"),
        (&calls, "too_expensive"),
        (&calls, "calls_in_flight"),
        (&calls, "call_already_settled"),
        (&calls, "lease_current"),
        (&stream, "evidence_required"),
        (&stream, "stale_attempt"),
        (&calls, "usage_decreases"),
    ]
    .map(|(job, code)| format!("northstar {} {code} {}", job.text("operation"), job.id()))
    .to_vec();
    assert_eq!(day.service.database.lines(query).await, expected);
}

/// One refusal that is written down.
async fn refuse(worker: &Client) {
    worker.reserve_bulk("too-much", "101").await.problem(400, "too_expensive");
}

/// Waits until something is so.
async fn eventually(so: impl AsyncFn() -> bool) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("it is so within half a minute");
}

/// Whether the metrics have this line.
async fn counted(client: &Client, line: &str) -> bool {
    let metrics = client.get("/metrics").await.expect(200);
    metrics.body.as_str().unwrap().lines().any(|other| other == line)
}

#[tokio::test]
async fn refusals_are_removed_after_ninety_days_and_not_all_at_once() {
    let service = Service::with_policy(NORTHSTAR).await;
    let database = &service.database;
    let worker = service.worker(&["northstar"]).await;
    database.set_clock("2026-03-01T12:00:00Z").await;
    database
        .execute(
            "insert into refusal (id, at, account, operation, code, observed, units, detail)
             select gen_random_uuid(), ledger_clock(), 'northstar', 'bulk', 'too_expensive', false, 101, '{}'
             from generate_series(1, 12000);
             -- How many each statement removes.
             create table removed (rows bigint);
             create function note_removed() returns trigger language plpgsql security definer as
                 $$begin insert into removed select count(*) from gone; return null; end$$;
             create trigger note_removed after delete on refusal referencing old table as gone
                 for each statement execute function note_removed();",
        )
        .await;
    database.set_clock("2026-05-30T11:59:00Z").await;
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 0);
    refuse(&worker).await;
    let recent = "select code from refusal where at > '2026-05-01'";
    eventually(async || database.lines(recent).await == ["too_expensive"]).await;
    database.set_clock("2026-05-30T12:01:00Z").await;
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 12_000);
    let kept = database.lines("select at::date::text from refusal").await;
    assert_eq!(kept, ["2026-05-30"]);
    let each = database.lines("select rows::text from removed where rows > 0").await;
    let each: Vec<u64> = each.iter().map(|rows| rows.parse().unwrap()).collect();
    assert!(each.len() > 1 && each.iter().all(|rows| *rows <= 5000), "{each:?}");
    assert_eq!(each.iter().sum::<u64>(), 12_000);
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 0);
    service.books().await;
}

#[tokio::test]
async fn a_refusal_that_could_not_be_written_down_is_answered_and_counted() {
    let hurried = Options { statement_timeout: Duration::from_millis(300), ..Options::default() };
    let service = Service::with_policy(NORTHSTAR).await;
    let hurried = Service::on(service.database.clone(), hurried).await;
    let worker = hurried.worker(&["northstar"]).await;
    let mut owner = service.database.connect().await;
    owner.execute("begin; lock table refusal in access exclusive mode").await.unwrap();
    refuse(&worker).await;
    eventually(async || counted(&worker, "spend_ledger_refusals_not_recorded_total 1").await).await;
    owner.execute("rollback").await.unwrap();
    refuse(&worker).await;
    assert!(counted(&worker, r#"spend_ledger_refusals_total{code="too_expensive",observed="false"} 2"#).await);
    assert!(counted(&worker, "spend_ledger_refusals_not_recorded_total 1").await);
    assert_eq!(recorded(&hurried).await, ["northstar bulk too_expensive 101"]);
}

/// An exhausted account that is hammered: what is seen when the statement begins is
/// a valid state to refuse on. (A refused extension locks its own reservation, not
/// the account's periods.)
#[tokio::test]
async fn for_want_of_room_takes_no_lock() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve_bulk("job", "60").await.expect(201);
    worker.reserve_bulk("another", "40").await.expect(201);
    let periods = HeldLock::hold(&service.database, "select from budget_period for update").await;
    for n in 0..20 {
        worker.reserve_bulk(&format!("more-{n}"), "1").await.problem(429, "budget_exhausted");
        worker.extend(&job, "61").await.problem(429, "budget_exhausted");
    }
    periods.release().await;
    assert_eq!(service.books().await.periods, ["northstar daily : 100 0 100 0 0"]);
}
