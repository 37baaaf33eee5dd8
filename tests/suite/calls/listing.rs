//! The calls of a reservation, newest first, page by page.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Northstar;
use crate::support::unchanged::Unchanged;

#[tokio::test]
async fn every_call_is_listed_once_newest_first() {
    let day = Northstar::open().await;
    let job = day.calls("job", "100").await;
    let other = day.service.worker(&["southstar"]).await.reserve_bulk("job", "10").await.expect(201);
    let mut keys = Vec::new();
    for number in 0..120 {
        let key = format!("c/{number}");
        day.worker.call(&job, &key, "0.5").await.expect(201);
        match number % 4 {
            0 => day.worker.settle_call(&job, &key, "0.25").await.expect(200),
            1 => day.worker.not_sent(&job, &key).await.expect(200),
            2 if number < 40 => day.worker.unknown(&job, &key).await.expect(200),
            _ => continue,
        };
        keys.push(key);
    }
    let walk = async |query: &str| -> Vec<Vec<Value>> {
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/reservations/{}/calls?{query}&cursor={cursor}", job.id());
            let page = day.worker.get(&path).await.expect(200);
            pages.push(page.body["items"].as_array().unwrap().clone());
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => return pages,
            }
        }
    };
    let newest_first: Vec<String> = (0..120).rev().map(|number| format!("c/{number}")).collect();
    let named = |pages: Vec<Vec<Value>>| -> Vec<String> {
        pages.concat().iter().map(|item| item["call"].as_str().unwrap().to_owned()).collect()
    };
    let pages = walk("").await;
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [50, 50, 20]);
    assert_eq!(named(pages), newest_first);
    assert_eq!(named(walk("limit=7").await), newest_first);
    // A last page that is full promises no other.
    assert_eq!(walk("limit=60").await.len(), 2);
    let of = async |state: &str| {
        let found = walk(&format!("state={state}&limit=9")).await.concat();
        assert!(found.iter().all(|item| item["state"] == state), "{state}");
        found.len()
    };
    assert_eq!([of("settled").await, of("not_sent").await, of("unknown").await], [30, 30, 10]);
    assert_eq!(of("in_flight").await, 50);

    // Everybody who may see the reservation sees them; nobody else.
    let path = format!("/v1/reservations/{}/calls?limit=500", job.id());
    for client in [&day.operator, &day.finance, &day.service.fleet().await] {
        assert_eq!(client.get(&path).await.expect(200).body["items"].as_array().unwrap().len(), 120);
    }
    let south = day.service.worker(&["southstar"]).await;
    south.get(&path).await.problem(404, "not_found");
    let empty = south.get(&format!("/v1/reservations/{}/calls", other.id())).await.expect(200);
    assert_eq!(empty.body, json!({"items": [], "next_cursor": null}));
    // 30 settled at 0.25, 10 unknown at 0.5; the rest is the job's still.
    assert_eq!(day.daily().await, ["7.5", "87.5", "5", "0"]);
    day.books().await;
}

#[tokio::test]
async fn a_call_says_when_it_was_admitted_and_ended() {
    let day = Northstar::open().await;
    let job = day.calls("job", "10").await;
    day.worker.call(&job, "a", "5").await.expect(201);
    let item = async || {
        let list = day.worker.get(&format!("/v1/reservations/{}/calls", job.id())).await.expect(200);
        (list.body["items"][0]["admitted_at"].clone(), list.body["items"][0]["ended_at"].clone())
    };
    assert_eq!(item().await, (json!("2026-03-04T12:00:00Z"), Value::Null));
    day.clock("12:00:20").await;
    day.worker.unknown(&job, "a").await.expect(200);
    assert_eq!(item().await, (json!("2026-03-04T12:00:00Z"), json!("2026-03-04T12:00:20Z")));
    day.clock("12:00:40").await;
    day.worker.settle_call(&job, "a", "5").await.expect(200);
    assert_eq!(item().await, (json!("2026-03-04T12:00:00Z"), json!("2026-03-04T12:00:40Z")));
    day.clock("12:01:00").await;
    day.worker.settle_call(&job, "a", "5").await.expect(200);
    assert_eq!(item().await, (json!("2026-03-04T12:00:00Z"), json!("2026-03-04T12:00:40Z")));
    assert_eq!(day.daily().await, ["5", "5", "0", "90"]);
    day.books().await;
}

#[tokio::test]
async fn what_is_no_list_of_calls_is_refused() {
    let day = Northstar::open().await;
    let job = day.calls("job", "10").await;
    let unchanged = Unchanged::from_now(&day.service).await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=x", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=AAAA", "cursor"),
        ("state=open", "state"),
        ("state=In_flight", "state"),
        ("call=a", "call"),
    ] {
        let request = day.worker.request(Method::GET, &format!("/v1/reservations/{}/calls?{query}", job.id()));
        unchanged.refuses(&day.worker, request, 400, "invalid_request", Some(field)).await;
    }
    for id in ["0190a0a0-0000-7000-8000-000000000000", "x"] {
        let request = day.worker.request(Method::GET, &format!("/v1/reservations/{id}/calls"));
        unchanged.refuses(&day.worker, request, 404, "not_found", None).await;
    }
}
