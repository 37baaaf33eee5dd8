//! What a policy means for what is open, and what the limits it states refuse.

use serde_json::{Value, json};

use crate::support::{Answer, Books, Client, NORTHSTAR, Service};

const NOON: &str = "2026-03-04T12:00:00Z";

/// A service at noon of a Wednesday, its worker for northstar, its operator.
async fn with(policy: &str) -> (Service, Client, Client) {
    let service = Service::with_policy(policy).await;
    service.database.stop_clock(NOON).await;
    let worker = service.worker(&["northstar"]).await;
    let operator = service.operator().await;
    (service, worker, operator)
}

/// NORTHSTAR with another daily limit.
fn limit(units: &str) -> String {
    NORTHSTAR.replace("limit: 100", &format!("limit: {units}"))
}

/// settled, reserved, liability, available of northstar's day.
async fn daily(client: &Client) -> [String; 4] {
    client.balance("northstar", "daily", None).await
}

/// What was refused, or would have been: `account operation code units`. Ends
/// the service's use of its database.
async fn refusals(service: &Service) -> Vec<String> {
    service.ledger.close().await;
    let query = "select format('%s %s %s %s%s', coalesce(account, '-'), operation, code,
                               coalesce(trim_scale(units)::text, '-'), case when observed then ' observed' end)
                 from refusal order by id";
    service.database.lines(query).await
}

/// The names of the budgets that refused.
fn breached(refused: &Answer) -> Vec<&str> {
    refused.body["breaches"].as_array().unwrap().iter().map(|breach| breach["budget"].as_str().unwrap()).collect()
}

/// The fields that a refused policy names.
fn faults(refused: Answer) -> Vec<String> {
    let refused = refused.problem(400, "invalid_request");
    let errors = refused.body["errors"].as_array().unwrap();
    errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
}

fn budgets_of(reservation: &Answer) -> Vec<&str> {
    let budgets = reservation.body["budgets"].as_array().unwrap();
    budgets.iter().map(|period| period["budget"].as_str().unwrap()).collect()
}

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

/// Without the lines that begin like this.
fn without(policy: &str, starts: &[&str]) -> String {
    let kept = policy.lines().filter(|line| !starts.iter().any(|start| line.trim_start().starts_with(start)));
    kept.collect::<Vec<_>>().join("\n")
}

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
    let settled = worker.post(&path, json!({"attempt": job.token(), "quantities": {"weight": 10}})).await.expect(200);
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

const TWO_UNITS: &str = "
providers:
  rows: { unit: row, enforcement: worker }
  texts: { unit: text, enforcement: worker }
operations:
  scan: { provider: rows, explicit: true, max_units: 100 }
  write: { provider: texts, explicit: true, max_units: 100 }
plans:
  p: { budgets: { rows: { unit: row, limit: 10, period: day } } }
accounts: { northstar: { plan: p } }
";

#[tokio::test]
async fn what_nothing_bounds_is_refused_unless_the_plan_says_unbounded() {
    let (service, worker, operator) = with(TWO_UNITS).await;
    let write = |units: u32| json!({"operation": "write", "units": units, "holder": "w-1"});
    let refused = worker.reserve("a", write(5)).await.problem(422, "no_budget");
    assert_eq!((refused.text("retry"), refused.headers.get("retry-after")), ("never", None));
    worker.reserve("row", json!({"operation": "scan", "units": 10})).await.expect(201);

    // A budget for other work of the same unit does not bound it.
    let other = TWO_UNITS.replace("  write:", "  erase: { provider: texts, explicit: true, max_units: 100 }\n  write:");
    let narrow =
        other.replace("budgets: {", "budgets: { texts: { unit: text, limit: 9, period: day, operation: erase },");
    operator.apply_policy(&narrow, "").await.expect(200);
    worker.reserve("a", write(5)).await.problem(422, "no_budget");

    // Observing is not bounding.
    let observe =
        TWO_UNITS.replace("budgets: {", "budgets: { texts: { unit: text, limit: 3, period: day, mode: observe },");
    assert_eq!(faults(operator.apply_policy(&observe, "").await), ["plans.p.budgets"]);
    let unbounded = |policy: &str| policy.replace("p: { budgets", "p: { unbounded: [text], budgets");
    operator.apply_policy(&unbounded(TWO_UNITS), "").await.expect(200);
    let free = worker.reserve("a", write(5)).await.expect(201);
    assert_eq!(free.body["budgets"], json!([]));
    worker.extend(&free, "50").await.expect(200);
    assert_eq!(worker.settle(&free, "60").await.expect(200).text("overrun"), "10");

    operator.apply_policy(&unbounded(&observe), "").await.expect(200);
    assert_eq!(budgets_of(&worker.reserve("b", write(5)).await.expect(201)), ["texts"]);
    // A pool bounds what the plan does not.
    let pool = "pools: { texts: { unit: text, limit: 4, period: day } }\n";
    operator.apply_policy(&format!("{}{pool}", unbounded(TWO_UNITS)), "").await.expect(200);
    worker.reserve("c", write(5)).await.problem(400, "too_expensive");
    worker.reserve("c", write(4)).await.expect(201);
    worker.reserve("d", write(1)).await.problem(429, "budget_exhausted");
    operator.apply_policy(&format!("{TWO_UNITS}{pool}"), "").await.expect(200);
    worker.reserve("d", write(1)).await.problem(429, "budget_exhausted");

    let books = service.books().await;
    assert_eq!(books.periods, ["northstar rows : 10 0 10 0 0", "northstar texts : 3 -2 5 0 0", " texts : 4 0 4 0 0"]);
    assert_eq!(books.reservations.len(), 4);
    assert_eq!(
        refusals(&service).await,
        [
            "northstar write no_budget -",
            "northstar write no_budget -",
            "northstar write budget_exhausted 5 observed",
            "northstar write too_expensive 5",
            "northstar write budget_exhausted 1",
            "northstar write budget_exhausted 1",
        ]
    );
}

