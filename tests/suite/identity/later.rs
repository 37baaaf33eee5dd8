//! A key is answered for ever, whatever became of the job and of the policy; a
//! refusal leaves it unused.

use serde_json::{Value, json};

use super::repeated;
use crate::support::{Answer, NORTHSTAR, Service};

#[tokio::test]
async fn a_repeat_shows_the_reservation_as_it_is_now_and_takes_nothing() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = json!({"operation": "stream", "units": 40, "holder": "w-1"});
    let job = worker.reserve("job", body.clone()).await.expect(201);
    let state = |answer: &Answer| {
        let text = |field: &str| answer.text(field).to_owned();
        format!(
            "{} {} {} {} {}",
            text("state"),
            text("ceiling"),
            text("settled"),
            text("charged"),
            answer.body["version"]
        )
    };
    worker.progress(&job, "10").await.expect(200);
    worker.extend(&job, "45").await.expect(200);
    let repeat = repeated(worker.reserve("job", body.clone()).await, &job, true);
    assert_eq!(state(&repeat), "active 45 10 45 3");
    assert_eq!(repeat.text("estimate"), "40");
    let settled = worker.settle(&job, "42").await.expect(200);
    let after = service.books().await;
    let repeat = repeated(worker.reserve("job", body.clone()).await, &job, true);
    assert_eq!(state(&repeat), "settled 45 42 42 4");
    assert_eq!(repeat.body, settled.body);
    let by_another = json!({"operation": "stream", "units": 40, "holder": "w-2"});
    assert_eq!(state(&repeated(worker.reserve("job", by_another).await, &job, false)), "settled 45 42 42 4");
    // Also on another day, and when the account has used all of that day, and
    // after more than thirteen months.
    service.database.set_clock("2099-06-01T12:00:00Z").await;
    worker.reserve_bulk("all", "100").await.expect(201);
    assert_eq!(state(&repeated(worker.reserve("job", body.clone()).await, &job, true)), "settled 45 42 42 4");
    service.database.set_clock("2100-08-01T12:00:00Z").await;
    assert_eq!(state(&repeated(worker.reserve("job", body).await, &job, true)), "settled 45 42 42 4");
    let books = service.books().await;
    assert_eq!(books.journal[..after.journal.len()], after.journal);
    assert_eq!(books.periods, ["northstar daily : 100 58 0 0 42", "northstar daily : 100 0 100 0 0"]);
}

/// A job is admitted, the policy becomes stricter, and the repeat is answered as
/// before, although a new request would be refused.
async fn after_a_stricter_policy(before: &str, after: &str, body: Value, status: u16, code: &str) {
    let service = Service::with_policy(before).await;
    // A process that knows the older policy only, and one that starts later.
    let other = service.another().await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", body.clone()).await.expect(201);
    service.apply(after).await;
    let later = service.another().await;
    let books = service.books().await;
    for address in [other.address, service.address, later.address] {
        let client = worker.at(address);
        assert_eq!(repeated(client.reserve("job", body.clone()).await, &job, true).body, job.body, "{code}");
        let problem = client.reserve("new", body.clone()).await.problem(status, code);
        if code != "budget_exhausted" {
            assert_eq!(problem.text("retry"), "never");
        }
        // Another request with the key is that, whatever the policy.
        let mut another = body.clone();
        another["reference"] = json!("another");
        client.reserve("job", another).await.problem(422, "idempotency_key_reused");
    }
    let now = service.books().await;
    assert_eq!((&now.reservations, now.journal.len()), (&books.reservations, books.journal.len()), "{code}");
}

fn export() -> Value {
    json!({"operation": "export", "quantities": {"formats": 5, "weight": 10}, "holder": "w-1"})
}

#[tokio::test]
async fn a_repeat_after_the_bounds_were_narrowed() {
    let after = NORTHSTAR.replace("formats: { min: 1, max: 10,", "formats: { min: 1, max: 3,");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_max_units_was_lowered() {
    let after = NORTHSTAR.replace("max_units: 60", "max_units: 20");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "too_expensive").await;
}

#[tokio::test]
async fn a_repeat_after_a_quantity_was_renamed() {
    let after = NORTHSTAR.replace("formats: {", "files: {").replace("[formats, weight]", "[files, weight]");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_the_operation_was_retired() {
    let after = NORTHSTAR.replace("  export:\n", "  report:\n");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 422, "unknown_operation").await;
}

#[tokio::test]
async fn a_repeat_after_the_account_was_retired() {
    let after = NORTHSTAR.replace("  northstar: { plan: standard }\n", "");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 422, "unknown_account").await;
}

