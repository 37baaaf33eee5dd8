//! What is the same request, and what is another one with the same key.

use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use super::{NOTHING_RESERVED, bulk_of, repeated};
use crate::support::{Answer, Client, NORTHSTAR, Service};

/// Sends a body as it stands.
async fn reserve_as_written(client: &Client, key: &str, body: &str) -> Answer {
    let request = client.request(Method::POST, "/v1/reservations").header("idempotency-key", key);
    client.send(request.header("content-type", "application/json").body(body.to_owned())).await
}

#[tokio::test]
async fn the_same_key_with_another_request_is_an_error_and_changes_nothing() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let explicit = json!({"operation": "bulk", "units": 5, "member": "ann", "provider_key": "a",
                          "reference": "job-1", "labels": {"team": "reports"}, "holder": "w-1"});
    let priced = json!({"operation": "export", "quantities": {"formats": 2, "weight": 6}, "holder": "w-1"});
    let bare = json!({"operation": "bulk", "units": 5, "holder": "w-1"});
    for (key, body) in [("explicit", &explicit), ("priced", &priced), ("bare", &bare)] {
        worker.reserve(key, body.clone()).await.expect(201);
    }
    let before = service.books().await;
    // `Null` leaves the field out.
    let others = [
        ("explicit", &explicit, "operation", json!("stream")),
        ("explicit", &explicit, "units", json!("5.000000000001")),
        ("explicit", &explicit, "units", json!(1000)),
        ("explicit", &explicit, "member", json!("ben")),
        ("explicit", &explicit, "member", json!("Ann")),
        ("explicit", &explicit, "member", Value::Null),
        ("explicit", &explicit, "provider_key", json!("b")),
        ("explicit", &explicit, "provider_key", Value::Null),
        ("explicit", &explicit, "reference", json!("job-2")),
        ("explicit", &explicit, "reference", json!("")),
        ("explicit", &explicit, "reference", Value::Null),
        ("explicit", &explicit, "labels", json!({"team": "exports"})),
        ("explicit", &explicit, "labels", json!({"Team": "reports"})),
        ("explicit", &explicit, "labels", json!({"team": "reports", "more": ""})),
        ("explicit", &explicit, "labels", Value::Null),
        ("priced", &priced, "quantities", json!({"formats": 3, "weight": 6})),
        // As many units, but another request.
        ("priced", &priced, "quantities", json!({"formats": 6, "weight": 2})),
        ("priced", &priced, "quantities", json!({"formats": 2})),
        ("priced", &priced, "quantities", json!({"formats": 2, "weight": 31})),
        ("priced", &priced, "quantities", json!({"formats": 2, "weight": 6, "pages": 1})),
        ("priced", &priced, "quantities", Value::Null),
        ("priced", &priced, "operation", json!("nothing")),
        ("bare", &bare, "member", json!("ann")),
        ("bare", &bare, "provider_key", json!("a")),
        ("bare", &bare, "reference", json!("")),
        ("bare", &bare, "labels", json!({"": ""})),
    ];
    for (key, body, field, value) in others {
        let mut other = body.clone();
        other[field] = value.clone();
        let answer = worker.reserve(key, other.clone()).await;
        if field == "labels" && value == json!({"": ""}) {
            // No label at all has no name.
            answer.problem(400, "invalid_request");
            continue;
        }
        let problem = answer.problem(422, "idempotency_key_reused");
        assert_eq!(problem.text("retry"), "never", "{other}");
        assert!(!problem.body.to_string().contains("token"), "{:#}", problem.body);
    }
    assert_eq!(service.books().await, before);
    // The job itself is still answered from its key.
    assert_eq!(worker.reserve("explicit", explicit).await.expect(200).token().split('.').next(), Some("1"));
}

#[tokio::test]
async fn the_same_meaning_in_other_bytes_is_the_same_request() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    // Each of a group is the first once, and a repeat of each other one.
    let groups: [&[&str]; 3] = [
        &[
            r#"{"operation":"bulk","units":5,"holder":"w-1"}"#,
            r#"{"holder":"w-1","units":5,"operation":"bulk"}"#,
            r#"{"operation":"bulk","units":"5.0","holder":"w-1"}"#,
            r#"{"operation":"bulk","units":"5","holder":"w-1"}"#,
            r#"{"operation":"bulk","units":5e0,"holder":"w-1"}"#,
            r#"{"operation":"bulk","units":0.5E+1,"holder":"w-1"}"#,
            r#"{"operation":"bulk","units":"5.000000000000","holder":"w-1"}"#,
            "{ \"operation\" : \"b\\u0075lk\",\n\t\"units\": 50e-1, \"holder\": \"w-1\" }",
            r#"{"operation":"bulk","units":5,"holder":"w-1","labels":{}}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","labels":null,"member":null,"provider_key":null,"reference":null}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","quantities":null}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","quantities":{}}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","account":null,"lease_seconds":null}"#,
        ],
        &[
            r#"{"operation":"export","holder":"w-1"}"#,
            r#"{"operation":"export","quantities":null,"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{},"units":null,"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"formats":1},"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"weight":"5.00"},"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"weight":5,"formats":"1"},"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"formats":1e0,"weight":5.0},"holder":"w-1"}"#,
        ],
        &[
            r#"{"operation":"bulk","units":5,"labels":{"a":"1","b":"2"},"reference":"é","holder":"w-1"}"#,
            r#"{"reference":"\u00e9","labels":{"b":"2","a":"1"},"operation":"bulk","units":"5","holder":"w-1"}"#,
        ],
    ];
    let mut jobs = 0;
    for group in groups {
        for first in group {
            let key = format!("job-{jobs:02}");
            jobs += 1;
            let reservation = reserve_as_written(&worker, &key, first).await.expect(201);
            for same in group {
                let repeat = reserve_as_written(&worker, &key, same).await;
                assert_eq!(repeat.status, 200, "{first} and {same}: {:#}", repeat.body);
                assert_eq!(repeated(repeat, &reservation, true).body, reservation.body, "{first} and {same}");
            }
            worker.settle(&reservation, "0").await.expect(200);
        }
    }
    let books = service.books().await;
    assert_eq!(books.periods, NOTHING_RESERVED);
    assert_eq!((books.reservations.len(), books.entries_of("reserve").len()), (jobs, jobs));
}

