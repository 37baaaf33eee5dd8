//! What an attempt reports after it was fenced replaces, or uses up, what was said
//! about it.

use serde_json::json;

use crate::support::Answer;
use crate::support::Northstar;
use crate::support::verbs::{stand, stopped};

/// A job of 50 that has reported 10, fenced with 15 outstanding: 25 are charged.
async fn fenced(day: &Northstar) -> Answer {
    let job = day.stream("job", "50").await;
    day.worker.progress(&job, "10").await.expect(200);
    let answer = day.operator.fence(&job, 1, stopped(json!({"outstanding": "15"}))).await.expect(200);
    assert_eq!(stand(&answer), "fenced: 25 10 0 0 15, 25, 3");
    assert_eq!(day.daily().await, ["10", "0", "15", "75"]);
    job
}

#[tokio::test]
async fn its_final_report_replaces_what_was_stated_about_it() {
    for (units, expected, moves) in [
        ("10", "settled: 25 10 0 0 0, 10, 4", vec!["final_settlement liability>available 15"]),
        (
            "18",
            "settled: 25 18 0 0 0, 18, 4",
            vec!["final_settlement liability>settled 8", "final_settlement liability>available 7"],
        ),
        ("25", "settled: 25 25 0 0 0, 25, 4", vec!["final_settlement liability>settled 15"]),
        (
            "31",
            "settled: 25 31 0 0 0, 31, 4",
            vec!["final_settlement liability>settled 15", "final_settlement available>settled 6"],
        ),
    ] {
        let day = Northstar::open().await;
        let job = fenced(&day).await;
        day.worker.settle(&job, "9").await.problem(409, "usage_decreases");
        let settled = day.worker.settle(&job, units).await.expect(200);
        assert_eq!(stand(&settled), expected);
        assert_eq!(day.worker.settle(&job, units).await.expect(200).body, settled.body);
        let [settled, reserved, liability, _] = day.daily().await;
        assert_eq!((&*settled, &*reserved, &*liability), (units, "0", "0"));
        let books = day.books().await;
        assert_eq!(books.entries_of("final_settlement").len(), moves.len());
        assert_eq!(books.moves()[4..], moves);
    }
}

#[tokio::test]
async fn its_progress_uses_up_what_was_stated_about_it() {
    let day = Northstar::open().await;
    let job = fenced(&day).await;
    assert_eq!(stand(&day.worker.progress(&job, "18").await.expect(200)), "fenced: 25 18 0 0 7, 25, 4");
    assert_eq!(day.daily().await, ["18", "0", "7", "75"]);
    day.worker.progress(&job, "17").await.problem(409, "usage_decreases");
    // Fenced again it can be lowered from there.
    let answer = day.operator.fence(&job, 1, stopped(json!({"outstanding": "8"}))).await.expect(200);
    assert_eq!((answer.text("released"), &*stand(&answer)), ("0", "fenced: 25 18 0 0 7, 25, 4"));
    let answer = day.operator.fence(&job, 1, stopped(json!({"outstanding": "5"}))).await.expect(200);
    assert_eq!((answer.text("released"), &*stand(&answer)), ("2", "fenced: 23 18 0 0 5, 23, 5"));
    assert_eq!(stand(&day.worker.progress(&job, "22").await.expect(200)), "fenced: 23 22 0 0 1, 23, 6");
    // When nothing is left outstanding it ends by itself.
    let ended = day.worker.progress(&job, "24").await.expect(200);
    assert_eq!((&*stand(&ended), ended.text("overrun")), ("settled: 23 24 0 0 0, 24, 7", "1"));
    assert_eq!(day.daily().await, ["24", "0", "0", "76"]);
    // It has said so by progress; as the end of it, it is the same.
    for last in [true, false] {
        let body = json!({"attempt": job.token(), "units": "24", "final": last});
        assert_eq!(day.worker.verb(&job, "settle", body).await.expect(200).body, ended.body);
    }
    day.worker.progress(&job, "25").await.problem(409, "already_settled");
    day.worker.settle(&job, "23").await.problem(409, "already_settled");
    assert_eq!(day.finance.late_usage("").await, ["1 - 23 already_settled", "1 - 25 already_settled"]);
    assert_eq!(
        day.books().await.moves()[4..],
        [
            "progressive_settlement liability>settled 8",
            "fence liability>available 2",
            "progressive_settlement liability>settled 4",
            "progressive_settlement liability>settled 1",
            "progressive_settlement available>settled 1",
        ]
    );
}

