//! Who waits, and for whom: bounded, in order, and in nobody else's way.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use spend_ledger::ledger::{Context, Error};
use tokio::time::Instant;

use super::{context, counted, grouped, reserve, together};
use crate::support::contention::HeldLock;
use crate::support::server::TestDatabase;
use crate::support::{NORTHSTAR, Service};

const NORTHSTARS_PERIOD: &str = "select from budget_period where account = 'northstar' for update";

async fn service() -> Service {
    let service = Service::on(TestDatabase::new().await, grouped()).await;
    service.apply(NORTHSTAR).await;
    for account in ["northstar", "southstar"] {
        together(&service.ledger, &[reserve(account, "first", "stream", "1")]).await.remove(0).unwrap();
    }
    service
}

/// Whoever is alone is sent at once, and alone.
#[tokio::test]
async fn a_lone_request_waits_for_nobody() {
    let service = service().await;
    let before = counted(&service.ledger, "reserve");
    for n in 0..5 {
        service.ledger.reserve(&context(), &reserve("northstar", &format!("{n}"), "stream", "1")).await.unwrap();
    }
    assert_eq!(counted(&service.ledger, "reserve"), (before.0 + 5, before.1 + 5));
}

/// A caller that goes away, or whose deadline passes, while it waits has asked for
/// nothing; those around it are decided.
#[tokio::test]
async fn a_dropped_caller_and_a_deadline_affect_only_themselves() {
    let service = service().await;
    let held = HeldLock::hold(&service.database, NORTHSTARS_PERIOD).await;
    let ledger = service.ledger.clone();
    let first =
        tokio::spawn(
            async move { ledger.reserve(&context(), &reserve("northstar", "in flight", "stream", "1")).await },
        );
    service.waiting_for_a_lock(1).await;
    // Behind it wait three: one whose caller goes, one in a hurry, one with patience.
    let patient = reserve("northstar", "patient", "stream", "10");
    let context = context();
    let mut patient = Box::pin(service.ledger.reserve(&context, &patient));
    assert!(patient.as_mut().now_or_never().is_none());
    let gone = reserve("northstar", "gone", "stream", "10");
    assert!(service.ledger.reserve(&context, &gone).now_or_never().is_none());
    let hurried = Context { deadline: Instant::now() + Duration::from_millis(50), ..context.clone() };
    let late = service.ledger.reserve(&hurried, &reserve("northstar", "late", "stream", "10")).await;
    assert!(matches!(late, Err(Error::DeadlineExceeded(_))), "{late:?}");
    held.release().await;
    first.await.unwrap().unwrap();
    patient.await.unwrap();
    let keys = service.database.lines("select idempotency_key from reservation where account = 'northstar'").await;
    assert!(!keys.contains(&"gone".to_owned()) && !keys.contains(&"late".to_owned()), "{keys:?}");
    assert_eq!(service.books().await.periods[0], "northstar daily : 100 88 12 0 0");
}

/// An account whose statement waits for a lock is in its own way only, and may not
/// have more than so many requests waiting.
#[tokio::test]
async fn one_account_is_not_in_the_way_of_others() {
    let service = service().await;
    let held = HeldLock::hold(&service.database, NORTHSTARS_PERIOD).await;
    let asked: Vec<_> = (0..700).map(|n| reserve("northstar", &format!("job {n}"), "stream", "0.1")).collect();
    let ledger = service.ledger.clone();
    let storm = tokio::spawn(async move {
        let context = context();
        join_all(asked.iter().map(|ask| ledger.reserve(&context, ask))).await
    });
    service.waiting_for_a_lock(1).await;
    for n in 0..10 {
        let ask = reserve("southstar", &format!("job {n}"), "stream", "1");
        service.ledger.reserve(&context(), &ask).await.unwrap();
    }
    held.release().await;
    let answers = storm.await.unwrap();
    let refused = answers.iter().filter(|answer| matches!(answer, Err(Error::Overloaded))).count();
    let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
    // One was in flight when the others came.
    assert_eq!((admitted, refused), (513, 187), "what may wait was admitted, the rest refused at once");
    assert_eq!(
        service.books().await.periods,
        ["northstar daily : 100 47.7 52.3 0 0", "southstar daily : 100 89 11 0 0"]
    );
}

/// At the beginning of a period everybody finds it missing.
#[tokio::test]
async fn a_new_day_for_many_at_once() {
    let service = service().await;
    service.database.set_clock("2031-03-02T10:00:00Z").await;
    let asked: Vec<_> = (0..100).map(|n| reserve("northstar", &format!("job {n}"), "stream", "1")).collect();
    for answer in together(&service.ledger, &asked).await {
        answer.unwrap();
    }
    assert_eq!(service.books().await.periods[1], "northstar daily : 100 0 100 0 0");
}

/// A runtime that ends with one statement in flight and others waiting ends.
#[test]
fn a_runtime_that_ends_does_not_hang() {
    let (ended, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (service, held) = runtime.block_on(async {
            let service = service().await;
            let held = HeldLock::hold(&service.database, "select from budget_period for update").await;
            for n in 0..20 {
                let ledger = service.ledger.clone();
                let account = if n % 2 == 0 { "northstar" } else { "southstar" };
                tokio::spawn(async move {
                    ledger.reserve(&context(), &reserve(account, &format!("job {n}"), "stream", "1")).await
                });
            }
            service.waiting_for_a_lock(2).await;
            (service, held)
        });
        drop(runtime);
        drop((service, held));
        ended.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(60)).expect("it ends");
}
