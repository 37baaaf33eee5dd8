//! Every kind of budget bounds what it says: observing ones nothing, each
//! member's its own, and pools everybody.

use serde_json::{Value, json};

use super::{breached, budgets_of, faults, refusals, with, without};
use crate::support::NORTHSTAR;

#[tokio::test]
async fn an_observing_budget_counts_and_never_refuses() {
    let observing = NORTHSTAR
        .replace("daily: {", "soft: { unit: transformation, limit: 20, period: day, mode: observe }\n      daily: {")
        + "pools: { wide: { unit: transformation, limit: 25, period: month, mode: observe } }\n";
    let (service, worker, operator) = with(&observing).await;
    let first = worker.reserve_bulk("first", "20").await.expect(201);
    assert_eq!(worker.balance("northstar", "soft", None).await, ["0", "20", "0", "0"]);
    let second = worker.reserve_bulk("second", "5.5").await.expect(201);
    assert_eq!(worker.balance("northstar", "soft", None).await, ["0", "25.5", "0", "-5.5"]);
    assert_eq!(worker.budget("northstar", "soft", None).await["mode"], "observe");
    worker.extend(&second, "6").await.expect(200);
    worker.settle(&first, "30").await.expect(200);
    assert_eq!(worker.balance("northstar", "soft", None).await, ["30", "6", "0", "-16"]);
    // The enforcing one refuses as ever, and only it is named.
    let refused = worker.reserve_bulk("third", "65").await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["daily"]);
    // Once it enforces, what it counted counts.
    operator.apply_policy(&observing.replace(", mode: observe", ""), "").await.expect(200);
    let refused = worker.reserve_bulk("fourth", "1").await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["soft", "wide"]);

    let books = service.books().await;
    assert_eq!(
        books.periods,
        ["northstar daily : 100 64 6 0 30", "northstar soft : 20 -16 6 0 30", " wide : 25 -11 6 0 30"]
    );
    let of = |budget: &str| -> Vec<&str> {
        books.journal.iter().filter_map(|line| line.strip_prefix(budget)).skip(1).collect()
    };
    assert_eq!(of("soft "), of("daily "));
    assert_eq!(of("wide "), of("daily "));
    assert_eq!(
        refusals(&service).await,
        [
            "northstar bulk budget_exhausted 5.5 observed",
            "northstar bulk budget_exhausted 0.5 observed",
            "northstar bulk budget_exhausted 65",
            "northstar bulk budget_exhausted 1",
        ]
    );
    let query = "select string_agg(breach ->> 'budget', ' ' order by n)
                 from refusal cross join jsonb_array_elements(detail -> 'breaches') with ordinality as b (breach, n)
                 group by id order by id";
    assert_eq!(service.database.lines(query).await, ["soft wide", "soft wide", "daily", "soft wide"]);
}

#[tokio::test]
async fn an_observing_operation_records_what_its_bounds_would_have_refused() {
    let policy = NORTHSTAR.replace("max_units: 60", "max_units: 60, mode: observe").replace("limit: 100", "limit: 900");
    let policy = policy.replace("    max_units: 60, mode: observe", "    max_units: 60\n    mode: observe");
    let (service, worker, _) = with(&policy).await;
    let export = |formats: u32, weight: u32| json!({"operation": "export", "quantities": {"formats": formats, "weight": weight}, "holder": "w-1"});
    worker.reserve("fine", export(2, 30)).await.expect(201);
    assert_eq!(worker.reserve("large", export(3, 30)).await.expect(201).text("estimate"), "90");
    assert_eq!(worker.reserve("wide", export(11, 2)).await.expect(201).text("estimate"), "22");
    // What cannot be priced, and what no period of the budget admits, is refused.
    worker
        .reserve("typo", json!({"operation": "export", "quantities": {"wait": 1}}))
        .await
        .problem(400, "invalid_request");
    worker.reserve("never", export(31, 30)).await.problem(400, "too_expensive");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 900 728 172 0 0"]);
    assert_eq!(
        refusals(&service).await,
        [
            "northstar export too_expensive 90 observed",
            "northstar export invalid_request - observed",
            "northstar export invalid_request -",
            "northstar export too_expensive 930",
        ]
    );
}

