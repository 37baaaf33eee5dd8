//! A new policy changes limits, plans and names at once, takes back nothing that
//! was admitted, and gives nobody a second allowance.

use serde_json::{Value, json};

use super::{breached, budgets_of, daily, faults, limit, with, without};
use crate::support::NORTHSTAR;

#[tokio::test]
async fn a_limit_is_raised_and_lowered_at_once() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    let job = worker.reserve_bulk("job", "60").await.expect(201);
    worker.reserve_bulk("more", "41").await.problem(429, "budget_exhausted");
    let raised = operator.apply_policy(&limit("150"), "").await.expect(200);
    assert_eq!((&raised.body["version"], raised.body["changes"].as_array().unwrap().len()), (&json!(2), 1));
    assert_eq!(daily(&worker).await, ["0", "60", "0", "90"]);
    operator.apply_policy(&limit("40"), "").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "60", "0", "-20"]);

    // Nothing admitted is taken back, nothing new is admitted.
    let refused = worker.reserve_bulk("more", "1").await.problem(429, "budget_exhausted");
    assert_eq!(refused.body["breaches"][0]["available"], "-20");
    assert_eq!((refused.text("retry"), &refused.body["retry_after_seconds"]), ("after_release", &json!(17 * 3600)));
    worker.extend(&job, "61").await.problem(400, "too_expensive");
    let refused = worker.reserve_bulk("more", "41").await.problem(400, "too_expensive");
    assert_eq!((refused.text("max_units"), refused.headers.get("retry-after")), ("40", None));
    worker.settle(&job, "55").await.expect(200);
    assert_eq!(daily(&worker).await, ["55", "0", "0", "-15"]);

    // Later periods have the new limit; an ended one keeps its own.
    service.database.stop_clock("2026-03-05T05:00:00Z").await;
    worker.reserve_bulk("tomorrow", "40").await.expect(201);
    operator.apply_policy(&limit("70"), "").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "40", "0", "30"]);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 40 -15 0 0 55", "northstar daily : 70 30 40 0 0"]);
    assert_eq!(
        books.journal,
        [
            "daily 1 period_opened granted>available 100",
            "daily 2 reserve available>reserved 60",
            "daily 3 limit_raised granted>available 50",
            "daily 4 limit_lowered available>granted 110",
            "daily 5 final_settlement reserved>settled 55",
            "daily 6 final_settlement reserved>available 5",
            "daily 1 period_opened granted>available 40",
            "daily 2 reserve available>reserved 40",
            "daily 3 limit_raised granted>available 30",
        ]
    );
}

#[tokio::test]
async fn an_account_may_have_its_own_limit() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    let other = service.worker(&["southstar"]).await;
    worker.reserve_bulk("job", "60").await.expect(201);
    other.reserve_bulk("job", "60").await.expect(201);
    let own = |units: &str| {
        NORTHSTAR.replace(
            "northstar: { plan: standard }",
            &format!("northstar: {{ plan: standard, limits: {{ daily: {units} }} }}"),
        )
    };
    operator.apply_policy(&own("250"), "").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "60", "0", "190"]);
    assert_eq!(worker.budget("northstar", "daily", None).await["limit"], "250");
    assert_eq!(worker.budget("northstar", "daily", Some("2026-03-05T12:00:00Z")).await["limit"], "250");
    assert_eq!(other.balance("southstar", "daily", None).await, ["0", "60", "0", "40"]);

    // The plan's limit is not its own.
    operator.apply_policy(&own("250").replace("limit: 100", "limit: 80"), "").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "60", "0", "190"]);
    assert_eq!(other.balance("southstar", "daily", None).await, ["0", "60", "0", "20"]);

    // Zero freezes the account, and no time is promised.
    operator.apply_policy(&own("0"), "").await.expect(200);
    let refused = worker.reserve_bulk("more", "1").await.problem(429, "budget_exhausted");
    assert_eq!((refused.text("retry"), refused.headers.get("retry-after")), ("never", None));

    // Without it, the plan's again.
    operator.apply_policy(NORTHSTAR, "").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "60", "0", "40"]);
    let books = service.books().await;
    assert_eq!(
        books.journal,
        [
            "daily 1 period_opened granted>available 100",
            "daily 2 reserve available>reserved 60",
            "daily 3 limit_raised granted>available 150",
            "daily 4 limit_lowered available>granted 250",
            "daily 5 limit_raised granted>available 100",
            "daily 1 period_opened granted>available 100",
            "daily 2 reserve available>reserved 60",
            "daily 3 limit_lowered available>granted 20",
            "daily 4 limit_raised granted>available 20",
        ]
    );
}

