//! The contract: what the service publishes, what it answers, and what it
//! refuses to read.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::document::Document;
use crate::support::unchanged::{Unchanged, post};
use crate::support::{Answer, Client, NORTHSTAR, Service};

const RESERVATIONS: &str = "/v1/reservations";
/// An id of nothing.
const NOBODY: &str = "0190a0a0-0000-7000-8000-000000000000";

/// A service with one reservation, and the paths of what can be done to it.
struct Scene {
    service: Service,
    worker: Client,
    operator: Client,
    job: Answer,
}

impl Scene {
    async fn new() -> Self {
        let service = Service::with_policy(NORTHSTAR).await;
        let (worker, operator) = (service.worker(&["northstar"]).await, service.operator().await);
        let job = worker.reserve_bulk("job", "10").await.expect(201);
        Self { service, worker, operator, job }
    }

    fn extend(&self) -> String {
        format!("{RESERVATIONS}/{}/extend", self.job.id())
    }

    fn settle(&self) -> String {
        format!("{RESERVATIONS}/{}/settle", self.job.id())
    }

    /// Every path that takes JSON, with a client that may and a good body.
    fn bodies(&self) -> Vec<(&Client, String, Value)> {
        let attempt = self.job.token();
        vec![
            (&self.worker, RESERVATIONS.to_owned(), json!({"operation": "bulk", "units": "1"})),
            (&self.worker, self.extend(), json!({"attempt": attempt, "ceiling": "11"})),
            (&self.worker, self.settle(), json!({"attempt": attempt, "units": "1"})),
            (&self.operator, "/v1/keys".to_owned(), json!({"role": "worker", "accounts": ["northstar"]})),
        ]
    }
}

#[test]
fn the_document_is_checked_in() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.yaml");
    let checked_in = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        checked_in == spend_ledger::http::document(),
        "openapi.yaml is not what the program serves. Regenerate it: cargo run -- openapi > openapi.yaml"
    );
}

