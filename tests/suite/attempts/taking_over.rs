//! Taking over: who may, when, and what a repeat gets.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{and, call_stand, stand, stopped};
use crate::support::{Answer, Client, Northstar};

/// That a takeover is refused so, and changes nothing.
async fn refused(day: &Northstar, who: &Client, job: &Answer, body: Value, code: &str) -> Answer {
    let unchanged = Unchanged::from_now(&day.service).await;
    let request = who.request(Method::POST, &format!("/v1/reservations/{}/attempts", job.id())).json(&body);
    let refused = unchanged.refuses(who, request, 409, code, None).await;
    // Whoever asks has no token yet, so it is told none.
    let shown = &refused.body["reservation"];
    assert_eq!((&shown["id"], shown["attempt"].get("token")), (&json!(job.id()), None));
    refused
}

#[tokio::test]
async fn the_lease_has_to_have_run_out() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let ask = json!({"previous": 1, "holder": "w-2"});
    for (time, seconds) in [("12:00:00", 60), ("12:00:30.000001", 30), ("12:00:59", 1), ("12:00:59.999999", 1)] {
        day.clock(time).await;
        for who in [&day.worker, &day.operator] {
            let refused = refused(&day, who, &job, ask.clone(), "lease_current").await;
            let refused = refused.problem(409, "lease_current");
            assert_eq!(refused.body["retry_after_seconds"], seconds, "{time}");
            assert_eq!(refused.text("retry"), "after_release");
        }
    }
    day.clock("12:01:00").await;
    let taken = day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(201);
    assert_eq!(stand(&taken), "active: 30 0 0 0 0, 30, 2");
    let attempt = &taken.body["attempt"];
    assert_eq!((&attempt["number"], &attempt["holder"]), (&json!(2), &json!("w-2")));
    assert_eq!((&attempt["lease_expires_at"], &attempt["overdue"]), (&json!("2026-03-04T12:02:00Z"), &json!(false)));
    assert_ne!(taken.token(), job.token());
    assert!(taken.token().starts_with("2."));
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    assert_eq!(day.books().await.moves(), ["reserve available>reserved 30"]);
    assert_eq!(
        day.worker.history(&job).await[1..],
        [r#"2 takeover {"holder":"w-2","previous":1,"may_have_spent":"0","previous_holder":"w-1"}"#]
    );
}

#[tokio::test]
async fn an_operator_may_pass_over_the_lease_and_that_is_audited() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let force = json!({"force": true});
    let fleet = day.service.fleet().await;
    let unchanged = Unchanged::from_now(&day.service).await;
    for who in [&day.worker, &fleet] {
        who.take_over(&job, 1, "w-2", force.clone()).await.problem(403, "forbidden");
    }
    unchanged.check("force by a worker").await;
    drop(unchanged);
    let more = and(force.clone(), json!({"lease_seconds": 300, "evidence": {"kind": "fenced_elsewhere"}}));
    let taken = day.operator.take_over(&job, 1, "w-2", more.clone()).await.expect(201);
    assert_eq!(taken.body["attempt"]["lease_expires_at"], "2026-03-04T12:05:00Z");
    // Again it is a repeat, and audited once.
    let again = day.operator.take_over(&job, 1, "w-2", more).await.expect(200);
    assert_eq!((&again.body, again.token()), (&taken.body, taken.token()));
    // What needs no force is not audited.
    day.clock("12:05:00").await;
    day.operator.take_over(&job, 2, "w-3", json!({})).await.expect(201);
    day.worker
        .verb(&job, "attempts", json!({"previous": 3, "holder": "w-4", "force": false}))
        .await
        .problem(409, "lease_current");
    let audit = day.operator.get("/v1/audit").await.expect(200);
    let entries: Vec<_> = audit.body["items"].as_array().unwrap().iter().filter(|e| e["subject"] == job.id()).collect();
    assert_eq!(entries.len(), 1, "{entries:#?}");
    assert_eq!(entries[0]["action"], "takeover_forced");
    assert_eq!(
        entries[0]["detail"],
        json!({"account": "northstar", "previous": 1, "previous_holder": "w-1", "holder": "w-2",
               "evidence": {"kind": "fenced_elsewhere"}})
    );
    assert!(entries[0]["actor"].as_str().unwrap().starts_with("key:"));
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn the_same_holder_gets_the_same_attempt_and_nobody_else_does() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.clock("12:01:00").await;
    let taken = day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(201);
    // The answer was lost. A repeat changes nothing: not the lease either.
    day.clock("12:01:30").await;
    let unchanged = Unchanged::from_now(&day.service).await;
    for more in [json!({}), json!({"lease_seconds": 3600}), stopped(json!({"outstanding": "5"}))] {
        let again = day.worker.take_over(&job, 1, "w-2", more).await.expect(200);
        assert_eq!((&again.body, again.token()), (&taken.body, taken.token()));
    }
    unchanged.check("a repeat").await;
    refused(&day, &day.worker, &job, json!({"previous": 1, "holder": "w-3"}), "stale_attempt").await;
    // Who gave no name cannot be told from somebody else.
    refused(&day, &day.worker, &job, json!({"previous": 1}), "stale_attempt").await;
    refused(&day, &day.worker, &job, json!({"previous": 2, "holder": "w-2"}), "lease_current").await;
    refused(&day, &day.worker, &job, json!({"previous": 3, "holder": "w-2"}), "stale_attempt").await;
    refused(&day, &day.worker, &job, json!({"previous": 2_147_483_647, "holder": "w-2"}), "stale_attempt").await;

    // As it is now, also when the job has ended.
    day.worker.cancel(&job).await.expect(200);
    let again = day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(200);
    assert_eq!((again.text("state"), again.token()), ("cancelling", taken.token()));
    day.worker.finish(&taken).await.expect(200);
    assert_eq!(day.worker.take_over(&job, 1, "w-2", json!({})).await.expect(200).text("state"), "settled");
    assert_eq!(day.books().await.reservations, ["job settled 4 30 0 0 0"]);
}

