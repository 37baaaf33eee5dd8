//! What is open and needs somebody: why, since when, and how much.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::stopped;
use crate::support::{Answer, NORTHSTAR, Northstar};

/// Northstar's policy with a budget for each member and a pool.
fn policy() -> String {
    let each = "\n      each: { unit: transformation, limit: 90, period: total, per: member }";
    let daily = "daily: { unit: transformation, limit: 100, period: day, timezone: America/New_York }";
    let pool = "pools: { month: { unit: transformation, limit: 1000, period: month, timezone: UTC } }\n";
    format!("{}{pool}", NORTHSTAR.replace(daily, &format!("{}{each}", daily.replace("100", "200"))))
}

async fn open() -> Northstar {
    Northstar::with_policy(&policy()).await
}

/// A job of 20 of a member, with a long lease.
async fn job(day: &Northstar, operation: &str, key: &str, member: &str) -> Answer {
    let body = json!({"operation": operation, "units": 20, "holder": "w-1", "member": member, "lease_seconds": 3600});
    day.worker.reserve(key, body).await.expect(201)
}

/// What is open, as `key why since age` lines, in the order of the list.
async fn listed(day: &Northstar, query: &str) -> Vec<String> {
    let answer = day.finance.get(&format!("/v1/liabilities{query}")).await.expect(200);
    let line = |item: &Value| {
        let why: Vec<&str> = item["why"].as_array().unwrap().iter().map(|why| why.as_str().unwrap()).collect();
        let since = &item["since"].as_str().unwrap()[11..19];
        let key = item["reservation"]["reference"].as_str().unwrap_or("-").to_owned();
        format!("{key} {} {since} {}", why.join("+"), item["age_seconds"])
    };
    answer.body["items"].as_array().unwrap().iter().map(line).collect()
}

/// Totals as `account budget member: overdue cancelled unknown_calls
/// earlier_attempts fenced, liability`.
async fn totals(day: &Northstar, query: &str) -> Vec<String> {
    let answer = day.finance.get(&format!("/v1/liabilities{query}")).await.expect(200);
    let text = |item: &Value, field: &str| item[field].as_str().unwrap_or("-").to_owned();
    let line = |item: &Value| {
        let parts = ["overdue", "cancelled", "unknown_calls", "earlier_attempts", "fenced"];
        let of = ["account", "budget", "member"].map(|field| text(item, field)).join(" ");
        format!("{of}: {}, {}", parts.map(|part| text(item, part)).join(" "), text(item, "liability"))
    };
    answer.body["totals"].as_array().unwrap().iter().map(line).collect()
}

/// A job of 20 for each reason, one a minute from noon on, and then it is 13:30.
async fn of_every_kind(day: &Northstar) {
    let reserve = async |operation: &str, key: &str, member: &str, lease: u32| {
        let body = json!({"operation": operation, "units": 20, "holder": "w-1", "member": member, "reference": key,
                          "lease_seconds": lease});
        day.worker.reserve(key, body).await.expect(201)
    };
    // Nothing is wrong with these.
    let settled = reserve("bulk", "settled", "ann", 5).await;
    day.worker.settle(&settled, "3").await.expect(200);
    let overdue = reserve("bulk", "overdue", "ann", 60).await;
    day.worker.call(&overdue, "a", "5").await.expect(201);
    day.clock("12:01:00").await;
    let cancelled = reserve("bulk", "cancelled", "ben", 60).await;
    day.worker.call(&cancelled, "a", "5").await.expect(201);
    day.worker.call(&cancelled, "b", "4").await.expect(201);
    day.worker.settle_call(&cancelled, "a", "5").await.expect(200);
    day.worker.cancel(&cancelled).await.expect(200);
    day.clock("12:02:00").await;
    let unknown = reserve("bulk", "unknown", "ann", 3600).await;
    day.worker.call(&unknown, "a", "5").await.expect(201);
    day.worker.unknown(&unknown, "a").await.expect(200);
    day.clock("12:03:00").await;
    let earlier = reserve("stream", "earlier", "ben", 3600).await;
    let more = stopped(json!({"force": true, "outstanding": "6", "lease_seconds": 3600}));
    day.operator.take_over(&earlier, 1, "w-2", more).await.expect(201);
    day.clock("12:04:00").await;
    let fenced = reserve("bulk", "fenced", "ann", 60).await;
    day.worker.call(&fenced, "a", "7").await.expect(201);
    day.worker.fence(&fenced, 1, json!({})).await.expect(200);
    day.clock("12:05:00").await;
    let stated = reserve("stream", "stated", "ben", 60).await;
    day.worker.fence(&stated, 1, stopped(json!({"outstanding": "8"}))).await.expect(200);
    day.clock("12:06:00").await;
    reserve("bulk", "fine", "ben", 3600).await;
    day.clock("13:00:00").await;
}

