//! A period that carries forward starts with less by what the ones before it
//! hold, and gets it back as they let go.

use serde_json::json;

use super::{DAILY, policy, reserve, service};
use crate::support::contention::HeldLock;
use crate::support::{Options, Service};

const CARRIED: &str = "limit: 100, period: day, timezone: America/New_York, rollover: carry_forward";

#[tokio::test]
async fn two_ended_periods_give_back_what_they_no_longer_hold() {
    let (service, worker) = service(&[("day", CARRIED)]).await;
    let today = async || worker.balance("northstar", "day", None).await;
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let first = reserve(&worker, "first", "30").await.expect(201);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    assert_eq!(today().await, ["0", "0", "0", "70"]);
    let second = reserve(&worker, "second", "20").await.expect(201);
    assert_eq!(today().await, ["0", "20", "0", "50"]);
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    assert_eq!(today().await, ["0", "0", "0", "50"]);
    let third = reserve(&worker, "third", "50").await.expect(201);
    assert_eq!(today().await, ["0", "50", "0", "0"]);

    // Progress in the first day's period comes back as far as it is no longer held.
    worker.progress(&first, "10").await.expect(200);
    assert_eq!(today().await, ["0", "50", "0", "10"]);
    // What the first takes more in its own period does not come from today.
    worker.extend(&first, "45").await.expect(200);
    assert_eq!(today().await, ["0", "50", "0", "10"]);
    // Nor does the overrun of the second.
    assert_eq!(worker.settle(&second, "95").await.expect(200).text("overrun"), "75");
    assert_eq!(today().await, ["0", "50", "0", "15"]);
    worker.settle(&first, "12").await.expect(200);
    assert_eq!(today().await, ["0", "50", "0", "50"]);
    worker.settle(&third, "50").await.expect(200);

    let books = service.books().await;
    assert_eq!(
        books.periods,
        ["northstar day : 100 88 0 0 12", "northstar day : 100 -25 0 0 95", "northstar day : 100 50 0 0 50"]
    );
    assert_eq!(
        books.entries_of("carried_in"),
        ["day 2 carried_in available>granted 30", "day 2 carried_in available>granted 50"]
    );
    assert_eq!(
        books.entries_of("given_back"),
        [
            "day 4 given_back granted>available 10",
            "day 5 given_back granted>available 5",
            "day 6 given_back granted>available 35"
        ]
    );
}

#[tokio::test]
async fn a_give_back_that_did_not_get_through_is_made_good_before_a_refusal() {
    let (service, _) = service(&[("day", CARRIED)]).await;
    let hurried = Options { statement_timeout: std::time::Duration::from_millis(300), ..Options::default() };
    let hurried = Service::on(service.database.clone(), hurried).await;
    let worker = hurried.worker(&["northstar"]).await;
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let old = reserve(&worker, "old", "30").await.expect(201);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    reserve(&worker, "new", "60").await.expect(201);
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "60", "0", "10"]);

    // The newest period is locked by somebody while the old reservation settles.
    let mut other = service.database.connect().await;
    let mut holding = sqlx::Connection::begin(&mut other).await.unwrap();
    sqlx::query("select from budget_period where ordinal = 2 for update").execute(&mut *holding).await.unwrap();
    assert_eq!(worker.settle(&old, "25").await.expect(200).text("settled"), "25");
    holding.rollback().await.unwrap();
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 100 75 0 0 25", "northstar day : 100 10 60 0 0"]);
    assert!(books.entries_of("given_back").is_empty());

    // 40 would be refused; before it is, the 30 come back.
    reserve(&worker, "more", "40").await.expect(201);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 100 75 0 0 25", "northstar day : 100 0 100 0 0"]);
    assert_eq!(books.entries_of("given_back"), ["day 4 given_back granted>available 30"]);
    reserve(&worker, "too-much", "1").await.problem(429, "budget_exhausted");
    assert_eq!(service.books().await.entries_of("given_back").len(), 1);
}

