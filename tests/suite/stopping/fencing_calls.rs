//! Where the ledger admits the calls, a fence needs no evidence: the ledger knows
//! what is outstanding, and releases the rest.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{call_stand, stand, stopped};
use crate::support::{Answer, Northstar};

/// How much a fence released, and where the reservation stands after it.
fn fenced(answer: &Answer) -> (&str, String) {
    (answer.text("released"), stand(answer))
}

#[tokio::test]
async fn an_active_job_is_fenced_without_a_cancel_and_whatever_its_lease() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.worker.call(&job, "b", "4").await.expect(201);
    day.worker.settle_call(&job, "b", "3").await.expect(200);
    let answer = day.worker.fence(&job, 1, json!({})).await.expect(200);
    assert_eq!(fenced(&answer), ("17", "fenced: 13 3 10 0 0, 13, 5".to_owned()));
    assert_eq!(answer.body["attempt"].get("token"), None);
    assert_eq!(day.daily().await, ["3", "0", "10", "87"]);
    // Settled below what it was admitted for: the rest is released, and it ends.
    let ended = day.worker.settle_call(&job, "a", "8").await.expect(200);
    assert_eq!(call_stand(&ended), "settled 10 8 1, 2 13 settled 6");
    assert_eq!(day.daily().await, ["11", "0", "0", "89"]);
    assert_eq!(
        day.books().await.moves()[2..],
        [
            "fence reserved>liability 10",
            "fence reserved>available 17",
            "call_settled liability>settled 8",
            "call_settled liability>available 2",
        ]
    );
}

#[tokio::test]
async fn with_nothing_outstanding_it_is_settled_at_once() {
    let day = Northstar::open().await;
    let (unused, used) = (day.calls("unused", "30").await, day.calls("used", "30").await);
    day.worker.call(&used, "a", "10").await.expect(201);
    day.worker.settle_call(&used, "a", "9").await.expect(200);
    day.worker.call(&used, "b", "10").await.expect(201);
    day.worker.not_sent(&used, "b").await.expect(200);
    day.worker.cancel(&used).await.expect(200);
    day.clock("12:30:00").await;
    let answer = day.operator.fence(&unused, 1, json!({})).await.expect(200);
    assert_eq!(fenced(&answer), ("30", "settled: 0 0 0 0 0, 0, 2".to_owned()));
    assert_eq!(answer.body["closed_at"], "2026-03-04T12:30:00Z");
    let answer = day.operator.fence(&used, 1, json!({})).await.expect(200);
    assert_eq!(fenced(&answer), ("21", "settled: 9 9 0 0 0, 9, 7".to_owned()));
    assert_eq!(day.daily().await, ["9", "0", "0", "91"]);
    // What its attempt says later is the same, or late.
    assert_eq!(stand(&day.worker.finish(&used).await.expect(200)), "settled: 9 9 0 0 0, 9, 7");
    day.worker.settle(&used, "9").await.expect(200);
    day.worker.settle(&used, "10").await.problem(409, "already_settled");
    day.worker.call(&used, "c", "1").await.problem(409, "not_active");
    assert_eq!(day.finance.late_usage("").await, ["1 - 10 already_settled"]);
    assert_eq!(
        day.books().await.moves()[2..],
        [
            "call_settled reserved>settled 9",
            "cancel reserved>liability 21",
            "fence reserved>available 30",
            "fence liability>available 21",
        ]
    );
}

#[tokio::test]
async fn it_names_the_current_attempt_and_says_it_once() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.clock("12:05:00").await;
    day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(201);
    let path = format!("/v1/reservations/{}/fence", job.id());
    let refuse = async |state: &str| {
        let unchanged = Unchanged::from_now(&day.service).await;
        for number in [1, 3, 2_147_483_647] {
            let request = day.worker.request(Method::POST, &path).json(&json!({"attempt_number": number}));
            let refused = unchanged.refuses(&day.worker, request, 409, "stale_attempt", None).await;
            assert_eq!(refused.body["reservation"]["state"], state);
            assert_eq!(refused.body["reservation"]["attempt"]["number"], 2);
        }
    };
    refuse("active").await;
    // The ledger computes it.
    let unchanged = Unchanged::from_now(&day.service).await;
    for body in [
        json!({"attempt_number": 2, "outstanding": "5"}),
        json!({"attempt_number": 2, "outstanding": 0,
                        "evidence": {"kind": "process_stopped"}}),
    ] {
        let request = day.worker.request(Method::POST, &path).json(&body);
        unchanged.refuses(&day.worker, request, 400, "invalid_request", Some("outstanding")).await;
    }
    drop(unchanged);
    // Evidence is not needed; given, it is kept.
    let answer = day.operator.fence(&job, 2, stopped(json!({}))).await.expect(200);
    assert_eq!(fenced(&answer), ("20", "fenced: 10 0 10 0 0, 10, 4".to_owned()));
    assert_eq!(day.worker.history(&job).await[3], r#"4 fence {"evidence":{"kind":"process_stopped"}}"#);
    refuse("fenced").await;
    let unchanged = Unchanged::from_now(&day.service).await;
    for client in [&day.worker, &day.operator] {
        let again = client.fence(&job, 2, json!({})).await.expect(200);
        assert_eq!(fenced(&again), ("0", "fenced: 10 0 10 0 0, 10, 4".to_owned()));
    }
    unchanged.check("a second fence").await;
    drop(unchanged);
    day.worker.settle_call(&job, "a", "10").await.expect(200);
    let unchanged = Unchanged::from_now(&day.service).await;
    let again = day.worker.fence(&job, 2, json!({"outstanding": "5"})).await.expect(200);
    assert_eq!(fenced(&again), ("0", "settled: 10 10 0 0 0, 10, 5".to_owned()));
    unchanged.check("a fence of what is settled").await;
    refuse("settled").await;
    // One fence, one line in the audit log.
    let audit = day.finance.get("/v1/audit").await.expect(200);
    let lines: Vec<&Value> =
        audit.body["items"].as_array().unwrap().iter().filter(|entry| entry["subject"] == job.id()).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(
        (&lines[0]["action"], &lines[0]["detail"]),
        (
            &json!("reservation_fenced"),
            &json!({"account": "northstar", "attempt": 2, "still_outstanding": "10", "evidence": {"kind": "process_stopped"}})
        )
    );
    assert_eq!(day.daily().await, ["10", "0", "0", "90"]);
}