#[tokio::test]
async fn account_holder_and_lease_are_not_part_of_the_request() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = json!({"operation": "bulk", "units": 5, "holder": "w-1", "lease_seconds": 300});
    let job = worker.reserve("job", body).await.expect(201);
    for (body, with_token) in [
        (json!({"operation": "bulk", "units": 5, "holder": "w-1", "account": "northstar"}), true),
        (json!({"operation": "bulk", "units": 5, "holder": "w-1", "lease_seconds": 5}), true),
        (json!({"operation": "bulk", "units": 5, "holder": "w-2", "lease_seconds": 5}), false),
        (json!({"operation": "bulk", "units": 5}), false),
        (json!({"operation": "bulk", "units": 5, "holder": "w-1"}), true),
    ] {
        let repeat = repeated(worker.reserve("job", body).await, &job, with_token);
        let attempt = &repeat.body["attempt"];
        assert_eq!((&attempt["holder"], &attempt["overdue"]), (&json!("w-1"), &json!(false)));
        // A repeat is no renewal.
        assert_eq!(attempt["lease_expires_at"], job.body["attempt"]["lease_expires_at"]);
        assert_eq!(repeat.body["version"], 1);
    }
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 95 5 0 0"]);
    assert_eq!(books.journal.len(), 2);
}

#[tokio::test]
async fn a_holder_that_was_left_out_cannot_be_told_from_another() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = json!({"operation": "bulk", "units": 5});
    let job = worker.reserve("job", body.clone()).await.expect(201);
    assert!(!job.token().is_empty());
    let repeat = repeated(worker.reserve("job", body.clone()).await, &job, false);
    // The name that the service made up is no secret: it is not enough.
    let made_up = repeat.body["attempt"]["holder"].as_str().unwrap().to_owned();
    assert_eq!(job.body["attempt"]["holder"], made_up.as_str());
    repeated(worker.reserve("job", body).await, &job, false);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 95 5 0 0"]);
}

#[tokio::test]
async fn the_same_key_in_another_account_is_another_job() {
    let service = Service::with_policy(NORTHSTAR).await;
    let north = service.worker(&["northstar"]).await;
    let south = service.worker(&["southstar"]).await;
    let fleet = service.fleet().await;
    let one = north.reserve_bulk("job", "30").await.expect(201);
    let two = south.reserve_bulk("job", "40").await.expect(201);
    assert_ne!((one.id(), one.token()), (two.id(), two.token()));
    for (account, units, job) in [("northstar", 30, &one), ("southstar", 40, &two)] {
        let body = json!({"operation": "bulk", "units": units, "holder": "w-1", "account": account});
        repeated(fleet.reserve("job", body).await, job, true);
    }
    // Of the other account nothing can be found out by its key.
    south.reserve_bulk("job", "30").await.problem(422, "idempotency_key_reused");
    let other_account = json!({"operation": "bulk", "units": 30, "holder": "w-1", "account": "northstar"});
    south.reserve("job", other_account).await.problem(403, "forbidden");
    fleet.reserve("job", bulk_of(30)).await.problem(400, "invalid_request");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 70 30 0 0", "southstar daily : 100 60 40 0 0"]);
}

#[tokio::test]
async fn keys_of_every_allowed_form_are_identities_of_their_own() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let longest = "k".repeat(255);
    let other_longest = format!("{}l", &longest[..254]);
    let visible: String = ('!'..='~').collect();
    let keys = ["k", "K", "0", "\"", "%20", "k,k", &longest, &other_longest, &visible];
    let mut ids = std::collections::BTreeSet::new();
    for key in keys {
        let job = worker.reserve_bulk(key, "1").await.expect(201);
        repeated(worker.reserve_bulk(key, "1").await, &job, true);
        ids.insert(job.id());
    }
    assert_eq!(ids.len(), keys.len());
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 91 9 0 0"]);
    assert_eq!(books.entries_of("reserve").len(), keys.len());
}

#[tokio::test]
async fn a_key_that_is_none_is_refused_by_name() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("job", "1").await.expect(201);
    let before = service.books().await;
    let header = |bytes: &[u8]| HeaderValue::from_bytes(bytes).unwrap();
    let long = "k".repeat(256);
    let wrong: [&[HeaderValue]; 9] = [
        &[],
        &[header(b"")],
        &[header(long.as_bytes())],
        &[header(b"a job")],
        &[header(b"a\tjob")],
        &[header("ключ".as_bytes())],
        &[header(b"job\xff")],
        &[header(b"job"), header(b"job")],
        &[header(b"one"), header(b"two")],
    ];
    for keys in wrong {
        let mut request = worker.request(Method::POST, "/v1/reservations").json(&bulk_of(1));
        for key in keys {
            request = request.header("idempotency-key", key.clone());
        }
        let problem = worker.send(request).await.problem(400, "invalid_request");
        assert_eq!(problem.body["errors"][0]["field"], "Idempotency-Key", "{keys:?}");
        assert_eq!(problem.text("retry"), "never");
    }
    assert_eq!(service.books().await, before);
}