#[tokio::test]
async fn an_extension_too_gets_back_what_is_carried_before_it_is_refused() {
    let (service, _) = service(&[("day", CARRIED)]).await;
    let hurried = Options { statement_timeout: std::time::Duration::from_millis(300), ..Options::default() };
    let hurried = Service::on(service.database.clone(), hurried).await;
    let worker = hurried.worker(&["northstar"]).await;
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let old = reserve(&worker, "old", "30").await.expect(201);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    let new = reserve(&worker, "new", "60").await.expect(201);
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "60", "0", "10"]);

    // The newest period is locked by somebody while the old reservation settles.
    let held = HeldLock::hold(&service.database, "select from budget_period where ordinal = 2 for update").await;
    worker.settle(&old, "25").await.expect(200);
    held.release().await;
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 100 75 0 0 25", "northstar day : 100 10 60 0 0"]);
    assert!(books.entries_of("given_back").is_empty());

    // 35 more would be refused; before it is, the 30 come back.
    assert_eq!(worker.extend(&new, "95").await.expect(200).text("ceiling"), "95");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 100 75 0 0 25", "northstar day : 100 5 95 0 0"]);
    assert_eq!(books.entries_of("given_back"), ["day 4 given_back granted>available 30"]);
    let refused = worker.extend(&new, "101").await.problem(400, "too_expensive");
    assert_eq!(refused.text("max_units"), "100");
    reserve(&worker, "last", "5").await.expect(201);
    let refused = worker.extend(&new, "96").await.problem(429, "budget_exhausted");
    assert_eq!((refused.text("retry"), &refused.body["breaches"][0]["available"]), ("after_release", &json!("0")));
    assert_eq!(service.books().await.entries_of("given_back").len(), 1);
}

#[tokio::test]
async fn more_may_be_carried_than_the_limit() {
    let (service, worker) = service(&[("day", CARRIED)]).await;
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let old = reserve(&worker, "old", "90").await.expect(201);
    service.apply(&policy(&[("day", &CARRIED.replace("100", "50"))])).await;
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "90", "0", "-40"]);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "0", "0", "-40"]);
    let refused = reserve(&worker, "new", "1").await.problem(429, "budget_exhausted");
    assert_eq!(refused.body["breaches"][0]["available"], "-40");
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "0", "0", "-40"]);
    worker.settle(&old, "10").await.expect(200);
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "0", "0", "50"]);
    reserve(&worker, "new", "50").await.expect(201);

    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 50 40 0 0 10", "northstar day : 50 0 50 0 0"]);
    assert_eq!(
        books.journal[5..],
        [
            "day 1 period_opened granted>available 50",
            "day 2 carried_in available>granted 90",
            "day 3 given_back granted>available 90",
            "day 4 reserve available>reserved 50",
        ]
    );
}

#[tokio::test]
async fn a_refusal_over_what_is_carried_says_that_a_release_can_help() {
    let (service, worker) = service(&[("day", CARRIED)]).await;
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let old = reserve(&worker, "old", "30").await.expect(201);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    let refused = reserve(&worker, "new", "100").await.problem(429, "budget_exhausted");
    let retry = refused.text("retry").to_owned();
    worker.settle(&old, "30").await.expect(200);
    reserve(&worker, "new", "100").await.expect(201);
    service.books().await;
    assert_eq!(retry, "after_release");
}

