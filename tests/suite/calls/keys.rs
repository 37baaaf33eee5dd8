//! The client's own key of a call: once for each reservation, and whose it is.

use serde_json::json;

use crate::support::Northstar;
use crate::support::verbs::{call_stand, stand};

#[tokio::test]
async fn a_repeat_answers_with_the_call_as_it_is_now() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let first = day.worker.call(&job, "a", "12").await.expect(201);
    let again = day.worker.call(&job, "a", "12.000").await.expect(200);
    assert_eq!(again.body, first.body);
    // Also one that would raise the ceiling, when there is no room for another.
    day.worker.call(&job, "rest", "18").await.expect(201);
    assert_eq!(
        call_stand(&day.worker.call_extending(&job, "a", "12").await.expect(200)),
        "in_flight 12 - 1, 0 30 active 3"
    );
    day.worker.settle_call(&job, "a", "11").await.expect(200);
    assert_eq!(call_stand(&day.worker.call(&job, "a", "12").await.expect(200)), "settled 12 11 1, 1 30 active 4");
    day.worker.unknown(&job, "rest").await.expect(200);
    assert_eq!(call_stand(&day.worker.call(&job, "rest", "18").await.expect(200)), "unknown 18 - 1, 1 30 active 5");
    // Another amount is an error, whatever the call's state.
    for (call, units) in [("a", "11"), ("a", "0"), ("rest", "18.000000000001")] {
        let refused = day.worker.call(&job, call, units).await.problem(422, "idempotency_key_reused");
        assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
        assert_eq!(refused.text("retry"), "never");
    }
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 11 0 18 0, 30, 5");
    assert_eq!(day.daily().await, ["11", "1", "18", "70"]);
    assert_eq!(day.worker.calls_of(&job).await, ["rest 1 unknown 18 -", "a 1 settled 12 11"]);
    day.books().await;
}

#[tokio::test]
async fn a_key_is_its_reservations_own() {
    let day = Northstar::open().await;
    let (one, other) = (day.calls("one", "30").await, day.calls("other", "30").await);
    day.worker.call(&one, "a", "12").await.expect(201);
    day.worker.call(&other, "a", "5").await.expect(201);
    // And the token is its attempt's own.
    let body = json!({"attempt": one.token(), "call": "b", "units": "1"});
    day.worker.verb(&other, "calls", body).await.problem(409, "stale_attempt");
    let body = json!({"attempt": one.token(), "units": "1"});
    day.worker.end_call(&other, "a", body).await.problem(409, "stale_attempt");
    day.worker.settle_call(&one, "a", "9").await.expect(200);
    assert_eq!(day.worker.calls_of(&other).await, ["a 1 in_flight 5 -"]);
    assert_eq!(day.daily().await, ["9", "51", "0", "40"]);
    // A made-up token is no late usage either.
    let late = day.finance.get("/v1/late-usage").await.expect(200);
    assert_eq!(late.body["items"], json!([]));
    day.books().await;
}

#[tokio::test]
async fn the_key_of_another_attempt_says_send_nothing() {
    let day = Northstar::open().await;
    let first = day.calls("job", "30").await;
    day.worker.call(&first, "a", "12").await.expect(201);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    for units in ["12", "13"] {
        let refused = day.worker.call(&second, "a", units).await.problem(409, "call_key_taken");
        assert_eq!(refused.body["reservation"]["attempt"]["token"], second.token());
        assert_eq!((refused.text("retry"), refused.headers.get("retry-after")), ("never", None));
    }
    // The first attempt is stale also with a key of its own.
    day.worker.call(&first, "a", "12").await.problem(409, "stale_attempt");
    // Once it has ended, the key is still the first attempt's.
    day.worker.settle_call(&first, "a", "10").await.expect(200);
    day.worker.call(&second, "a", "12").await.problem(409, "call_key_taken");
    day.worker.cancel(&second).await.expect(200);
    day.worker.call(&second, "a", "12").await.problem(409, "call_key_taken");
    assert_eq!(day.daily().await, ["10", "0", "20", "70"]);
    assert_eq!(day.worker.calls_of(&first).await, ["a 1 settled 12 10"]);
    day.books().await;
}

