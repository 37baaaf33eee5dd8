//! A final settlement settles what is known. With something outstanding the
//! reservation is fenced, and ends by itself when the last of it is known.

use reqwest::Method;
use serde_json::json;

use crate::support::Northstar;
use crate::support::unchanged::Unchanged;
use crate::support::verbs::{call_stand, stand, stopped};

#[tokio::test]
async fn while_its_own_calls_are_in_flight_it_is_a_conflict() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.worker.call(&job, "b", "5").await.expect(201);
    day.worker.settle_call(&job, "a", "8").await.expect(200);
    let path = format!("/v1/reservations/{}/settle", job.id());
    let unchanged = Unchanged::from_now(&day.service).await;
    for (body, code) in [
        (json!({"attempt": job.token()}), "calls_in_flight"),
        (json!({"attempt": job.token(), "units": "8"}), "calls_in_flight"),
        (json!({"attempt": job.token(), "units": "13", "final": true}), "calls_in_flight"),
        // Never below what its calls were settled at.
        (json!({"attempt": job.token(), "units": "7"}), "usage_decreases"),
        (json!({"attempt": job.token(), "units": "0"}), "usage_decreases"),
    ] {
        let request = day.worker.request(Method::POST, &path).json(&body);
        let refused = unchanged.refuses(&day.worker, request, 409, code, None).await;
        assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
    }
    // Usage by calls is not reported progressively.
    let request = day.worker.request(Method::POST, &path);
    let request = request.json(&json!({"attempt": job.token(), "units": "9", "final": false}));
    unchanged.refuses(&day.worker, request, 400, "invalid_request", Some("final")).await;
    drop(unchanged);
    day.worker.settle_call(&job, "b", "5").await.expect(200);
    // What was used beside the calls may be added.
    assert_eq!(stand(&day.worker.settle(&job, "13.5").await.expect(200)), "settled: 30 13.5 0 0 0, 13.5, 6");
    assert_eq!(day.daily().await, ["13.5", "0", "0", "86.5"]);
    assert_eq!(
        day.books().await.moves()[3..],
        ["final_settlement reserved>settled 0.5", "final_settlement reserved>available 16.5"]
    );
}

#[tokio::test]
async fn with_unknown_calls_it_settles_the_rest_and_ends_by_itself() {
    let day = Northstar::open().await;
    let job = day.calls("job", "40").await;
    for (call, units) in [("a", "10"), ("b", "8"), ("c", "6")] {
        day.worker.call(&job, call, units).await.expect(201);
    }
    day.worker.settle_call(&job, "a", "9").await.expect(200);
    day.worker.unknown(&job, "b").await.expect(200);
    day.worker.unknown(&job, "c").await.expect(200);
    assert_eq!(day.daily().await, ["9", "17", "14", "60"]);
    // Without the unknown ones.
    let fenced = day.worker.finish(&job).await.expect(200);
    assert_eq!(stand(&fenced), "fenced: 40 9 0 14 0, 23, 8");
    assert_eq!(fenced.token(), job.token());
    assert_eq!(day.daily().await, ["9", "0", "14", "77"]);
    for units in [None, Some("9")] {
        let body = units.map_or(json!({}), |units| json!({"units": units}));
        let body = crate::support::verbs::and(json!({"attempt": job.token()}), body);
        assert_eq!(day.worker.verb(&job, "settle", body).await.expect(200).body, fenced.body);
    }
    day.worker.settle(&job, "10").await.problem(409, "already_settled");
    day.worker.call(&job, "d", "1").await.problem(409, "not_active");
    day.operator.take_over(&job, 1, "w-2", json!({"force": true})).await.problem(409, "not_active");

    assert_eq!(call_stand(&day.worker.settle_call(&job, "b", "7").await.expect(200)), "settled 8 7 1, 18 40 fenced 9");
    assert_eq!(day.daily().await, ["16", "0", "6", "78"]);
    assert_eq!(
        call_stand(&day.worker.settle_call(&job, "c", "0").await.expect(200)),
        "settled 6 0 1, 24 40 settled 10"
    );
    assert_eq!(day.daily().await, ["16", "0", "0", "84"]);
    assert_eq!(day.worker.now(&job).await.body["closed_at"], "2026-03-04T12:00:00Z");
    assert_eq!(
        day.books().await.moves()[4..],
        [
            "final_settlement reserved>available 17",
            "call_settled liability>settled 7",
            "call_settled liability>available 1",
            "call_settled liability>available 6",
        ]
    );
}

