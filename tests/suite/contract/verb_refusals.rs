//! Whatever a verb refuses, the answer carries the reservation as it is, so that a
//! worker can decide without another request; its token only to who has presented
//! it.

use reqwest::Method;
use serde_json::{Value, json};

use super::NOBODY;
use super::document::exactly;
use crate::support::document::Document;
use crate::support::unchanged::Unchanged;
use crate::support::verbs::{and, stopped};
use crate::support::{Answer, Client, NORTHSTAR, Northstar};

/// Sends bad requests and looks at what comes back.
struct Refusing<'a> {
    document: Document,
    unchanged: Unchanged<'a>,
    day: &'a Northstar,
}

impl<'a> Refusing<'a> {
    async fn from_now(day: &'a Northstar) -> Self {
        Self { document: Document::read(), unchanged: Unchanged::from_now(&day.service).await, day }
    }

    async fn refuses(&self, client: &Client, job: &Answer, verb: &str, body: Value, expected: (u16, &str)) -> Answer {
        let request = client.request(Method::POST, &format!("/v1/reservations/{}/{verb}", job.id())).json(&body);
        let refused = self.unchanged.refuses(client, request, expected.0, expected.1, None).await;
        let shown = &refused.body["reservation"];
        exactly(&self.document, "ReservationView", shown);
        let mut now = self.day.worker.now(job).await.body;
        if body["attempt"] == job.token() && shown["attempt"]["number"] == job.body["attempt"]["number"] {
            now["attempt"]["token"] = json!(job.token());
        }
        assert_eq!(shown, &now, "{verb} {body}");
        refused
    }
}

#[tokio::test]
async fn where_the_ledger_admits_the_calls() {
    let day = Northstar::open().await;
    let export = json!({"operation": "export", "quantities": {"formats": 2, "weight": 10}, "holder": "w-1"});
    let job = day.worker.reserve("job", export).await.expect(201);
    let current = json!({"attempt": job.token()});
    day.worker.call(&job, "a", "8").await.expect(201);
    day.worker.call(&job, "b", "4").await.expect(201);
    day.worker.settle_call(&job, "b", "4").await.expect(200);
    let other = day.calls("other", "40").await;

    let refusing = Refusing::from_now(&day).await;
    let worker = async |verb: &str, body: Value, expected: (u16, &str)| {
        let with_token = and(current.clone(), body);
        refusing.refuses(&day.worker, &job, verb, with_token, expected).await
    };
    let invalid = (400, "invalid_request");
    worker("calls", json!({"call": "c", "quantities": {"heavy": 1}}), invalid).await;
    worker("calls/a/settle", json!({"quantities": {"weight": 1}}), invalid).await;
    worker("settle", json!({"quantities": {"weight": 1}}), invalid).await;
    worker("settle", json!({"units": 4, "final": false}), invalid).await;
    worker("calls", json!({"call": "c", "units": "9999999999999999", "extend": true}), invalid).await;
    worker("extend", json!({"ceiling": "61"}), (400, "too_expensive")).await;
    worker("calls", json!({"call": "c", "units": 60, "extend": true}), (400, "too_expensive")).await;
    let reached = worker("calls", json!({"call": "c", "units": "8.5"}), (409, "ceiling_reached")).await;
    assert_eq!((reached.text("ceiling"), reached.text("remaining")), ("20", "8"));
    worker("calls", json!({"call": "a", "units": 9}), (422, "idempotency_key_reused")).await;
    worker("settle", json!({"units": 3}), (409, "usage_decreases")).await;
    worker("settle", json!({}), (409, "calls_in_flight")).await;
    worker("calls/b/settle", json!({"outcome": "not_sent"}), (409, "call_already_settled")).await;
    worker("calls/b/settle", json!({"outcome": "unknown"}), (409, "call_already_settled")).await;
    worker("calls/nothing/settle", json!({"units": 1}), (404, "not_found")).await;
    // Who presents no token, or another's, is shown none.
    let operator = async |verb: &str, body: Value, expected: (u16, &str)| {
        refusing.refuses(&day.operator, &job, verb, body, expected).await
    };
    operator("calls/b/settle", json!({"outcome": "unknown"}), (409, "call_already_settled")).await;
    operator("attempts", json!({"previous": 1, "holder": "w-2"}), (409, "lease_current")).await;
    operator("attempts", json!({"previous": 2, "holder": "w-2"}), (409, "stale_attempt")).await;
    operator("attempts", json!({"previous": 1, "holder": "w-2", "force": true, "outstanding": 1}), invalid).await;
    operator("fence", json!({"attempt_number": 2}), (409, "stale_attempt")).await;
    operator("fence", json!({"attempt_number": 1, "outstanding": 1}), invalid).await;
    let finance = json!({"units": 3, "reason": "lower"});
    refusing.refuses(&day.finance, &job, "settle", finance.clone(), (409, "usage_decreases")).await;
    refusing.refuses(&day.finance, &job, "calls/b/settle", finance, (409, "call_already_settled")).await;
    for (verb, body) in [
        ("renew", json!({})),
        ("extend", json!({"ceiling": 1})),
        ("calls", json!({"call": "a", "units": 8})),
        ("calls/a/settle", json!({"units": 8})),
        ("calls/a/settle", json!({"outcome": "unknown"})),
        ("settle", json!({"units": 4})),
    ] {
        let body = and(json!({"attempt": other.token()}), body);
        refusing.refuses(&day.worker, &job, verb, body, (409, "stale_attempt")).await;
    }
    drop(refusing);
    day.books().await;
}