#[tokio::test]
async fn an_observing_operation_also_records_extensions() {
    let policy = NORTHSTAR.replace("bulk: { provider: transformer,", "bulk: { provider: transformer, mode: observe,");
    let (service, worker, _) = with(&policy.replace("limit: 100,", "limit: 500,")).await;
    let job = worker.reserve_bulk("job", "90").await.expect(201);
    worker.extend(&job, "100").await.expect(200);
    assert_eq!(worker.extend(&job, "120").await.expect(200).text("ceiling"), "120");
    assert_eq!(service.books().await.periods, ["northstar daily : 500 380 120 0 0"]);
    assert_eq!(refusals(&service).await, ["northstar bulk too_expensive 120 observed"]);
}

#[tokio::test]
async fn each_member_has_its_own_and_the_account_bounds_all() {
    let policy = NORTHSTAR.replace(
        "daily: {",
        "each: { unit: transformation, limit: 30, period: day, timezone: America/New_York, per: member }\n      daily: {",
    );
    let (service, worker, operator) = with(&policy).await;
    let bulk =
        |units: &str, member: &str| json!({"operation": "bulk", "units": units, "member": member, "holder": "w-1"});
    let nobody = worker.reserve_bulk("nobody", "1").await.problem(400, "invalid_request");
    assert_eq!(nobody.body["errors"][0]["field"], "member");
    let ann = worker.reserve("ann", bulk("30", "ann")).await.expect(201);
    let refused = worker.reserve("ann-more", bulk("1", "ann")).await.problem(429, "budget_exhausted");
    let breach = &refused.body["breaches"][0];
    assert_eq!(breached(&refused), ["each"]);
    assert_eq!((&breach["member"], &breach["available"]), (&json!("ann"), &json!("0")));
    worker.reserve("ben", bulk("30", "ben")).await.expect(201);
    worker.reserve("cat", bulk("30", "cat")).await.expect(201);
    // A member that is made up has room of its own, and the account has none.
    let refused = worker.reserve("dan", bulk("11", "dan")).await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["daily"]);
    worker.reserve("dan", bulk("10", "dan")).await.expect(201);
    worker.settle(&ann, "12").await.expect(200);
    worker.reserve("ann-more", bulk("18", "ann")).await.expect(201);

    let shown = worker.get("/v1/accounts/northstar/budgets").await.expect(200);
    let lines: Vec<Value> = shown.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| json!([item["budget"], item["member"], item["available"]]))
        .collect();
    assert_eq!(
        lines,
        [
            json!(["daily", null, "0"]),
            json!(["each", "ann", "0"]),
            json!(["each", "ben", "0"]),
            json!(["each", "cat", "0"]),
            json!(["each", "dan", "20"]),
        ]
    );
    // A limit of the account's own is each member's.
    let own = policy.replace("northstar: { plan: standard }", "northstar: { plan: standard, limits: { each: 25 } }");
    operator.apply_policy(&own, "").await.expect(200);
    // Beside no budget of the whole account, one for each bounds nothing.
    let alone = faults(operator.apply_policy(&without(&policy, &["daily:"]), "").await);
    assert_eq!(alone, ["plans.standard.budgets.each.per"]);
    let observed = policy.replace("limit: 100,", "limit: 100, mode: observe,");
    assert_eq!(faults(operator.apply_policy(&observed, "").await), ["plans.standard.budgets.each.per"]);
    assert_eq!(
        service.books().await.periods,
        [
            "northstar daily : 100 0 88 0 12",
            "northstar each ann: 25 -5 18 0 12",
            "northstar each ben: 25 -5 30 0 0",
            "northstar each cat: 25 -5 30 0 0",
            "northstar each dan: 25 15 10 0 0",
        ]
    );
}

