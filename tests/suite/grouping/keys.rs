//! A key is looked at by the statement that decides: of those decided together only
//! the one whose key has been revoked is refused.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use spend_ledger::ledger::keys::NewKey;
use spend_ledger::ledger::{Context, Error};
use spend_ledger::model::role::{Accounts, Role};
use tokio::time::Instant;

use super::{context, grouped, reserve};
use crate::support::contention::HeldLock;
use crate::support::server::TestDatabase;
use crate::support::{NORTHSTAR, Service};

async fn service() -> Service {
    let service = Service::on(TestDatabase::new().await, grouped()).await;
    service.apply(NORTHSTAR).await;
    service
}

#[tokio::test]
async fn revoked_in_the_middle_of_a_group() {
    let service = service().await;
    let mut keys = Vec::new();
    for _ in 0..3 {
        let new = NewKey { name: None, role: Role::Worker, accounts: Accounts::All, expires_at: None };
        keys.push(service.ledger.create_key(&context(), &new).await.unwrap().0.id);
    }
    service.ledger.revoke_key(&context(), keys[1]).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let contexts =
        keys.iter().map(|key| Context { actor: format!("key:{key}"), key: Some(*key), deadline }).collect::<Vec<_>>();
    let asked = ["a", "b", "c"].map(|key| reserve("northstar", key, "stream", "10"));
    let answers =
        join_all(contexts.iter().zip(&asked).map(|(context, ask)| service.ledger.reserve(context, ask))).await;
    assert!(matches!(answers[1], Err(Error::Unauthenticated)), "{:?}", answers[1]);
    assert!(answers[0].is_ok() && answers[2].is_ok());
    let actors = service.database.lines("select distinct actor from journal_entry where event = 'reserve'").await;
    assert!(!actors.contains(&contexts[1].actor));
    assert_eq!(service.books().await.periods, ["northstar daily : 100 80 20 0 0"]);
}

/// At once, for every verb that does not ask the database first, each with a key of
/// its own that the process has recognised a moment ago.
#[tokio::test]
async fn revoked_for_every_verb() {
    let service = service().await;
    let owner = service.worker(&["northstar"]).await;
    let job = owner.reserve_bulk("job", "10").await.expect(201);
    owner.call(&job, "call", "2").await.expect(201);
    let before = service.books().await;
    let (id, token) = (job.id(), job.token());
    let on = |verb: &str| format!("/v1/reservations/{id}{verb}");
    let nowhere = format!("/v1/reservations/{}/settle", uuid::Uuid::now_v7());
    let reserve = |operation: &str, units: u32| json!({"operation": operation, "units": units, "holder": "w-1"});
    let asked = [
        ("another", "/v1/reservations".to_owned(), reserve("bulk", 1)),
        // A repeat, a refusal by policy and one by room tell it nothing either.
        ("job", "/v1/reservations".to_owned(), reserve("bulk", 10)),
        ("nothing", "/v1/reservations".to_owned(), reserve("nothing", 1)),
        ("too much", "/v1/reservations".to_owned(), reserve("bulk", 99)),
        ("", on("/renew"), json!({"attempt": token})),
        ("", on("/extend"), json!({"attempt": token, "ceiling": 20})),
        ("", on("/calls"), json!({"attempt": token, "call": "another", "units": 1})),
        ("", on("/calls/call/settle"), json!({"attempt": token, "units": 1})),
        ("", on("/settle"), json!({"attempt": token, "units": 5})),
        ("", nowhere, json!({"attempt": token, "units": 1})),
    ];
    for (key, path, body) in asked {
        let worker = service.worker(&["northstar"]).await;
        worker.renew(&job, 60).await.expect(200);
        let newest = "select id::text from api_key order by id desc limit 1";
        let newest = service.database.lines(newest).await.remove(0);
        service.ledger.revoke_key(&context(), newest.parse().unwrap()).await.unwrap();
        let request = worker.request(Method::POST, &path).header("idempotency-key", key.replace(' ', "-"));
        let refused = worker.send(request.json(&body)).await.problem(401, "unauthenticated");
        assert!(refused.body.get("reservation").is_none(), "{path}");
    }
    assert_eq!(service.books().await, before);
}

/// Also while its request waits for a lock.
#[tokio::test]
async fn revoked_while_it_waits() {
    let service = service().await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("first", "10").await.expect(201);
    let held = HeldLock::hold(&service.database, "select from budget_period for update").await;
    let waiting = tokio::spawn(async move { worker.reserve_bulk("second", "10").await });
    service.waiting_for_a_lock(1).await;
    service.database.execute("update api_key set revoked_at = ledger_clock()").await;
    held.release().await;
    waiting.await.unwrap().problem(401, "unauthenticated");
    assert_eq!(service.books().await.periods, ["northstar daily : 100 90 10 0 0"]);
}

/// It takes no room then from those who are decided with it.
#[tokio::test]
async fn revoked_while_its_group_waits() {
    const PERIOD: &str = "select from budget_period for update";
    let service = service().await;
    let (ledger, database) = (&service.ledger, &service.database);
    let new = NewKey { name: None, role: Role::Worker, accounts: Accounts::All, expires_at: None };
    let key = ledger.create_key(&context(), &new).await.unwrap().0.id;
    ledger.reserve(&context(), &reserve("northstar", "first", "stream", "10")).await.unwrap();
    let held = HeldLock::hold(database, PERIOD).await;
    let (ahead, context) = (ledger.clone(), context());
    let in_flight = tokio::spawn({
        let context = context.clone();
        async move { ahead.reserve(&context, &reserve("northstar", "in flight", "stream", "10")).await }
    });
    service.waiting_for_a_lock(1).await;
    let next = tokio::spawn({
        let database = database.clone();
        async move { HeldLock::hold(&database, PERIOD).await }
    });
    service.waiting_for_a_lock(2).await;
    // These two wait for the statement in flight, and then, together, for the lock.
    let revoked = Context { key: Some(key), ..context.clone() };
    let (one, two) = (reserve("northstar", "one", "stream", "80"), reserve("northstar", "two", "stream", "80"));
    let mut one = Box::pin(ledger.reserve(&revoked, &one));
    let mut two = Box::pin(ledger.reserve(&context, &two));
    assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
    held.release().await;
    let next = next.await.unwrap();
    in_flight.await.unwrap().unwrap();
    service.waiting_for_a_lock(1).await;
    ledger.revoke_key(&context, key).await.unwrap();
    next.release().await;
    let (one, two) = tokio::join!(one, two);
    assert!(matches!(one, Err(Error::Unauthenticated)), "{one:?}");
    two.unwrap();
    assert_eq!(service.books().await.periods, ["northstar daily : 100 0 100 0 0"]);
}

#[tokio::test]
async fn expired_since_it_was_recognised() {
    let service = service().await;
    service.database.set_clock("2026-03-02T10:00:00Z").await;
    let new = NewKey {
        name: None,
        role: Role::Worker,
        accounts: Accounts::These(vec![super::name("northstar")]),
        expires_at: Some("2026-03-02T12:00:00Z".parse().unwrap()),
    };
    let (_, secret) = service.ledger.create_key(&context(), &new).await.unwrap();
    let worker = crate::support::Client::new(service.address, &secret);
    worker.reserve_bulk("before", "1").await.expect(201);
    service.database.set_clock("2026-03-02T12:00:01Z").await;
    worker.reserve_bulk("after", "1").await.problem(401, "unauthenticated");
    assert_eq!(service.books().await.periods, ["northstar daily : 100 99 1 0 0"]);
}