#[tokio::test]
async fn it_ends_by_itself_when_the_last_call_of_any_attempt_is_known() {
    let day = Northstar::open().await;
    let first = day.calls("job", "50").await;
    day.worker.call(&first, "a", "10").await.expect(201);
    day.worker.call(&first, "b", "5").await.expect(201);
    day.worker.unknown(&first, "b").await.expect(200);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    day.worker.call(&second, "c", "8").await.expect(201);
    day.worker.call(&second, "d", "7").await.expect(201);
    day.worker.call(&second, "e", "2").await.expect(201);
    day.worker.unknown(&second, "d").await.expect(200);
    assert_eq!(day.daily().await, ["0", "38", "12", "50"]);
    let answer = day.operator.fence(&first, 2, json!({})).await.expect(200);
    assert_eq!(fenced(&answer), ("18", "fenced: 32 0 20 12 0, 32, 10".to_owned()));
    assert_eq!(day.daily().await, ["0", "0", "32", "68"]);

    // In flight becomes unknown: no bucket moves.
    day.operator.unknown(&first, "a").await.expect(200);
    assert_eq!(stand(&day.worker.now(&first).await), "fenced: 32 0 10 22 0, 32, 11");
    assert_eq!(day.daily().await, ["0", "0", "32", "68"]);
    day.worker.not_sent(&second, "e").await.expect(200);
    assert_eq!(day.daily().await, ["0", "0", "30", "70"]);
    day.worker.settle_call(&second, "d", "7").await.expect(200);
    day.worker.settle_call(&first, "b", "0").await.expect(200);
    assert_eq!(day.daily().await, ["7", "0", "18", "75"]);
    // Above what it was admitted for: the rest is from available, as overrun.
    day.worker.settle_call(&first, "a", "30").await.expect(200);
    let now = day.worker.now(&first).await;
    assert_eq!((&*stand(&now), now.text("overrun")), ("fenced: 32 37 8 0 0, 45, 15", "13"));
    assert_eq!(day.daily().await, ["37", "0", "8", "55"]);
    let last = day.worker.settle_call(&second, "c", "8").await.expect(200);
    assert_eq!(call_stand(&last), "settled 8 8 2, 0 32 settled 16");
    assert_eq!(day.daily().await, ["45", "0", "0", "55"]);
    assert_eq!(
        day.books().await.moves()[3..],
        [
            "fence reserved>liability 20",
            "fence reserved>available 18",
            "call_not_sent liability>available 2",
            "call_settled liability>settled 7",
            "call_settled liability>available 5",
            "call_settled liability>settled 10",
            "call_settled available>settled 20",
            "call_settled liability>settled 8",
        ]
    );
    // The attempt has never settled for good; its own total is what was recorded.
    assert_eq!(stand(&day.worker.settle(&second, "15").await.expect(200)), "settled: 32 45 0 0 0, 45, 16");
    day.worker.settle(&second, "45").await.problem(409, "already_settled");
}

#[tokio::test]
async fn what_is_charged_above_the_ceiling_is_not_released() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.worker.call(&job, "b", "20").await.expect(201);
    day.worker.settle_call(&job, "a", "15").await.expect(200);
    assert_eq!(day.daily().await, ["15", "20", "0", "65"]);
    let answer = day.operator.fence(&job, 1, json!({})).await.expect(200);
    assert_eq!(fenced(&answer), ("0", "fenced: 30 15 20 0 0, 35, 5".to_owned()));
    assert_eq!(answer.text("overrun"), "5");
    assert_eq!(day.daily().await, ["15", "0", "20", "65"]);
    day.worker.settle_call(&job, "b", "12").await.expect(200);
    assert_eq!(stand(&day.worker.now(&job).await), "settled: 30 27 0 0 0, 27, 6");
    assert_eq!(day.daily().await, ["27", "0", "0", "73"]);
    day.books().await;
}