#[tokio::test]
async fn what_an_earlier_attempt_may_have_spent_is_not_replaced() {
    let day = Northstar::open().await;
    let first = day.stream("job", "50").await;
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", stopped(json!({"outstanding": "20"}))).await.expect(201);
    day.worker.progress(&second, "5").await.expect(200);
    day.operator.fence(&first, 2, stopped(json!({"outstanding": "10"}))).await.expect(200);
    assert_eq!(stand(&day.worker.now(&first).await), "fenced: 35 5 0 0 30, 35, 4");
    assert_eq!(stand(&day.worker.progress(&second, "8").await.expect(200)), "fenced: 35 8 0 0 27, 35, 5");
    assert_eq!(stand(&day.worker.settle(&second, "9").await.expect(200)), "fenced: 35 9 0 0 20, 29, 6");
    assert_eq!(day.daily().await, ["9", "0", "20", "71"]);
    // It has settled for good: nothing more is said about it.
    let answer = day.operator.fence(&first, 2, stopped(json!({"outstanding": "0"}))).await.expect(200);
    assert_eq!((answer.text("released"), &*stand(&answer)), ("0", "fenced: 35 9 0 0 20, 29, 6"));
    day.worker.progress(&second, "10").await.problem(409, "already_settled");
    assert_eq!(day.worker.settle(&second, "10").await.problem(409, "already_settled").text("settled"), "9");
    // The first's own report cannot be charged by itself: finance looks at it.
    day.worker.settle(&first, "12").await.problem(409, "stale_attempt");
    day.finance.close(&first, "21", "12 by the first, 9 by the second").await.expect(200);
    assert_eq!(day.daily().await, ["21", "0", "0", "79"]);
    day.books().await;
}

#[tokio::test]
async fn it_is_charged_to_its_own_period_when_that_has_ended() {
    let day = Northstar::open().await;
    let job = fenced(&day).await;
    let calls = day.calls("calls", "30").await;
    day.worker.call(&calls, "a", "10").await.expect(201);
    let old = Some("2026-03-04T12:00:00Z");
    day.service.database.stop_clock("2026-03-05T12:00:00Z").await;
    let other = day.calls("new", "60").await;
    day.worker.cancel(&calls).await.expect(200);
    assert_eq!(day.worker.balance("northstar", "daily", old).await, ["10", "0", "45", "45"]);
    assert_eq!(day.worker.fence(&calls, 1, json!({})).await.expect(200).text("released"), "20");
    assert_eq!(day.worker.balance("northstar", "daily", old).await, ["10", "0", "25", "65"]);
    day.worker.settle_call(&calls, "a", "9").await.expect(200);
    day.worker.settle(&job, "20").await.expect(200);
    assert_eq!(day.worker.balance("northstar", "daily", old).await, ["29", "0", "0", "71"]);
    assert_eq!(day.daily().await, ["0", "60", "0", "40"]);
    // Even where finance has closed that period to extensions.
    let late = day.calls("late", "10").await;
    day.service.database.stop_clock("2026-03-06T12:00:00Z").await;
    day.service.database.execute("update budget_period set closed_at = ledger_clock()").await;
    day.worker.extend(&late, "11").await.problem(409, "period_closed");
    day.worker.settle(&late, "12").await.expect(200);
    day.worker.settle(&other, "60").await.expect(200);
    let yesterday = day.worker.balance("northstar", "daily", Some("2026-03-05T12:00:00Z")).await;
    assert_eq!(yesterday, ["72", "0", "0", "28"]);
    day.books().await;
}