#[tokio::test]
async fn a_change_of_plan_keeps_what_is_open_and_gives_no_second_allowance() {
    let plans = "
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 100, period: day, timezone: America/New_York }
      monthly: { unit: transformation, limit: 500, period: month, timezone: America/New_York }
  free:
    budgets:
      daily: { unit: transformation, limit: 10, period: day, timezone: Asia/Tokyo }
      trial: { unit: transformation, limit: 12, period: total }
accounts: { northstar: { plan: standard } }
";
    let standard = format!("{}{plans}", NORTHSTAR.split("plans:").next().unwrap());
    let free = standard.replace("northstar: { plan: standard }", "northstar: { plan: free }");
    let (service, worker, operator) = with(&standard).await;
    let job = worker.reserve_bulk("job", "60").await.expect(201);
    let day = worker.budget("northstar", "daily", None).await;
    let month = worker.budget("northstar", "monthly", None).await;

    operator.apply_policy(&free, "").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "60", "0", "-50"]);
    let now = worker.budget("northstar", "daily", None).await;
    assert_eq!((&now["period_id"], &now["period_ends_at"]), (&day["period_id"], &day["period_ends_at"]));
    worker.reserve_bulk("more", "1").await.problem(429, "budget_exhausted");
    worker.settle(&job, "8").await.expect(200);
    let two = worker.reserve_bulk("two", "2").await.expect(201);
    assert_eq!(budgets_of(&two), ["daily", "trial"]);
    let shown = worker.get("/v1/accounts/northstar/budgets").await.expect(200);
    let shown: Vec<&Value> = shown.body["items"].as_array().unwrap().iter().map(|item| &item["budget"]).collect();
    assert_eq!(shown, ["daily", "trial"]);

    operator.apply_policy(&standard, "").await.expect(200);
    assert_eq!(daily(&worker).await, ["8", "2", "0", "90"]);
    let back = worker.budget("northstar", "monthly", None).await;
    assert_eq!((&back["period_id"], &back["available"]), (&month["period_id"], &json!("492")));
    operator.apply_policy(&free, "").await.expect(200);
    assert_eq!(worker.balance("northstar", "trial", None).await, ["0", "2", "0", "10"]);
    let books = service.books().await;
    assert_eq!(
        books.periods,
        ["northstar daily : 10 0 2 0 8", "northstar monthly : 500 492 0 0 8", "northstar trial : 12 10 2 0 0"]
    );
    assert_eq!(
        [books.entries_of("limit_lowered"), books.entries_of("limit_raised")].concat(),
        [
            "daily 3 limit_lowered available>granted 90",
            "daily 8 limit_lowered available>granted 90",
            "daily 7 limit_raised granted>available 90"
        ]
    );
}

#[tokio::test]
async fn what_is_charged_to_a_budget_of_the_plan_before_is_not_extended() {
    let two = NORTHSTAR.replace(
        "accounts:",
        "  free: { budgets: { trial: { unit: transformation, limit: 12, period: total } } }\naccounts:",
    );
    let (service, worker, operator) = with(&two).await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": 10, "holder": "w-1"})).await.expect(201);
    let moved = two.replace("northstar: { plan: standard }", "northstar: { plan: free }");
    operator.apply_policy(&moved, "").await.expect(200);
    let (more, same) = (worker.extend(&job, "11").await, worker.extend(&job, "10").await);
    let path = format!("/v1/reservations/{}/extend", job.id());
    let stale = worker.post(&path, json!({"attempt": "1.stale", "ceiling": "11"})).await;
    worker.progress(&job, "4").await.expect(200);
    worker.settle(&job, "9").await.expect(200);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 91 0 0 9"]);
    assert_eq!(more.problem(422, "no_budget").text("retry"), "never");
    assert_eq!(same.expect(200).body["version"], 1);
    stale.problem(409, "stale_attempt");
}

