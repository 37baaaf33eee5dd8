//! Several takeovers, one after the other: no fresh allowance for anybody.

use serde_json::json;

use crate::support::Northstar;
use crate::support::verbs::{stand, stopped};

#[tokio::test]
async fn what_each_attempt_may_have_spent_adds_up() {
    let day = Northstar::open().await;
    let first = day.stream("job", "50").await;
    day.worker.progress(&first, "10").await.expect(200);
    let over = async |previous: u32, holder: &str, more| {
        let more = stopped(more);
        day.clock(&format!("12:{:02}:00", previous * 5)).await;
        day.worker.take_over(&first, previous, holder, more).await.expect(201)
    };
    let second = over(1, "w-2", json!({"outstanding": "15"})).await;
    assert_eq!(stand(&second), "active: 50 10 0 0 5, 50, 3");
    // Each counts its own usage from zero.
    day.worker.progress(&second, "8").await.expect(200);
    assert_eq!(day.daily().await, ["18", "27", "5", "50"]);
    let third = over(2, "w-3", json!({"outstanding": "10"})).await;
    assert_eq!(stand(&third), "active: 50 18 0 0 7, 50, 5");
    assert_eq!(day.daily().await, ["18", "25", "7", "50"]);
    // Nothing stated of the third means everything that it had.
    let fourth = over(3, "w-4", json!({})).await;
    assert_eq!(stand(&fourth), "active: 50 18 0 0 32, 50, 6");
    assert_eq!(day.daily().await, ["18", "0", "32", "50"]);
    // The fourth has to ask for room.
    day.worker.extend(&fourth, "60").await.expect(200);
    assert_eq!(day.daily().await, ["18", "10", "32", "40"]);
    assert_eq!(stand(&day.worker.settle(&fourth, "12").await.expect(200)), "fenced: 60 30 0 0 32, 62, 8");
    assert_eq!(day.daily().await, ["30", "0", "32", "38"]);

    // What they report themselves is late, and each is known by its number.
    for (attempt, units) in [(&first, "11"), (&second, "9"), (&third, "2")] {
        day.worker.settle(attempt, units).await.problem(409, "stale_attempt");
        day.worker.progress(attempt, units).await.problem(409, "stale_attempt");
    }
    day.worker.settle(&fourth, "13").await.problem(409, "already_settled");
    assert_eq!(
        day.finance.late_usage("").await,
        ["4 - 13 already_settled", "3 - 2 stale_attempt", "2 - 9 stale_attempt", "1 - 11 stale_attempt"]
    );
    assert_eq!(day.daily().await, ["30", "0", "32", "38"]);
    day.finance.close(&first, "34", "11 + 9 + 2 + 12").await.expect(200);
    assert_eq!(day.daily().await, ["34", "0", "0", "66"]);
    assert_eq!(
        day.books().await.moves(),
        [
            "reserve available>reserved 50",
            "progressive_settlement reserved>settled 10",
            "takeover reserved>liability 5",
            "progressive_settlement reserved>settled 8",
            "takeover reserved>liability 2",
            "takeover reserved>liability 25",
            "extend available>reserved 10",
            "final_settlement reserved>settled 10",
            "final_settlement available>settled 2",
            "finance_settlement liability>settled 4",
            "finance_settlement liability>available 28",
        ]
    );
}

#[tokio::test]
async fn every_attempts_calls_count_against_the_one_ceiling() {
    let day = Northstar::open().await;
    let first = day.calls("job", "40").await;
    let mut attempts = vec![first.clone()];
    day.worker.call(&first, "1/a", "10").await.expect(201);
    for previous in 1..=3 {
        day.clock(&format!("12:{:02}:00", previous * 5)).await;
        let next = day.worker.take_over(&first, previous, "w", json!({})).await;
        // The third has the same name as the second and is another attempt.
        let next = next.expect(201);
        assert_eq!(next.body["attempt"]["number"], previous + 1);
        let call = format!("{}/a", previous + 1);
        day.worker.call(&next, &call, "10").await.expect(201);
        attempts.push(next);
    }
    let last = attempts[3].clone();
    let refused = day.worker.call(&last, "more", "1").await.problem(409, "ceiling_reached");
    assert_eq!(refused.text("remaining"), "0");
    assert_eq!(stand(&day.worker.now(&first).await), "active: 40 0 40 0 0, 40, 8");
    assert_eq!(day.daily().await, ["0", "40", "0", "60"]);
    assert_eq!(
        day.worker.calls_of(&first).await,
        ["4/a 4 in_flight 10 -", "3/a 3 in_flight 10 -", "2/a 2 in_flight 10 -", "1/a 1 in_flight 10 -"]
    );

    // Each settles its own and nobody else's, in any order.
    for (owner, token) in [(1, 0), (2, 3), (3, 1), (4, 2)] {
        let body = json!({"attempt": attempts[token].token(), "units": "9"});
        let answer = day.worker.end_call(&first, &format!("{owner}/a"), body).await;
        if owner == token + 1 {
            answer.expect(200)
        } else {
            answer.problem(409, "stale_attempt")
        };
    }
    for owner in [3, 2] {
        day.worker.settle_call(&attempts[owner - 1], &format!("{owner}/a"), "9").await.expect(200);
    }
    // The last attempt ends while nothing of its own is in flight.
    day.worker.finish(&last).await.problem(409, "calls_in_flight");
    day.worker.settle_call(&last, "4/a", "9").await.expect(200);
    assert_eq!(stand(&day.worker.settle(&last, "9").await.expect(200)), "settled: 40 36 0 0 0, 36, 13");
    assert_eq!(day.daily().await, ["36", "0", "0", "64"]);
    day.books().await;
}
