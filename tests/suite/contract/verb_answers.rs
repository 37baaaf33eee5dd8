//! What the verbs on a reservation answer is exactly as the document says.

use serde_json::{Value, json};

use super::document::exactly;
use crate::support::Northstar;
use crate::support::document::Document;
use crate::support::verbs::{and, stopped};

#[tokio::test]
async fn calls_are_as_the_document_says() {
    let day = Northstar::open().await;
    let document = Document::read();
    let job = day.calls("job", "30").await;
    let call = |answer: &crate::support::Answer| exactly(&document, "CallView", &answer.body);
    for (key, units) in [("a", "5"), ("b", "4"), ("c", "3")] {
        call(&day.worker.call(&job, key, units).await.expect(201));
    }
    call(&day.worker.call_extending(&job, "d", "20").await.expect(201));
    call(&day.worker.call(&job, "a", "5").await.expect(200));
    let named = json!({"attempt": job.token(), "units": 5, "provider_request_id": "req-1"});
    let settled = day.worker.end_call(&job, "a", named).await.expect(200);
    call(&settled);
    assert_eq!(
        settled.body,
        json!({
            "call": "a", "state": "settled", "units": "5", "actual": "5", "attempt": 1,
            "provider_request_id": "req-1", "remaining": "0", "ceiling": "32", "reservation_state": "active",
            "version": 6,
        })
    );
    let unknown = day.operator.unknown(&job, "b").await.expect(200);
    call(&unknown);
    assert_eq!((&unknown.body["actual"], &unknown.body["provider_request_id"]), (&Value::Null, &Value::Null));
    call(&day.worker.not_sent(&job, "c").await.expect(200));
    call(&day.finance.end_call(&job, "b", json!({"units": 4, "reason": "because"})).await.expect(200));

    let path = format!("/v1/reservations/{}/calls", job.id());
    let list = day.worker.get(&format!("{path}?limit=3")).await.expect(200);
    exactly(&document, "List_CallItem", &list.body);
    for item in list.body["items"].as_array().unwrap() {
        exactly(&document, "CallItem", item);
    }
    let in_flight = &list.body["items"][0];
    assert_eq!(
        in_flight,
        &json!({
            "call": "d", "state": "in_flight", "units": "20", "actual": null, "attempt": 1,
            "provider_request_id": null, "admitted_at": "2026-03-04T12:00:00Z", "ended_at": null,
        })
    );
    let reached = day.worker.call(&job, "e", "4").await.problem(409, "ceiling_reached");
    document.describes("ProblemDetails", &reached.body);
    day.books().await;
}

#[tokio::test]
async fn what_other_verbs_answer_is_as_the_document_says() {
    let day = Northstar::open().await;
    let document = Document::read();
    let reservation = |answer: &crate::support::Answer, token: bool| {
        exactly(&document, "ReservationView", &answer.body);
        assert_eq!(answer.body["attempt"].get("token").is_some(), token);
    };
    let job = day.stream("job", "30").await;
    reservation(&day.worker.renew(&job, 60).await.expect(200), true);
    let current = day.worker.take_over(&job, 1, "w-2", json!({})).await.problem(409, "lease_current");
    document.describes("ProblemDetails", &current.body);
    day.clock("12:05:00").await;
    let more = stopped(json!({"outstanding": 5}));
    reservation(&day.worker.take_over(&job, 1, "w-2", more.clone()).await.expect(201), true);
    let second = day.worker.take_over(&job, 1, "w-2", more).await.expect(200);
    reservation(&second, true);
    reservation(&day.worker.cancel(&job).await.expect(200), false);
    for _ in 0..2 {
        let fenced = day.operator.fence(&job, 2, stopped(json!({"outstanding": 10}))).await.expect(200);
        exactly(&document, "FencedView", &fenced.body);
        let mut plain = fenced.body.clone();
        plain.as_object_mut().unwrap().remove("released");
        exactly(&document, "ReservationView", &plain);
        assert_eq!(plain, day.worker.now(&job).await.body);
    }
    reservation(&day.worker.settle(&second, "9").await.expect(200), true);
    reservation(&day.finance.close(&job, "12", "because").await.expect(200), false);
    let settled = day.worker.settle(&second, "10").await.problem(409, "already_settled");
    document.describes("ProblemDetails", &settled.body);

    // A call whose outcome is unknown has no amount to show.
    let calls = day.calls("calls", "10").await;
    day.worker.call(&calls, "a", "5").await.expect(201);
    day.worker.unknown(&calls, "a").await.expect(200);
    let unknown = day.worker.not_sent(&calls, "a").await.problem(409, "call_already_settled");
    document.describes("ProblemDetails", &unknown.body);
    assert_eq!(unknown.body["settled"], Value::Null);

    let late = day.finance.get("/v1/late-usage").await.expect(200);
    exactly(&document, "List_LateUsageView", &late.body);
    exactly(&document, "LateUsageView", &late.body["items"][0]);
    let open = day.finance.get("/v1/liabilities").await.expect(200);
    exactly(&document, "Liabilities", &open.body);
    exactly(&document, "LiabilityView", &open.body["items"][0]);
    exactly(&document, "TotalView", &open.body["totals"][0]);
    exactly(&document, "ReservationView", &open.body["items"][0]["reservation"]);
    assert_eq!(open.body["items"][0]["reservation"], day.worker.now(&calls).await.body);
    day.books().await;
}

