//! A cancel moves everything that is not settled to liability, and releases
//! nothing by itself.

use serde_json::{Value, json};

use crate::support::Northstar;
use crate::support::unchanged::Unchanged;
use crate::support::verbs::{call_stand, stand, stopped};

#[tokio::test]
async fn everything_held_becomes_liability_and_no_more_is_let_through() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    for (call, units) in [("a", "10"), ("b", "5"), ("c", "4")] {
        day.worker.call(&job, call, units).await.expect(201);
    }
    day.worker.settle_call(&job, "a", "8").await.expect(200);
    day.worker.unknown(&job, "c").await.expect(200);
    assert_eq!(day.daily().await, ["8", "18", "4", "70"]);

    let cancelled = day.worker.verb(&job, "cancel", json!({"reason": "the user has left"})).await.expect(200);
    assert_eq!(stand(&cancelled), "cancelling: 30 8 5 4 0, 30, 7");
    // It is not told to whom the token belongs.
    assert_eq!((cancelled.body["attempt"].get("token"), &cancelled.body["closed_at"]), (None, &Value::Null));
    assert_eq!(day.daily().await, ["8", "0", "22", "70"]);
    day.worker.reserve_bulk("more", "71").await.problem(429, "budget_exhausted");
    let refused = day.worker.call(&job, "d", "1").await.problem(409, "not_active");
    assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
    for ceiling in ["40", "30", "1"] {
        day.worker.extend(&job, ceiling).await.problem(409, "not_active");
    }

    // Again it changes nothing, whoever asks, and its reason is not kept.
    let unchanged = Unchanged::from_now(&day.service).await;
    for client in [&day.worker, &day.operator] {
        let again = client.verb(&job, "cancel", json!({"reason": "again"})).await.expect(200);
        assert_eq!(again.body, cancelled.body);
    }
    unchanged.check("a second cancel").await;
    drop(unchanged);

    // The calls end as ever; what they leave stays in liability.
    assert_eq!(
        call_stand(&day.worker.settle_call(&job, "b", "6").await.expect(200)),
        "settled 5 6 1, 12 30 cancelling 8"
    );
    assert_eq!(day.daily().await, ["14", "0", "16", "70"]);
    day.worker.settle_call(&job, "c", "20").await.expect(200);
    let over = day.worker.now(&job).await;
    assert_eq!((&*stand(&over), over.text("overrun")), ("cancelling: 30 34 0 0 0, 34, 9", "4"));
    assert_eq!(day.daily().await, ["34", "0", "0", "66"]);
    // It does not end by itself: its attempt may still have something to say.
    assert_eq!(stand(&day.worker.finish(&job).await.expect(200)), "settled: 30 34 0 0 0, 34, 10");
    assert_eq!(
        day.books().await.moves()[1..],
        [
            "call_settled reserved>settled 8",
            "call_unknown reserved>liability 4",
            "cancel reserved>liability 18",
            "call_settled liability>settled 6",
            "call_settled liability>settled 16",
            "call_settled available>settled 4",
        ]
    );
    let reasons = "select event || ' ' || coalesce(reason, '-') from journal_entry where event = 'cancel'";
    assert_eq!(day.service.database.lines(reasons).await, ["cancel the user has left"]);
    assert_eq!(day.worker.history(&job).await[6], r#"7 cancel {"reason":"the user has left"}"#);
}

#[tokio::test]
async fn a_cancel_of_what_is_not_active_any_more_changes_nothing() {
    let day = Northstar::open().await;
    let (fenced, settled) = (day.calls("fenced", "30").await, day.calls("settled", "30").await);
    day.worker.call(&fenced, "a", "10").await.expect(201);
    day.operator.fence(&fenced, 1, json!({})).await.expect(200);
    day.worker.settle(&settled, "5").await.expect(200);
    let unchanged = Unchanged::from_now(&day.service).await;
    for (job, expected) in [(&fenced, "fenced: 10 0 10 0 0, 10, 3"), (&settled, "settled: 30 5 0 0 0, 5, 2")] {
        assert_eq!(stand(&day.worker.cancel(job).await.expect(200)), expected);
    }
    unchanged.check("a cancel").await;
    assert_eq!(day.daily().await, ["5", "0", "10", "85"]);
}