#[tokio::test]
async fn a_repeat_after_the_account_was_frozen() {
    let after =
        NORTHSTAR.replace("northstar: { plan: standard }", "northstar: { plan: standard, limits: { daily: 0 } }");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 429, "budget_exhausted").await;
}

#[tokio::test]
async fn a_repeat_after_the_limit_became_less_than_the_request() {
    let after =
        NORTHSTAR.replace("northstar: { plan: standard }", "northstar: { plan: standard, limits: { daily: 49 } }");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "too_expensive").await;
}

#[tokio::test]
async fn a_repeat_after_the_budget_is_gone() {
    let after = NORTHSTAR
        .replace("accounts:", "  none: { budgets: {} }\naccounts:")
        .replace("  northstar: { plan: standard }", "  northstar: { plan: none }");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 422, "no_budget").await;
}

#[tokio::test]
async fn a_repeat_after_a_budget_per_member_was_added() {
    let after = NORTHSTAR
        .replace("accounts:", "      each: { unit: transformation, limit: 100, period: day, per: member }\naccounts:");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_its_provider_key_was_withdrawn() {
    let mut body = export();
    body["provider_key"] = json!("a");
    let after = NORTHSTAR.replace("keys: [a, b]", "keys: [b]");
    after_a_stricter_policy(NORTHSTAR, &after, body, 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_a_frozen_pool_was_added() {
    let after =
        format!("{NORTHSTAR}pools:\n  stop: {{ unit: transformation, limit: 0, period: day, timezone: UTC }}\n");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 429, "budget_exhausted").await;
}

#[tokio::test]
async fn a_default_is_the_one_of_the_time_of_the_estimate() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = |quantities: Value| json!({"operation": "export", "quantities": quantities, "holder": "w-1"});
    let left_out = worker.reserve("left-out", body(json!({"formats": 2}))).await.expect(201);
    let stated = worker.reserve("stated", body(json!({"formats": 2, "weight": 5}))).await.expect(201);
    // Two changes, so that the one before is not the one at the time.
    let policies = [
        NORTHSTAR.replace("max: 30, default: 5", "max: 30, default: 6"),
        NORTHSTAR.replace("max: 30, default: 5", "max: 30, default: 7"),
        NORTHSTAR.replace("max: 30, default: 5", "max: 30"),
    ];
    for policy in policies {
        service.apply(&policy).await;
        for (key, job) in [("left-out", &left_out), ("stated", &stated)] {
            for same in [json!({"formats": 2}), json!({"formats": 2, "weight": "5.0"})] {
                assert_eq!(repeated(worker.reserve(key, body(same)).await, job, true).body, job.body);
            }
            for other in [6, 7] {
                let other = body(json!({"formats": 2, "weight": other}));
                worker.reserve(key, other).await.problem(422, "idempotency_key_reused");
            }
        }
    }
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 80 20 0 0"]);
    assert_eq!(books.journal.len(), 3);
}

#[tokio::test]
async fn a_refused_request_leaves_its_key_unused() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let all = worker.reserve_bulk("all", "100").await.expect(201);
    // By room, by the policy, and by what is no request at all.
    let refused = [
        ("room", json!({"operation": "bulk", "units": 10}), 429, "budget_exhausted"),
        ("bound", json!({"operation": "bulk", "units": 101}), 400, "too_expensive"),
        ("zero", json!({"operation": "bulk", "units": 0}), 400, "invalid_request"),
        ("range", json!({"operation": "export", "quantities": {"formats": 11}}), 400, "invalid_request"),
        ("quantity", json!({"operation": "export", "quantities": {"pages": 1}}), 400, "invalid_request"),
        ("operation", json!({"operation": "nothing"}), 422, "unknown_operation"),
        ("provider", json!({"operation": "bulk", "units": 1, "provider_key": "c"}), 400, "invalid_request"),
        ("account", json!({"operation": "bulk", "units": 1, "account": "southstar"}), 403, "forbidden"),
        ("field", json!({"operation": "bulk", "units": 1, "unit": "token"}), 400, "invalid_request"),
    ];
    let before = service.books().await;
    for (key, body, status, code) in &refused {
        // Twice: the second refusal is no repeat of the first.
        worker.reserve(key, body.clone()).await.problem(*status, code);
        worker.reserve(key, body.clone()).await.problem(*status, code);
    }
    assert_eq!(service.books().await, before);
    worker.settle(&all, "0").await.expect(200);
    for (key, ..) in &refused {
        worker.reserve_bulk(key, "2").await.expect(201);
    }
    let books = service.books().await;
    let charged = 2 * refused.len();
    assert_eq!(books.periods, [format!("northstar daily : 100 {} {charged} 0 0", 100 - charged)]);
    assert_eq!(books.reservations.len(), 1 + refused.len());
}
