//! Requests that wait are decided together: each for itself, in the order in which
//! they came, as if they had been sent one by one.

mod alone;
mod as_one_by_one;
mod keys;
mod waiting;

use std::time::Duration;

use spend_ledger::ledger::reserve::{Reserve, Reserved};
use spend_ledger::ledger::{Context, Error, Ledger};
use spend_ledger::model::request::ReservationRequest;
use spend_ledger::model::{Name, Units};
use tokio::time::Instant;

use crate::support::Options;

/// With grouping, whatever the environment says.
fn grouped() -> Options {
    Options { grouping: true, ..Options::default() }
}

/// Each request with a statement of its own.
fn one_by_one() -> Options {
    Options { grouping: false, ..Options::default() }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn units(text: &str) -> Units {
    Units::parse(text).unwrap()
}

fn context() -> Context {
    Context { actor: "test".to_owned(), key: None, deadline: Instant::now() + Duration::from_secs(30) }
}

/// A request for explicit units.
fn reserve(account: &str, key: &str, operation: &str, amount: &str) -> Reserve {
    let request = ReservationRequest {
        operation: name(operation),
        quantities: [].into(),
        units: Some(units(amount)),
        member: None,
        provider_key: None,
        reference: None,
        labels: [].into(),
    };
    Reserve { account: name(account), key: key.to_owned(), request, holder: "w".to_owned(), lease_seconds: 60 }
}

/// Sends them all before any is decided: the runtime of a test has one thread. The
/// first finds the verb idle and is sent alone; the others wait, and are decided
/// together, but for those of other accounts, which need not wait for it.
async fn together(ledger: &Ledger, asked: &[Reserve]) -> Vec<Result<Reserved, Error>> {
    let context = context();
    futures_util::future::join_all(asked.iter().map(|reserve| ledger.reserve(&context, reserve))).await
}

/// How many statements of this verb were answered, and how many requests they have
/// decided.
fn counted(ledger: &Ledger, verb: &str) -> (u64, u64) {
    let text = ledger.metrics().text();
    let count = |metric: &str| {
        let line = format!("spend_ledger_{metric}_total{{verb=\"{verb}\"}} ");
        text.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
    };
    (count("statements"), count("decisions"))
}
