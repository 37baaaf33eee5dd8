//! What came too late is listed for finance, newest first, and is in no balance.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Northstar;
use crate::support::unchanged::Unchanged;

#[tokio::test]
async fn a_line_says_who_reported_what_and_when() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a/b", "10").await.expect(201);
    day.worker.settle_call(&job, "a/b", "10").await.expect(200);
    day.clock("12:00:20").await;
    let body = json!({"attempt": job.token(), "units": "12.50", "provider_request_id": "req-1"});
    day.worker.end_call(&job, "a/b", body).await.problem(409, "call_already_settled");
    // Said again, by another key of the account: kept once, as it was first said.
    day.clock("12:00:40").await;
    let body = json!({"attempt": job.token(), "units": "12.5", "provider_request_id": "req-2"});
    let other = day.service.worker(&["northstar"]).await;
    other.end_call(&job, "a/b", body).await.problem(409, "call_already_settled");

    let list = day.finance.get("/v1/late-usage").await.expect(200);
    assert_eq!((list.body["items"].as_array().unwrap().len(), &list.body["next_cursor"]), (1, &Value::Null));
    let mut line = list.body["items"][0].clone();
    let actor = line["actor"].as_str().unwrap().to_owned();
    let id = line["id"].as_str().unwrap().to_owned();
    assert!(uuid::Uuid::parse_str(&id).is_ok());
    let keys = day.operator.get("/v1/keys?limit=500").await.expect(200);
    let actors: Vec<_> = keys.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| format!("key:{}", key["id"].as_str().unwrap()))
        .collect();
    assert!(actors.contains(&actor), "{actor}");
    for field in ["id", "actor"] {
        line.as_object_mut().unwrap().remove(field);
    }
    assert_eq!(
        line,
        json!({
            "account": "northstar", "reservation": job.id(), "attempt": 1, "call": "a/b", "unit": "transformation",
            "units": "12.5", "recorded": "10", "at": "2026-03-04T12:00:20Z", "provider_request_id": "req-1",
            "refused_as": "call_already_settled",
        })
    );
    assert_eq!(day.operator.get("/v1/late-usage").await.expect(200).body, list.body);
    assert_eq!(day.daily().await, ["10", "20", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn it_is_narrowed_and_paged() {
    let day = Northstar::open().await;
    let south = day.service.worker(&["southstar"]).await;
    let (one, other) = (day.calls("one", "1").await, day.stream("other", "1").await);
    let souths = south.reserve_bulk("souths", "1").await.expect(201);
    for (client, job) in [(&day.worker, &one), (&day.worker, &other), (&south, &souths)] {
        client.settle(job, "1").await.expect(200);
    }
    for units in 2..=8 {
        let units = units.to_string();
        day.worker.settle(&one, &units).await.problem(409, "already_settled");
        if units == "4" {
            day.worker.settle(&other, &units).await.problem(409, "already_settled");
            south.settle(&souths, &units).await.problem(409, "already_settled");
        }
    }
    let units = async |query: &str| -> String {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = day.finance.get(&format!("/v1/late-usage?{query}&cursor={cursor}")).await.expect(200);
            let items = page.body["items"].as_array().unwrap().clone();
            seen.extend(items.iter().map(|item| {
                let account = item["account"].as_str().unwrap();
                format!("{}{}", &account[..1], item["units"].as_str().unwrap())
            }));
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => return seen.join(" "),
            }
        }
    };
    let all = "n8 n7 n6 n5 s4 n4 n4 n3 n2";
    for query in ["", "limit=1", "limit=2", "limit=3", "limit=9", "account=", "reservation="] {
        assert_eq!(units(query).await, all, "{query}");
    }
    assert_eq!(units("account=northstar&limit=3").await, "n8 n7 n6 n5 n4 n4 n3 n2");
    assert_eq!(units("account=southstar").await, "s4");
    assert_eq!(units("account=nobody").await, "");
    assert_eq!(units(&format!("reservation={}", one.id())).await, "n8 n7 n6 n5 n4 n3 n2");
    assert_eq!(units(&format!("reservation={}&account=northstar&limit=1", other.id())).await, "n4");
    assert_eq!(units(&format!("reservation={}&account=northstar", souths.id())).await, "");

    let unchanged = Unchanged::from_now(&day.service).await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("cursor=x", "cursor"),
        ("account=a+b", "account"),
        ("reservation=x", "reservation"),
        ("call=a", "call"),
    ] {
        let request = day.finance.request(Method::GET, &format!("/v1/late-usage?{query}"));
        unchanged.refuses(&day.finance, request, 400, "invalid_request", Some(field)).await;
    }
    for client in [&day.worker, &day.service.fleet().await] {
        client.get("/v1/late-usage").await.problem(403, "forbidden");
    }
    assert_eq!(day.daily().await, ["2", "0", "0", "98"]);
    day.books().await;
}

#[tokio::test]
async fn it_cannot_be_changed_or_removed() {
    use sqlx::Connection as _;
    let day = Northstar::open().await;
    let job = day.calls("job", "1").await;
    day.worker.settle(&job, "1").await.expect(200);
    day.worker.settle(&job, "2").await.problem(409, "already_settled");
    for url in [&day.service.database.service_url, &day.service.database.owner_url] {
        let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
        for statement in ["update late_usage set units = 3", "delete from late_usage", "truncate late_usage"] {
            let refused = sqlx::query(statement).execute(&mut connection).await;
            assert!(refused.is_err(), "{statement}");
        }
    }
    assert_eq!(day.finance.late_usage("").await, ["1 - 2 already_settled"]);
    day.books().await;
}
