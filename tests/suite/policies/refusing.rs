//! What is not bounded, not affordable or not possible is refused with its
//! reason, and every refusal is written down.

use serde_json::json;

use super::{breached, budgets_of, daily, faults, limit, refusals, with};
use crate::support::{Books, NORTHSTAR};

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

#[tokio::test]
async fn what_a_pool_could_never_admit_tells_an_account_nothing_of_it() {
    let pool = "pools: { shared: { unit: transformation, limit: 45.25, period: month } }\n";
    let (service, worker, _) = with(&format!("{NORTHSTAR}{pool}")).await;
    let fleet = service.fleet().await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": 10, "holder": "w-1"})).await.expect(201);
    for refused in [worker.reserve_bulk("a", "50").await, worker.extend(&job, "50").await] {
        let refused = refused.problem(400, "too_expensive");
        assert_eq!((refused.text("units"), refused.text("retry")), ("50", "never"));
        assert_eq!(refused.body.get("max_units"), None, "{:#}", refused.body);
        assert!(!refused.body.to_string().contains("45.25"), "{:#}", refused.body);
    }
    // A limit of its own is told.
    let refused = worker.reserve_bulk("a", "101").await.problem(400, "too_expensive");
    assert_eq!(refused.text("max_units"), "100");
    // Who acts for all accounts sees the pool.
    let asked = json!({"operation": "bulk", "units": "50", "account": "northstar"});
    let refused = fleet.reserve("a", asked).await.problem(400, "too_expensive");
    assert_eq!((refused.text("units"), refused.text("max_units")), ("50", "45.25"));
    assert_eq!(service.books().await.periods, ["northstar daily : 100 90 10 0 0", " shared : 45.25 35.25 10 0 0"]);
}
