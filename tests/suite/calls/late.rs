//! Usage is usage: a stale attempt settles the calls that it was admitted for, and
//! what can be charged no more is kept.

use serde_json::json;

use crate::support::Northstar;
use crate::support::verbs::{call_stand, stand};

#[tokio::test]
async fn a_stale_attempt_settles_its_own_calls_and_no_others() {
    let day = Northstar::open().await;
    let first = day.calls("job", "40").await;
    for call in ["a", "b", "c"] {
        day.worker.call(&first, call, "5").await.expect(201);
    }
    day.worker.settle_call(&first, "a", "5").await.expect(200);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    day.worker.call(&second, "d", "8").await.expect(201);

    let b = day.worker.settle_call(&first, "b", "4").await.expect(200);
    assert_eq!(call_stand(&b), "settled 5 4 1, 18 40 active 8");
    // It may also say that it does not know, and settle that later.
    let c = json!({"attempt": first.token(), "outcome": "unknown"});
    day.worker.end_call(&first, "c", c).await.expect(200);
    assert_eq!(day.daily().await, ["9", "26", "5", "60"]);

    // The call of one attempt is not the other's to settle.
    let refused = day.worker.settle_call(&second, "c", "5").await.problem(409, "stale_attempt");
    assert_eq!(refused.body["reservation"]["attempt"]["token"], second.token());
    let refused = day.worker.settle_call(&first, "d", "8").await.problem(409, "stale_attempt");
    assert_eq!(refused.body["reservation"]["attempt"].get("token"), None);
    let other = json!({"attempt": second.token(), "outcome": "unknown"});
    day.worker.end_call(&first, "c", other).await.problem(409, "stale_attempt");
    let guess = json!({"attempt": "1.AAAAAAAAAAAAAAAAAAAAAA", "units": "5"});
    day.worker.end_call(&first, "c", guess).await.problem(409, "stale_attempt");
    assert_eq!(day.finance.late_usage("").await, ["1 d 8 stale_attempt", "2 c 5 stale_attempt"]);
    assert_eq!(day.daily().await, ["9", "26", "5", "60"]);

    // What the first spends is none of the second's: it settles at its own.
    day.worker.settle_call(&first, "c", "6").await.expect(200);
    day.worker.settle_call(&second, "d", "8").await.expect(200);
    assert_eq!(stand(&day.worker.settle(&second, "8").await.expect(200)), "settled: 40 23 0 0 0, 23, 12");
    assert_eq!(day.daily().await, ["23", "0", "0", "77"]);
    day.books().await;
}

#[tokio::test]
async fn the_settled_amount_of_an_attempt_does_not_move_after_its_final_settlement() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.worker.call(&job, "b", "5").await.expect(201);
    day.worker.settle_call(&job, "b", "5").await.expect(200);
    day.worker.unknown(&job, "a").await.expect(200);
    let fenced = day.worker.finish(&job).await.expect(200);
    assert_eq!(stand(&fenced), "fenced: 30 5 0 10 0, 15, 6");
    assert_eq!(day.daily().await, ["5", "0", "10", "85"]);
    // The unknown one becomes known, and the reservation ends by itself.
    assert_eq!(
        call_stand(&day.worker.settle_call(&job, "a", "9").await.expect(200)),
        "settled 10 9 1, 16 30 settled 7"
    );
    // The settlement that was made is still a repeat, at what it said then.
    for _ in 0..2 {
        assert_eq!(stand(&day.worker.settle(&job, "5").await.expect(200)), "settled: 30 14 0 0 0, 14, 7");
        day.worker.finish(&job).await.expect(200);
    }
    let refused = day.worker.settle(&job, "14").await.problem(409, "already_settled");
    assert_eq!(refused.text("settled"), "14");
    assert_eq!(day.finance.late_usage("").await, ["1 - 14 already_settled"]);
    assert_eq!(day.daily().await, ["14", "0", "0", "86"]);
    day.books().await;
}

#[tokio::test]
async fn what_comes_after_the_reservation_was_closed_is_kept_once_for_each_amount() {
    let day = Northstar::open().await;
    let first = day.calls("job", "40").await;
    for call in ["a", "b", "c", "d"] {
        day.worker.call(&first, call, "5").await.expect(201);
    }
    day.worker.settle_call(&first, "d", "5").await.expect(200);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    day.worker.call(&second, "e", "5").await.expect(201);
    day.finance.close(&second, "12", "as the provider bills it").await.expect(200);
    assert_eq!(day.daily().await, ["12", "0", "0", "88"]);

    for _ in 0..2 {
        for (who, call, units) in [(&first, "a", "4"), (&first, "a", "4.5"), (&second, "e", "4")] {
            let refused = day.worker.settle_call(who, call, units).await.problem(409, "already_settled");
            assert_eq!((refused.text("settled"), refused.text("retry")), ("12", "never"));
            let shown = refused.body["reservation"]["attempt"].get("token");
            assert_eq!(shown.is_some(), call == "e");
        }
        // The wrong attempt's is kept as that attempt's.
        day.worker.settle_call(&second, "a", "4").await.problem(409, "stale_attempt");
        // Who says nothing of usage leaves nothing behind.
        day.worker.unknown(&first, "b").await.problem(409, "already_settled");
        day.worker.not_sent(&second, "e").await.problem(409, "already_settled");
        // A call that had settled is as it was.
        day.worker.settle_call(&first, "d", "5").await.expect(200);
        day.worker.settle_call(&first, "d", "6").await.problem(409, "call_already_settled");
    }
    assert_eq!(
        day.finance.late_usage("").await,
        [
            "1 d 6 call_already_settled",
            "2 a 4 stale_attempt",
            "2 e 4 already_settled",
            "1 a 4.5 already_settled",
            "1 a 4 already_settled",
        ]
    );
    assert_eq!(stand(&day.worker.now(&first).await), "settled: 40 12 0 0 0, 12, 9");
    assert_eq!(day.daily().await, ["12", "0", "0", "88"]);
    assert_eq!(day.worker.calls_of(&first).await[0], "e 2 in_flight 5 -");
    day.books().await;
}