#[tokio::test]
async fn a_history_says_what_each_verb_was_told() {
    let day = Northstar::open().await;
    let document = Document::read();
    let evidence = json!({"kind": "fenced_elsewhere", "detail": "egress closed"});

    let first = day.calls("calls", "30").await;
    for (call, units) in [("a", "5"), ("b", "4"), ("c", "3")] {
        day.worker.call(&first, call, units).await.expect(201);
    }
    day.worker.call_extending(&first, "d", "20").await.expect(201);
    day.worker.extend(&first, "40").await.expect(200);
    let named = json!({"attempt": first.token(), "units": "4.50", "provider_request_id": "req-1"});
    day.worker.end_call(&first, "a", named).await.expect(200);
    day.operator.unknown(&first, "b").await.expect(200);
    day.worker.not_sent(&first, "c").await.expect(200);
    day.finance.end_call(&first, "b", json!({"units": 3, "reason": "line 1"})).await.expect(200);
    let force = json!({"force": true, "evidence": evidence});
    day.operator.take_over(&first, 1, "w-2", force).await.expect(201);
    day.worker.verb(&first, "cancel", json!({"reason": "the user has left"})).await.expect(200);
    day.operator.fence(&first, 2, json!({})).await.expect(200);
    day.worker.settle_call(&first, "d", "20").await.expect(200);
    let told = |number: i64, event: &str, state: &str, amounts: &str, attempt: i64, detail: Value| {
        json!([number, event, state, amounts, attempt, detail])
    };
    let expected = [
        told(1, "reserve", "active", "30 0 30 0", 1, json!({})),
        told(2, "call_admitted", "active", "30 0 30 0", 1, json!({"call": "a", "units": "5"})),
        told(3, "call_admitted", "active", "30 0 30 0", 1, json!({"call": "b", "units": "4"})),
        told(4, "call_admitted", "active", "30 0 30 0", 1, json!({"call": "c", "units": "3"})),
        told(5, "call_admitted", "active", "32 0 32 0", 1, json!({"call": "d", "units": "20"})),
        told(6, "extend", "active", "40 0 40 0", 1, json!({})),
        told(
            7,
            "call_settled",
            "active",
            "40 4.5 35.5 0",
            1,
            json!({"call": "a", "units": "4.5", "provider_request_id": "req-1"}),
        ),
        told(8, "call_unknown", "active", "40 4.5 31.5 4", 1, json!({"call": "b"})),
        told(9, "call_not_sent", "active", "40 4.5 31.5 4", 1, json!({"call": "c"})),
        told(10, "call_settled", "active", "40 7.5 32.5 0", 1, json!({"call": "b", "units": "3", "reason": "line 1"})),
        told(
            11,
            "takeover",
            "active",
            "40 7.5 32.5 0",
            2,
            json!({"previous": 1, "previous_holder": "w-1", "holder": "w-2", "evidence": evidence,
                   "may_have_spent": "0", "forced": true}),
        ),
        told(12, "cancel", "cancelling", "40 7.5 0 32.5", 2, json!({"reason": "the user has left"})),
        told(13, "fence", "fenced", "27.5 7.5 0 20", 2, json!({})),
        told(14, "call_settled", "settled", "27.5 27.5 0 0", 2, json!({"call": "d", "units": "20"})),
    ];
    assert_eq!(history(&day, &document, &first.id()).await, expected);

    let stream = day.stream("stream", "30").await;
    day.worker.progress(&stream, "4").await.expect(200);
    day.clock("12:05:00").await;
    let more = json!({"evidence": evidence, "outstanding": "10.0"});
    let second = day.worker.take_over(&stream, 1, "w-2", more.clone()).await.expect(201);
    let last = and(json!({"attempt": second.token(), "units": 9}), json!({"provider_request_id": "req-2"}));
    day.operator.fence(&stream, 2, more).await.expect(200);
    day.worker.verb(&stream, "settle", last).await.expect(200);
    day.finance.close(&stream, "15", "line 2").await.expect(200);
    let expected = [
        told(1, "reserve", "active", "30 0 30 0", 1, json!({})),
        told(2, "progressive_settlement", "active", "30 4 26 0", 1, json!({})),
        told(
            3,
            "takeover",
            "active",
            "30 4 20 6",
            2,
            json!({"previous": 1, "previous_holder": "w-1", "holder": "w-2", "evidence": evidence,
                   "outstanding": "10", "may_have_spent": "6"}),
        ),
        told(4, "fence", "fenced", "20 4 0 16", 2, json!({"evidence": evidence, "outstanding": "10"})),
        told(5, "final_settlement", "fenced", "20 13 0 6", 2, json!({"provider_request_id": "req-2"})),
        told(6, "finance_settlement", "settled", "20 15 0 0", 2, json!({"reason": "line 2"})),
    ];
    assert_eq!(history(&day, &document, &stream.id()).await, expected);
    day.books().await;
}

/// Each event as `[version, event, state, "ceiling settled reserved liability",
/// attempt, detail]`.
async fn history(day: &Northstar, document: &Document, id: &str) -> Vec<Value> {
    let answer = day.worker.get(&format!("/v1/reservations/{id}?events=true")).await.expect(200);
    exactly(document, "ReservationWithEvents", &answer.body);
    let events = answer.body["events"].as_array().unwrap();
    events
        .iter()
        .map(|event| {
            exactly(document, "EventView", event);
            assert!(event["actor"].as_str().unwrap().starts_with("key:"));
            let amounts = ["ceiling", "settled", "reserved", "liability"].map(|field| event[field].as_str().unwrap());
            let [version, name, state] = ["version", "event", "state"].map(|field| &event[field]);
            json!([version, name, state, amounts.join(" "), event["attempt"], event["detail"]])
        })
        .collect()
}