#[tokio::test]
async fn the_token_is_shown_whenever_it_was_presented() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "8").await.expect(201);
    let unchanged = Unchanged::from_now(&day.service).await;
    let most = "9999999999999999.999999999999";
    for (verb, body) in [
        ("calls", json!({"call": "c", "quantities": {"heavy": 1}})),
        ("calls", json!({"call": "c", "units": most, "extend": true})),
        ("calls/a/settle", json!({"quantities": {"heavy": 1}})),
        ("settle", json!({"quantities": {"heavy": 1}})),
        ("settle", json!({"units": 8, "final": false})),
    ] {
        let body = and(json!({"attempt": job.token()}), body);
        let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/{verb}", job.id())).json(&body);
        let refused = unchanged.refuses(&day.worker, request, 400, "invalid_request", None).await;
        assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token(), "{verb} {body}");
    }
}

#[tokio::test]
async fn where_workers_call_the_provider_directly() {
    let day = Northstar::open().await;
    let job = day.stream("job", "20").await;
    day.worker.progress(&job, "5").await.expect(200);
    day.clock("12:05:00").await;
    let refusing = Refusing::from_now(&day).await;
    let token = json!({"attempt": job.token()});
    for (verb, body, expected) in [
        ("calls", json!({"call": "a", "units": 1}), (400, "invalid_request")),
        ("settle", json!({}), (400, "invalid_request")),
        ("settle", json!({"units": 4}), (409, "usage_decreases")),
        ("settle", json!({"units": 4, "final": false}), (409, "usage_decreases")),
    ] {
        refusing.refuses(&day.worker, &job, verb, and(token.clone(), body), expected).await;
    }
    for (verb, body, expected) in [
        ("attempts", json!({"previous": 1, "holder": "w-2"}), (409, "evidence_required")),
        ("fence", json!({"attempt_number": 1}), (409, "evidence_required")),
        ("fence", stopped(json!({"attempt_number": 7})), (409, "stale_attempt")),
    ] {
        refusing.refuses(&day.worker, &job, verb, body, expected).await;
    }
    drop(refusing);
    day.books().await;
}

#[tokio::test]
async fn where_there_is_no_room_or_the_policy_has_changed() {
    let day = Northstar::open().await;
    let job = day.calls("job", "20").await;
    let full = day.calls("full", "80").await;
    let raise = [
        ("extend", json!({"attempt": job.token(), "ceiling": 21})),
        ("calls", json!({"attempt": job.token(), "call": "a", "units": 21, "extend": true})),
    ];
    let refuse = async |expected: (u16, &str)| {
        let refusing = Refusing::from_now(&day).await;
        for (verb, body) in raise.clone() {
            refusing.refuses(&day.worker, &job, verb, body, expected).await;
        }
    };
    refuse((429, "budget_exhausted")).await;
    day.worker.settle(&full, "0").await.expect(200);
    let bulk = "  bulk: { provider: transformer, explicit: true, max_units: 100 }\n";
    day.service.apply(&NORTHSTAR.replace(bulk, "")).await;
    refuse((422, "unknown_operation")).await;
    day.service.apply(&NORTHSTAR.replace("  northstar: { plan: standard }\n", "")).await;
    refuse((422, "unknown_account")).await;
    day.service.apply(&NORTHSTAR.replace("      daily:", "      weekly:")).await;
    refuse((422, "no_budget")).await;
    day.service.apply(NORTHSTAR).await;
    day.service.database.execute("update budget_period set closed_at = ledger_clock()").await;
    refuse((409, "period_closed")).await;
    day.books().await;
}

