//! A sum that would leave the range of amounts is refused and changes nothing.

use serde_json::json;

use super::{MOST, RESERVATIONS, WIDE, out_of_range, stated};
use crate::support::Service;
use crate::support::unchanged::Unchanged;

/// The same, in budgets that refuse nothing.
fn observed() -> String {
    WIDE.replace("wide: { budgets", "wide: { unbounded: [row], budgets").replace("total }", "total, mode: observe }")
}

#[tokio::test]
async fn the_largest_amount_fits_a_budget_of_its_size() {
    for policy in [WIDE.to_owned(), observed()] {
        let service = Service::with_policy(&policy).await;
        let worker = service.worker(&["a"]).await;
        let job = stated(&worker, "job", MOST).await.expect(201);
        assert_eq!(service.books().await.periods, [format!("a all : {MOST} 0 {MOST} 0 0")], "{policy}");
        worker.settle(&job, MOST).await.expect(200);
        assert_eq!(service.books().await.periods, [format!("a all : {MOST} 0 0 0 {MOST}")], "{policy}");
    }
}

#[tokio::test]
async fn usage_beyond_the_range_of_a_budget_is_refused() {
    for policy in [WIDE.to_owned(), observed()] {
        let service = Service::with_policy(&policy).await;
        let worker = service.worker(&["a"]).await;
        let (first, second) =
            (stated(&worker, "1", "1").await.expect(201), stated(&worker, "2", "1").await.expect(201));
        // An overrun is recorded, whatever its size.
        let settled = worker.settle(&first, MOST).await.expect(200);
        assert_eq!((settled.text("settled"), settled.text("overrun")), (MOST, "9999999999999998.999999999999"));
        // The second one of that size has no place in the books.
        let unchanged = Unchanged::from_now(&service).await;
        let path = format!("{RESERVATIONS}/{}/settle", second.id());
        for (units, last) in [(MOST, true), (MOST, false), ("0.000000000001", true), ("1", true)] {
            let body = json!({"attempt": second.token(), "units": units, "final": last});
            out_of_range(&unchanged, &worker, &path, body, "units").await;
        }
        // It can still end with what fits.
        worker.settle(&second, "0").await.expect(200);
        assert_eq!(service.books().await.periods, [format!("a all : {MOST} 0 0 0 {MOST}")]);
    }
}

#[tokio::test]
async fn sums_beyond_the_range_of_an_observing_budget_are_refused() {
    let service = Service::with_policy(&observed()).await;
    let worker = service.worker(&["a"]).await;
    let first = stated(&worker, "1", "9999999999999998").await.expect(201);
    let second = stated(&worker, "2", "0.5").await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    // reserved would be more than the column holds.
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": "5000000000"}), "units")
        .await;
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": MOST}), "units").await;
    let path = format!("{RESERVATIONS}/{}/extend", second.id());
    out_of_range(&unchanged, &worker, &path, json!({"attempt": second.token(), "ceiling": MOST}), "ceiling").await;
    // available would be less than the column holds.
    worker.settle(&first, MOST).await.expect(200);
    let third = stated(&worker, "3", "9999999999999998").await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": "100"}), "units").await;
    worker.settle(&third, "0").await.expect(200);
    service.books().await;
}

/// A limit that is lowered takes from available, which may be as low as it goes.
#[tokio::test]
async fn a_limit_that_would_take_a_balance_beyond_its_range_is_refused() {
    let service = Service::with_policy(&observed()).await;
    let worker = service.worker(&["a"]).await;
    let first = stated(&worker, "1", "1").await.expect(201);
    worker.settle(&first, MOST).await.expect(200);
    stated(&worker, "2", "9999999999999990").await.expect(201);
    let operator = service.operator().await;
    let unchanged = Unchanged::from_now(&service).await;
    let lowered = observed().replace(&format!("limit: {MOST}"), "limit: 5");
    let request = operator.request(reqwest::Method::POST, "/v1/policy").header("content-type", "application/yaml");
    unchanged.refuses(&operator, request.body(lowered), 400, "invalid_request", None).await;
}

/// What several days hold can be more than a balance can say.
#[tokio::test]
async fn what_is_carried_beyond_the_range_is_refused() {
    let policy = observed().replace("period: total", "period: day, rollover: carry_forward");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["a"]).await;
    for (day, key) in [("2026-03-03", "1"), ("2026-03-04", "2")] {
        service.database.set_clock(&format!("{day}T12:00:00Z")).await;
        stated(&worker, key, "9999999999999990").await.expect(201);
    }
    service.database.set_clock("2026-03-05T12:00:00Z").await;
    let unchanged = Unchanged::from_now(&service).await;
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": "1"}), "units").await;
    // Shown is the day as it would open: with nothing left of its limit.
    let shown = worker.budget("a", "all", None).await;
    assert_eq!(
        ["period_id", "period_starts_at", "limit", "available", "reserved"].map(|field| &shown[field]),
        [&json!(null), &json!("2026-03-05T00:00:00Z"), &json!(MOST), &json!("0"), &json!("0")]
    );
    assert_eq!(
        service.books().await.periods,
        [
            format!("a all : {MOST} 9.999999999999 9999999999999990 0 0"),
            format!("a all : {MOST} -9999999999999980.000000000001 9999999999999990 0 0"),
        ]
    );
}

/// A cost beyond the range is refused, not cut and not a failure.
#[tokio::test]
async fn a_cost_beyond_the_range_is_refused() {
    let policy =
        WIDE.replace("rate: 1, times: [rows]", "rate: 1e20, times: [rows, rows, rows, rows, rows, rows, rows, rows]");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["a"]).await;
    let job = json!({"operation": "counted", "quantities": {"rows": "0.001"}, "holder": "w-1"});
    let job = worker.reserve("job", job).await.expect(201);
    assert_eq!(job.text("estimate"), "0.0001");
    let unchanged = Unchanged::from_now(&service).await;
    for rows in ["1", MOST] {
        let body = json!({"operation": "counted", "quantities": {"rows": rows}});
        out_of_range(&unchanged, &worker, RESERVATIONS, body, "quantities").await;
        let path = format!("{RESERVATIONS}/{}/settle", job.id());
        let body = json!({"attempt": job.token(), "quantities": {"rows": rows}});
        out_of_range(&unchanged, &worker, &path, body, "quantities").await;
    }
}
