//! A policy is applied whole or not at all, is written down, and is in force in
//! every process.

use serde_json::{Value, json};

use super::{budgets_of, daily, faults, limit, with, without};
use crate::support::NORTHSTAR;

#[tokio::test]
async fn a_policy_is_refused_whole_with_every_fault_named() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    worker.reserve_bulk("job", "60").await.expect(201);
    let audit = operator.get("/v1/audit").await.expect(200);
    let faulty = "
providers:
  transformer: { unit: transformation, enforcement: magic }
  direct: { unit: transformation, enforcement: worker, keys: [a, a] }
operations:
  bulk: { provider: nowhere, explicit: true, max_units: 100 }
  stream: { provider: direct, explicit: true, max_units: -1, colour: red }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 250, period: fortnight, timezone: America/Gotham }
accounts:
  northstar: { plan: standard, limits: { hourly: 5 } }
  southstar: { plan: gold }
pools:
  shared: { provider: direct, calls: 10, per: 60s }
";
    let refused = operator.apply_policy(faulty, "").await.problem(400, "invalid_request");
    let mut named = faults(refused);
    let fields = named.len();
    for expected in [
        "providers.transformer.enforcement",
        "providers.direct.keys[1]",
        "operations.bulk.provider",
        "operations.stream.max_units",
        "operations.stream.colour",
        "plans.standard.budgets.daily.period",
        "plans.standard.budgets.daily.timezone",
        "accounts.northstar.limits.hourly",
        "accounts.southstar.plan",
        "pools.shared.calls",
        "pools.shared.per",
    ] {
        assert!(named.contains(&expected.to_owned()), "{expected} is not among {named:#?}");
        named.retain(|field| field != expected);
    }
    assert_eq!((fields, named.len()), (11, 0), "{named:?}");
    for unreadable in ["providers: [", "plans: 7", "- a", "{providers: {}, providers: {}}"] {
        operator.apply_policy(unreadable, "").await.problem(400, "invalid_request");
    }
    operator.apply_policy(" \n", "").await.problem(400, "invalid_request");

    // Nothing has changed, not even what was right in it.
    assert_eq!(service.database.lines("select version::text from policy_state").await, ["1"]);
    assert_eq!(service.database.lines("select version::text from policy_version").await, ["1"]);
    assert_eq!(operator.get("/v1/audit").await.expect(200).body, audit.body);
    assert_eq!(operator.apply_policy(NORTHSTAR, "").await.expect(200).body["changes"], json!([]));
    assert_eq!(daily(&worker).await, ["0", "60", "0", "40"]);
    worker.reserve_bulk("more", "40").await.expect(201);
    service.books().await;
}

#[tokio::test]
async fn a_dry_run_and_a_policy_that_says_the_same_change_nothing() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    worker.reserve_bulk("job", "60").await.expect(201);
    let before = service.books().await;
    let audit = operator.get("/v1/audit").await.expect(200);
    let changed = limit("30").replace("  southstar: { plan: standard }\n", "");
    let would = operator.apply_policy(&changed, "?dry_run=true").await.expect(200);
    assert_eq!((&would.body["version"], &would.body["dry_run"]), (&json!(1), &json!(true)));
    let changes = would.body["changes"].as_array().unwrap();
    let told: Vec<Value> = changes.iter().map(|c| json!([c["action"], c["kind"], c["name"]])).collect();
    assert_eq!(told, [json!(["changed", "budget", "standard/daily"]), json!(["retired", "account", "southstar"])]);
    assert_eq!((&changes[0]["before"]["limit"], &changes[0]["after"]["limit"]), (&json!("100"), &json!("30")));

    // In other words, but the same.
    let same = NORTHSTAR.replace("limit: 100", "limit: 100.000, mode: enforce, rollover: original_period");
    for policy in [NORTHSTAR, &same] {
        let applied = operator.apply_policy(policy, "").await.expect(200);
        assert_eq!(applied.body, json!({"version": 1, "dry_run": false, "changes": []}));
    }
    assert_eq!(service.books().await, before);
    assert_eq!(operator.get("/v1/audit").await.expect(200).body, audit.body);
    assert_eq!(service.database.lines("select version::text from policy_version").await, ["1"]);
    assert_eq!(daily(&worker).await, ["0", "60", "0", "40"]);
}

#[tokio::test]
async fn who_changed_the_policy_and_when_is_written_down_everywhere() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    worker.reserve_bulk("job", "60").await.expect(201);
    service.database.stop_clock("2026-03-04T13:00:00Z").await;
    let applied = operator.apply_policy(&limit("150"), "").await.expect(200);
    let id = service.database.lines("select id::text from api_key where role = 'operator'").await;
    let actor = format!("key:{}", id[0]);

    let audit = operator.get("/v1/audit?limit=1").await.expect(200);
    let entry = &audit.body["items"][0];
    assert_eq!((&entry["action"], &entry["subject"]), (&json!("policy_applied"), &json!("policy version 2")));
    assert_eq!((&entry["actor"], &entry["at"]), (&json!(actor), &json!("2026-03-04T13:00:00Z")));
    assert_eq!(entry["detail"], applied.body["changes"]);
    let version = "select format('%s %s %s', version, actor, applied_at at time zone 'UTC') from policy_version
                   where source like '%limit: 150%'";
    assert_eq!(service.database.lines(version).await, [format!("2 {actor} 2026-03-04 13:00:00")]);
    let journal = "select format('%s %s %s %s', event, actor, at at time zone 'UTC', reason) from journal_entry
                   where event like 'limit%'";
    assert_eq!(
        service.database.lines(journal).await,
        [format!("limit_raised {actor} 2026-03-04 13:00:00 policy version 2")]
    );
    service.books().await;
}

