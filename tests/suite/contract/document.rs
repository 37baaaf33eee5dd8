//! The published document says what exists, and every answer is as it says.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{NOBODY, RESERVATIONS, Scene};
use crate::support::document::Document;
use crate::support::unchanged::Unchanged;
use crate::support::{NORTHSTAR, Service};

#[test]
fn the_document_is_checked_in() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.yaml");
    let checked_in = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        checked_in == spend_ledger::http::document(),
        "openapi.yaml is not what the program serves. Regenerate it: cargo run -- openapi > openapi.yaml"
    );
}

/// Every path that there is or will be, and some that nothing names.
const PATHS: [&str; 41] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.yaml",
    "/v1/reservations",
    "/v1/reservations/{id}",
    "/v1/reservations/{id}/start",
    "/v1/reservations/{id}/renew",
    "/v1/reservations/{id}/extend",
    "/v1/reservations/{id}/attempts",
    "/v1/reservations/{id}/calls",
    "/v1/reservations/{id}/calls/{call}/settle",
    "/v1/reservations/{id}/settle",
    "/v1/reservations/{id}/cancel",
    "/v1/reservations/{id}/fence",
    "/v1/estimates",
    "/v1/accounts/{account}/budgets",
    "/v1/accounts/{account}",
    "/v1/plans/{name}",
    "/v1/providers/{name}",
    "/v1/operations/{name}",
    "/v1/pools/{name}",
    "/v1/keys",
    "/v1/keys/{id}",
    "/v1/policy",
    "/v1/audit",
    "/v1/journal",
    "/v1/statements",
    "/v1/liabilities",
    "/v1/late-usage",
    "/v1/refusals",
    "/v1/reports/estimates",
    "/v1/periods/{id}/close",
    "/v1/adjustments",
    "/v1/reconciliations",
    "/",
    "/v1",
    "/v1/accounts",
    "/v1/reservations/",
    "/v2/reservations",
    "/favicon.ico",
];

#[tokio::test]
async fn the_document_has_what_exists_and_the_rest_is_not_there() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let unchanged = Unchanged::from_now(&service).await;
    let document = Document::read();
    let described: BTreeSet<(String, String)> =
        document.operations().into_iter().map(|operation| (operation.path, operation.method)).collect();
    for (path, _) in &described {
        assert!(PATHS.contains(&path.as_str()), "{path} is in the document and not in this list");
    }
    for template in PATHS {
        let path = template.replace("{account}", "northstar").replace("{id}", NOBODY).replace("{name}", "a");
        let path = path.replace("{call}", "c");
        if template == "/openapi.yaml" {
            continue;
        }
        let allowed: Vec<&str> = described.iter().filter(|(p, _)| p == template).map(|(_, m)| m.as_str()).collect();
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PURGE"] {
            if allowed.contains(&method) {
                continue;
            }
            let request = worker.request(Method::from_bytes(method.as_bytes()).unwrap(), &path);
            if allowed.is_empty() {
                unchanged.refuses(&worker, request, 404, "not_found", None).await;
                continue;
            }
            let refused = unchanged.refuses(&worker, request, 405, "method_not_allowed", None).await;
            let allow = refused.headers.get("allow").unwrap_or_else(|| panic!("{method} {path}: no Allow header"));
            let allow: BTreeSet<&str> = allow.to_str().unwrap().split(',').map(str::trim).collect();
            let mut expected: BTreeSet<&str> = allowed.iter().copied().collect();
            if expected.contains("GET") {
                expected.insert("HEAD");
            }
            assert_eq!(allow, expected, "Allow of {method} {path}");
        }
    }
}

#[test]
fn the_document_describes_itself() {
    let operation = Document::read().operation("GET", "/openapi.yaml");
    assert!(
        operation.is_some_and(|operation| !operation.secured),
        "/openapi.yaml is answered and is not in the document"
    );
}

