//! The day ends while a job is still running.

use serde_json::json;

use super::daily;
use crate::support::verbs::{stand, stopped};
use crate::support::{NORTHSTAR, Northstar, Service};

/// An instant of the day that has ended.
const OLD: Option<&str> = Some("2026-03-04T04:59:00Z");

#[tokio::test]
async fn midnight_belongs_to_the_old_day() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T23:59:30-05:00").await;
    let done = worker.reserve_bulk("done", "60").await.expect(201);
    worker.settle(&done, "60").await.expect(200);
    let running = worker.reserve_bulk("running", "30").await.expect(201);

    service.database.set_clock("2026-03-04T00:00:00-05:00").await;
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    worker.extend(&running, "35").await.expect(200);
    assert_eq!(worker.balance("northstar", "daily", OLD).await, ["60", "35", "0", "5"]);
    worker.settle(&running, "33").await.expect(200);
    assert_eq!(worker.balance("northstar", "daily", OLD).await, ["93", "0", "0", "7"]);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    let tomorrow = worker.reserve_bulk("tomorrow", "100").await.expect(201);
    assert_eq!(tomorrow.body["budgets"][0]["period_starts_at"], "2026-03-04T05:00:00Z");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 7 0 0 93", "northstar daily : 100 0 100 0 0"]);
}

#[tokio::test]
async fn midnight_with_carry_forward() {
    let policy = NORTHSTAR.replace("period: day,", "period: day, rollover: carry_forward,");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T23:59:30-05:00").await;
    let done = worker.reserve_bulk("done", "60").await.expect(201);
    worker.settle(&done, "60").await.expect(200);
    let running = worker.reserve_bulk("running", "30").await.expect(201);

    // The new day opens with 70 and does not change when the old job extends.
    service.database.set_clock("2026-03-04T00:00:00-05:00").await;
    assert_eq!(daily(&worker).await, ["0", "0", "0", "70"]);
    worker.reserve_bulk("too-much", "71").await.problem(429, "budget_exhausted");
    let one = worker.reserve_bulk("one", "1").await.expect(201);
    worker.settle(&one, "0").await.expect(200);
    worker.extend(&running, "35").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "70"]);

    // It has 100 again when the old job has settled.
    worker.settle(&running, "33").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    worker.reserve_bulk("all", "100").await.expect(201);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 7 0 0 93", "northstar daily : 100 0 100 0 0"]);
    assert_eq!(books.entries_of("carried_in"), ["daily 2 carried_in available>granted 30"]);
    assert_eq!(books.entries_of("given_back").len(), 1);
}

/// Half a minute before midnight 60 are settled, and a job of 30 has a call of 10
/// in flight. Then the new day begins.
async fn over_midnight(policy: &str) -> (Northstar, crate::support::Answer) {
    let day = Northstar::with_policy(policy).await;
    day.service.database.stop_clock("2026-03-03T23:59:30-05:00").await;
    let done = day.calls("done", "60").await;
    day.worker.settle(&done, "60").await.expect(200);
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "call", "10").await.expect(201);
    day.service.database.stop_clock("2026-03-04T00:01:00-05:00").await;
    (day, job)
}

#[tokio::test]
async fn what_is_done_to_the_old_job_after_midnight_belongs_to_the_old_day() {
    let (day, job) = over_midnight(NORTHSTAR).await;
    let old = async || day.worker.balance("northstar", "daily", OLD).await;
    let today = async || assert_eq!(day.daily().await, ["0", "0", "0", "100"]);
    today().await;
    let second = day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(201);
    assert_eq!(old().await, ["60", "30", "0", "10"]);
    // A call that needs a higher ceiling takes it from the old day.
    day.worker.call_extending(&second, "more", "25").await.expect(201);
    assert_eq!(old().await, ["60", "35", "0", "5"]);
    day.worker.unknown(&second, "more").await.expect(200);
    assert_eq!(old().await, ["60", "10", "25", "5"]);
    day.worker.cancel(&second).await.expect(200);
    assert_eq!(old().await, ["60", "0", "35", "5"]);
    today().await;
    day.worker.settle_call(&second, "more", "20").await.expect(200);
    assert_eq!(old().await, ["80", "0", "15", "5"]);
    let fenced = day.worker.fence(&second, 2, json!({})).await.expect(200);
    assert_eq!((fenced.text("released"), &*stand(&fenced)), ("5", "fenced: 30 20 10 0 0, 30, 8"));
    assert_eq!(old().await, ["80", "0", "10", "10"]);
    // The first attempt's call, with its own token.
    day.worker.settle_call(&job, "call", "8").await.expect(200);
    assert_eq!(old().await, ["88", "0", "0", "12"]);
    today().await;
    day.calls("tomorrow", "100").await;
    let books = day.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 12 0 0 88", "northstar daily : 100 0 100 0 0"]);
}

#[tokio::test]
async fn carry_forward_gives_back_after_a_fence_and_after_a_late_settlement_of_a_call() {
    let policy = NORTHSTAR.replace("period: day,", "period: day, rollover: carry_forward,");
    let (day, job) = over_midnight(&policy).await;
    assert_eq!(day.daily().await, ["0", "0", "0", "70"]);
    day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(201);
    assert_eq!(day.daily().await, ["0", "0", "0", "70"]);
    day.worker.cancel(&job).await.expect(200);
    // The new period is opened by this: what is in liability is carried too.
    let one = day.calls("one", "1").await;
    day.worker.settle(&one, "0").await.expect(200);
    assert_eq!(day.daily().await, ["0", "0", "0", "70"]);
    assert_eq!(day.worker.fence(&job, 2, json!({})).await.expect(200).text("released"), "20");
    assert_eq!(day.daily().await, ["0", "0", "0", "90"]);
    day.worker.reserve_bulk("too-much", "91").await.problem(429, "budget_exhausted");
    day.worker.settle_call(&job, "call", "8").await.expect(200);
    assert_eq!(day.daily().await, ["0", "0", "0", "100"]);
    day.calls("all", "100").await;

    let books = day.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 32 0 0 68", "northstar daily : 100 0 100 0 0"]);
    assert_eq!(books.entries_of("carried_in"), ["daily 2 carried_in available>granted 30"]);
    assert_eq!(
        books.entries_of("given_back"),
        ["daily 5 given_back granted>available 20", "daily 6 given_back granted>available 10"]
    );
}

#[tokio::test]
async fn carry_forward_gives_back_what_a_closing_by_finance_releases() {
    let policy = NORTHSTAR.replace("period: day,", "period: day, rollover: carry_forward,");
    let day = Northstar::with_policy(&policy).await;
    day.service.database.stop_clock("2026-03-03T23:59:30-05:00").await;
    let job = day.stream("job", "50").await;
    day.service.database.stop_clock("2026-03-04T00:01:00-05:00").await;
    let one = day.calls("one", "1").await;
    day.worker.settle(&one, "0").await.expect(200);
    let second = day.worker.take_over(&job, 1, "w-2", stopped(json!({"outstanding": "20"}))).await.expect(201);
    assert_eq!(day.daily().await, ["0", "0", "0", "50"]);
    day.worker.settle(&second, "25").await.expect(200);
    // Of the 50 that were carried, 20 are still held.
    assert_eq!(day.daily().await, ["0", "0", "0", "80"]);
    day.finance.close(&second, "37", "export of the provider").await.expect(200);
    assert_eq!(day.daily().await, ["0", "0", "0", "100"]);
    assert_eq!(day.worker.balance("northstar", "daily", OLD).await, ["37", "0", "0", "63"]);
    day.books().await;
}