#[tokio::test]
async fn a_budgets_name_means_the_same_in_every_plan_and_for_ever() {
    let file = |other: &str| {
        NORTHSTAR.replace(
            "accounts:",
            &format!("  second: {{ budgets: {{ {other}, all: {{ unit: transformation, limit: 1, period: day }} }} }}\naccounts:"),
        )
    };
    let (service, worker, operator) = with(NORTHSTAR).await;
    worker.reserve_bulk("job", "60").await.expect(201);
    let calls = NORTHSTAR.replace("providers:", "providers:\n  phone: { unit: call, enforcement: calls }");
    for (other, place) in [
        ("daily: { unit: call, limit: 5, period: day }", "second.budgets.daily.unit"),
        // The name could become a `total`, but then in every plan.
        ("daily: { unit: transformation, limit: 5, period: total }", "standard.budgets.daily.period"),
        ("daily: { unit: transformation, limit: 5, period: day, per: member }", "second.budgets.daily.per"),
    ] {
        let policy = file(other).replace("providers:", "providers:\n  phone: { unit: call, enforcement: calls }");
        let named = faults(operator.apply_policy(&policy, "").await);
        assert!(named.contains(&format!("plans.{place}")), "{other}: {named:?}");
    }
    // Its own limit, calendar, rollover and mode it may have.
    let fine = "daily: { unit: transformation, limit: 5, period: week, rollover: carry_forward, mode: observe }";
    operator.apply_policy(&file(fine), "").await.expect(200);
    // Retired or not, the name does not come to count something else.
    let renamed = NORTHSTAR.replace("daily:", "other:");
    operator.apply_policy(&renamed, "").await.expect(200);
    let recounted = calls.replace(
        "daily: { unit: transformation",
        "other: { unit: transformation, limit: 9, period: day }\n      daily: { unit: call",
    );
    assert_eq!(faults(operator.apply_policy(&recounted, "").await), ["plans.standard.budgets.daily.unit"]);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 40 60 0 0"]);
}

const RETIRING: &str = "
providers:
  transformer: { unit: transformation, enforcement: calls, keys: [a, b] }
  direct: { unit: transformation, enforcement: worker }
operations:
  bulk: { provider: transformer, explicit: true, max_units: 100 }
  stream: { provider: direct, explicit: true, max_units: 100 }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 100, period: day, timezone: America/New_York }
      weekly: { unit: transformation, limit: 300, period: week, timezone: America/New_York }
accounts:
  northstar: { plan: standard }
  southstar: { plan: standard }
pools:
  shared: { provider: transformer, unit: transformation, limit: 1000, period: month }
";

