//! A field that is not what it should be is refused by its name, and the
//! request changes nothing.

use reqwest::Method;
use serde_json::{Value, json};

use super::{RESERVATIONS, Scene};
use crate::support::NORTHSTAR;
use crate::support::unchanged::Unchanged;

/// A reservation of `bulk` with one more field.
fn bulk(field: &str, value: Value) -> Value {
    let mut body = json!({"operation": "bulk", "units": "1"});
    body[field] = value;
    body
}

fn long(length: usize) -> String {
    "n".repeat(length)
}

/// Bodies that are no reservation, and the field that is to blame.
fn bad_reservations() -> Vec<(Value, &'static str)> {
    let labels = |count: usize| -> Value { (0..count).map(|n| (format!("l{n}"), json!("v"))).collect() };
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
    cases
}

#[tokio::test]
async fn bad_reservations_are_refused_with_the_field_named() {
    let Scene { service, worker, .. } = Scene::new().await;
    let unchanged = Unchanged::from_now(&service).await;
    for (body, field) in bad_reservations() {
        unchanged.refuses_body(&worker, RESERVATIONS, body.to_string(), Some(field)).await;
    }
    // Text that is no Unicode once it is decoded.
    for body in [r#"{"operation": "bulk", "units": 1, "reference": "\ud800"}"#, r#"{"operation": "\ud800"}"#] {
        unchanged.refuses_body(&worker, RESERVATIONS, body, None).await;
    }
}

#[tokio::test]
async fn the_longest_of_everything_is_fine() {
    let Scene { service, worker, job, .. } = Scene::new().await;
    // In characters and not in bytes.
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
async fn bad_extensions_are_refused_with_the_field_named() {
    let scene = Scene::new().await;
    let (worker, attempt) = (&scene.worker, scene.job.token());
    let unchanged = Unchanged::from_now(&scene.service).await;
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
        (json!({"attempt": long(256), "ceiling": "11"}), "attempt"),
    ] {
        unchanged.refuses_body(worker, &scene.extend(), body.to_string(), Some(field)).await;
    }
}

#[tokio::test]
async fn bad_settlements_are_refused_with_the_field_named() {
    let scene = Scene::new().await;
    let (worker, attempt) = (&scene.worker, scene.job.token());
    let unchanged = Unchanged::from_now(&scene.service).await;
    for (body, field) in [
        (json!({}), "attempt"),
        (json!({"units": "1"}), "attempt"),
        (json!({"attempt": null, "units": "1"}), "attempt"),
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
        (json!({"attempt": attempt, "units": "1", "provider_request_id": long(256)}), "provider_request_id"),
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
        (json!({"formats": 1, "weight": 1, "heavy": 1}), "quantities.heavy"),
        (json!({"formats": "-1"}), "quantities.formats"),
        (json!({"formats": {}}), "quantities.formats"),
        (json!([]), "quantities"),
    ] {
        let body = json!({"attempt": export.token(), "quantities": quantities}).to_string();
        unchanged.refuses_body(worker, &path, body, Some(field)).await;
    }
}

#[tokio::test]
async fn what_is_well_said_and_cannot_be_done_is_a_conflict() {
    let scene = Scene::new().await;
    let (worker, attempt) = (&scene.worker, scene.job.token());
    let unchanged = Unchanged::from_now(&scene.service).await;
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
        // A key that is good for nothing.
        (json!({"role": "operator", "expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
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