#[tokio::test]
async fn an_observing_budget_per_member_refuses_nobody_who_names_none() {
    let policy = NORTHSTAR.replace(
        "daily: {",
        "each: { unit: transformation, limit: 30, period: day, per: member, mode: observe }\n      daily: {",
    );
    let (service, worker, operator) = with(&policy).await;
    let nobody = worker.reserve_bulk("nobody", "40").await.expect(201);
    assert_eq!(budgets_of(&nobody), ["daily"]);
    let ann = json!({"operation": "bulk", "units": "40", "member": "ann", "holder": "w-1"});
    assert_eq!(budgets_of(&worker.reserve("ann", ann).await.expect(201)), ["daily", "each"]);
    // Once it enforces, it has to be named.
    operator.apply_policy(&policy.replace(", mode: observe", ""), "").await.expect(200);
    let refused = worker.reserve_bulk("again", "1").await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "member");
    assert_eq!(service.books().await.periods, ["northstar daily : 100 20 80 0 0", "northstar each ann: 30 -10 40 0 0"]);
    assert_eq!(
        refusals(&service).await,
        ["northstar bulk budget_exhausted 40 observed", "northstar bulk invalid_request -"]
    );
}

#[tokio::test]
async fn pools_bound_a_provider_a_key_an_operation_or_everything() {
    let pools = "pools:
  everything: { unit: transformation, limit: 60, period: month }
  by-provider: { provider: transformer, unit: transformation, limit: 50, period: month }
  by-operation: { operation: bulk, unit: transformation, limit: 45, period: month }
  key-a: { provider: transformer, provider_key: a, unit: transformation, limit: 20, period: month }
  key-b: { provider: transformer, provider_key: b, unit: transformation, limit: 25, period: month }
";
    let (service, _, _) = with(&format!("{NORTHSTAR}{pools}")).await;
    let fleet = service.fleet().await;
    let ask = async |key: &str, account: &str, operation: &str, units: u32, provider_key: Option<&str>| {
        let mut body = json!({"operation": operation, "units": units, "account": account});
        if let Some(provider_key) = provider_key {
            body["provider_key"] = json!(provider_key);
        }
        fleet.reserve(key, body).await
    };
    for (operation, key) in [("bulk", None), ("bulk", Some("c")), ("stream", Some("a"))] {
        let refused = ask("bad", "northstar", operation, 1, key).await.problem(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["field"], "provider_key");
    }
    let first = ask("1", "northstar", "bulk", 20, Some("a")).await.expect(201);
    assert_eq!(budgets_of(&first), ["daily", "by-operation", "by-provider", "everything", "key-a"]);
    let refused = ask("2", "southstar", "bulk", 1, Some("a")).await.problem(429, "budget_exhausted");
    assert_eq!(
        refused.body["breaches"],
        json!([{"budget": "key-a", "requested": "1", "available": "0", "resets_at": "2026-04-01T00:00:00Z"}])
    );
    ask("2", "southstar", "bulk", 25, Some("b")).await.expect(201);
    let refused = ask("3", "northstar", "bulk", 6, Some("b")).await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["by-operation", "by-provider", "key-b"]);
    let stream = ask("4", "northstar", "stream", 15, None).await.expect(201);
    assert_eq!(budgets_of(&stream), ["daily", "everything"]);
    let refused = ask("5", "southstar", "stream", 1, None).await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["everything"]);
    // An account's own key learns no balance of a pool.
    let worker = service.worker(&["southstar"]).await;
    let own = worker.reserve("6", json!({"operation": "stream", "units": 1})).await.problem(429, "budget_exhausted");
    assert_eq!(own.body["breaches"], json!([{"budget": "everything"}]));
    assert!(!own.body.to_string().contains("northstar"));

    assert_eq!(
        service.books().await.periods,
        [
            "northstar daily : 100 65 35 0 0",
            "southstar daily : 100 75 25 0 0",
            " by-operation : 45 0 45 0 0",
            " by-provider : 50 5 45 0 0",
            " everything : 60 0 60 0 0",
            " key-a : 20 0 20 0 0",
            " key-b : 25 0 25 0 0",
        ]
    );
}