#[tokio::test]
async fn what_a_policy_leaves_out_is_retired_and_may_come_back() {
    let all = ["daily", "weekly", "shared"];
    for (left_out, refused, charged) in [
        (&["bulk:"] as &[&str], Some("unknown_operation"), &[] as &[&str]),
        (&["transformer:", "bulk:", "shared:"], Some("unknown_operation"), &[]),
        (&["northstar:"], Some("unknown_account"), &[]),
        (&["daily:", "weekly:", "budgets:", "standard:", "northstar:", "southstar:"], Some("unknown_account"), &[]),
        (&["daily:", "weekly:", "budgets:", "shared:"], Some("no_budget"), &[]),
        (&["weekly:"], None, &["daily", "shared"]),
        (&["shared:", "pools:"], None, &["daily", "weekly"]),
    ] {
        let (service, worker, operator) = with(RETIRING).await;
        let job = worker.reserve_bulk("job", "10").await.expect(201);
        assert_eq!(budgets_of(&job), all);
        let policy = without(RETIRING, left_out).replace("standard:\naccounts", "standard: {}\naccounts");
        operator.apply_policy(&policy, "").await.expect(200);

        // New ones are refused, or are not charged to it.
        let second = worker.reserve_bulk("second", "20").await;
        match refused {
            Some(code) => assert_eq!(second.problem(422, code).text("retry"), "never"),
            None => assert_eq!(budgets_of(&second.expect(201)), charged),
        }
        // The open one is answered from its key, is not extended, and settles.
        assert_eq!(worker.reserve_bulk("job", "10").await.expect(200).token(), job.token());
        worker.extend(&job, "11").await.problem(422, refused.unwrap_or("no_budget"));
        assert_eq!(worker.extend(&job, "10").await.expect(200).body["version"], 1);
        assert_eq!(worker.settle(&job, "9").await.expect(200).text("settled"), "9");
        let books = service.books().await;
        assert_eq!(books.entries_of("final_settlement").len(), 6, "{left_out:?}");

        // It comes back with what it was, and no second allowance.
        operator.apply_policy(RETIRING, "").await.expect(200);
        let third = worker.reserve_bulk("third", "80").await;
        let room = if refused.is_some() { 91 } else { 71 };
        if refused.is_some() {
            assert_eq!(budgets_of(&third.expect(201)), all);
        } else {
            assert_eq!(breached(&third.problem(429, "budget_exhausted")), ["daily"]);
        }
        let last = if refused.is_some() { room - 80 } else { room };
        worker.reserve_bulk("last", &last.to_string()).await.expect(201);
        let books = service.books().await;
        assert_eq!(books.periods.len(), 3, "{left_out:?}: {:#?}", books.periods);
        assert_eq!(books.entries_of("period_opened").len(), 3);
        assert!(books.entries_of("limit_raised").is_empty() && books.entries_of("limit_lowered").is_empty());
    }
}

#[tokio::test]
async fn a_budget_that_comes_back_has_the_limit_it_is_given() {
    let (service, worker, operator) = with(RETIRING).await;
    worker.reserve_bulk("job", "10").await.expect(201);
    operator.apply_policy(&without(RETIRING, &["daily:", "shared:", "pools:"]), "").await.expect(200);
    let changed = RETIRING.replace("limit: 100,", "limit: 60,").replace("limit: 1000", "limit: 40");
    operator.apply_policy(&changed, "").await.expect(200);
    let refused = worker.reserve_bulk("more", "40").await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["shared"]);
    worker.reserve_bulk("more", "30").await.expect(201);
    assert_eq!(
        service.books().await.periods,
        ["northstar daily : 60 20 40 0 0", "northstar weekly : 300 260 40 0 0", " shared : 40 0 40 0 0"]
    );
}

#[tokio::test]
async fn history_keeps_the_names_of_what_is_no_more() {
    let (service, worker, operator) = with(NORTHSTAR).await;
    let finance = service.finance().await;
    let body = json!({"operation": "export", "quantities": {"weight": 12}, "holder": "w-1"});
    let job = worker.reserve("job", body).await.expect(201);
    let before = service.books().await;
    operator.apply_policy("{}", "").await.expect(200);
    assert_eq!(service.books().await, before);
    for client in [&worker, &finance] {
        let read = client.get(&format!("/v1/reservations/{}", job.id())).await.expect(200);
        for field in ["account", "operation", "provider", "unit", "budgets", "ceiling", "charged"] {
            assert_eq!(read.body[field], job.body[field]);
        }
        let list = client.get("/v1/reservations?account=northstar&operation=export").await.expect(200);
        assert_eq!(list.body["items"][0]["id"], job.body["id"]);
    }
    let path = format!("/v1/reservations/{}/settle", job.id());
    let settled = worker
        .post(&path, json!({"attempt": job.token(), "quantities": {"formats": 1, "weight": 10}}))
        .await
        .expect(200);
    assert_eq!(settled.text("settled"), "10");
    worker.reserve_bulk("more", "1").await.problem(422, "unknown_account");

    let retired = "select name from (select name, retired_at from provider union all
                                     select name, retired_at from operation union all
                                     select name, retired_at from plan union all
                                     select name, retired_at from budget union all
                                     select name, retired_at from account) named
                   where retired_at = ledger_clock() order by name";
    let names = ["bulk", "daily", "direct", "export", "northstar", "southstar", "standard", "stream", "transformer"];
    assert_eq!(service.database.lines(retired).await, names);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 90 0 0 10"]);
}