#[tokio::test]
async fn what_is_in_liability_already_and_what_is_overrun_stay_where_they_are() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    day.worker.progress(&job, "10").await.expect(200);
    day.clock("12:01:00").await;
    let second = day.worker.take_over(&job, 1, "w-2", stopped(json!({"outstanding": "35"}))).await.expect(201);
    assert_eq!(day.daily().await, ["10", "0", "25", "65"]);
    // All of it is in liability: no transfer, and still a change of the reservation.
    assert_eq!(stand(&day.worker.cancel(&job).await.expect(200)), "cancelling: 30 10 0 0 25, 35, 4");
    assert_eq!(day.daily().await, ["10", "0", "25", "65"]);
    // The same of one that has used everything.
    let whole = day.stream("whole", "20").await;
    day.worker.progress(&whole, "20").await.expect(200);
    assert_eq!(stand(&day.worker.cancel(&whole).await.expect(200)), "cancelling: 20 20 0 0 0, 20, 3");
    assert_eq!(day.books().await.entries_of("cancel"), Vec::<&str>::new());
    assert_eq!(stand(&day.worker.settle(&whole, "20").await.expect(200)), "settled: 20 20 0 0 0, 20, 4");
    assert_eq!(stand(&day.worker.settle(&second, "0").await.expect(200)), "fenced: 30 10 0 0 25, 35, 5");
    assert_eq!(day.daily().await, ["30", "0", "25", "45"]);
    day.books().await;
}

#[tokio::test]
async fn a_cancelled_job_reports_and_settles_as_ever() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    day.worker.progress(&job, "10").await.expect(200);
    day.operator.cancel(&job).await.expect(200);
    assert_eq!(day.daily().await, ["10", "0", "20", "70"]);
    assert_eq!(stand(&day.worker.progress(&job, "12").await.expect(200)), "cancelling: 30 12 0 0 0, 30, 4");
    assert_eq!(day.daily().await, ["12", "0", "18", "70"]);
    day.worker.progress(&job, "11").await.problem(409, "usage_decreases");
    // Above the ceiling too.
    assert_eq!(stand(&day.worker.progress(&job, "33").await.expect(200)), "cancelling: 30 33 0 0 0, 33, 5");
    assert_eq!(stand(&day.worker.settle(&job, "34").await.expect(200)), "settled: 30 34 0 0 0, 34, 6");
    assert_eq!(day.daily().await, ["34", "0", "0", "66"]);

    let calls = day.calls("calls", "30").await;
    day.worker.call(&calls, "a", "10").await.expect(201);
    day.worker.cancel(&calls).await.expect(200);
    day.worker.finish(&calls).await.problem(409, "calls_in_flight");
    day.worker.not_sent(&calls, "a").await.expect(200);
    assert_eq!(stand(&day.worker.settle(&calls, "2").await.expect(200)), "settled: 30 2 0 0 0, 2, 5");
    assert_eq!(day.daily().await, ["36", "0", "0", "64"]);
    assert_eq!(
        day.books().await.moves(),
        [
            "reserve available>reserved 30",
            "progressive_settlement reserved>settled 10",
            "cancel reserved>liability 20",
            "progressive_settlement liability>settled 2",
            "progressive_settlement liability>settled 18",
            "progressive_settlement available>settled 3",
            "final_settlement available>settled 1",
            "reserve available>reserved 30",
            "cancel reserved>liability 30",
            "final_settlement liability>settled 2",
            "final_settlement liability>available 28",
        ]
    );
}
