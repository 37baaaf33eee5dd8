//! The worked numbers of Northstar, through HTTP, to the unit.

mod ceiling;
mod day_of_work;
mod midnight;
mod two_workers;

use serde_json::json;

use crate::support::{Client, Service};

/// settled, reserved, liability, available.
async fn daily(client: &Client) -> [String; 4] {
    client.balance("northstar", "daily", None).await
}

#[tokio::test]
async fn admission_arithmetic() {
    let service = Service::with_policy(
        "
providers: { rows: { unit: row, enforcement: worker } }
operations:
  scan:
    provider: rows
    quantities: { accounts: { min: 1, max: 10 }, rows: { min: 1, max: 100 } }
    cost: [ { rate: 1, times: [accounts, rows] } ]
    max_units: 500
plans: { p: { budgets: { total: { unit: row, limit: 100000, period: total } } } }
accounts: { northstar: { plan: p } }
",
    )
    .await;
    let worker = service.worker(&["northstar"]).await;
    let scan =
        |accounts: u32, rows: u32| json!({"operation": "scan", "quantities": {"accounts": accounts, "rows": rows}});
    // 500 is inclusive.
    assert_eq!(worker.reserve("a", scan(5, 100)).await.expect(201).text("estimate"), "500");
    let refused = worker.reserve("b", scan(6, 100)).await.problem(400, "too_expensive");
    assert_eq!((refused.text("units"), refused.text("max_units"), refused.text("retry")), ("600", "500", "never"));
    let out_of_range = worker.reserve("c", scan(1, 101)).await.problem(400, "invalid_request");
    assert_eq!(out_of_range.body["errors"][0]["field"], "quantities.rows");
    let padding = "x".repeat(17 * 1024);
    worker.reserve("d", json!({"operation": "scan", "reference": padding})).await.problem(413, "body_too_large");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar total : 100000 99500 500 0 0"]);
    assert_eq!(books.reservations, ["a active 1 500 0 500 0"]);
}