#[tokio::test]
async fn the_calls_of_an_earlier_attempt_are_no_conflict() {
    let day = Northstar::open().await;
    let first = day.calls("job", "40").await;
    day.worker.call(&first, "a", "10").await.expect(201);
    day.worker.call(&first, "b", "5").await.expect(201);
    day.worker.settle_call(&first, "b", "5").await.expect(200);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    day.worker.call(&second, "c", "12").await.expect(201);
    day.worker.settle_call(&second, "c", "11").await.expect(200);
    // Its own total is what its own calls came to.
    day.worker.settle(&second, "10").await.problem(409, "usage_decreases");
    let fenced = day.worker.settle(&second, "11").await.expect(200);
    assert_eq!(stand(&fenced), "fenced: 40 16 10 0 0, 26, 8");
    assert_eq!(day.daily().await, ["16", "0", "10", "74"]);
    // The token of the first still settles its call, and that is the end.
    let last = day.worker.settle_call(&first, "a", "10").await.expect(200);
    assert_eq!(call_stand(&last), "settled 10 10 1, 14 40 settled 9");
    assert_eq!(day.daily().await, ["26", "0", "0", "74"]);
    assert_eq!(stand(&day.worker.settle(&second, "11").await.expect(200)), "settled: 40 26 0 0 0, 26, 9");
    day.books().await;
}

#[tokio::test]
async fn what_an_earlier_attempt_may_have_spent_waits_for_finance() {
    let day = Northstar::open().await;
    let first = day.stream("job", "40").await;
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", stopped(json!({"outstanding": "0"}))).await.expect(201);
    // Nothing is outstanding: it settles for good.
    assert_eq!(stand(&day.worker.settle(&second, "15").await.expect(200)), "settled: 40 15 0 0 0, 15, 3");
    let first = day.stream("other", "40").await;
    day.clock("12:10:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", stopped(json!({"outstanding": "12"}))).await.expect(201);
    day.worker.progress(&second, "5").await.expect(200);
    let fenced = day.worker.settle(&second, "15").await.expect(200);
    assert_eq!(stand(&fenced), "fenced: 40 15 0 0 12, 27, 4");
    assert_eq!(day.daily().await, ["30", "0", "12", "58"]);
    assert_eq!(day.worker.settle(&second, "15").await.expect(200).body, fenced.body);
    assert_eq!(day.worker.progress(&second, "15").await.expect(200).body, fenced.body);
    assert_eq!(day.worker.settle(&second, "16").await.problem(409, "already_settled").text("settled"), "15");
    assert_eq!(stand(&day.finance.close(&first, "15", "nothing").await.expect(200)), "settled: 40 15 0 0 0, 15, 5");
    assert_eq!(day.daily().await, ["30", "0", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn an_overrun_of_the_job_is_no_room_for_what_is_outstanding() {
    let day = Northstar::open().await;
    let job = day.calls("job", "20").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.worker.unknown(&job, "a").await.expect(200);
    // 15 beside the unknown 10: 5 above the ceiling.
    let fenced = day.worker.settle(&job, "15").await.expect(200);
    assert_eq!((&*stand(&fenced), fenced.text("overrun")), ("fenced: 20 15 0 10 0, 25, 4", "5"));
    assert_eq!(day.daily().await, ["15", "0", "10", "75"]);
    day.worker.settle_call(&job, "a", "4").await.expect(200);
    let ended = day.worker.now(&job).await;
    assert_eq!((&*stand(&ended), ended.text("overrun")), ("settled: 20 19 0 0 0, 19, 5", "0"));
    assert_eq!(day.daily().await, ["19", "0", "0", "81"]);
    assert_eq!(
        day.books().await.moves()[2..],
        [
            "final_settlement reserved>settled 10",
            "final_settlement available>settled 5",
            "call_settled liability>settled 4",
            "call_settled liability>available 6",
        ]
    );
}
