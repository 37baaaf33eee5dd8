//! A call ends as settled with its actual units, as unknown, or as not sent.

use serde_json::{Value, json};

use crate::support::Northstar;
use crate::support::verbs::{call_stand, stand};

#[tokio::test]
async fn a_call_may_settle_above_what_it_was_admitted_for() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.calls("other", "65").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    day.worker.call(&job, "b", "20").await.expect(201);
    // Within the ceiling by itself, but the other call is outstanding: 5 are
    // charged above the ceiling until that is known.
    let a = day.worker.settle_call(&job, "a", "15").await.expect(200);
    assert_eq!(call_stand(&a), "settled 10 15 1, 0 30 active 4");
    let now = day.worker.now(&job).await;
    assert_eq!((&*stand(&now), now.text("overrun")), ("active: 30 15 20 0 0, 35, 4", "5"));
    assert_eq!(day.daily().await, ["15", "85", "0", "0"]);
    day.worker.settle_call(&job, "b", "12").await.expect(200);
    let now = day.worker.now(&job).await;
    assert_eq!((&*stand(&now), now.text("overrun")), ("active: 30 27 0 0 0, 30, 5", "0"));
    assert_eq!(day.daily().await, ["27", "68", "0", "5"]);

    // Above the ceiling, and above what is available: never refused.
    day.worker.call(&job, "c", "3").await.expect(201);
    let c = day.worker.settle_call(&job, "c", "10.5").await.expect(200);
    assert_eq!(call_stand(&c), "settled 3 10.5 1, 0 30 active 7");
    let now = day.worker.now(&job).await;
    assert_eq!((&*stand(&now), now.text("overrun")), ("active: 30 37.5 0 0 0, 37.5, 7", "7.5"));
    assert_eq!(day.daily().await, ["37.5", "65", "0", "-2.5"]);
    assert_eq!(stand(&day.worker.finish(&job).await.expect(200)), "settled: 30 37.5 0 0 0, 37.5, 8");
    assert_eq!(
        day.books().await.moves()[2..],
        [
            "call_settled reserved>settled 10",
            "call_settled available>settled 5",
            "call_settled reserved>settled 12",
            "call_settled reserved>available 5",
            "call_settled reserved>settled 3",
            "call_settled available>settled 7.5",
        ]
    );
}

#[tokio::test]
async fn the_same_again_changes_nothing_and_another_amount_is_a_conflict() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "12").await.expect(201);
    let settled = day.worker.settle_call(&job, "a", "11").await.expect(200);
    assert_eq!(day.worker.settle_call(&job, "a", "11.000").await.expect(200).body, settled.body);
    for units in ["12", "10", "0"] {
        let refused = day.worker.settle_call(&job, "a", units).await.problem(409, "call_already_settled");
        assert_eq!((refused.text("settled"), refused.text("retry")), ("11", "never"));
        assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
        assert_eq!(refused.body["reservation"]["version"], 3);
    }
    // It has been answered: it was sent, and its outcome is known.
    assert_eq!(day.worker.not_sent(&job, "a").await.problem(409, "call_already_settled").text("settled"), "11");
    assert_eq!(day.worker.unknown(&job, "a").await.problem(409, "call_already_settled").text("settled"), "11");
    // Each amount is kept once.
    day.worker.settle_call(&job, "a", "12").await.problem(409, "call_already_settled");
    assert_eq!(
        day.finance.late_usage("").await,
        ["1 a 0 call_already_settled", "1 a 10 call_already_settled", "1 a 12 call_already_settled"]
    );
    assert_eq!(day.daily().await, ["11", "19", "0", "70"]);
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 11 0 0 0, 30, 3");
    day.books().await;
}

#[tokio::test]
async fn a_call_that_was_not_sent_counts_for_nothing() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "12").await.expect(201);
    day.worker.call(&job, "b", "18").await.expect(201);
    let ended = day.worker.not_sent(&job, "a").await.expect(200);
    assert_eq!(call_stand(&ended), "not_sent 12 - 1, 12 30 active 4");
    assert_eq!(day.worker.not_sent(&job, "a").await.expect(200).body, ended.body);
    // The room is the job's again; the key stays used.
    assert_eq!(call_stand(&day.worker.call(&job, "a", "12").await.expect(200)), "not_sent 12 - 1, 12 30 active 4");
    day.worker.call(&job, "c", "12").await.expect(201);
    // It was not sent, so it cost nothing: anything else comes too late.
    assert_eq!(day.worker.settle_call(&job, "a", "3").await.problem(409, "call_already_settled").text("settled"), "0");
    assert_eq!(day.worker.settle_call(&job, "a", "0").await.problem(409, "call_already_settled").text("settled"), "0");
    assert_eq!(day.worker.unknown(&job, "a").await.problem(409, "call_already_settled").text("settled"), "0");
    assert_eq!(day.finance.late_usage("").await, ["1 a 0 call_already_settled", "1 a 3 call_already_settled"]);
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    assert_eq!(day.books().await.moves(), ["reserve available>reserved 30"]);
}

