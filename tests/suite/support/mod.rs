//! What every test stands on.

pub mod books;
pub mod client;
pub mod contention;
pub mod copies;
pub mod document;
pub mod faketime;
pub mod old_work;
pub mod process;
pub mod provider;
pub mod proxy;
pub mod random;
pub mod relay;
pub mod server;
pub mod service;
pub mod unchanged;
pub mod verbs;

pub use books::Books;
pub use client::{Answer, Client};
pub use service::{Options, Service};
pub use verbs::Northstar;

/// The policy of the worked case: `policy.example.yaml` has it too, but a test
/// that needs a number states it.
pub const NORTHSTAR: &str = "
providers:
  transformer: { unit: transformation, enforcement: calls, keys: [a, b] }
  direct: { unit: transformation, enforcement: worker }
operations:
  export:
    provider: transformer
    quantities: { formats: { min: 1, max: 10, default: 1 }, weight: { min: 1, max: 30, default: 5 } }
    cost: [ { rate: 1, times: [formats, weight] } ]
    max_units: 60
  bulk: { provider: transformer, explicit: true, max_units: 100 }
  stream: { provider: direct, explicit: true, max_units: 100 }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 100, period: day, timezone: America/New_York }
accounts:
  northstar: { plan: standard }
  southstar: { plan: standard }
";
