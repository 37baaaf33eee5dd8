//! What cannot be read as a request is refused, whatever it was for, and
//! changes nothing.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{NOBODY, RESERVATIONS, Scene};
use crate::support::Service;
use crate::support::unchanged::{Unchanged, post};

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
