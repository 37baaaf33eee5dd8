//! A call that asks for a higher ceiling is an extension in every way.

use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{call_stand, stand};
use crate::support::{Answer, NORTHSTAR, Northstar};

/// A job of 30 with a call of 20 in flight.
async fn job(day: &Northstar) -> Answer {
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "20").await.expect(201);
    job
}

/// That a call of 15, which would need a ceiling of 35, is refused like the
/// extension to 35, and that nothing is changed by either. Answers with what it
/// was told.
async fn refused(day: &Northstar, job: &Answer, status: u16, code: &str) -> Value {
    let unchanged = Unchanged::from_now(&day.service).await;
    let path = |verb: &str| format!("/v1/reservations/{}/{verb}", job.id());
    let body = json!({"attempt": job.token(), "call": "b", "units": "15", "extend": true});
    let request = day.worker.request(reqwest::Method::POST, &path("calls")).json(&body);
    let mut call = unchanged.refuses(&day.worker, request, status, code, None).await.body;
    let body = json!({"attempt": job.token(), "ceiling": "35"});
    let request = day.worker.request(reqwest::Method::POST, &path("extend")).json(&body);
    let mut extension = unchanged.refuses(&day.worker, request, status, code, None).await.body;
    assert_eq!(call["reservation"]["attempt"]["token"], job.token());
    for answer in [&mut call, &mut extension] {
        answer.as_object_mut().unwrap().remove("request_id");
    }
    assert_eq!(call, extension);
    // It may still call within its ceiling.
    let within = format!("within-{code}");
    day.worker.call(job, &within, "1").await.expect(201);
    day.worker.not_sent(job, &within).await.expect(200);
    call
}

#[tokio::test]
async fn the_ceiling_becomes_what_is_needed_and_no_more() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    let admitted = day.worker.call_extending(&job, "b", "15.5").await.expect(201);
    assert_eq!(call_stand(&admitted), "in_flight 15.5 - 1, 0 35.5 active 3");
    assert_eq!(stand(&day.worker.now(&job).await), "active: 35.5 0 35.5 0 0, 35.5, 3");
    assert_eq!(day.daily().await, ["0", "35.5", "0", "64.5"]);
    // One step, one version, one event.
    assert_eq!(
        day.worker.history(&job).await[1..],
        [r#"2 call_admitted {"call":"a","units":"20"}"#, r#"3 call_admitted {"call":"b","units":"15.5"}"#,]
    );
    // The operation's bound is inclusive.
    day.worker.call_extending(&job, "c", "64.500000000001").await.problem(400, "too_expensive");
    let most = day.worker.call_extending(&job, "c", "64.5").await.expect(201);
    assert_eq!(call_stand(&most), "in_flight 64.5 - 1, 0 100 active 4");
    assert_eq!(day.daily().await, ["0", "100", "0", "0"]);
    assert_eq!(
        day.books().await.moves(),
        [
            "reserve available>reserved 30",
            "call_admitted available>reserved 5.5",
            "call_admitted available>reserved 64.5"
        ]
    );
}

#[tokio::test]
async fn what_is_charged_above_the_ceiling_already_is_not_taken_again() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    // 5 of overrun by the call, taken from available when it settles.
    day.worker.settle_call(&job, "a", "35").await.expect(200);
    assert_eq!(day.daily().await, ["35", "0", "0", "65"]);
    let refused = day.worker.call(&job, "b", "2").await.problem(409, "ceiling_reached");
    assert_eq!((refused.text("ceiling"), refused.text("remaining")), ("30", "0"));
    let admitted = day.worker.call_extending(&job, "b", "2").await.expect(201);
    assert_eq!(call_stand(&admitted), "in_flight 2 - 1, 0 37 active 4");
    assert_eq!(day.daily().await, ["35", "2", "0", "63"]);
    assert_eq!(day.worker.now(&job).await.text("overrun"), "0");
    assert_eq!(day.books().await.entries_of("call_admitted"), ["daily 5 call_admitted available>reserved 2"]);
}

