//! Lists have everything once, newest first, and histories have no gaps.

use reqwest::Method;
use serde_json::{Value, json};

use super::RESERVATIONS;
use crate::support::unchanged::Unchanged;
use crate::support::{Client, NORTHSTAR, Service};

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
