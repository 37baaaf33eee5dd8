//! A lease that has run out changes no balance and stops nobody. It only makes a
//! takeover askable.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::stand;
use crate::support::{Answer, Northstar};

/// When the lease ends, and whether that is past.
fn lease(answer: &Answer) -> (&str, bool) {
    let attempt = &answer.body["attempt"];
    (attempt["lease_expires_at"].as_str().unwrap(), attempt["overdue"].as_bool().unwrap())
}

#[tokio::test]
async fn a_lease_is_as_long_as_was_asked_for_and_a_minute_otherwise() {
    let day = Northstar::open().await;
    let reserve = async |key: &str, seconds: Value| {
        let body = json!({"operation": "bulk", "units": 1, "holder": "w-1", "lease_seconds": seconds});
        day.worker.reserve(key, body).await.expect(201)
    };
    assert_eq!(lease(&day.calls("default", "1").await), ("2026-03-04T12:01:00Z", false));
    assert_eq!(lease(&reserve("null", Value::Null).await), ("2026-03-04T12:01:00Z", false));
    assert_eq!(lease(&reserve("least", json!(5)).await), ("2026-03-04T12:00:05Z", false));
    let most = reserve("most", json!(3600)).await;
    assert_eq!(lease(&most), ("2026-03-04T13:00:00Z", false));

    // From now, whatever was left: a renewal may also shorten it.
    day.clock("12:10:00").await;
    let renewed = day.worker.verb(&most, "renew", json!({"attempt": most.token()})).await.expect(200);
    assert_eq!(lease(&renewed), ("2026-03-04T12:11:00Z", false));
    for (seconds, end) in [(5, "2026-03-04T12:10:05Z"), (3600, "2026-03-04T13:10:00Z")] {
        assert_eq!(lease(&day.worker.renew(&most, seconds).await.expect(200)), (end, false));
    }
    assert_eq!(day.daily().await, ["0", "4", "0", "96"]);
    day.books().await;
}

#[tokio::test]
async fn a_renewal_changes_nothing_but_the_lease() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    day.worker.progress(&job, "10").await.expect(200);
    let (before, history, books) = (day.worker.now(&job).await, day.worker.history(&job).await, day.books().await);
    for minute in 1..=5 {
        day.clock(&format!("12:{minute:02}:00")).await;
        let renewed = day.worker.renew(&job, 60).await.expect(200);
        assert_eq!(renewed.token(), job.token());
        assert_eq!(stand(&renewed), "active: 30 10 0 0 0, 30, 2");
        assert_eq!(renewed.body["updated_at"], "2026-03-04T12:00:00Z");
    }
    let mut after = day.worker.now(&job).await;
    assert_eq!(lease(&after), ("2026-03-04T12:06:00Z", false));
    after.body["attempt"]["lease_expires_at"] = before.body["attempt"]["lease_expires_at"].clone();
    assert_eq!(after.body, before.body);
    assert_eq!((day.worker.history(&job).await, day.books().await), (history, books));
}

#[tokio::test]
async fn overdue_is_shown_and_moved_by_the_clock_only() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    let unchanged = Unchanged::from_now(&day.service).await;
    let overdue = async || {
        let list = day.worker.get("/v1/reservations?overdue=true").await.expect(200);
        let listed = list.body["items"].as_array().unwrap().len() == 1;
        let shown = lease(&day.worker.now(&job).await).1;
        assert_eq!(listed, shown);
        shown
    };
    assert!(!overdue().await);
    day.clock("12:00:59.999999").await;
    assert!(!overdue().await);
    // The lease has run out when it ends.
    day.clock("12:01:00").await;
    assert!(overdue().await);
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    day.service.database.stop_clock("2026-04-04T12:00:00Z").await;
    assert!(overdue().await);
    day.clock("12:00:30").await;
    assert!(!overdue().await);
    unchanged.check("the clock").await;
    // Its holder comes back, does what it likes, and is not overdue any more.
    day.clock("12:20:00").await;
    day.worker.settle_call(&job, "a", "9").await.expect(200);
    day.worker.call(&job, "b", "10").await.expect(201);
    day.worker.extend(&job, "35").await.expect(200);
    assert!(overdue().await);
    assert_eq!(lease(&day.worker.renew(&job, 5).await.expect(200)), ("2026-03-04T12:20:05Z", false));
    assert!(!overdue().await);
    day.worker.take_over(&job, 1, "w-2", json!({})).await.problem(409, "lease_current");
    assert_eq!(day.daily().await, ["9", "26", "0", "65"]);
    day.books().await;
}

#[tokio::test]
async fn a_renewal_tells_what_has_become_of_the_job() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    let told = async |state: &str| {
        let unchanged = Unchanged::from_now(&day.service).await;
        let renewed = day.worker.renew(&job, 3600).await.expect(200);
        assert_eq!((renewed.text("state"), renewed.token()), (state, job.token()));
        // The lease of what is not active means nothing, and stays.
        assert_eq!(lease(&renewed), ("2026-03-04T12:01:00Z", false));
        unchanged.check(state).await;
    };
    day.clock("12:00:30").await;
    day.worker.cancel(&job).await.expect(200);
    told("cancelling").await;
    day.clock("12:02:00").await;
    told("cancelling").await;
    day.worker.fence(&job, 1, json!({})).await.expect(200);
    told("fenced").await;
    day.worker.settle_call(&job, "a", "10").await.expect(200);
    told("settled").await;
    assert_eq!(day.daily().await, ["10", "0", "0", "90"]);
    day.books().await;
}

#[tokio::test]
async fn only_the_current_attempt_renews() {
    let day = Northstar::open().await;
    let first = day.calls("job", "30").await;
    let other = day.calls("other", "30").await;
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    let unchanged = Unchanged::from_now(&day.service).await;
    for token in [first.token(), other.token(), "1.made-up".to_owned(), "2".to_owned()] {
        let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/renew", first.id()));
        let request = request.json(&json!({"attempt": token, "lease_seconds": 3600}));
        let refused = unchanged.refuses(&day.worker, request, 409, "stale_attempt", None).await;
        let attempt = &refused.body["reservation"]["attempt"];
        assert_eq!((&attempt["number"], &attempt["holder"], attempt.get("token")), (&json!(2), &json!("w-2"), None));
        assert_eq!(attempt["lease_expires_at"], "2026-03-04T12:06:00Z");
    }
    day.worker.renew(&second, 60).await.expect(200);
    day.books().await;
}