#[tokio::test]
async fn nothing_open_is_an_empty_list() {
    let day = open().await;
    let job = job(&day, "bulk", "job", "ann").await;
    let nothing = json!({"items": [], "totals": [], "late_usage": 0, "next_cursor": null});
    assert_eq!(day.finance.get("/v1/liabilities").await.expect(200).body, nothing);
    day.worker.settle(&job, "5").await.expect(200);
    assert_eq!(day.operator.get("/v1/liabilities").await.expect(200).body, nothing);
    day.books().await;
}

#[tokio::test]
async fn each_reason_since_when_and_for_how_long() {
    let day = open().await;
    of_every_kind(&day).await;
    let all = [
        "overdue overdue 12:01:00 3540",
        "cancelled cancelled 12:01:00 3540",
        "unknown unknown_calls 12:02:00 3480",
        "earlier earlier_attempts 12:03:00 3420",
        "fenced fenced 12:04:00 3360",
        "stated fenced 12:05:00 3300",
    ];
    assert_eq!(listed(&day, "").await, all);
    // A lease that has not run out is no reason; one that has is, also beside others.
    for why in ["overdue", "cancelled", "unknown_calls", "earlier_attempts"] {
        let found = listed(&day, &format!("?why={why}")).await;
        assert_eq!((found.len(), found[0].split(' ').nth(1)), (1, Some(why)));
    }
    assert_eq!(listed(&day, "?why=fenced").await, all[4..]);
    // Page by page it is the same.
    let (mut walked, mut cursor) = (Vec::new(), String::new());
    loop {
        let query = format!("?limit=4&cursor={cursor}");
        walked.extend(listed(&day, &query).await);
        let page = day.finance.get(&format!("/v1/liabilities{query}")).await.expect(200);
        // The totals are of all of it, on every page.
        assert_eq!(page.body["totals"].as_array().unwrap().len(), 4);
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(walked, all);
    // Who looks is not the holder.
    let list = day.finance.get("/v1/liabilities").await.expect(200);
    assert!(!list.body.to_string().contains("\"token\""));
    day.books().await;
}

#[tokio::test]
async fn the_totals_are_what_the_balances_hold() {
    let day = open().await;
    of_every_kind(&day).await;
    // 20 reserved are overdue; 15 of the cancelled, of which 4 are in flight; 5; 6; 7 + 8.
    let all = [
        "northstar daily -: 20 15 5 6 15, 41",
        "northstar each ann: 20 0 5 0 7, 12",
        "northstar each ben: 0 15 0 6 8, 29",
        "- month -: 20 15 5 6 15, 41",
    ];
    assert_eq!(totals(&day, "").await, all);
    // Whatever the list is narrowed to by.
    assert_eq!(totals(&day, "?why=overdue&limit=1").await, all);
    let liability = "select budget || ' ' || member || ' ' || trim_scale(liability)
                     from budget_period order by account = '', budget, member";
    assert_eq!(day.service.database.lines(liability).await, ["daily  41", "each ann 12", "each ben 29", "month  41"]);
    assert_eq!(day.daily().await[2], "41");
    day.books().await;
}

#[tokio::test]
async fn it_is_narrowed_to_accounts_and_a_pool_counts_for_all() {
    let day = open().await;
    let south = day.service.worker(&["southstar"]).await;
    let norths = job(&day, "bulk", "norths", "ann").await;
    let body = json!({"operation": "bulk", "units": 20, "holder": "w-1", "member": "ann", "reference": "souths"});
    let souths = south.reserve("souths", body).await.expect(201);
    south.settle(&souths, "30").await.expect(200);
    south.settle(&souths, "31").await.problem(409, "already_settled");
    let body = json!({"operation": "bulk", "units": 20, "holder": "w-1", "member": "ann", "reference": "souths"});
    let souths = south.reserve("souths-2", body).await.expect(201);
    day.worker.cancel(&norths).await.expect(200);
    south.cancel(&souths).await.expect(200);

    assert_eq!(listed(&day, "").await.len(), 2);
    assert_eq!(listed(&day, "?account=southstar").await, ["souths cancelled 12:00:00 0"]);
    assert_eq!(listed(&day, "?account=southstar&why=overdue").await, Vec::<String>::new());
    assert_eq!(listed(&day, "?account=nobody").await, Vec::<String>::new());
    assert_eq!(
        totals(&day, "").await,
        [
            "northstar daily -: 0 20 0 0 0, 20",
            "northstar each ann: 0 20 0 0 0, 20",
            "southstar daily -: 0 20 0 0 0, 20",
            "southstar each ann: 0 20 0 0 0, 20",
            "- month -: 0 40 0 0 0, 40",
        ]
    );
    // Of the pool only what this account's work holds there.
    assert_eq!(
        totals(&day, "?account=southstar").await,
        ["southstar daily -: 0 20 0 0 0, 20", "southstar each ann: 0 20 0 0 0, 20", "- month -: 0 20 0 0 0, 20",]
    );
    let late = async |query: &str| {
        day.finance.get(&format!("/v1/liabilities{query}")).await.expect(200).body["late_usage"].clone()
    };
    assert_eq!([late("").await, late("?account=southstar").await, late("?account=northstar").await], [1, 1, 0]);

    let unchanged = Unchanged::from_now(&day.service).await;
    for (query, field) in [
        ("why=old", "why"),
        ("why=Overdue", "why"),
        ("account=a+b", "account"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("cursor=x", "cursor"),
        ("reason=overdue", "reason"),
    ] {
        let request = day.finance.request(Method::GET, &format!("/v1/liabilities?{query}"));
        unchanged.refuses(&day.finance, request, 400, "invalid_request", Some(field)).await;
    }
}

#[tokio::test]
async fn the_budgets_periods_are_counted_together() {
    let day = open().await;
    let old = job(&day, "bulk", "old", "ann").await;
    day.worker.cancel(&old).await.expect(200);
    day.service.database.stop_clock("2026-03-05T12:00:00Z").await;
    let new = job(&day, "bulk", "new", "ann").await;
    day.worker.cancel(&new).await.expect(200);
    assert_eq!(
        totals(&day, "").await,
        ["northstar daily -: 0 40 0 0 0, 40", "northstar each ann: 0 40 0 0 0, 40", "- month -: 0 40 0 0 0, 40",]
    );
    let day_by_day = "select trim_scale(liability)::text from budget_period where budget = 'daily' order by ordinal";
    assert_eq!(day.service.database.lines(day_by_day).await, ["20", "20"]);
    day.books().await;
}

#[tokio::test]
async fn several_reasons_stand_together_and_each_unit_has_one() {
    let day = open().await;
    let mut job = job(&day, "stream", "job", "ann").await;
    let more = stopped(json!({"force": true, "outstanding": "6", "lease_seconds": 60}));
    job = day.operator.take_over(&job, 1, "w-2", more).await.expect(201);
    day.clock("12:10:00").await;
    assert_eq!(
        day.finance.get("/v1/liabilities").await.expect(200).body["items"][0]["why"],
        json!(["overdue", "earlier_attempts"])
    );
    assert_eq!(totals(&day, "").await[0], "northstar daily -: 14 0 0 6 0, 6");
    day.worker.cancel(&job).await.expect(200);
    assert_eq!(
        day.finance.get("/v1/liabilities").await.expect(200).body["items"][0]["why"],
        json!(["cancelled", "earlier_attempts"])
    );
    assert_eq!(totals(&day, "").await[0], "northstar daily -: 0 14 0 6 0, 20");
    day.operator.fence(&job, 2, stopped(json!({"outstanding": "3"}))).await.expect(200);
    // Once it is fenced, what the first and the second may have spent is one thing.
    assert_eq!(day.finance.get("/v1/liabilities").await.expect(200).body["items"][0]["why"], json!(["fenced"]));
    assert_eq!(totals(&day, "").await[0], "northstar daily -: 0 0 0 0 9, 9");

    let calls = self::job(&day, "bulk", "calls", "ann").await;
    day.worker.call(&calls, "a", "5").await.expect(201);
    day.worker.call(&calls, "b", "4").await.expect(201);
    day.worker.unknown(&calls, "b").await.expect(200);
    let why = async || day.finance.get("/v1/liabilities").await.expect(200).body["items"][1]["why"].clone();
    assert_eq!(why().await, json!(["unknown_calls"]));
    day.clock("14:00:00").await;
    assert_eq!(why().await, json!(["overdue", "unknown_calls"]));
    assert_eq!(totals(&day, "").await[0], "northstar daily -: 16 0 4 0 9, 13");
    day.worker.fence(&calls, 1, json!({})).await.expect(200);
    assert_eq!(why().await, json!(["unknown_calls", "fenced"]));
    assert_eq!(totals(&day, "").await[0], "northstar daily -: 0 0 4 0 14, 18");
    // What is known is not open any more.
    day.worker.settle_call(&calls, "b", "4").await.expect(200);
    assert_eq!(why().await, json!(["fenced"]));
    day.worker.settle_call(&calls, "a", "4").await.expect(200);
    day.finance.close(&job, "2", "export").await.expect(200);
    assert_eq!(listed(&day, "").await, Vec::<String>::new());
    assert_eq!(totals(&day, "").await, Vec::<String>::new());
    day.books().await;
}

/// Since when: a reservation is as old as the first thing that was not resolved.
#[tokio::test]
async fn it_is_open_since_the_first_of_what_is_still_unresolved() {
    let day = open().await;
    let first = job(&day, "bulk", "first", "ann").await;
    let since = async || {
        let list = day.finance.get("/v1/liabilities").await.expect(200);
        list.body["items"][0]["since"].as_str().map_or("-".to_owned(), |since| since[11..19].to_owned())
    };
    day.worker.call(&first, "a", "5").await.expect(201);
    day.worker.call(&first, "b", "5").await.expect(201);
    day.clock("12:01:00").await;
    day.worker.unknown(&first, "a").await.expect(200);
    assert_eq!(since().await, "12:01:00");
    day.clock("12:02:00").await;
    day.worker.unknown(&first, "b").await.expect(200);
    assert_eq!(since().await, "12:01:00");
    // Once nothing was in liability, it begins anew.
    day.worker.settle_call(&first, "a", "5").await.expect(200);
    day.worker.settle_call(&first, "b", "5").await.expect(200);
    day.clock("12:03:00").await;
    day.worker.cancel(&first).await.expect(200);
    assert_eq!(since().await, "12:03:00");
    day.clock("12:04:00").await;
    day.worker.fence(&first, 1, json!({})).await.expect(200);
    // The rest was nothing: it is settled.
    assert_eq!(since().await, "-");

    // Unknown since 12:05, and overdue since 13:05: it has been open since 12:05.
    day.clock("12:05:00").await;
    let second = job(&day, "bulk", "second", "ben").await;
    day.worker.call(&second, "a", "5").await.expect(201);
    day.worker.unknown(&second, "a").await.expect(200);
    day.clock("14:00:00").await;
    assert_eq!(since().await, "12:05:00");
    day.books().await;
}

#[tokio::test]
async fn the_oldest_is_first_whenever_it_was_reserved() {
    let day = open().await;
    let mut jobs = Vec::new();
    for key in ["a", "b", "c", "d"] {
        let body = json!({"operation": "bulk", "units": 20, "holder": "w-1", "reference": key, "member": "ann",
                          "lease_seconds": 3600});
        jobs.push(day.worker.reserve(key, body).await.expect(201));
    }
    for (minute, index) in [(1, 2), (2, 0), (3, 3), (4, 1)] {
        day.clock(&format!("12:{minute:02}:00")).await;
        day.worker.cancel(&jobs[index]).await.expect(200);
    }
    let all =
        ["c cancelled 12:01:00 180", "a cancelled 12:02:00 120", "d cancelled 12:03:00 60", "b cancelled 12:04:00 0"];
    assert_eq!(listed(&day, "").await, all);
    let first = day.finance.get("/v1/liabilities?limit=2").await.expect(200);
    let cursor = first.text("next_cursor").to_owned();
    assert_eq!(listed(&day, "?limit=2").await, all[..2]);
    assert_eq!(listed(&day, &format!("?limit=2&cursor={cursor}")).await, all[2..]);
    day.books().await;
}