#[test]
fn every_operation_lists_its_problems() {
    let document = Document::read();
    // The codes that something can answer today.
    let known = [
        "invalid_request",
        "too_expensive",
        "unauthenticated",
        "forbidden",
        "not_found",
        "stale_attempt",
        "not_active",
        "already_settled",
        "usage_decreases",
        "period_closed",
        "lease_current",
        "evidence_required",
        "ceiling_reached",
        "call_key_taken",
        "call_already_settled",
        "calls_in_flight",
        "body_too_large",
        "unsupported_media_type",
        "idempotency_key_reused",
        "unknown_operation",
        "unknown_account",
        "no_budget",
        "budget_exhausted",
        "ledger_unavailable",
        "overloaded",
        "deadline_exceeded",
    ];
    for operation in document.operations().into_iter().filter(|operation| operation.secured) {
        let responses = operation.described["responses"].as_object().unwrap();
        let codes = |status: &str| -> Vec<String> {
            let text = responses.get(status).and_then(|response| response["description"].as_str()).unwrap_or_default();
            text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
            let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(schema, "#/components/schemas/ProblemDetails", "{} {status}", operation.id);
            // What else is named in a description: members, and a field.
            let others = ["breaches", "settled", "ceiling", "remaining", "extend"];
            let listed: Vec<_> = codes(status).into_iter().filter(|text| !others.contains(&text.as_str())).collect();
            assert!(!listed.is_empty(), "{} {status} lists no code", operation.id);
            for code in listed {
                assert!(known.contains(&code.as_str()), "{} {status} lists {code}", operation.id);
            }
        }
        assert_eq!(codes("401"), ["unauthenticated"], "{}", operation.id);
        assert_eq!(codes("503"), ["ledger_unavailable", "overloaded", "deadline_exceeded"], "{}", operation.id);
        if !operation.described["requestBody"].is_null() {
            assert_eq!(codes("413"), ["body_too_large"], "{}", operation.id);
            assert_eq!(codes("415"), ["unsupported_media_type"], "{}", operation.id);
        }
        let parameters = operation.described["parameters"].as_array().into_iter().flatten();
        let narrowed = parameters.clone().any(|parameter| parameter["in"] != "path");
        if narrowed || !operation.described["requestBody"].is_null() {
            assert!(codes("400").contains(&"invalid_request".to_owned()), "{}", operation.id);
        }
        if parameters.clone().any(|parameter| parameter["name"] == "id") {
            assert_eq!(codes("404"), ["not_found"], "{}", operation.id);
        }
    }
}

/// The fields of a value, and of a schema.
fn fields(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap_or_else(|| panic!("{value} has no fields")).keys().cloned().collect()
}

/// That a value is as the schema says, and has every field of it.
#[track_caller]
pub(super) fn exactly(document: &Document, schema: &str, value: &Value) {
    document.describes(schema, value);
    let described = document.properties(document.schema(schema)).keys().cloned().collect();
    assert_eq!(fields(value), described, "the fields of {schema}");
}

/// These words.
fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn reservations_are_as_the_document_says() {
    let Scene { service, worker, job, .. } = Scene::new().await;
    let document = Document::read();
    // The reservation object.
    let expected = words(
        "id account member operation provider enforcement unit state estimate ceiling settled in_flight unknown \
                    stated_outstanding overrun charged version attempt queue budgets reference labels created_at \
                    updated_at closed_at",
    );
    exactly(&document, "ReservationView", &job.body);
    assert_eq!(fields(&job.body), expected);
    exactly(&document, "AttemptView", &job.body["attempt"]);
    exactly(&document, "ChargedPeriod", &job.body["budgets"][0]);

    let path = format!("{RESERVATIONS}/{}", job.id());
    let got = worker.get(&path).await.expect(200);
    exactly(&document, "ReservationView", &got.body);
    assert!(got.body["attempt"].get("token").is_none(), "a token for somebody who is not its holder");
    let with_events = worker.get(&format!("{path}?events=true")).await.expect(200);
    exactly(&document, "ReservationWithEvents", &with_events.body);
    exactly(&document, "EventView", &with_events.body["events"][0]);
    assert_eq!(worker.get(&format!("{path}?events=false")).await.expect(200).body, got.body);

    exactly(&document, "ReservationView", &worker.extend(&job, "12").await.expect(200).body);
    exactly(&document, "ReservationView", &worker.settle(&job, "3").await.expect(200).body);
    let full = json!({
        "operation": "export", "quantities": {"formats": 2, "weight": "3.5"}, "member": "ann", "provider_key": "a",
        "holder": "w-2", "lease_seconds": 5, "reference": "job 1 – é", "labels": {"team": "reports", "empty": ""},
        "account": "northstar",
    });
    let full = worker.reserve("full", full).await.expect(201);
    exactly(&document, "ReservationView", &full.body);
    assert_eq!(
        (full.text("member"), full.text("reference"), &full.body["labels"], full.text("estimate")),
        ("ann", "job 1 – é", &json!({"team": "reports", "empty": ""}), "7")
    );
    service.books().await;
}