#[tokio::test]
async fn an_unbounded_unit_that_is_left_out_is_extended_no_more() {
    let unbounded = TWO_UNITS.replace("p: { budgets", "p: { unbounded: [text], budgets");
    let (service, worker, operator) = with(&unbounded).await;
    let job = json!({"operation": "write", "units": 5, "holder": "w-1"});
    let job = worker.reserve("a", job).await.expect(201);
    operator.apply_policy(TWO_UNITS, "").await.expect(200);
    worker.reserve("b", json!({"operation": "write", "units": 5})).await.problem(422, "no_budget");
    let extended = worker.extend(&job, "50").await;
    worker.settle(&job, "5").await.expect(200);
    service.books().await;
    extended.problem(422, "no_budget");
}

#[tokio::test]
async fn several_budgets_refuse_at_once_and_none_is_touched() {
    let more = NORTHSTAR.replace(
        "daily: {",
        "hourly: { unit: transformation, limit: 50, period: hour }
      monthly: { unit: transformation, limit: 60, period: month }
      roomy: { unit: transformation, limit: 5000, period: day }
      daily: {",
    );
    let (service, worker, operator) = with(&more).await;
    let done = worker.reserve_bulk("done", "30").await.expect(201);
    worker.settle(&done, "30").await.expect(200);
    let open = worker.reserve_bulk("open", "15").await.expect(201);
    let before: Books = service.books().await;

    // One refuses: live work could give back enough, or its hour ends.
    let refused = worker.reserve_bulk("a", "6").await.problem(429, "budget_exhausted");
    assert_eq!((breached(&refused), refused.text("retry")), (vec!["hourly"], "after_release"));
    assert_eq!(refused.body["retry_after_seconds"], 3600);
    // All that refuse are named; the wait is for the last of them.
    let refused = worker.reserve_bulk("a", "16").await.problem(429, "budget_exhausted");
    assert_eq!(
        refused.body["breaches"],
        json!([
            {"budget": "hourly", "requested": "16", "available": "5", "resets_at": "2026-03-04T13:00:00Z"},
            {"budget": "monthly", "requested": "16", "available": "15", "resets_at": "2026-04-01T00:00:00Z"},
        ])
    );
    assert_eq!(refused.text("retry"), "after_release");
    assert_eq!(refused.body["retry_after_seconds"], 27 * 86400 + 12 * 3600);
    // No release gives this much.
    let refused = worker.reserve_bulk("a", "31").await.problem(429, "budget_exhausted");
    assert_eq!((breached(&refused), refused.text("retry")), (vec!["hourly", "monthly"], "after_reset"));
    // An extension too is admitted by all or by none.
    let refused = worker.extend(&open, "32").await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["hourly", "monthly"]);
    assert_eq!(service.books().await, before);

    // One that never ends names no time.
    let total = more.replace(
        "roomy: { unit: transformation, limit: 5000, period: day }",
        "life: { unit: transformation, limit: 5, period: total }",
    );
    operator.apply_policy(&total, "").await.expect(200);
    worker.reserve_bulk("life", "5").await.expect(201);
    let refused = worker.reserve_bulk("a", "1").await.problem(429, "budget_exhausted");
    assert_eq!(breached(&refused), ["hourly", "life"]);
    assert!(refused.headers.get("retry-after").is_none());
    let books = service.books().await;
    assert_eq!(books.reservations.len(), 3);
    assert_eq!(
        refusals(&service).await,
        [
            "northstar bulk budget_exhausted 6",
            "northstar bulk budget_exhausted 16",
            "northstar bulk budget_exhausted 31",
            "northstar bulk budget_exhausted 17",
            "northstar bulk budget_exhausted 1",
        ]
    );
}

