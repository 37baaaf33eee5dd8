//! Everything that a superseded attempt sends is refused as stale, but the usage of
//! its own calls.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::stopped;
use crate::support::{Answer, Northstar};

/// Every verb that takes a token, with this one, and nothing that is kept.
fn verbs(token: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("renew", json!({"attempt": token})),
        ("extend", json!({"attempt": token, "ceiling": "40"})),
        ("extend", json!({"attempt": token, "ceiling": "1"})),
        ("calls", json!({"attempt": token, "call": "new", "units": "1"})),
        ("calls", json!({"attempt": token, "call": "new", "units": "1", "extend": true})),
        ("calls", json!({"attempt": token, "call": "a", "units": "5"})),
        ("calls/a/settle", json!({"attempt": token, "outcome": "not_sent"})),
        // Without an amount there is nothing to keep.
        ("settle", json!({"attempt": token})),
        ("settle", json!({"attempt": token, "final": false})),
    ]
}

/// That every verb is stale with these tokens and changes nothing.
async fn all_stale(day: &Northstar, job: &Answer, tokens: &[String], state: &str) {
    let unchanged = Unchanged::from_now(&day.service).await;
    for token in tokens {
        for (verb, body) in verbs(token) {
            let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/{verb}", job.id()));
            let context = format!("{verb} {body} when {state}");
            let refused = unchanged.refuses(&day.worker, request.json(&body), 409, "stale_attempt", None).await;
            let shown = &refused.body["reservation"];
            assert_eq!(shown["state"], state, "{context}");
            assert_eq!(shown["attempt"].get("token"), None, "{context}");
            assert_eq!(refused.text("retry"), "never", "{context}");
        }
    }
}

#[tokio::test]
async fn a_superseded_token_is_refused_in_every_verb_and_state() {
    let day = Northstar::open().await;
    let first = day.calls("job", "30").await;
    day.worker.call(&first, "a", "5").await.expect(201);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    day.worker.call(&second, "b", "5").await.expect(201);
    let old = [first.token()];
    all_stale(&day, &first, &old, "active").await;
    day.worker.cancel(&first).await.expect(200);
    all_stale(&day, &first, &old, "cancelling").await;
    day.worker.fence(&first, 2, json!({})).await.expect(200);
    all_stale(&day, &first, &old, "fenced").await;
    day.worker.settle_call(&second, "b", "5").await.expect(200);
    day.worker.settle_call(&first, "a", "5").await.expect(200);
    all_stale(&day, &first, &old, "settled").await;
    assert_eq!(day.books().await.reservations, ["job settled 8 10 10 0 0"]);
}

#[tokio::test]
async fn so_is_a_token_of_another_reservation_and_one_that_nobody_ever_had() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "5").await.expect(201);
    let other = day.calls("other", "30").await;
    let guess = job.token().replacen("1.", "2.", 1);
    all_stale(&day, &job, &[other.token(), guess.clone(), "1.".to_owned()], "active").await;
    // Nor is usage kept that somebody makes up.
    let unchanged = Unchanged::from_now(&day.service).await;
    for token in [&other.token(), &guess] {
        for body in [json!({"attempt": token, "units": "3"}), json!({"attempt": token, "units": "3", "final": false})] {
            let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/settle", job.id()));
            unchanged.refuses(&day.worker, request.json(&body), 409, "stale_attempt", None).await;
        }
        let body = json!({"attempt": token, "units": "3"});
        let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/calls/a/settle", job.id()));
        unchanged.refuses(&day.worker, request.json(&body), 409, "stale_attempt", None).await;
    }
    assert_eq!(day.finance.late_usage("").await, Vec::<String>::new());
}

#[tokio::test]
async fn an_amount_in_a_stale_settlement_is_kept_and_changes_no_balance() {
    let day = Northstar::open().await;
    let first = day.stream("job", "30").await;
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", stopped(json!({"outstanding": "10"}))).await.expect(201);
    let before = day.books().await;
    let report = async |units: &str, last: bool| {
        let body = json!({"attempt": first.token(), "units": units, "final": last, "provider_request_id": format!("r-{units}")});
        let refused = day.worker.verb(&first, "settle", body).await.problem(409, "stale_attempt");
        assert_eq!(refused.body["reservation"]["attempt"].get("token"), None);
    };
    // Each amount once, whether it was meant as progress or as the end of it.
    for (units, last) in [("4", false), ("4", false), ("4.0", true), ("6", true), ("4", true), ("0", true)] {
        report(units, last).await;
    }
    assert_eq!(day.books().await, before);
    assert_eq!(day.finance.late_usage("").await, ["1 - 0 stale_attempt", "1 - 6 stale_attempt", "1 - 4 stale_attempt"]);
    let late = day.finance.get("/v1/late-usage").await.expect(200);
    let first_line = &late.body["items"][2];
    assert_eq!(
        (&first_line["provider_request_id"], &first_line["at"], &first_line["call"]),
        (&json!("r-4"), &json!("2026-03-04T12:05:00Z"), &Value::Null)
    );
    day.worker.settle(&second, "20").await.expect(200);
    assert_eq!(day.daily().await, ["20", "0", "10", "70"]);
    day.books().await;
}