#[tokio::test]
async fn a_pool_carries_for_all_accounts_together() {
    let pool = "pools: { shared: { unit: row, limit: 100, period: day, timezone: America/New_York, \
                rollover: carry_forward } }\n";
    let policy = format!("{}{pool}", policy(&[("day", CARRIED), ("life", "limit: 900, period: total")]));
    let service = Service::with_policy(&policy).await;
    let (north, south) = (service.worker(&["northstar"]).await, service.worker(&["southstar"]).await);
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let norths = reserve(&north, "old", "30").await.expect(201);
    let souths = reserve(&south, "old", "50").await.expect(201);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    // The pool has 20, southstar's own budget has 50.
    assert_eq!(south.balance("southstar", "day", None).await, ["0", "0", "0", "50"]);
    let refused = reserve(&south, "new", "21").await.problem(429, "budget_exhausted");
    // Of a pool an account-bound key sees only the name.
    assert_eq!(refused.body["breaches"], json!([{"budget": "shared"}]));
    reserve(&south, "new", "20").await.expect(201);
    north.settle(&norths, "5").await.expect(200);
    assert_eq!(south.balance("southstar", "day", None).await, ["0", "20", "0", "30"]);
    reserve(&south, "more", "30").await.expect(201);
    south.settle(&souths, "50").await.expect(200);
    assert_eq!(north.balance("northstar", "day", None).await, ["0", "0", "0", "100"]);
    reserve(&north, "new", "50").await.expect(201);

    let books = service.books().await;
    assert_eq!(
        books.periods,
        [
            "northstar day : 100 95 0 0 5",
            "northstar day : 100 50 50 0 0",
            "northstar life : 900 845 50 0 5",
            "southstar day : 100 50 0 0 50",
            "southstar day : 100 50 50 0 0",
            "southstar life : 900 800 50 0 50",
            " shared : 100 45 0 0 55",
            " shared : 100 0 100 0 0",
        ]
    );
    assert_eq!(
        books.entries_of("given_back"),
        [
            "day 5 given_back granted>available 50",
            "shared 4 given_back granted>available 30",
            "shared 6 given_back granted>available 50",
        ]
    );
}

#[tokio::test]
async fn what_a_new_period_carries_is_decided_when_it_opens() {
    let (service, worker) = service(&[("day", DAILY)]).await;
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let old = reserve(&worker, "old", "30").await.expect(201);
    // From now on it carries forward.
    service.apply(&policy(&[("day", CARRIED)])).await;
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    reserve(&worker, "second", "10").await.expect(201);
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "10", "0", "60"]);
    // And now no more: what was carried still comes back, and the next day has all.
    service.apply(&policy(&[("day", DAILY)])).await;
    worker.progress(&old, "5").await.expect(200);
    assert_eq!(worker.balance("northstar", "day", None).await, ["0", "10", "0", "65"]);
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    reserve(&worker, "third", "100").await.expect(201);
    let books = service.books().await;
    assert_eq!(
        books.periods,
        ["northstar day : 100 70 25 0 5", "northstar day : 100 65 10 0 0", "northstar day : 100 0 100 0 0"]
    );
}

#[tokio::test]
async fn each_member_carries_its_own() {
    let each = format!("{CARRIED}, per: member").replace("100", "30");
    let (service, worker) = service(&[("day", DAILY), ("each", &each)]).await;
    let ask = async |key: &str, member: &str, units: u32| {
        worker.reserve(key, json!({"operation": "scan", "units": units, "member": member, "holder": "w-1"})).await
    };
    service.database.stop_clock("2026-03-02T12:00:00Z").await;
    let anns = ask("1", "ann", 25).await.expect(201);
    ask("2", "ben", 10).await.expect(201);
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    let refused = ask("3", "ann", 6).await.problem(429, "budget_exhausted");
    assert_eq!(
        (&refused.body["breaches"][0]["member"], &refused.body["breaches"][0]["available"]),
        (&json!("ann"), &json!("5"))
    );
    ask("3", "ann", 5).await.expect(201);
    ask("4", "ben", 20).await.expect(201);
    ask("5", "cat", 30).await.expect(201);
    worker.settle(&anns, "30").await.expect(200);
    ask("6", "ann", 25).await.expect(201);
    let books = service.books().await;
    assert_eq!(
        books.periods,
        [
            "northstar day : 100 60 10 0 30",
            "northstar day : 100 20 80 0 0",
            "northstar each ann: 30 0 0 0 30",
            "northstar each ann: 30 0 30 0 0",
            "northstar each ben: 30 20 10 0 0",
            "northstar each ben: 30 0 20 0 0",
            "northstar each cat: 30 0 30 0 0",
        ]
    );
    assert_eq!(books.entries_of("given_back"), ["each 4 given_back granted>available 25"]);
}
