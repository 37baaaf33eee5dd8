//! A day of work, step by step, and the two ways in which it can end.

use serde_json::json;

use crate::support::verbs::{call_stand, stand};
use crate::support::{Answer, Northstar};

/// Steps 0 to 14. Answers with the reservation of 36, whose call `second` is in
/// flight, fenced.
async fn until_the_fence(day: &Northstar) -> Answer {
    let worker = &day.worker;
    // 0: settled earlier that day.
    let earlier = day.calls("earlier", "40").await;
    worker.settle(&earlier, "40").await.expect(200);
    assert_eq!(day.daily().await, ["40", "0", "0", "60"]);

    // 1: one large export.
    let large = day.calls("large", "30").await;
    assert_eq!(day.daily().await, ["40", "30", "0", "30"]);

    // 2: another member's three formats at 12 are refused.
    let three = json!({"operation": "export", "quantities": {"formats": 3, "weight": 12}, "member": "ben",
                       "holder": "w-1"});
    let refused = worker.reserve("three", three.clone()).await.problem(429, "budget_exhausted");
    let breach = &refused.body["breaches"][0];
    assert_eq!(
        (&breach["budget"], &breach["requested"], &breach["available"]),
        (&json!("daily"), &json!("36"), &json!("30"))
    );
    assert_eq!(refused.body["retry"], "after_release");
    assert_eq!(day.daily().await, ["40", "30", "0", "30"]);

    // 3: the large export settles at 24.
    let settled = worker.settle(&large, "24").await.expect(200);
    assert_eq!(day.daily().await, ["64", "0", "0", "36"]);

    // 4: the same settlement again gives the same answer.
    let again = worker.settle(&large, "24.000").await.expect(200);
    assert_eq!(again.body, settled.body);
    assert_eq!(day.daily().await, ["64", "0", "0", "36"]);

    // 5: at 25 it is a conflict that shows 24.
    let conflict = worker.settle(&large, "25").await.problem(409, "already_settled");
    assert_eq!((conflict.text("settled"), &conflict.body["reservation"]["settled"]), ("24", &json!("24")));
    assert_eq!(day.daily().await, ["64", "0", "0", "36"]);

    // 6: exactly what is available is admitted; the refusal left the key unused.
    let three = worker.reserve("three", three).await.expect(201);
    assert_eq!(day.daily().await, ["64", "36", "0", "0"]);

    // 7: five more are not.
    worker.reserve_bulk("five", "5").await.problem(429, "budget_exhausted");
    assert_eq!(day.daily().await, ["64", "36", "0", "0"]);

    // 8: a call of 12 settles at 12.
    let call = worker.call(&three, "first", "12").await.expect(201);
    assert_eq!(call_stand(&call), "in_flight 12 - 1, 24 36 active 2");
    assert_eq!(day.daily().await, ["64", "36", "0", "0"]);
    let call = worker.settle_call(&three, "first", "12").await.expect(200);
    assert_eq!(call_stand(&call), "settled 12 12 1, 24 36 active 3");
    assert_eq!(day.daily().await, ["76", "24", "0", "0"]);

    // 9: another is in flight from here.
    let call = worker.call(&three, "second", "12").await.expect(201);
    assert_eq!(call_stand(&call), "in_flight 12 - 1, 12 36 active 4");
    assert_eq!(day.daily().await, ["76", "24", "0", "0"]);

    // 10: cancelled, it is still charged.
    let cancelled = day.operator.cancel(&three).await.expect(200);
    assert_eq!(stand(&cancelled), "cancelling: 36 12 12 0 0, 36, 5");
    assert_eq!(day.daily().await, ["76", "0", "24", "0"]);

    // 11: its lease runs out, it is still charged.
    day.clock("12:30:00").await;
    assert_eq!(stand(&worker.now(&three).await), "cancelling: 36 12 12 0 0, 36, 5");
    assert_eq!(day.daily().await, ["76", "0", "24", "0"]);

    // 12: the old worker may still spend.
    worker.reserve_bulk("five", "5").await.problem(429, "budget_exhausted");
    assert_eq!(day.daily().await, ["76", "0", "24", "0"]);

    // 13: fenced, 36 - 12 settled - 12 in flight are released.
    let fenced = day.operator.fence(&three, 1, json!({})).await.expect(200);
    assert_eq!((fenced.text("released"), &*stand(&fenced)), ("12", "fenced: 24 12 12 0 0, 24, 6"));
    assert_eq!(day.daily().await, ["76", "0", "12", "12"]);

    // 14: five more are admitted.
    day.calls("five", "5").await;
    assert_eq!(day.daily().await, ["76", "5", "12", "7"]);
    three
}

const JOURNAL: [&str; 11] = [
    "daily 1 period_opened granted>available 100",
    "daily 2 reserve available>reserved 40",
    "daily 3 final_settlement reserved>settled 40",
    "daily 4 reserve available>reserved 30",
    "daily 5 final_settlement reserved>settled 24",
    "daily 6 final_settlement reserved>available 6",
    "daily 7 reserve available>reserved 36",
    "daily 8 call_settled reserved>settled 12",
    "daily 9 cancel reserved>liability 24",
    "daily 10 fence liability>available 12",
    "daily 11 reserve available>reserved 5",
];

#[tokio::test]
async fn a_day_of_work() {
    let day = Northstar::open().await;
    let three = until_the_fence(&day).await;

    // 15: the call in flight settles at 11: 1 released, the 36 is settled at 23.
    let call = day.worker.settle_call(&three, "second", "11").await.expect(200);
    assert_eq!(call_stand(&call), "settled 12 11 1, 1 24 settled 7");
    assert_eq!(day.daily().await, ["87", "5", "0", "8"]);
    let settled = day.worker.now(&three).await;
    assert_eq!((&*stand(&settled), settled.text("overrun")), ("settled: 24 23 0 0 0, 23, 7", "0"));
    assert_eq!(settled.body["closed_at"], "2026-03-04T12:30:00Z");

    let books = day.books().await;
    assert_eq!(books.journal[..11], JOURNAL);
    assert_eq!(
        books.journal[11..],
        ["daily 12 call_settled liability>settled 11", "daily 13 call_settled liability>available 1"]
    );
    assert_eq!(
        books.reservations,
        [
            "earlier settled 2 40 40 0 0",
            "five active 1 5 0 5 0",
            "large settled 2 30 24 0 0",
            "three settled 7 24 23 0 0",
        ]
    );
}

#[tokio::test]
async fn a_day_of_work_whose_last_call_costs_more() {
    let day = Northstar::open().await;
    let three = until_the_fence(&day).await;

    // Instead of 15: at 14 it takes 12 from liability, and 2 are overrun.
    let call = day.worker.settle_call(&three, "second", "14").await.expect(200);
    assert_eq!(call_stand(&call), "settled 12 14 1, 0 24 settled 7");
    assert_eq!(day.daily().await, ["90", "5", "0", "5"]);
    let settled = day.worker.now(&three).await;
    assert_eq!((&*stand(&settled), settled.text("overrun")), ("settled: 24 26 0 0 0, 26, 7", "2"));

    let books = day.books().await;
    assert_eq!(books.journal[..11], JOURNAL);
    assert_eq!(
        books.journal[11..],
        ["daily 12 call_settled liability>settled 12", "daily 13 call_settled available>settled 2"]
    );
}