#[tokio::test]
async fn a_refusal_leaves_the_key_unused() {
    let day = Northstar::open().await;
    let job = day.calls("job", "10").await;
    day.worker.call(&job, "a", "11").await.problem(409, "ceiling_reached");
    // Other amounts under the same key are no reuse of it.
    day.worker.call(&job, "a", "12").await.problem(409, "ceiling_reached");
    day.worker.call_extending(&job, "a", "101").await.problem(400, "too_expensive");
    day.calls("other", "90").await;
    day.worker.call_extending(&job, "a", "11").await.problem(429, "budget_exhausted");
    assert_eq!(day.worker.calls_of(&job).await, Vec::<String>::new());
    day.worker.call(&job, "a", "9").await.expect(201);
    assert_eq!(day.worker.calls_of(&job).await, ["a 1 in_flight 9 -"]);
    assert_eq!(stand(&day.worker.now(&job).await), "active: 10 0 9 0 0, 10, 2");
    assert_eq!(day.daily().await, ["0", "100", "0", "0"]);
    day.books().await;
}

#[tokio::test]
async fn a_key_is_any_visible_ascii_in_the_body_and_encoded_in_the_path() {
    let day = Northstar::open().await;
    let job = day.calls("job", "100").await;
    let all: String = ('!'..='~').collect();
    let longest = "k".repeat(255);
    let keys =
        ["a/b", "/", "//", "%", "%2F", "%25", "a%2Fb", "...", ".a", "?x=1", "#x", "+", "a+b", "&", ";", &all, &longest];
    for (number, key) in keys.iter().enumerate() {
        let number = number + 1;
        let admitted = day.worker.call(&job, key, &number.to_string()).await;
        assert_eq!(admitted.expect(201).text("call"), *key);
        let ended = match number % 3 {
            0 => day.worker.not_sent(&job, key).await.expect(200),
            1 => day.worker.unknown(&job, key).await.expect(200),
            _ => day.worker.settle_call(&job, key, "1").await.expect(200),
        };
        assert_eq!((ended.text("call"), ended.text("units")), (*key, &*number.to_string()), "{key}");
        let state = ["not_sent", "unknown", "settled"][number % 3];
        assert_eq!(ended.text("state"), state, "{key}");
        day.worker.settle_call(&job, key, "1").await.expect(if number % 3 == 0 { 409 } else { 200 });
    }
    // What looks alike is another key.
    for other in ["a", "b", "%2f", "a%2fb", "a b", "....", &all[1..], &longest[1..]] {
        day.worker.settle_call(&job, other, "1").await.problem(404, "not_found");
    }
    // A path that is not encoded names another call, or no path at all.
    let raw = format!("/v1/reservations/{}/calls/a/b/settle", job.id());
    day.worker.post(&raw, json!({"attempt": job.token(), "units": "1"})).await.problem(404, "not_found");
    // Nor is what no call can be called.
    for no_key in ["%E9", "%00", "%0A", "%20", "%FF", &"k".repeat(256)] {
        let raw = format!("/v1/reservations/{}/calls/{no_key}/settle", job.id());
        day.worker.post(&raw, json!({"attempt": job.token(), "units": "1"})).await.problem(404, "not_found");
    }
    assert_eq!(day.worker.calls_of(&job).await.len(), keys.len());
    day.books().await;
}

#[tokio::test]
async fn a_key_of_one_or_two_dots_could_not_be_named_in_a_path() {
    let day = Northstar::open().await;
    let job = day.calls("job", "10").await;
    for dots in [".", ".."] {
        let refused = day.worker.call(&job, dots, "1").await.problem(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["field"], "call");
    }
    day.worker.call(&job, "...", "1").await.expect(201);
    assert_eq!(day.worker.calls_of(&job).await, ["... 1 in_flight 1 -"]);
    day.books().await;
}