#[tokio::test]
async fn refused_where_the_budget_has_no_room() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    day.calls("other", "66").await;
    let told = refused(&day, &job, 429, "budget_exhausted").await;
    assert_eq!(
        told["breaches"],
        json!([{"budget": "daily", "requested": "5", "available": "4", "resets_at": "2026-03-05T05:00:00Z"}])
    );
    // An extension belongs to its own period: no time is told.
    assert_eq!((&told["retry"], told.get("retry_after_seconds")), (&json!("after_release"), None));
    assert_eq!(day.daily().await, ["0", "96", "0", "4"]);
}

#[tokio::test]
async fn refused_where_a_pool_has_no_room_and_every_budget_is_charged_alike() {
    let pool = "pools: { month: { provider: transformer, unit: transformation, limit: 60, period: month } }\n";
    let day = Northstar::with_policy(&format!("{NORTHSTAR}{pool}")).await;
    let south = day.service.worker(&["southstar"]).await;
    let job = job(&day).await;
    let others = south.reserve_bulk("other", "28").await.expect(201);
    // Of a pool an account-bound key sees only the name.
    let told = refused(&day, &job, 429, "budget_exhausted").await;
    assert_eq!((&told["breaches"], &told["retry"]), (&json!([{"budget": "month"}]), &json!("after_release")));
    south.settle(&others, "0").await.expect(200);
    day.worker.call_extending(&job, "b", "15").await.expect(201);
    let books = day.books().await;
    assert_eq!(
        books.periods,
        ["northstar daily : 100 65 35 0 0", "southstar daily : 100 100 0 0 0", " month : 60 25 35 0 0"]
    );
    assert_eq!(
        books.entries_of("call_admitted"),
        ["daily 3 call_admitted available>reserved 5", "month 5 call_admitted available>reserved 5"]
    );
}

#[tokio::test]
async fn refused_where_it_is_too_expensive_for_the_operation_or_a_whole_period() {
    let day =
        Northstar::with_policy(&NORTHSTAR.replace("explicit: true, max_units: 100", "explicit: true, max_units: 34"))
            .await;
    let job = job(&day).await;
    let told = refused(&day, &job, 400, "too_expensive").await;
    assert_eq!((&told["units"], &told["max_units"]), (&json!("35"), &json!("34")));

    let day = Northstar::open().await;
    let job = self::job(&day).await;
    day.service.apply(&NORTHSTAR.replace("limit: 100", "limit: 32")).await;
    let told = refused(&day, &job, 400, "too_expensive").await;
    assert_eq!((&told["units"], &told["max_units"]), (&json!("35"), &json!("32")));
    assert_eq!(day.daily().await, ["0", "30", "0", "2"]);
}

#[tokio::test]
async fn refused_where_what_it_needs_has_been_retired() {
    let bulk = "  bulk: { provider: transformer, explicit: true, max_units: 100 }\n";
    let day = Northstar::open().await;
    let job = job(&day).await;
    day.service.apply(&NORTHSTAR.replace(bulk, "")).await;
    refused(&day, &job, 422, "unknown_operation").await;
    day.service.apply(&NORTHSTAR.replace("      daily:", "      monthly:")).await;
    refused(&day, &job, 422, "no_budget").await;
    day.service.apply(&NORTHSTAR.replace("  northstar: { plan: standard }\n", "")).await;
    refused(&day, &job, 422, "unknown_account").await;
    day.service.apply(NORTHSTAR).await;
    day.worker.call_extending(&job, "b", "15").await.expect(201);
    assert_eq!(day.daily().await, ["0", "35", "0", "65"]);
    day.books().await;
}

#[tokio::test]
async fn refused_where_finance_has_closed_the_period() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    day.service.database.stop_clock("2026-03-05T12:00:00Z").await;
    // The day has ended: that alone is no reason.
    day.worker.call_extending(&job, "first", "11").await.expect(201);
    day.worker.not_sent(&job, "first").await.expect(200);
    assert_eq!(day.worker.balance("northstar", "daily", Some("2026-03-04T12:00:00Z")).await, ["0", "31", "0", "69"]);
    day.service.database.execute("update budget_period set closed_at = ledger_clock()").await;
    let told = refused(&day, &job, 409, "period_closed").await;
    assert_eq!(told["retry"], "never");
    // What has been admitted settles, there.
    day.worker.settle_call(&job, "a", "20").await.expect(200);
    assert_eq!(stand(&day.worker.finish(&job).await.expect(200)), "settled: 31 20 0 0 0, 20, 8");
    day.books().await;
}
