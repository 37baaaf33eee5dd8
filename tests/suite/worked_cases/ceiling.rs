//! A job asks for more before it crosses its ceiling, or stops.

use serde_json::json;

use super::daily;
use crate::support::verbs::{call_stand, stand};
use crate::support::{NORTHSTAR, Northstar, Service};

#[tokio::test]
async fn a_ceiling_is_raised_before_it_is_crossed_or_not_at_all() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": 12, "holder": "w-1"})).await.expect(201);
    worker.progress(&job, "10").await.expect(200);
    assert_eq!(daily(&worker).await, ["10", "2", "0", "88"]);

    // Only 2 are available to others and to itself: 15 needs 3.
    let other = worker.reserve_bulk("other", "86").await.expect(201);
    let refused = worker.extend(&job, "15").await.problem(429, "budget_exhausted");
    assert_eq!(
        (&refused.body["breaches"][0]["requested"], refused.body["retry"].as_str()),
        (&json!("3"), Some("after_release"))
    );
    assert_eq!(daily(&worker).await, ["10", "88", "0", "2"]);
    let unchanged = worker.get(&format!("/v1/reservations/{}", job.id())).await.expect(200);
    assert_eq!((unchanged.text("ceiling"), &unchanged.body["version"]), ("12", &json!(2)));

    // When 3 are, it is admitted, and repeating it is harmless.
    worker.settle(&other, "85").await.expect(200);
    let raised = worker.extend(&job, "15").await.expect(200);
    assert_eq!((raised.text("ceiling"), raised.text("charged")), ("15", "15"));
    let again = worker.extend(&job, "15").await.expect(200);
    assert_eq!(again.body, raised.body);
    assert_eq!(worker.extend(&job, "4").await.expect(200).body, raised.body);
    assert_eq!(daily(&worker).await, ["95", "5", "0", "0"]);
    worker.settle(&job, "15").await.expect(200);
    assert_eq!(daily(&worker).await, ["100", "0", "0", "0"]);
    service.books().await;
}

/// The job of 12 that has used 10, and wants a call of 5.
async fn used_ten(day: &Northstar) -> crate::support::Answer {
    let job = day.calls("job", "12").await;
    day.worker.call(&job, "first", "10").await.expect(201);
    day.worker.settle_call(&job, "first", "10").await.expect(200);
    assert_eq!(day.daily().await, ["10", "2", "0", "88"]);
    job
}

#[tokio::test]
async fn a_call_that_would_pass_the_ceiling_is_admitted_once_it_is_raised() {
    let day = Northstar::open().await;
    let job = used_ten(&day).await;
    let refused = day.worker.call(&job, "second", "5").await.problem(409, "ceiling_reached");
    assert_eq!((refused.text("ceiling"), refused.text("remaining"), refused.text("retry")), ("12", "2", "never"));
    assert_eq!(day.daily().await, ["10", "2", "0", "88"]);
    assert_eq!(stand(&day.worker.now(&job).await), "active: 12 10 0 0 0, 12, 3");

    assert_eq!(stand(&day.worker.extend(&job, "15").await.expect(200)), "active: 15 10 0 0 0, 15, 4");
    assert_eq!(day.daily().await, ["10", "5", "0", "85"]);
    // The refusal left the key unused.
    let admitted = day.worker.call(&job, "second", "5").await.expect(201);
    assert_eq!(call_stand(&admitted), "in_flight 5 - 1, 0 15 active 5");
    assert_eq!(day.daily().await, ["10", "5", "0", "85"]);
    day.worker.settle_call(&job, "second", "5").await.expect(200);
    assert_eq!(stand(&day.worker.finish(&job).await.expect(200)), "settled: 15 15 0 0 0, 15, 7");
    assert_eq!(day.daily().await, ["15", "0", "0", "85"]);
    assert_eq!(
        day.books().await.moves(),
        [
            "reserve available>reserved 12",
            "call_settled reserved>settled 10",
            "extend available>reserved 3",
            "call_settled reserved>settled 5",
        ]
    );
}

#[tokio::test]
async fn a_call_may_raise_the_ceiling_in_the_same_step() {
    let day = Northstar::open().await;
    let job = used_ten(&day).await;
    day.worker.call(&job, "second", "5").await.problem(409, "ceiling_reached");
    let admitted = day.worker.call_extending(&job, "second", "5").await.expect(201);
    assert_eq!(call_stand(&admitted), "in_flight 5 - 1, 0 15 active 4");
    assert_eq!(day.daily().await, ["10", "5", "0", "85"]);
    assert_eq!(stand(&day.worker.now(&job).await), "active: 15 10 5 0 0, 15, 4");
    let books = day.books().await;
    assert_eq!(
        books.moves(),
        ["reserve available>reserved 12", "call_settled reserved>settled 10", "call_admitted available>reserved 3"]
    );
    // Where it fits, nothing is raised and nothing is taken.
    day.worker.settle_call(&job, "second", "3").await.expect(200);
    let fits = day.worker.call_extending(&job, "third", "2").await.expect(201);
    assert_eq!(call_stand(&fits), "in_flight 2 - 1, 0 15 active 6");
    assert_eq!(day.daily().await, ["13", "2", "0", "85"]);
    day.books().await;
}

#[tokio::test]
async fn a_ceiling_that_cannot_be_raised_stays_and_nothing_is_taken() {
    let day = Northstar::open().await;
    let job = used_ten(&day).await;
    let other = day.calls("other", "86").await;
    assert_eq!(day.daily().await, ["10", "88", "0", "2"]);
    let asked = json!([{"budget": "daily", "requested": "3", "available": "2", "resets_at": "2026-03-05T05:00:00Z"}]);

    let refused = day.worker.extend(&job, "15").await.problem(429, "budget_exhausted");
    assert_eq!((&refused.body["breaches"], refused.text("retry")), (&asked, "after_release"));
    day.worker.call(&job, "second", "5").await.problem(409, "ceiling_reached");
    let refused = day.worker.call_extending(&job, "second", "5").await.problem(429, "budget_exhausted");
    assert_eq!((&refused.body["breaches"], refused.text("retry")), (&asked, "after_release"));
    assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
    assert_eq!(stand(&day.worker.now(&job).await), "active: 12 10 0 0 0, 12, 3");
    assert_eq!(day.daily().await, ["10", "88", "0", "2"]);
    assert_eq!(day.worker.calls_of(&job).await, ["first 1 settled 10 10"]);

    // What fits is admitted still, and the key is free when there is room again.
    day.worker.call(&job, "small", "2").await.expect(201);
    day.worker.not_sent(&job, "small").await.expect(200);
    day.worker.settle(&other, "0").await.expect(200);
    day.worker.call_extending(&job, "second", "5").await.expect(201);
    assert_eq!(day.daily().await, ["10", "5", "0", "85"]);
    day.books().await;
}