#[tokio::test]
async fn only_the_current_attempt_can_say_that_its_call_was_not_sent() {
    let day = Northstar::open().await;
    let first = day.calls("job", "30").await;
    day.worker.call(&first, "a", "12").await.expect(201);
    day.worker.call(&first, "b", "6").await.expect(201);
    day.clock("12:05:00").await;
    let second = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    day.worker.call(&second, "c", "5").await.expect(201);
    for (who, call) in [(&first, "a"), (&second, "a"), (&first, "c")] {
        let refused = day.worker.not_sent(who, call).await.problem(409, "stale_attempt");
        // The token is shown to who has presented the current one.
        let shown = refused.body["reservation"]["attempt"].get("token");
        assert_eq!(shown.is_some(), who.token() == second.token(), "{call}");
    }
    // That says nothing of usage, and none is kept.
    assert_eq!(day.finance.late_usage("").await, Vec::<String>::new());
    day.worker.not_sent(&second, "c").await.expect(200);
    // Said while it was current, it stays said; said again later, it is stale.
    assert_eq!(stand(&day.worker.now(&first).await), "active: 30 0 18 0 0, 30, 6");
    // The current attempt says so also after a cancel and a fence.
    day.worker.call(&second, "d", "4").await.expect(201);
    day.worker.call(&second, "e", "5").await.expect(201);
    day.worker.cancel(&second).await.expect(200);
    assert_eq!(call_stand(&day.worker.not_sent(&second, "d").await.expect(200)), "not_sent 4 - 2, 7 30 cancelling 10");
    day.worker.fence(&second, 2, json!({})).await.expect(200);
    assert_eq!(day.daily().await, ["0", "0", "23", "77"]);
    assert_eq!(call_stand(&day.worker.not_sent(&second, "e").await.expect(200)), "not_sent 5 - 2, 5 23 fenced 12");
    assert_eq!(day.daily().await, ["0", "0", "18", "82"]);
    day.books().await;
}

#[tokio::test]
async fn an_unknown_outcome_stays_charged_in_full_until_it_is_settled() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    for (call, units) in [("a", "10"), ("b", "8"), ("c", "4")] {
        day.worker.call(&job, call, units).await.expect(201);
    }
    // With the token, without one, or by an operator.
    let body = json!({"attempt": job.token(), "outcome": "unknown"});
    let a = day.worker.end_call(&job, "a", body.clone()).await.expect(200);
    assert_eq!(call_stand(&a), "unknown 10 - 1, 8 30 active 5");
    assert_eq!(day.daily().await, ["0", "20", "10", "70"]);
    assert_eq!(call_stand(&day.worker.unknown(&job, "b").await.expect(200)), "unknown 8 - 1, 8 30 active 6");
    assert_eq!(call_stand(&day.operator.unknown(&job, "c").await.expect(200)), "unknown 4 - 1, 8 30 active 7");
    assert_eq!(day.daily().await, ["0", "8", "22", "70"]);
    // Said again it changes nothing, whoever says it.
    for client in [&day.worker, &day.operator] {
        client.unknown(&job, "a").await.expect(200);
    }
    assert_eq!(day.worker.end_call(&job, "a", body).await.expect(200).body["version"], 7);
    let made_up = json!({"attempt": "1.made-up", "outcome": "unknown"});
    day.worker.end_call(&job, "a", made_up).await.problem(409, "stale_attempt");
    // Nobody can say any more that it was not sent, and nothing says what it cost.
    let refused = day.worker.not_sent(&job, "a").await.problem(409, "call_already_settled");
    assert_eq!(refused.body["settled"], Value::Null);
    assert!(refused.body.as_object().unwrap().contains_key("settled"));

    // Settled: out of liability, whatever it is; the room is the job's again.
    assert_eq!(call_stand(&day.worker.settle_call(&job, "a", "7").await.expect(200)), "settled 10 7 1, 11 30 active 8");
    assert_eq!(day.daily().await, ["7", "11", "12", "70"]);
    assert_eq!(call_stand(&day.worker.settle_call(&job, "b", "0").await.expect(200)), "settled 8 0 1, 19 30 active 9");
    day.worker.settle_call(&job, "c", "30").await.expect(200);
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 37 0 0 0, 37, 10");
    assert_eq!(day.daily().await, ["37", "0", "0", "63"]);
    assert_eq!(
        day.books().await.moves()[1..],
        [
            "call_unknown reserved>liability 10",
            "call_unknown reserved>liability 8",
            "call_unknown reserved>liability 4",
            "call_settled liability>settled 7",
            "call_settled liability>reserved 3",
            "call_settled liability>reserved 8",
            "call_settled reserved>settled 19",
            "call_settled liability>settled 4",
            "call_settled available>settled 7",
        ]
    );
}