#[tokio::test]
async fn where_it_has_been_taken_over_or_is_not_active_any_more() {
    let day = Northstar::open().await;
    let first = day.calls("job", "30").await;
    day.worker.call(&first, "a", "5").await.expect(201);
    day.clock("12:05:00").await;
    let job = day.worker.take_over(&first, 1, "w-2", json!({})).await.expect(201);
    let refuse = async |who: &Answer, verb: &str, body: Value, expected: (u16, &str)| {
        let refusing = Refusing::from_now(&day).await;
        let body = and(json!({"attempt": who.token()}), body);
        refusing.refuses(&day.worker, who, verb, body, expected).await;
    };
    refuse(&job, "calls", json!({"call": "a", "units": 5}), (409, "call_key_taken")).await;
    refuse(&first, "calls", json!({"call": "a", "units": 5}), (409, "stale_attempt")).await;
    refuse(&first, "calls/a/settle", json!({"outcome": "not_sent"}), (409, "stale_attempt")).await;
    day.worker.cancel(&job).await.expect(200);
    refuse(&job, "calls", json!({"call": "b", "units": 5}), (409, "not_active")).await;
    refuse(&job, "extend", json!({"ceiling": 40}), (409, "not_active")).await;
    let refusing = Refusing::from_now(&day).await;
    let again = json!({"previous": 2, "holder": "w-3"});
    refusing.refuses(&day.worker, &job, "attempts", again, (409, "not_active")).await;
    drop(refusing);
    day.finance.close(&job, "5", "all of it").await.expect(200);
    // Late usage is kept once, so the second time nothing is changed.
    day.worker.settle(&job, "6").await.problem(409, "already_settled");
    day.worker.settle_call(&first, "a", "6").await.problem(409, "already_settled");
    day.worker.settle(&first, "7").await.problem(409, "stale_attempt");
    refuse(&job, "settle", json!({"units": 6}), (409, "already_settled")).await;
    refuse(&first, "calls/a/settle", json!({"units": 6}), (409, "already_settled")).await;
    refuse(&first, "calls/a/settle", json!({"outcome": "unknown"}), (409, "already_settled")).await;
    refuse(&first, "settle", json!({"units": 7}), (409, "stale_attempt")).await;
    let refusing = Refusing::from_now(&day).await;
    let more = json!({"units": 6, "reason": "more"});
    refusing.refuses(&day.finance, &job, "settle", more.clone(), (409, "already_settled")).await;
    refusing.refuses(&day.finance, &job, "calls/a/settle", more, (409, "already_settled")).await;
    drop(refusing);
    day.books().await;
}

#[tokio::test]
async fn where_there_is_no_such_reservation_there_is_none_to_show() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "5").await.expect(201);
    let south = day.service.worker(&["southstar"]).await;
    let unchanged = Unchanged::from_now(&day.service).await;
    let attempt = json!({"attempt": job.token()});
    for (verb, body) in [
        ("renew", attempt.clone()),
        ("attempts", json!({"previous": 1, "holder": "w-2"})),
        ("calls", and(attempt.clone(), json!({"call": "b", "units": 1}))),
        ("calls/a/settle", and(attempt.clone(), json!({"units": 1}))),
        ("calls/a/settle", json!({"outcome": "unknown"})),
        ("settle", attempt.clone()),
        ("cancel", json!({})),
        ("fence", json!({"attempt_number": 1})),
    ] {
        // Another account's is none of its business.
        let path = format!("/v1/reservations/{}/{verb}", job.id());
        let refused = unchanged.refuses(&south, south.request(Method::POST, &path).json(&body), 404, "not_found", None);
        assert_eq!(refused.await.body.get("reservation"), None, "{verb}");
        for id in [NOBODY, "x", "%00", "%ff", &job.id()[..35]] {
            let request = day.worker.request(Method::POST, &format!("/v1/reservations/{id}/{verb}")).json(&body);
            let refused = unchanged.refuses(&day.worker, request, 404, "not_found", None).await;
            assert_eq!(refused.body.get("reservation"), None, "{verb} {id}");
        }
    }
}