#[tokio::test]
async fn a_name_may_come_back_with_another_token() {
    let day = Northstar::open().await;
    let first = day.calls("job", "30").await;
    day.worker.call(&first, "a", "5").await.expect(201);
    day.clock("12:01:00").await;
    // The process was started anew and has lost what it knew, but for its name.
    let second = day.worker.take_over(&first, 1, "w-1", json!({})).await.expect(201);
    assert_ne!(second.token(), first.token());
    day.worker.call(&first, "b", "5").await.problem(409, "stale_attempt");
    day.worker.call(&second, "b", "5").await.expect(201);
    day.worker.settle_call(&first, "a", "5").await.expect(200);
    // The key of the job gives the attempt to its current holder only.
    let asked = async |holder: &str| {
        let body = json!({"operation": "bulk", "units": "30", "holder": holder});
        day.worker.reserve("job", body).await.expect(200).body["attempt"].get("token").cloned()
    };
    assert_eq!(asked("w-1").await, Some(json!(second.token())));
    day.clock("12:05:00").await;
    let third = day.worker.take_over(&first, 2, "w-3", json!({})).await.expect(201);
    assert_eq!((asked("w-1").await, asked("w-3").await), (None, Some(json!(third.token()))));
    assert_eq!(day.daily().await, ["5", "25", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn only_what_is_active_is_taken_over() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "5").await.expect(201);
    day.clock("13:00:00").await;
    let not_active = async |state: &str| {
        let ask = json!({"previous": 1, "holder": "w-2"});
        for (who, ask) in [(&day.worker, ask.clone()), (&day.operator, and(ask, json!({"force": true})))] {
            let refused = refused(&day, who, &job, ask, "not_active").await;
            assert_eq!(refused.body["reservation"]["state"], state);
        }
        // Which attempt is meant is looked at first.
        refused(&day, &day.worker, &job, json!({"previous": 2, "holder": "w-2"}), "stale_attempt").await;
    };
    day.worker.cancel(&job).await.expect(200);
    not_active("cancelling").await;
    day.worker.fence(&job, 1, json!({})).await.expect(200);
    not_active("fenced").await;
    day.worker.settle_call(&job, "a", "5").await.expect(200);
    not_active("settled").await;
    assert_eq!(day.daily().await, ["5", "0", "0", "95"]);
    day.books().await;
}

#[tokio::test]
async fn where_the_ledger_admits_the_calls_it_knows_what_may_have_been_spent() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "8").await.expect(201);
    day.worker.call(&job, "b", "4").await.expect(201);
    day.worker.settle_call(&job, "b", "3").await.expect(200);
    // The lease comes first.
    let stated = json!({"previous": 1, "holder": "w-2", "outstanding": "8"});
    refused(&day, &day.worker, &job, stated.clone(), "lease_current").await;
    day.clock("12:01:00").await;
    let unchanged = Unchanged::from_now(&day.service).await;
    for more in [json!({}), stopped(json!({}))] {
        let body = and(stated.clone(), more);
        let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/attempts", job.id())).json(&body);
        let refused = unchanged.refuses(&day.worker, request, 400, "invalid_request", Some("outstanding")).await;
        assert_eq!(refused.body["reservation"]["id"], job.id());
    }
    drop(unchanged);

    // Nothing moves, and there is no fresh allowance: 30 - 3 settled - 8 in flight.
    let second = day.worker.take_over(&job, 1, "w-2", stopped(json!({}))).await.expect(201);
    assert_eq!(stand(&second), "active: 30 3 8 0 0, 30, 5");
    assert_eq!(day.daily().await, ["3", "27", "0", "70"]);
    let refused = day.worker.call(&second, "c", "19.000000000001").await.problem(409, "ceiling_reached");
    assert_eq!(refused.text("remaining"), "19");
    let c = day.worker.call(&second, "c", "19").await.expect(201);
    assert_eq!(call_stand(&c), "in_flight 19 - 2, 0 30 active 6");
    // It extends if it needs more.
    day.worker.call_extending(&second, "d", "1").await.expect(201);
    assert_eq!(day.daily().await, ["3", "28", "0", "69"]);
    assert_eq!(
        day.books().await.moves(),
        ["reserve available>reserved 30", "call_settled reserved>settled 3", "call_admitted available>reserved 1"]
    );
}
