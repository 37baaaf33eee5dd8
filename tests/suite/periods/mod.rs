//! Which period a reservation belongs to, to the microsecond, and what a period
//! takes over from the one before it.

mod bounds;
mod carry;

use serde_json::json;

use crate::support::{Answer, Client, Service};

/// A plan with these budgets of `row`s, as (name, definition).
fn policy(budgets: &[(&str, &str)]) -> String {
    let budgets: Vec<String> =
        budgets.iter().map(|(name, definition)| format!("      {name}: {{ unit: row, {definition} }}")).collect();
    format!(
        "
providers: {{ rows: {{ unit: row, enforcement: worker }} }}
operations: {{ scan: {{ provider: rows, explicit: true, max_units: 1000 }} }}
plans:
  p:
    budgets:
{}
accounts:
  northstar: {{ plan: p }}
  southstar: {{ plan: p }}
",
        budgets.join("\n")
    )
}

const DAILY: &str = "limit: 100, period: day, timezone: America/New_York";

async fn service(budgets: &[(&str, &str)]) -> (Service, Client) {
    let service = Service::with_policy(&policy(budgets)).await;
    let worker = service.worker(&["northstar"]).await;
    (service, worker)
}

async fn reserve(worker: &Client, key: &str, units: &str) -> Answer {
    worker.reserve(key, json!({"operation": "scan", "units": units, "holder": "w-1"})).await
}