#[tokio::test]
async fn two_policies_applied_at_once_come_one_after_the_other() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    worker.reserve_bulk("job", "60").await.expect(201);
    let second = service.another().await;
    let elsewhere = operator.at(second.address);
    let mut other = service.database.connect().await;
    let mut holding = sqlx::Connection::begin(&mut other).await.unwrap();
    sqlx::query("select from policy_state for update").execute(&mut *holding).await.unwrap();
    let (here, there) = (limit("150"), limit("250"));
    let both = async { tokio::join!(operator.apply_policy(&here, ""), elsewhere.apply_policy(&there, "")) };
    let release = async {
        service.waiting_for_a_lock(2).await;
        holding.rollback().await.unwrap();
    };
    let ((here, there), ()) = tokio::join!(both, release);
    let (here, there) = (here.expect(200), there.expect(200));
    let mut versions = [here.body["version"].as_i64().unwrap(), there.body["version"].as_i64().unwrap()];
    let last = if versions[0] > versions[1] { ("150", 90) } else { ("250", 190) };
    versions.sort_unstable();
    assert_eq!(versions, [2, 3]);
    // The later one compared itself with the earlier one.
    let later = if last.0 == "150" { &here } else { &there };
    let earlier = if last.0 == "150" { "250" } else { "150" };
    assert_eq!(later.body["changes"][0]["before"]["limit"], earlier);
    for client in [&worker, &worker.at(second.address)] {
        assert_eq!(daily(client).await, ["0", "60", "0", &last.1.to_string()]);
    }
    let books = service.books().await;
    assert_eq!(books.entries_of("limit_raised").len() + books.entries_of("limit_lowered").len(), 2);
    assert_eq!(service.database.lines("select 'v' from policy_version").await.len(), 3);
}

#[tokio::test]
async fn what_a_stale_process_decides_is_decided_again() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    let second = service.another().await;
    let elsewhere = worker.at(second.address);
    elsewhere.reserve_bulk("first", "90").await.expect(201);
    let stale = async |policy: &str| {
        operator.apply_policy(policy, "").await.expect(200);
        assert_ne!(second.ledger.policy().version, service.ledger.policy().version);
    };

    // A limit that has been lowered, and one that has been raised.
    stale(&limit("95")).await;
    let refused = elsewhere.reserve_bulk("more", "6").await.problem(429, "budget_exhausted");
    assert_eq!(refused.body["breaches"][0]["available"], "5");
    stale(&limit("1000")).await;
    elsewhere.reserve_bulk("more", "100").await.expect(201);

    // A new price, a tighter bound, a new operation.
    let policy = limit("1000").replace("rate: 1,", "rate: 2,").replace("max_units: 60", "max_units: 50");
    stale(&policy).await;
    let export = json!({"operation": "export", "quantities": {"weight": 20}, "holder": "w-1"});
    assert_eq!(elsewhere.reserve("price", export.clone()).await.expect(201).text("estimate"), "40");
    let policy = policy.replace("rate: 2,", "rate: 3,");
    stale(&policy).await;
    assert_eq!(elsewhere.reserve("bound", export).await.problem(400, "too_expensive").text("max_units"), "50");
    let policy = policy.replace("  bulk:", "  fresh: { provider: direct, explicit: true, max_units: 7 }\n  bulk:");
    stale(&policy).await;
    elsewhere.reserve("fresh", json!({"operation": "fresh", "units": 7})).await.expect(201);

    // A new budget, a new account, and what is retired.
    let policy = policy.replace("daily: {", "hourly: { unit: transformation, limit: 3, period: hour }\n      daily: {");
    stale(&policy).await;
    let small = elsewhere.reserve_bulk("small", "3").await.expect(201);
    assert_eq!(budgets_of(&small), ["daily", "hourly"]);
    let policy = without(&policy, &["hourly:", "fresh:"]);
    stale(&policy).await;
    elsewhere.reserve("again", json!({"operation": "fresh", "units": 1})).await.problem(422, "unknown_operation");
    assert_eq!(budgets_of(&elsewhere.reserve_bulk("large", "100").await.expect(201)), ["daily"]);
    stale(&without(&policy, &["northstar:"])).await;
    elsewhere.reserve_bulk("last", "1").await.problem(422, "unknown_account");

    // An extension asks the database itself.
    let refused = elsewhere.extend(&small, "4").await.problem(422, "unknown_account");
    assert_eq!(refused.text("retry"), "never");
    let versions = service.database.lines("select policy_version::text from reservation order by id").await;
    assert_eq!(versions, ["1", "3", "4", "6", "7", "8"]);
    assert_eq!(service.books().await.periods, ["northstar daily : 1000 660 340 0 0", "northstar hourly : 3 0 3 0 0"]);
}