#[tokio::test]
async fn balances_lists_and_policies_are_as_the_document_says() {
    let Scene { service, worker, operator, .. } = Scene::new().await;
    let document = Document::read();
    let budgets = worker.get("/v1/accounts/northstar/budgets").await.expect(200);
    exactly(&document, "Budgets", &budgets.body);
    let expected = words(
        "budget member unit period_id period_starts_at period_ends_at limit available reserved liability \
                    settled resets_at mode",
    );
    assert_eq!(fields(&budgets.body["items"][0]), expected);
    exactly(&document, "BudgetView", &budgets.body["items"][0]);
    let unopened = worker.get("/v1/accounts/northstar/budgets?at=2031-01-01T00:00:00Z").await.expect(200);
    exactly(&document, "BudgetView", &unopened.body["items"][0]);
    assert_eq!(unopened.body["items"][0]["period_id"], Value::Null);

    let list = worker.get(RESERVATIONS).await.expect(200);
    exactly(&document, "List_ReservationView", &list.body);
    exactly(&document, "ReservationView", &list.body["items"][0]);

    let new = json!({"role": "worker", "accounts": ["northstar"], "name": "n", "expires_at": "2099-01-01T00:00:00Z"});
    let key = operator.post("/v1/keys", new).await.expect(201);
    exactly(&document, "NewKeyView", &key.body);
    let keys = operator.get("/v1/keys").await.expect(200);
    exactly(&document, "List_KeyView", &keys.body);
    exactly(&document, "KeyView", &keys.body["items"][0]);
    let audit = operator.get("/v1/audit").await.expect(200);
    exactly(&document, "List_AuditView", &audit.body);
    exactly(&document, "AuditView", &audit.body["items"][0]);

    let policy = NORTHSTAR.replace("limit: 100", "limit: 90").replace("  southstar: { plan: standard }\n", "");
    let request = operator.request(Method::POST, "/v1/policy?dry_run=true").header("content-type", "application/yaml");
    let applied = operator.send(request.body(policy)).await.expect(200);
    exactly(&document, "PolicyApplied", &applied.body);
    assert_eq!((&applied.body["dry_run"], applied.body["changes"].as_array().unwrap().len()), (&json!(true), 2));
    service.books().await;
}

#[tokio::test]
async fn problems_and_health_are_as_the_document_says() {
    let Scene { service, worker, job, .. } = Scene::new().await;
    let document = Document::read();
    worker.settle(&job, "3").await.expect(200);
    worker.reserve_bulk("full", "7").await.expect(201);
    // Problems with members of their own.
    let conflict = worker.settle(&job, "4").await.problem(409, "already_settled");
    document.describes("ProblemDetails", &conflict.body);
    exactly(&document, "ReservationView", &conflict.body["reservation"]);
    let expensive = worker.reserve_bulk("expensive", "101").await.problem(400, "too_expensive");
    document.describes("ProblemDetails", &expensive.body);
    assert_eq!((expensive.text("units"), expensive.text("max_units")), ("101", "100"));
    let exhausted = worker.reserve_bulk("exhausted", "100").await.problem(429, "budget_exhausted");
    document.describes("ProblemDetails", &exhausted.body);
    document.describes("BreachView", &exhausted.body["breaches"][0]);
    assert_eq!(
        fields(&exhausted.body["breaches"][0]),
        ["available", "budget", "requested", "resets_at"].map(str::to_owned).into()
    );
    let invalid = worker.reserve_bulk("invalid", "x").await.problem(400, "invalid_request");
    document.describes("ProblemDetails", &invalid.body);
    assert_eq!(fields(&invalid.body["errors"][0]), ["field", "message"].map(str::to_owned).into());
    for path in ["/healthz", "/readyz"] {
        document.describes("Health", &worker.get(path).await.expect(200).body);
    }
    service.books().await;
}
