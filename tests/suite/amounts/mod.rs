//! Amounts, exact from the wire to the database and back, and refused where
//! they are none.

mod exact;
mod pricing;
mod range;

use serde_json::{Value, json};

use crate::support::unchanged::{Unchanged, post};
use crate::support::{Answer, Client, Service};

const RESERVATIONS: &str = "/v1/reservations";

/// The largest amount.
const MOST: &str = "9999999999999999.999999999999";

/// Limits as wide as amounts.
const WIDE: &str = "
providers: { p: { unit: row, enforcement: worker } }
operations:
  stated: { provider: p, explicit: true, max_units: 9999999999999999.999999999999 }
  counted:
    provider: p
    quantities: { rows: { min: 0, max: 9999999999999999.999999999999 } }
    cost: [ { rate: 1, times: [rows] } ]
    max_units: 9999999999999999.999999999999
plans: { wide: { budgets: { all: { unit: row, limit: 9999999999999999.999999999999, period: total } } } }
accounts: { a: { plan: wide } }
";

async fn wide() -> (Service, Client) {
    let service = Service::with_policy(WIDE).await;
    let worker = service.worker(&["a"]).await;
    (service, worker)
}

async fn stated(worker: &Client, key: &str, units: &str) -> Answer {
    worker.reserve(key, json!({"operation": "stated", "units": units, "holder": "w-1"})).await
}

/// A request that is refused with 400 because a sum would leave the range.
async fn out_of_range(unchanged: &Unchanged<'_>, worker: &Client, path: &str, body: Value, field: &str) {
    unchanged.refuses(worker, post(worker, path, body.to_string()), 400, "invalid_request", Some(field)).await;
}