#[tokio::test]
async fn the_providers_own_name_for_a_call_is_kept() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let end = async |call: &str, mut body: Value, name: Option<&str>| {
        body["attempt"] = json!(job.token());
        if let Some(name) = name {
            body["provider_request_id"] = json!(name);
        }
        day.worker.end_call(&job, call, body).await.expect(200).body["provider_request_id"].clone()
    };
    for call in ["a", "b", "c", "d"] {
        let admitted = day.worker.call(&job, call, "5").await.expect(201);
        assert_eq!(admitted.body["provider_request_id"], Value::Null);
    }
    assert_eq!(end("a", json!({"units": 4}), Some("req 1 – é")).await, "req 1 – é");
    // A repeat changes nothing, not even this.
    assert_eq!(end("a", json!({"units": 4}), Some("req-2")).await, "req 1 – é");
    assert_eq!(end("b", json!({"outcome": "unknown"}), Some("req-3")).await, "req-3");
    // Left out later it stays; given again it is the newer.
    assert_eq!(end("b", json!({"units": 4}), None).await, "req-3");
    assert_eq!(end("c", json!({"outcome": "unknown"}), Some("req-4")).await, "req-4");
    assert_eq!(end("c", json!({"units": 4}), Some("req-5")).await, "req-5");
    assert_eq!(end("d", json!({"outcome": "not_sent"}), None).await, Value::Null);
    let list = day.worker.get(&format!("/v1/reservations/{}/calls", job.id())).await.expect(200);
    let names: Vec<_> =
        list.body["items"].as_array().unwrap().iter().map(|i| i["provider_request_id"].clone()).collect();
    assert_eq!(json!(names), json!([null, "req-5", "req-3", "req 1 – é"]));
    // With what comes too late it is kept too.
    let body = json!({"attempt": job.token(), "units": 5, "provider_request_id": "req-6"});
    day.worker.end_call(&job, "a", body).await.problem(409, "call_already_settled");
    let late = day.finance.get("/v1/late-usage").await.expect(200);
    assert_eq!(late.body["items"][0]["provider_request_id"], "req-6");
    assert_eq!(
        day.worker.history(&job).await[5..7],
        [
            r#"6 call_settled {"call":"a","units":"4","provider_request_id":"req 1 – é"}"#,
            r#"7 call_unknown {"call":"b","provider_request_id":"req-3"}"#,
        ]
    );
    assert_eq!(day.daily().await, ["12", "18", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn usage_beyond_the_range_of_the_books_is_refused_and_changes_nothing() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "1").await.expect(201);
    day.worker.settle_call(&job, "a", "1").await.expect(200);
    day.worker.call(&job, "b", "1").await.expect(201);
    // It fits the column of the call, not the balance beside what is settled.
    let most = "9999999999999999.999999999999";
    let refused = day.worker.settle_call(&job, "b", most).await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "units");
    assert_eq!(refused.body["reservation"]["id"], job.id());
    let refused = day.worker.call(&job, "c", most).await.problem(409, "ceiling_reached");
    assert_eq!(refused.text("remaining"), "28");
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 1 1 0 0, 30, 4");
    assert_eq!(day.daily().await, ["1", "29", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn an_amount_that_would_take_the_ceiling_out_of_range_is_refused() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let most = "9999999999999999.999999999999";
    day.worker.call_extending(&job, "a", most).await.problem(400, "too_expensive");
    // With a call outstanding the ceiling would have to be beyond its column.
    day.worker.call(&job, "b", "1").await.expect(201);
    let refused = day.worker.call_extending(&job, "a", most).await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "units");
    assert_eq!(refused.body["reservation"]["id"], job.id());
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 0 1 0 0, 30, 2");
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    day.books().await;
}
