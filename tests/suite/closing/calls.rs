//! Finance settles a single call, with a reason and without a token.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{call_stand, stand};
use crate::support::{Answer, Northstar};

async fn close(day: &Northstar, job: &Answer, call: &str, units: &str) -> Answer {
    day.finance.end_call(job, call, json!({"units": units, "reason": "line 4711"})).await
}

/// A job of 40: `a` settled at 8, `b` in flight with 10, `c` unknown with 5, `d` not
/// sent.
async fn job(day: &Northstar) -> Answer {
    let job = day.calls("job", "40").await;
    for (call, units) in [("a", "8"), ("b", "10"), ("c", "5"), ("d", "3")] {
        day.worker.call(&job, call, units).await.expect(201);
    }
    day.worker.settle_call(&job, "a", "8").await.expect(200);
    day.worker.unknown(&job, "c").await.expect(200);
    day.worker.not_sent(&job, "d").await.expect(200);
    assert_eq!(day.daily().await, ["8", "27", "5", "60"]);
    job
}

#[tokio::test]
async fn what_is_in_flight_or_unknown_is_settled_as_by_its_worker() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    assert_eq!(call_stand(&close(&day, &job, "c", "4").await.expect(200)), "settled 5 4 1, 18 40 active 9");
    assert_eq!(day.daily().await, ["12", "28", "0", "60"]);
    let b = json!({"units": "11", "reason": "line 4712", "provider_request_id": "req-9"});
    let b = day.finance.end_call(&job, "b", b).await.expect(200);
    assert_eq!((&*call_stand(&b), b.text("provider_request_id")), ("settled 10 11 1, 17 40 active 10", "req-9"));
    assert_eq!(day.daily().await, ["23", "17", "0", "60"]);
    assert_eq!(
        day.books().await.moves()[3..],
        ["call_settled liability>settled 4", "call_settled liability>reserved 1", "call_settled reserved>settled 11"]
    );
    // It is its attempt's usage, and its worker finds it settled.
    day.worker.settle_call(&job, "b", "11").await.expect(200);
    day.worker.settle(&job, "22").await.problem(409, "usage_decreases");
    assert_eq!(stand(&day.worker.finish(&job).await.expect(200)), "settled: 40 23 0 0 0, 23, 11");
    assert_eq!(day.daily().await, ["23", "0", "0", "77"]);
    day.books().await;
}

#[tokio::test]
async fn the_same_again_changes_nothing_and_the_rest_is_a_conflict() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    let done = close(&day, &job, "b", "9").await.expect(200);
    let unchanged = Unchanged::from_now(&day.service).await;
    assert_eq!(close(&day, &job, "b", "9.0").await.expect(200).body, done.body);
    assert_eq!(close(&day, &job, "a", "8").await.expect(200).text("state"), "settled");
    let ask = |call: &str, units: &str| {
        let request = day.finance.request(Method::POST, &format!("/v1/reservations/{}/calls/{call}/settle", job.id()));
        request.json(&json!({"units": units, "reason": "line 4711"}))
    };
    for (call, units, settled) in [("b", "10", "9"), ("a", "7", "8"), ("d", "3", "0"), ("d", "0", "0")] {
        let refused = unchanged.refuses(&day.finance, ask(call, units), 409, "call_already_settled", None).await;
        assert_eq!(refused.text("settled"), settled);
        assert_eq!(refused.body["reservation"]["attempt"].get("token"), None);
    }
    unchanged.refuses(&day.finance, ask("e", "1"), 404, "not_found", None).await;
    drop(unchanged);
    // Of a reservation that is closed nothing more is charged, and nothing is kept.
    day.finance.close(&job, "30", "all of it").await.expect(200);
    let unchanged = Unchanged::from_now(&day.service).await;
    let refused = unchanged.refuses(&day.finance, ask("c", "5"), 409, "already_settled", None).await;
    assert_eq!(refused.text("settled"), "30");
    assert_eq!(close(&day, &job, "b", "9").await.expect(200).text("state"), "settled");
    unchanged.check("a repeat").await;
    assert_eq!(day.daily().await, ["30", "0", "0", "70"]);
}

#[tokio::test]
async fn the_last_one_ends_a_fenced_reservation() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    day.operator.fence(&job, 1, json!({})).await.expect(200);
    assert_eq!(day.daily().await, ["8", "0", "15", "77"]);
    assert_eq!(call_stand(&close(&day, &job, "b", "12").await.expect(200)), "settled 10 12 1, 0 23 fenced 10");
    assert_eq!(day.daily().await, ["20", "0", "5", "75"]);
    assert_eq!(call_stand(&close(&day, &job, "c", "0").await.expect(200)), "settled 5 0 1, 3 23 settled 11");
    assert_eq!(day.daily().await, ["20", "0", "0", "80"]);
    day.books().await;
}

#[tokio::test]
async fn the_reason_is_in_the_journal_the_history_and_the_audit_log() {
    let day = Northstar::open().await;
    let job = job(&day).await;
    close(&day, &job, "c", "4").await.expect(200);
    close(&day, &job, "c", "4").await.expect(200);
    close(&day, &job, "c", "5").await.problem(409, "call_already_settled");
    let journal = "select amount::real || ' ' || reason from journal_entry where reason is not null order by entry_no";
    assert_eq!(day.service.database.lines(journal).await, ["4 line 4711", "1 line 4711"]);
    let history = day.worker.get(&format!("/v1/reservations/{}?events=true", job.id())).await.expect(200);
    let event = history.body["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(event["event"], "call_settled");
    assert_eq!(event["detail"], json!({"call": "c", "units": "4", "reason": "line 4711"}));
    let audit = day.operator.get("/v1/audit").await.expect(200);
    let entries: Vec<&Value> =
        audit.body["items"].as_array().unwrap().iter().filter(|entry| entry["subject"] == job.id()).collect();
    assert_eq!(entries.len(), 1);
    assert_eq!((&entries[0]["action"], &entries[0]["actor"]), (&json!("call_closed"), &event["actor"]));
    assert_eq!(
        entries[0]["detail"],
        json!({"account": "northstar", "call": "c", "reason": "line 4711", "units": "4",
               "before": {"state": "unknown", "units": "5"}})
    );
    assert_eq!(day.daily().await, ["12", "28", "0", "60"]);
    day.books().await;
}