#[tokio::test]
async fn every_refusal_is_written_down_with_its_reason() {
    let frozen =
        NORTHSTAR.replace("southstar: { plan: standard }", "southstar: { plan: standard, limits: { daily: 0 } }");
    let (service, worker, _) = with(&frozen).await;
    let fleet = service.fleet().await;
    let job = worker.reserve_bulk("job", "90").await.expect(201);
    worker.reserve_bulk("a", "11").await.problem(429, "budget_exhausted");
    worker.reserve_bulk("a", "101").await.problem(400, "too_expensive");
    worker
        .reserve("a", json!({"operation": "export", "quantities": {"weight": 31}}))
        .await
        .problem(400, "invalid_request");
    worker.reserve("a", json!({"operation": "nothing"})).await.problem(422, "unknown_operation");
    let elsewhere = json!({"operation": "bulk", "units": 3, "account": "eaststar"});
    fleet.reserve("a", elsewhere).await.problem(422, "unknown_account");
    let souths = json!({"operation": "bulk", "units": "0.5", "account": "southstar"});
    fleet.reserve("a", souths).await.problem(429, "budget_exhausted");
    worker.extend(&job, "101").await.problem(400, "too_expensive");
    worker.reserve_bulk("b", "10").await.expect(201);
    worker.extend(&job, "91.25").await.problem(429, "budget_exhausted");
    service.books().await;
    assert_eq!(
        refusals(&service).await,
        [
            "northstar bulk budget_exhausted 11",
            "northstar bulk too_expensive 101",
            "northstar export invalid_request -",
            "northstar nothing unknown_operation -",
            "eaststar bulk unknown_account -",
            "southstar bulk budget_exhausted 0.5",
            "northstar bulk too_expensive 101",
            "northstar bulk budget_exhausted 1.25",
        ]
    );
    let times = service.database.lines("select distinct at::text from refusal where at <> ledger_clock()").await;
    assert!(times.is_empty(), "{times:?}");
}

#[tokio::test]
async fn too_expensive_is_what_no_period_could_ever_admit() {
    let (service, worker, operator) = with(&limit("50")).await;
    let refused = worker.reserve_bulk("a", "50.000000000001").await.problem(400, "too_expensive");
    assert_eq!(
        (refused.text("units"), refused.text("max_units"), refused.text("retry")),
        ("50.000000000001", "50", "never")
    );
    assert!(refused.headers.get("retry-after").is_none());
    // Exactly what is available is admitted, the smallest amount more is not.
    worker.reserve_bulk("a", "49.999999999999").await.expect(201);
    worker.reserve_bulk("b", "0.000000000002").await.problem(429, "budget_exhausted");
    worker.reserve_bulk("b", "0.000000000001").await.expect(201);
    assert_eq!(daily(&worker).await, ["0", "50", "0", "0"]);

    // A limit of zero admits nothing, now and as things stand ever.
    operator.apply_policy(&limit("0"), "").await.expect(200);
    for units in ["0.000000000001", "100"] {
        let refused = worker.reserve_bulk("c", units).await.problem(429, "budget_exhausted");
        assert_eq!((refused.text("retry"), refused.headers.get("retry-after")), ("never", None));
        assert_eq!(refused.body["breaches"][0]["available"], "-50");
    }
    service.database.stop_clock("2026-03-05T12:00:00Z").await;
    let refused = worker.reserve_bulk("c", "1").await.problem(429, "budget_exhausted");
    assert_eq!((refused.text("retry"), &refused.body["breaches"][0]["available"]), ("never", &json!("0")));
    assert_eq!(service.books().await.periods, ["northstar daily : 0 -50 50 0 0", "northstar daily : 0 0 0 0 0"]);
}