/// Every path that API.md names, and some that nothing names.
const PATHS: [&str; 40] = [
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
        assert!(PATHS.contains(&path.as_str()), "{path} is in the document and not in API.md");
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
    // The codes of API.md that something can answer today.
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
            let listed: Vec<_> =
                codes(status).into_iter().filter(|text| text != "breaches" && text != "settled").collect();
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

#[tokio::test]
async fn answers_are_as_the_document_says() {
    let Scene { service, worker, operator, job } = Scene::new().await;
    let document = Document::read();
    let exactly = |schema: &str, value: &Value| {
        document.describes(schema, value);
        let described = document.properties(document.schema(schema)).keys().cloned().collect();
        assert_eq!(fields(value), described, "the fields of {schema}");
    };
    // The reservation object of API.md.
    let expected = "id account member operation provider unit state estimate ceiling settled in_flight unknown \
                    stated_outstanding overrun charged version attempt queue budgets reference labels created_at \
                    updated_at closed_at";
    let expected: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
    exactly("ReservationView", &job.body);
    assert_eq!(fields(&job.body), expected);
    exactly("AttemptView", &job.body["attempt"]);
    exactly("ChargedPeriod", &job.body["budgets"][0]);

    let path = format!("{RESERVATIONS}/{}", job.id());
    let got = worker.get(&path).await.expect(200);
    exactly("ReservationView", &got.body);
    assert!(got.body["attempt"].get("token").is_none(), "a token for somebody who is not its holder");
    let with_events = worker.get(&format!("{path}?events=true")).await.expect(200);
    exactly("ReservationWithEvents", &with_events.body);
    exactly("EventView", &with_events.body["events"][0]);
    assert_eq!(worker.get(&format!("{path}?events=false")).await.expect(200).body, got.body);

    exactly("ReservationView", &worker.extend(&job, "12").await.expect(200).body);
    exactly("ReservationView", &worker.settle(&job, "3").await.expect(200).body);
    let full = json!({
        "operation": "export", "quantities": {"formats": 2, "weight": "3.5"}, "member": "ann", "provider_key": "a",
        "holder": "w-2", "lease_seconds": 5, "reference": "job 1 – é", "labels": {"team": "reports", "empty": ""},
        "account": "northstar",
    });
    let full = worker.reserve("full", full).await.expect(201);
    exactly("ReservationView", &full.body);
    assert_eq!(
        (full.text("member"), full.text("reference"), &full.body["labels"], full.text("estimate")),
        ("ann", "job 1 – é", &json!({"team": "reports", "empty": ""}), "7")
    );

    let budgets = worker.get("/v1/accounts/northstar/budgets").await.expect(200);
    exactly("Budgets", &budgets.body);
    let expected = "budget member unit period_id period_starts_at period_ends_at limit available reserved liability \
                    settled resets_at mode";
    let expected: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
    assert_eq!(fields(&budgets.body["items"][0]), expected);
    exactly("BudgetView", &budgets.body["items"][0]);
    let unopened = worker.get("/v1/accounts/northstar/budgets?at=2031-01-01T00:00:00Z").await.expect(200);
    exactly("BudgetView", &unopened.body["items"][0]);
    assert_eq!(unopened.body["items"][0]["period_id"], Value::Null);

    let list = worker.get(RESERVATIONS).await.expect(200);
    exactly("List_ReservationView", &list.body);
    exactly("ReservationView", &list.body["items"][0]);

    let new = json!({"role": "worker", "accounts": ["northstar"], "name": "n", "expires_at": "2099-01-01T00:00:00Z"});
    let key = operator.post("/v1/keys", new).await.expect(201);
    exactly("NewKeyView", &key.body);
    let keys = operator.get("/v1/keys").await.expect(200);
    exactly("List_KeyView", &keys.body);
    exactly("KeyView", &keys.body["items"][0]);
    let audit = operator.get("/v1/audit").await.expect(200);
    exactly("List_AuditView", &audit.body);
    exactly("AuditView", &audit.body["items"][0]);

    let policy = NORTHSTAR.replace("limit: 100", "limit: 90").replace("  southstar: { plan: standard }\n", "");
    let request = operator.request(Method::POST, "/v1/policy?dry_run=true").header("content-type", "application/yaml");
    let applied = operator.send(request.body(policy)).await.expect(200);
    exactly("PolicyApplied", &applied.body);
    assert_eq!((&applied.body["dry_run"], applied.body["changes"].as_array().unwrap().len()), (&json!(true), 2));

    // Problems with members of their own.
    let conflict = worker.settle(&job, "4").await.problem(409, "already_settled");
    document.describes("ProblemDetails", &conflict.body);
    exactly("ReservationView", &conflict.body["reservation"]);
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

/// What can be wrong with a body before it is understood.
#[tokio::test]
async fn what_is_no_json_object_is_refused() {
    let scene = Scene::new().await;
    let unchanged = Unchanged::from_now(&scene.service).await;
    for (client, path, good) in scene.bodies() {
        let good = good.to_string();
        let deep = format!("{}{}", "[".repeat(8000), "]".repeat(8000));
        let deep_in_field = format!("{{\"{}\": {deep}}}", if path == "/v1/keys" { "role" } else { "attempt" });
        for body in ["", " ", "null", "1", "true", "\"x\"", "[]", "[[]]", "nul", "{", "}", "{]", "\u{feff}{}", &deep] {
            unchanged.refuses_body(client, &path, body.to_owned(), Some("body")).await;
        }
        unchanged.refuses_body(client, &path, deep_in_field, None).await;
        for end in 1..good.len() {
            if end % 7 == 0 {
                unchanged.refuses_body(client, &path, good[..end].to_owned(), None).await;
            }
        }
        for tail in ["{}", "x", ",", "}", "\0", "1"] {
            unchanged.refuses_body(client, &path, format!("{good}{tail}"), Some("body")).await;
        }
        for bad in
            [&b"\xff"[..], b"{\"operation\": \"\xff\"}", b"{\"\xc3\x28\": 1}", b"\xff\xfe{\0}\0", b"\xed\xa0\x80"]
        {
            unchanged.refuses_body(client, &path, bad.to_vec(), Some("body")).await;
        }
        let typo = format!("{{\"typo\": 1, {}", &good[1..]);
        unchanged.refuses_body(client, &path, typo, Some("typo")).await;
        // Every field a second time.
        for (name, value) in serde_json::from_str::<Value>(&good).unwrap().as_object().unwrap() {
            let twice = format!("{{\"{name}\": {value}, {}", &good[1..]);
            unchanged.refuses_body(client, &path, twice, Some(name)).await;
        }
    }
}

/// A JSON array is not an object whose field names can be left out.
#[tokio::test]
async fn an_array_of_the_right_length_is_no_body() {
    let scene = Scene::new().await;
    let unchanged = Unchanged::from_now(&scene.service).await;
    let attempt = scene.job.token();
    let reserve = json!(["bulk", null, "5", null, null, null, null, null, null, null]).to_string();
    unchanged.refuses_body(&scene.worker, RESERVATIONS, reserve, Some("body")).await;
    unchanged.refuses_body(&scene.worker, &scene.extend(), json!([attempt, "50"]).to_string(), Some("body")).await;
    let settle = json!([attempt, "5", null, null, null]).to_string();
    unchanged.refuses_body(&scene.worker, &scene.settle(), settle, Some("body")).await;
    let key = json!([null, "operator", null, null, null]).to_string();
    unchanged.refuses_body(&scene.operator, "/v1/keys", key, Some("body")).await;
}

/// A bound given twice must not be lost silently.
#[tokio::test]
async fn duplicates_inside_maps_are_refused() {
    let scene = Scene::new().await;
    let unchanged = Unchanged::from_now(&scene.service).await;
    for (body, field) in [
        (r#"{"operation": "export", "quantities": {"formats": 9, "weight": 5, "formats": 1}}"#, "quantities.formats"),
        (r#"{"operation": "bulk", "units": 1, "labels": {"a": "1", "a": "2"}}"#, "labels.a"),
    ] {
        unchanged.refuses_body(&scene.worker, RESERVATIONS, body, Some(field)).await;
    }
}

#[tokio::test]
async fn bad_reservations_are_refused_with_the_field_named() {
    let Scene { service, worker, job, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    let long = |length: usize| "n".repeat(length);
    let labels = |count: usize| -> Value { (0..count).map(|n| (format!("l{n}"), json!("v"))).collect() };
    let bulk = |field: &str, value: Value| {
        let mut body = json!({"operation": "bulk", "units": "1"});
        body[field] = value;
        body
    };
    let mut cases = vec![
        (json!({}), "operation"),
        (json!({"units": "1"}), "operation"),
        (json!({"operation": "bulk"}), "units"),
        (json!({"operation": "bulk", "units": null}), "units"),
        (json!({"operation": "bulk", "quantities": {"formats": 1}}), "quantities"),
        (json!({"operation": "export", "units": 1}), "units"),
        (json!({"operation": "export", "quantities": {"formats": 0}}), "quantities.formats"),
        (json!({"operation": "export", "quantities": {"formats": 11}}), "quantities.formats"),
        (json!({"operation": "export", "quantities": {"formats": "10.000000000001"}}), "quantities.formats"),
        (json!({"operation": "export", "quantities": {"heavy": 1}}), "quantities.heavy"),
        (json!({"operation": "export", "quantities": {"formats": "x"}}), "quantities.formats"),
        (json!({"operation": "export", "quantities": {"formats": null}}), "quantities.formats"),
        (json!({"operation": "export", "quantities": []}), "quantities"),
        (json!({"operation": "export", "quantities": "1"}), "quantities"),
        (bulk("wait", json!(true)), "wait"),
        (bulk("selection", json!({})), "selection"),
        (bulk("Units", json!("1")), "Units"),
        (bulk("state", json!("active")), "state"),
        (bulk("provider_key", json!("c")), "provider_key"),
        (bulk("labels", json!([])), "labels"),
        (bulk("labels", json!({"a": 1})), "labels.a"),
        (bulk("labels", json!({"a": null})), "labels.a"),
        (bulk("labels", labels(33)), "labels"),
        (bulk("labels", json!({"": "v"})), "labels."),
        (bulk("labels", json!({long(256): "v"})), &*format!("labels.{}", long(256)).leak()),
        (bulk("labels", json!({"a": long(256)})), "labels.a"),
        (bulk("labels", json!({"a": "\u{0}"})), "labels.a"),
        (bulk("labels", json!({"a": "x\ny"})), "labels.a"),
        (bulk("labels", json!({"\u{0}": "v"})), "labels.\u{0}"),
    ];
    for field in ["operation", "account", "member", "provider_key"] {
        for bad in ["", " ", "a b", "é", "a\n", "a\u{0}", "a'b", "<x>", "a,b", "a%", "a\\", &long(129)] {
            cases.push((bulk(field, json!(bad)), field));
        }
        for wrong in [json!(1), json!(true), json!(["a"]), json!({"a": 1})] {
            cases.push((bulk(field, wrong), field));
        }
    }
    for seconds in
        [json!(4), json!(3601), json!(0), json!(-60), json!(1.5), json!("60"), json!(60.0), json!(9_999_999_999_i64)]
    {
        cases.push((bulk("lease_seconds", seconds), "lease_seconds"));
    }
    for holder in
        [json!(""), json!(long(129)), json!("a\u{0}"), json!("a\tb"), json!("\u{7f}"), json!("\u{85}"), json!(5)]
    {
        cases.push((bulk("holder", holder), "holder"));
    }
    for reference in [json!(long(256)), json!("\u{0}"), json!("a\r\nb"), json!("\u{1b}[31m"), json!(7)] {
        cases.push((bulk("reference", reference), "reference"));
    }
    for (body, field) in cases {
        unchanged.refuses_body(&worker, RESERVATIONS, body.to_string(), Some(field)).await;
    }
    // Text that is no Unicode once it is decoded.
    for body in [r#"{"operation": "bulk", "units": 1, "reference": "\ud800"}"#, r#"{"operation": "\ud800"}"#] {
        unchanged.refuses_body(&worker, RESERVATIONS, body, None).await;
    }

    // The longest of everything is fine, in characters and not in bytes.
    let label = |n: usize| (format!("{n:03}{}", "é".repeat(100)), json!("é".repeat(100)));
    let most = json!({
        "operation": "bulk", "units": "1", "holder": "é".repeat(128), "reference": "é".repeat(255),
        "lease_seconds": 3600, "member": long(128), "labels": (0..32).map(label).collect::<Value>(),
    });
    worker.reserve("most", most).await.expect(201);
    let label = json!({"é".repeat(255): "é".repeat(255)});
    worker.reserve("label", bulk("labels", label)).await.expect(201);
    assert_eq!(service.books().await.reservations.len(), 3);
    assert_eq!(job.text("state"), "active");
}

#[tokio::test]
async fn the_key_of_a_reservation_is_visible_ascii() {
    let Scene { service, worker, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    let request = || {
        worker.request(Method::POST, RESERVATIONS).json(&json!({"operation": "bulk", "units": "1", "holder": "w-1"}))
    };
    let field = Some("Idempotency-Key");
    unchanged.refuses(&worker, request(), 400, "invalid_request", field).await;
    for bad in [&b""[..], b"a b", b"a\tb", "é".as_bytes(), b"\xff", "k".repeat(256).as_bytes()] {
        let value = reqwest::header::HeaderValue::from_bytes(bad).unwrap();
        let request = request().header("idempotency-key", value);
        unchanged.refuses(&worker, request, 400, "invalid_request", field).await;
    }
    let twice = request().header("idempotency-key", "a").header("idempotency-key", "a");
    unchanged.refuses(&worker, twice, 400, "invalid_request", field).await;

    let longest = "~!".repeat(127) + "k";
    let made = worker.send(request().header("idempotency-key", &longest)).await.expect(201);
    assert!(made.headers.get("idempotency-replayed").is_none());
    assert_eq!(made.headers["location"], format!("{RESERVATIONS}/{}", made.id()));
    let found = worker.get(made.headers["location"].to_str().unwrap()).await.expect(200);
    assert_eq!(found.id(), made.id());
    let again = worker.send(request().header("idempotency-key", &longest)).await.expect(200);
    assert_eq!((&again.body, &again.headers["idempotency-replayed"]), (&made.body, &"true".parse().unwrap()));
    // The same key with another request.
    let unchanged = Unchanged::from_now(&service).await;
    let reused = worker.reserve_request(&longest, json!({"operation": "bulk", "units": "2", "holder": "w-1"}));
    unchanged.refuses(&worker, reused, 422, "idempotency_key_reused", None).await;
}

#[tokio::test]
async fn bad_extensions_and_settlements_are_refused_with_the_field_named() {
    let scene = Scene::new().await;
    let (worker, attempt) = (&scene.worker, scene.job.token());
    let unchanged = Unchanged::from_now(&scene.service).await;
    let long = "n".repeat(256);
    for (body, field) in [
        (json!({}), "attempt"),
        (json!({"ceiling": "11"}), "attempt"),
        (json!({"attempt": attempt}), "ceiling"),
        (json!({"attempt": attempt, "ceiling": null}), "ceiling"),
        (json!({"attempt": attempt, "ceiling": "11", "units": "11"}), "units"),
        (json!({"attempt": attempt, "ceiling": {"units": "11"}}), "ceiling"),
        (json!({"attempt": null, "ceiling": "11"}), "attempt"),
        (json!({"attempt": 1, "ceiling": "11"}), "attempt"),
        (json!({"attempt": "", "ceiling": "11"}), "attempt"),
        (json!({"attempt": "a\u{0}", "ceiling": "11"}), "attempt"),
        (json!({"attempt": long, "ceiling": "11"}), "attempt"),
    ] {
        unchanged.refuses_body(worker, &scene.extend(), body.to_string(), Some(field)).await;
    }
    for (body, field) in [
        (json!({}), "attempt"),
        (json!({"units": "1"}), "attempt"),
        (json!({"attempt": attempt}), "units"),
        (json!({"attempt": attempt, "final": true}), "units"),
        (json!({"attempt": attempt, "units": null, "quantities": null}), "units"),
        (json!({"attempt": attempt, "units": "1", "quantities": {"formats": 1}}), "units"),
        (json!({"attempt": attempt, "units": "1", "reason": "because"}), "reason"),
        (json!({"attempt": attempt, "units": "1", "ceiling": "1"}), "ceiling"),
        (json!({"attempt": attempt, "units": "1", "final": "true"}), "final"),
        (json!({"attempt": attempt, "units": "1", "final": 1}), "final"),
        // `bulk` has no cost map, and its provider's usage is reported by calls.
        (json!({"attempt": attempt, "quantities": {"formats": 1}}), "quantities"),
        (json!({"attempt": attempt, "quantities": {"a b": 1}}), "quantities"),
        (json!({"attempt": attempt, "units": "1", "final": false}), "final"),
        (json!({"attempt": attempt, "units": "1", "provider_request_id": ""}), "provider_request_id"),
        (json!({"attempt": attempt, "units": "1", "provider_request_id": long}), "provider_request_id"),
        (json!({"attempt": attempt, "units": "1", "provider_request_id": "a\u{0}"}), "provider_request_id"),
        (json!({"attempt": attempt, "units": "1", "provider_request_id": 5}), "provider_request_id"),
    ] {
        // A name that is no name is reported at its place, whatever that is called.
        let field = (!body.to_string().contains("a b")).then_some(field);
        unchanged.refuses_body(worker, &scene.settle(), body.to_string(), field).await;
    }
    // An export's quantities.
    let export = json!({"operation": "export", "quantities": {"formats": 2, "weight": 5}, "holder": "w-1"});
    let export = worker.reserve("export", export).await.expect(201);
    let unchanged = Unchanged::from_now(&scene.service).await;
    let path = format!("{RESERVATIONS}/{}/settle", export.id());
    for (quantities, field) in [
        (json!({"heavy": 1}), "quantities.heavy"),
        (json!({"formats": "-1"}), "quantities.formats"),
        (json!({"formats": {}}), "quantities.formats"),
        (json!([]), "quantities"),
    ] {
        let body = json!({"attempt": export.token(), "quantities": quantities}).to_string();
        unchanged.refuses_body(worker, &path, body, Some(field)).await;
    }
    // What is well said and cannot be done.
    let stale = json!({"attempt": "1.made-up", "ceiling": "11"});
    let request = worker.request(Method::POST, &scene.extend()).json(&stale);
    let refused = unchanged.refuses(worker, request, 409, "stale_attempt", None).await;
    assert!(refused.body["reservation"]["attempt"].get("token").is_none());
    let request = worker.request(Method::POST, &scene.settle()).json(&json!({"attempt": "1.made-up", "units": "1"}));
    let refused = unchanged.refuses(worker, request, 409, "stale_attempt", None).await;
    assert!(refused.body["reservation"]["attempt"].get("token").is_none());
    let request = worker.request(Method::POST, &scene.extend()).json(&json!({"attempt": attempt, "ceiling": "101"}));
    unchanged.refuses(worker, request, 400, "too_expensive", None).await;
    let stream = worker.reserve("s", json!({"operation": "stream", "units": 9, "holder": "w-1"})).await.expect(201);
    worker.progress(&stream, "5").await.expect(200);
    let unchanged = Unchanged::from_now(&scene.service).await;
    let path = format!("{RESERVATIONS}/{}/settle", stream.id());
    let request = worker.request(Method::POST, &path).json(&json!({"attempt": stream.token(), "units": "4"}));
    unchanged.refuses(worker, request, 409, "usage_decreases", None).await;
    worker.settle(&stream, "5").await.expect(200);
    let unchanged = Unchanged::from_now(&scene.service).await;
    let path = format!("{RESERVATIONS}/{}/extend", stream.id());
    let request = worker.request(Method::POST, &path).json(&json!({"attempt": stream.token(), "ceiling": "20"}));
    unchanged.refuses(worker, request, 409, "not_active", None).await;
}

#[tokio::test]
async fn bad_keys_are_refused_with_the_field_named() {
    let Scene { service, operator, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    for (body, field) in [
        (json!({}), "role"),
        (json!({"role": "admin"}), "role"),
        (json!({"role": "Worker"}), "role"),
        (json!({"role": 1}), "role"),
        (json!({"role": null}), "role"),
        (json!({"role": "worker"}), "accounts"),
        (json!({"role": "worker", "accounts": []}), "accounts"),
        (json!({"role": "worker", "accounts": "northstar"}), "accounts"),
        (json!({"role": "worker", "accounts": ["a b"]}), "accounts[0]"),
        (json!({"role": "worker", "accounts": ["northstar", 1]}), "accounts[1]"),
        (json!({"role": "worker", "accounts": ["northstar"], "all_accounts": true}), "accounts"),
        (json!({"role": "worker", "all_accounts": false}), "accounts"),
        (json!({"role": "worker", "all_accounts": "true"}), "all_accounts"),
        (json!({"role": "operator", "accounts": ["northstar"]}), "accounts"),
        (json!({"role": "finance", "all_accounts": true}), "accounts"),
        (json!({"role": "operator", "name": "n".repeat(256)}), "name"),
        (json!({"role": "operator", "name": "a\u{0}"}), "name"),
        (json!({"role": "operator", "name": 1}), "name"),
        (json!({"role": "operator", "expires_at": "tomorrow"}), "expires_at"),
        (json!({"role": "operator", "expires_at": "2099-01-01"}), "expires_at"),
        (json!({"role": "operator", "expires_at": "2099-02-30T00:00:00Z"}), "expires_at"),
        (json!({"role": "operator", "expires_at": 4_102_444_800_i64}), "expires_at"),
        (json!({"role": "operator", "key": "sl_mine"}), "key"),
    ] {
        unchanged.refuses_body(&operator, "/v1/keys", body.to_string(), Some(field)).await;
    }
    let unknown = operator.request(Method::POST, "/v1/keys").json(&json!({"role": "worker", "accounts": ["nobody"]}));
    unchanged.refuses(&operator, unknown, 422, "unknown_account", None).await;
    let keys = operator.get("/v1/keys").await.expect(200);
    assert_eq!(keys.body["items"].as_array().unwrap().len(), 2, "{:#}", keys.body);
}

/// A time that the database or the calendar does not have is the caller's
/// mistake, not ours.
#[tokio::test]
async fn times_beyond_the_calendar_are_refused() {
    let Scene { service, worker, operator, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    for time in ["-9999-01-01T00:00:00Z", "-262143-01-01T00:00:00Z"] {
        let body = json!({"role": "operator", "expires_at": time}).to_string();
        unchanged.refuses_body(&operator, "/v1/keys", body, Some("expires_at")).await;
    }
    for time in [
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "tomorrow",
        "2026-03-03",
        "2026-03-03T00:00:00",
        "0",
        "-1-01-01T00:00:00Z",
    ] {
        let request = worker.request(Method::GET, &format!("/v1/accounts/northstar/budgets?at={time}"));
        unchanged.refuses(&worker, request, 400, "invalid_request", Some("at")).await;
    }
    for time in ["1970-01-02T00:00:00Z", "8999-12-29T00:00:00Z", "2026-03-03T00:00:00%2B14:00"] {
        worker.get(&format!("/v1/accounts/northstar/budgets?at={time}")).await.expect(200);
    }
}

/// A role is a word, not the other ways in which serde can read one.
#[tokio::test]
async fn a_role_is_a_word() {
    let Scene { service, operator, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    unchanged.refuses_body(&operator, "/v1/keys", r#"{"role": {"operator": null}}"#, Some("role")).await;
}

#[tokio::test]
async fn bad_policies_are_refused_with_the_place_named() {
    let Scene { service, operator, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    let send = |query: &str, body: Vec<u8>| {
        let request = operator.request(Method::POST, &format!("/v1/policy{query}"));
        request.header("content-type", "application/yaml").body(body)
    };
    for (policy, field) in [
        ("", "body"),
        (" \n", "body"),
        ("providers: { p: { unit: u } }", "providers.p.enforcement"),
        ("providers: { p: { unit: u, enforcement: calls, typo: 1 } }", "providers.p.typo"),
        ("provider: {}", "provider"),
        ("accounts: { a: { plan: none } }", "accounts.a.plan"),
        ("{\"accounts\": {\"a\": {\"plan\": \"none\"}}}", "accounts.a.plan"),
    ] {
        let refused = unchanged.refuses(&operator, send("", policy.into()), 400, "invalid_request", None).await;
        let fields: Vec<_> = refused.body["errors"].as_array().unwrap().iter().map(|fault| &fault["field"]).collect();
        assert!(fields.contains(&&json!(field)), "{policy}: {fields:?}");
    }
    for policy in ["[", "a: [", "- a", "x", "1", "null", "\t", "a: b: c", "providers: 1", "providers: { p: 1 }", "*a"] {
        unchanged.refuses(&operator, send("", policy.into()), 400, "invalid_request", None).await;
    }
    unchanged.refuses(&operator, send("", b"# \xff".to_vec()), 400, "invalid_request", Some("body")).await;
    // What the database could not keep.
    unchanged.refuses(&operator, send("", b"# \0\n{}".to_vec()), 400, "invalid_request", None).await;
    // What costs more to read than it says.
    let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
        let before = n - 1;
        text + &format!("a{n}: &a{n} [*a{before}, *a{before}, *a{before}, *a{before}]\n")
    });
    for costly in [bomb, "[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), "&a ".repeat(10_000)] {
        unchanged.refuses(&operator, send("", costly.into_bytes()), 400, "invalid_request", None).await;
    }
    for (query, field) in [("?dry_run=maybe", "dry_run"), ("?dryrun=true", "dryrun"), ("?dry_run=1", "dry_run")] {
        unchanged.refuses(&operator, send(query, NORTHSTAR.into()), 400, "invalid_request", Some(field)).await;
    }
    let too_large = send("", vec![b'#'; 4 * 1024 * 1024 + 1]);
    unchanged.refuses(&operator, too_large, 413, "body_too_large", None).await;
    let request = operator.request(Method::POST, "/v1/policy").header("content-type", "text/plain").body("{}");
    unchanged.refuses(&operator, request, 415, "unsupported_media_type", None).await;
    let request = operator.request(Method::POST, "/v1/policy").body("{}");
    unchanged.refuses(&operator, request, 415, "unsupported_media_type", None).await;
    let audit = operator.get("/v1/audit").await.expect(200);
    let applied = audit.body["items"].as_array().unwrap().iter().filter(|entry| entry["action"] == "policy_applied");
    assert_eq!(applied.count(), 1);
}

/// Sends bytes as they are, and reads the answer to its end.
async fn raw(service: &Service, parts: &[&[u8]]) -> String {
    let mut stream = tokio::net::TcpStream::connect(service.address).await.unwrap();
    for part in parts {
        // The service may have answered and gone.
        let _ = stream.write_all(part).await;
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_large_body_is_refused_before_it_is_read() {
    let scene = Scene::new().await;
    let unchanged = Unchanged::from_now(&scene.service).await;
    for (client, path, good) in scene.bodies() {
        let good = good.to_string();
        let padded = |length: usize| format!("{good}{}", " ".repeat(length - good.len()));
        let request = post(client, &path, padded(17 * 1024));
        unchanged.refuses(client, request, 413, "body_too_large", None).await;
        let request = post(client, &path, padded(16 * 1024 + 1));
        unchanged.refuses(client, request, 413, "body_too_large", None).await;

        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: large\r\n\
             content-type: application/json\r\nconnection: close\r\n",
            client.key
        );
        // In chunks: how long it is comes out only while it is read.
        let body = padded(17 * 1024);
        let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        // Declared, and never sent: the answer does not wait for it.
        let declared = format!("{head}content-length: 17000\r\n\r\n");
        for request in [chunked, declared] {
            let answer = raw(&scene.service, &[request.as_bytes()]).await;
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            assert!(answer.contains("application/problem+json"), "{answer}");
            assert!(answer.contains("\"code\":\"body_too_large\""), "{answer}");
        }
        // A length that is no length.
        let answer = raw(&scene.service, &[format!("{head}content-length: -5\r\n\r\n{{}}").as_bytes()]).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    let Scene { service, worker, .. } = &scene;
    assert_eq!(service.books().await.reservations, ["job active 1 10 0 10 0"]);
    // Exactly 16 KiB is fine.
    let body = r#"{"operation": "bulk", "units": "1"}"#;
    let body = format!("{body}{}", " ".repeat(16 * 1024 - body.len()));
    worker.send(post(worker, RESERVATIONS, body)).await.expect(201);
}

#[tokio::test]
async fn a_body_of_another_type_is_refused() {
    let scene = Scene::new().await;
    let unchanged = Unchanged::from_now(&scene.service).await;
    for (client, path, good) in scene.bodies() {
        let request = || client.request(Method::POST, &path).header("idempotency-key", "k").body(good.to_string());
        unchanged.refuses(client, request(), 415, "unsupported_media_type", None).await;
        let types = ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json", "", "text/json"];
        for other in types.into_iter().chain(["application/problem+json", "multipart/form-data; boundary=x"]) {
            let request = request().header("content-type", other);
            unchanged.refuses(client, request, 415, "unsupported_media_type", None).await;
        }
    }
    let body = r#"{"operation": "bulk", "units": "1"}"#;
    let request = scene.worker.request(Method::POST, RESERVATIONS).header("idempotency-key", "utf-8").body(body);
    let request = request.header("content-type", "Application/JSON; charset=utf-8");
    scene.worker.send(request).await.expect(201);
}

#[tokio::test]
async fn malformed_ids_are_ids_of_nothing() {
    let Scene { service, worker, operator, job } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    let real = job.id();
    let bad = [NOBODY, "x", "1", "%00", "%0A", "..%2F..%2Fetc", "%ff", "'%20or%201=1", &real[..35]];
    for id in bad {
        let body = json!({"attempt": "a", "ceiling": "1"}).to_string();
        let request = worker.request(Method::GET, &format!("{RESERVATIONS}/{id}"));
        unchanged.refuses(&worker, request, 404, "not_found", None).await;
        let request = post(&worker, &format!("{RESERVATIONS}/{id}/extend"), body);
        unchanged.refuses(&worker, request, 404, "not_found", None).await;
        let body = json!({"attempt": "a", "units": "1"}).to_string();
        let request = post(&worker, &format!("{RESERVATIONS}/{id}/settle"), body);
        unchanged.refuses(&worker, request, 404, "not_found", None).await;
        let request = operator.request(Method::DELETE, &format!("/v1/keys/{id}"));
        unchanged.refuses(&operator, request, 404, "not_found", None).await;
    }
    for account in ["nobody", "%00", "%ff", "a%20b", "%C3%A9", &"n".repeat(129)] {
        let request = operator.request(Method::GET, &format!("/v1/accounts/{account}/budgets"));
        unchanged.refuses(&operator, request, 404, "not_found", None).await;
    }
}

#[tokio::test]
async fn query_strings_have_no_surprises() {
    let Scene { service, worker, operator, job } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    let one = format!("{RESERVATIONS}/{}", job.id());
    for (client, path, query, field) in [
        (&worker, RESERVATIONS, "limit=0", "limit"),
        (&worker, RESERVATIONS, "limit=-1", "limit"),
        (&worker, RESERVATIONS, "limit=501", "limit"),
        (&worker, RESERVATIONS, "limit=9223372036854775807", "limit"),
        (&worker, RESERVATIONS, "limit=9223372036854775808", "limit"),
        (&worker, RESERVATIONS, "limit=1.5", "limit"),
        (&worker, RESERVATIONS, "limit=many", "limit"),
        (&worker, RESERVATIONS, "limit=1&limit=2", "limit"),
        (&worker, RESERVATIONS, "cursor=x", "cursor"),
        (&worker, RESERVATIONS, "cursor=AAAA", "cursor"),
        (&worker, RESERVATIONS, "cursor=%00", "cursor"),
        (&worker, RESERVATIONS, "cursor=AZCgoAAAcACAAAAAAAAAAA==", "cursor"),
        (&worker, RESERVATIONS, "state=running", "state"),
        (&worker, RESERVATIONS, "state=Active", "state"),
        (&worker, RESERVATIONS, "operation=a+b", "operation"),
        (&worker, RESERVATIONS, "account=%00", "account"),
        (&worker, RESERVATIONS, "reference=%00", "reference"),
        (&worker, RESERVATIONS, "overdue=yes", "overdue"),
        (&worker, RESERVATIONS, "states=active", "states"),
        (&worker, RESERVATIONS, "limit=5&page=2", "page"),
        (&worker, &one, "events=maybe", "events"),
        (&worker, &one, "event=true", "event"),
        (&worker, "/v1/accounts/northstar/budgets", "when=now", "when"),
        (&operator, "/v1/keys", "limit=0", "limit"),
        (&operator, "/v1/keys", "cursor=x", "cursor"),
        (&operator, "/v1/keys", "role=worker", "role"),
        (&operator, "/v1/audit", "limit=501", "limit"),
        (&operator, "/v1/audit", "cursor=x", "cursor"),
        (&operator, "/v1/audit", "actor=me", "actor"),
    ] {
        let request = client.request(Method::GET, &format!("{path}?{query}"));
        unchanged.refuses(client, request, 400, "invalid_request", Some(field)).await;
    }
    for query in ["limit=1", "limit=500", "cursor=", "state=&operation=&reference=&account=", "overdue=true", ""] {
        worker.get(&format!("{RESERVATIONS}?{query}")).await.expect(200);
    }
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let Scene { service, worker, .. } = Scene::new().await;
    let ask = |path: &str, id: &[u8]| {
        let value = reqwest::header::HeaderValue::from_bytes(id).unwrap();
        worker.send(worker.request(Method::GET, path).header("x-request-id", value))
    };
    let longest = "r".repeat(128);
    for path in ["/healthz", RESERVATIONS, "/v1/nothing", "/v1/reservations/x"] {
        for sane in ["a", "0190-abc_DEF.1:2@3/4+5=", &longest] {
            let answer = ask(path, sane.as_bytes()).await;
            assert_eq!(answer.headers["x-request-id"], sane);
            if answer.status.as_u16() >= 400 {
                assert_eq!(answer.text("request_id"), sane);
            }
        }
        let mut seen = BTreeSet::new();
        let too_long = "r".repeat(129);
        for insane in [&b""[..], b"a b", b"<script>", b"a\"b", "é".as_bytes(), b"\xff", b"{}", too_long.as_bytes()] {
            let answer = ask(path, insane).await;
            let id = answer.headers["x-request-id"].to_str().unwrap().to_owned();
            assert!(uuid::Uuid::parse_str(&id).is_ok(), "{id}");
            assert!(seen.insert(id), "an id came twice");
            assert_eq!(answer.headers.get_all("x-request-id").iter().count(), 1);
        }
        assert!(worker.get(path).await.headers.contains_key("x-request-id"));
    }
    assert_eq!(service.books().await.reservations.len(), 1);
}

/// Every id of a list, page by page.
async fn walk(client: &Client, query: &str) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let answer = client.get(&format!("{RESERVATIONS}?{query}&cursor={cursor}")).await.expect(200);
        let items = answer.body["items"].as_array().unwrap();
        pages.push(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect());
        match answer.body["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return pages,
        }
    }
}

#[tokio::test]
async fn lists_have_every_reservation_once_newest_first() {
    let policy = NORTHSTAR.replace("limit: 100", "limit: 100000");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["northstar"]).await;
    let mut made = Vec::new();
    for n in 0..120 {
        made.push(worker.reserve_bulk(&format!("k{n}"), "1").await.expect(201).id());
    }
    made.reverse();
    let pages = walk(&worker, "").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [50, 50, 20]);
    assert_eq!(pages.concat(), made);
    // A last page that is full promises no other.
    assert_eq!(walk(&worker, "limit=60").await.iter().map(Vec::len).collect::<Vec<_>>(), [60, 60]);
    assert_eq!(walk(&worker, "limit=7").await.concat(), made);
    assert_eq!(walk(&worker, "limit=500").await, std::slice::from_ref(&made));
    // What is made while somebody walks does not move the pages.
    let first = worker.get(&format!("{RESERVATIONS}?limit=100")).await.expect(200);
    worker.reserve_bulk("late", "1").await.expect(201);
    let next = first.text("next_cursor");
    let second = worker.get(&format!("{RESERVATIONS}?limit=100&cursor={next}")).await.expect(200);
    let rest: Vec<_> = second.body["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect();
    assert_eq!(json!(rest), json!(made[100..]));
    assert_eq!(second.body["next_cursor"], Value::Null);
    service.books().await;
}

#[tokio::test]
async fn lists_are_narrowed() {
    let service = Service::with_policy(NORTHSTAR).await;
    service.database.set_clock("2026-03-03T12:00:00Z").await;
    let (north, south, fleet) =
        (service.worker(&["northstar"]).await, service.worker(&["southstar"]).await, service.fleet().await);
    let reserve = |client: &Client, key: &str, body: Value| {
        let client = client.clone();
        let key = key.to_owned();
        async move { client.reserve(&key, body).await.expect(201) }
    };
    let short =
        reserve(&north, "short", json!({"operation": "bulk", "units": 1, "lease_seconds": 5, "reference": "r 1"}))
            .await
            .id();
    let long =
        reserve(&north, "long", json!({"operation": "export", "lease_seconds": 3600, "reference": "r2"})).await.id();
    let done =
        reserve(&north, "done", json!({"operation": "bulk", "units": 1, "holder": "w-1", "lease_seconds": 5})).await;
    north.settle(&done, "1").await.expect(200);
    let done = done.id();
    let other = reserve(&south, "short", json!({"operation": "bulk", "units": 1, "reference": "r2"})).await.id();
    service.database.set_clock("2026-03-03T12:00:30Z").await;

    let ids = |client: &Client, query: &str| {
        let (client, query) = (client.clone(), query.to_owned());
        async move { walk(&client, &query).await.concat() }
    };
    for (query, expected) in [
        ("", vec![&done, &long, &short]),
        ("account=northstar", vec![&done, &long, &short]),
        ("state=active", vec![&long, &short]),
        ("state=settled", vec![&done]),
        ("state=waiting", vec![]),
        ("operation=bulk", vec![&done, &short]),
        ("operation=nothing", vec![]),
        ("reference=r+1", vec![&short]),
        ("reference=r2", vec![&long]),
        ("reference=r", vec![]),
        // A settled one is not overdue.
        ("overdue=true", vec![&short]),
        ("overdue=false", vec![&done, &long]),
        ("state=active&operation=bulk&overdue=true&reference=r+1", vec![&short]),
    ] {
        assert_eq!(ids(&north, query).await.iter().collect::<Vec<_>>(), expected, "{query}");
    }
    assert_eq!(ids(&south, "reference=r2").await, std::slice::from_ref(&other));
    assert_eq!(ids(&fleet, "").await, [&other, &done, &long, &short].map(Clone::clone));
    assert_eq!(ids(&fleet, "reference=r2").await, [other.clone(), long]);
    assert_eq!(ids(&fleet, "account=southstar").await, [other]);
    assert_eq!(ids(&fleet, "account=nobody").await, Vec::<String>::new());
    let list = north.get(&format!("{RESERVATIONS}?overdue=true")).await.expect(200);
    let attempt = &list.body["items"][0]["attempt"];
    assert_eq!((&attempt["overdue"], attempt.get("token")), (&json!(true), None));
    let unchanged = Unchanged::from_now(&service).await;
    let request = north.request(Method::GET, &format!("{RESERVATIONS}?account=southstar"));
    unchanged.refuses(&north, request, 403, "forbidden", None).await;
}

#[tokio::test]
async fn a_history_has_no_gaps() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": "10", "holder": "w-1"})).await.expect(201);
    worker.progress(&job, "4").await.expect(200);
    worker.extend(&job, "12").await.expect(200);
    worker.extend(&job, "12").await.expect(200);
    worker.progress(&job, "4").await.expect(200);
    worker.progress(&job, "20").await.expect(200);
    let settled = worker.settle(&job, "21").await.expect(200);
    worker.settle(&job, "21").await.expect(200);
    let answer = worker.get(&format!("{RESERVATIONS}/{}?events=true", job.id())).await.expect(200);
    let lines: Vec<String> = answer.body["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| {
            let text = |field: &str| event[field].as_str().unwrap().to_owned();
            let amounts = ["ceiling", "settled", "reserved", "liability"].map(text).join(" ");
            format!("{} {} {} {amounts}", event["version"], text("event"), text("state"))
        })
        .collect();
    assert_eq!(
        lines,
        [
            "1 reserve active 10 0 10 0",
            "2 progressive_settlement active 10 4 6 0",
            "3 extend active 12 4 8 0",
            "4 progressive_settlement active 12 20 0 0",
            "5 final_settlement settled 12 21 0 0",
        ]
    );
    assert_eq!((&settled.body["version"], settled.text("overrun")), (&json!(5), "9"));
    let mut plain = answer.body.clone();
    plain.as_object_mut().unwrap().remove("events");
    assert_eq!(worker.get(&format!("{RESERVATIONS}/{}", job.id())).await.expect(200).body, plain);
    service.books().await;
}

/// Budgets of several kinds over the same work: of the account, and of all.
const KINDS: &str = "
providers: { p: { unit: row, enforcement: worker } }
operations:
  work: { provider: p, explicit: true, max_units: 1000 }
  rare: { provider: p, explicit: true, max_units: 1000 }
plans:
  s:
    budgets:
      day: { unit: row, limit: 100, period: day, timezone: America/New_York }
      month: { unit: row, limit: 150, period: month, timezone: UTC }
      life: { unit: row, limit: 500, period: total, operation: rare }
accounts:
  a: { plan: s }
  frozen: { plan: s, limits: { month: 0 } }
pools:
  week: { unit: row, limit: 120, period: week, timezone: Asia/Kolkata }
";

/// Stops the clock of this database, so that seconds are exact.
async fn stop_clock(service: &Service, at: &str) {
    let statement = format!(
        "create or replace function ledger_clock() returns timestamptz language sql volatile
             return timestamptz '{at}'"
    );
    let mut owner = service.database.connect().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut owner).await.unwrap();
}

#[tokio::test]
async fn a_refusal_names_every_budget_and_the_second_when_the_last_of_them_resets() {
    let service = Service::with_policy(KINDS).await;
    let (worker, fleet) = (service.worker(&["a"]).await, service.fleet().await);
    // A Tuesday. The day ends at 05:00Z, the week on Sunday at 18:30Z, the month
    // at the end of the 31st.
    stop_clock(&service, "2026-03-03T12:00:00.25Z").await;
    let work = |units: u32| json!({"operation": "work", "units": units, "holder": "w-1"});
    let rare = |units: u32| json!({"operation": "rare", "units": units, "holder": "w-1"});
    let first = worker.reserve("first", work(90)).await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;

    // Only the day: 16 h 59 min 59.75 s, rounded up.
    let refused =
        unchanged.refuses(&worker, worker.reserve_request("k", work(20)), 429, "budget_exhausted", None).await;
    let refused = refused.problem(429, "budget_exhausted");
    assert_eq!(refused.headers["retry-after"], "61200");
    assert_eq!(
        (refused.text("retry"), &refused.body["breaches"]),
        (
            "after_release",
            &json!([{"budget": "day", "requested": "20", "available": "10", "resets_at": "2026-03-04T05:00:00Z"}])
        )
    );

    // The day and the pool: the week ends last. The account sees only its name.
    let refused =
        unchanged.refuses(&worker, worker.reserve_request("k", work(40)), 429, "budget_exhausted", None).await;
    let seconds = (5 * 24 + 6) * 3600 + 30 * 60;
    assert_eq!(refused.body["retry_after_seconds"], seconds);
    assert_eq!(
        refused.body["breaches"],
        json!([
            {"budget": "day", "requested": "40", "available": "10", "resets_at": "2026-03-04T05:00:00Z"},
            {"budget": "week"},
        ])
    );
    let mut asked = work(40);
    asked["account"] = json!("a");
    let refused = unchanged.refuses(&fleet, fleet.reserve_request("k", asked), 429, "budget_exhausted", None).await;
    assert_eq!(refused.body["retry_after_seconds"], seconds);
    assert_eq!(
        refused.body["breaches"][1],
        json!({"budget": "week", "requested": "40", "available": "30", "resets_at": "2026-03-08T18:30:00Z"})
    );

    // The month too, and what it had.
    let refused =
        unchanged.refuses(&worker, worker.reserve_request("k", work(61)), 429, "budget_exhausted", None).await;
    assert_eq!(refused.body["retry_after_seconds"], ((31 - 3) * 24 + 12) * 3600);
    let named: Vec<_> = refused.body["breaches"].as_array().unwrap().iter().map(|b| b["budget"].clone()).collect();
    assert_eq!(json!(named), json!(["day", "month", "week"]));
    assert_eq!(refused.body["breaches"][1]["available"], "60");

    // An extension belongs to its own periods: no time, whatever their end.
    let request = worker.request(Method::POST, &format!("{RESERVATIONS}/{}/extend", first.id()));
    let request = request.json(&json!({"attempt": first.token(), "ceiling": "101"}));
    unchanged.refuses(&worker, request, 400, "too_expensive", None).await;
    let second = worker.reserve("second", work(10)).await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    let request = worker.request(Method::POST, &format!("{RESERVATIONS}/{}/extend", second.id()));
    let request = request.json(&json!({"attempt": second.token(), "ceiling": "11"}));
    let refused = unchanged.refuses(&worker, request, 429, "budget_exhausted", None).await;
    let refused = refused.problem(429, "budget_exhausted");
    assert_eq!((refused.headers.get("retry-after"), refused.text("retry")), (None, "after_release"));
    assert_eq!(refused.body["breaches"][0]["requested"], "1");
    worker.settle(&first, "90").await.expect(200);
    worker.settle(&second, "10").await.expect(200);

    // Nothing lives that could give anything back.
    let unchanged = Unchanged::from_now(&service).await;
    let refused = unchanged.refuses(&worker, worker.reserve_request("k", work(1)), 429, "budget_exhausted", None).await;
    assert_eq!((refused.text("retry"), &refused.body["retry_after_seconds"]), ("after_reset", &json!(61200)));

    // A new month, and a budget for life that has been used up.
    for (day, key) in
        [("2026-04-06", "l1"), ("2026-05-04", "l2"), ("2026-06-01", "l3"), ("2026-07-06", "l4"), ("2026-08-03", "l5")]
    {
        stop_clock(&service, &format!("{day}T12:00:00Z")).await;
        let life = worker.reserve(key, rare(100)).await.expect(201);
        worker.settle(&life, "100").await.expect(200);
    }
    stop_clock(&service, "2026-09-07T12:00:00Z").await;
    let unchanged = Unchanged::from_now(&service).await;
    let refused = worker.reserve("k", rare(1)).await.problem(429, "budget_exhausted");
    assert_eq!((refused.headers.get("retry-after"), refused.text("retry")), (None, "never"));
    let breach = json!([{"budget": "life", "requested": "1", "available": "0", "resets_at": null}]);
    assert_eq!(refused.body["breaches"], breach);
    drop(unchanged);

    // A frozen account is told no time; its other budgets do not matter.
    let mut asked = work(1);
    asked["account"] = json!("frozen");
    let books = service.books().await;
    let refused = fleet.reserve("k", asked).await.problem(429, "budget_exhausted");
    assert_eq!((refused.headers.get("retry-after"), refused.text("retry")), (None, "never"));
    assert_eq!(refused.body["breaches"][0]["budget"], "month");
    let after = service.books().await;
    // Periods were opened; nothing was taken and nothing was made.
    assert_eq!(after.reservations, books.reservations);
    assert_eq!(after.entries_of("reserve").len(), books.entries_of("reserve").len());
}

#[tokio::test]
async fn what_needs_no_key() {
    let Scene { service, worker, .. } = Scene::new().await;
    worker.reserve_bulk("exhausted", "100").await.problem(429, "budget_exhausted");
    worker.reserve("unknown", json!({"operation": "nothing"})).await.problem(422, "unknown_operation");
    let get = |path: &str| reqwest::get(format!("http://{}{path}", service.address));
    let health = get("/healthz").await.unwrap();
    assert_eq!(health.json::<Value>().await.unwrap(), json!({"status": "ok"}));
    let ready = get("/readyz").await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(ready["status"], "ok");
    assert_eq!(ready["schema_version"], spend_ledger::ledger::schema::newest_version());
    let document = get("/openapi.yaml").await.unwrap();
    assert_eq!(document.headers()["content-type"], "application/yaml");
    assert_eq!(document.text().await.unwrap(), spend_ledger::http::document());
    let metrics = get("/metrics").await.unwrap();
    assert!(metrics.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let metrics = metrics.text().await.unwrap();
    for line in [
        r#"spend_ledger_admissions_total{operation="bulk"} 1"#,
        r#"spend_ledger_refusals_total{code="budget_exhausted",observed="false"} 1"#,
        r#"spend_ledger_refusals_total{code="unknown_operation",observed="false"} 1"#,
        r#"spend_ledger_http_requests_total{method="POST",route="/v1/reservations",status="429"} 1"#,
        "# EOF",
    ] {
        assert!(metrics.lines().any(|other| other == line), "no {line} in\n{metrics}");
    }
    // Labels are bounded: what was asked for is not in them.
    assert!(!metrics.contains("nothing"), "{metrics}");
    assert_eq!(service.books().await.reservations.len(), 1);
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let Scene { service, worker, job, .. } = Scene::new().await;
    let unchanged = service.books().await;
    let one = format!("{RESERVATIONS}/{}", job.id());
    let missing = format!("{RESERVATIONS}/{NOBODY}");
    for path in ["/healthz", "/readyz", "/openapi.yaml", RESERVATIONS, &one, &missing, "/v1/nothing"] {
        let get = worker.get(path).await;
        let head = worker.send(worker.request(Method::HEAD, path)).await;
        assert_eq!((head.status, &head.body), (get.status, &json!("")), "{path}");
        assert_eq!(head.headers.get("content-type"), get.headers.get("content-type"), "{path}");
        assert_eq!(head.headers.get("content-length"), get.headers.get("content-length"), "{path}");
    }
    let head = worker.send(worker.request(Method::HEAD, &format!("{one}/extend"))).await;
    assert_eq!((head.status.as_u16(), head.headers["allow"].to_str().unwrap(), head.body), (405, "POST", json!("")));
    // Without a key it is as secret as GET.
    let answer = reqwest::Client::new().head(format!("http://{}{one}", service.address)).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    assert_eq!(service.books().await, unchanged);
}
