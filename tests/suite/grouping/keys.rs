//! A key is looked at by the statement that decides: of those decided together only
//! the one whose key has been revoked is refused.

use std::time::Duration;

use futures_util::future::join_all;
use spend_ledger::ledger::keys::NewKey;
use spend_ledger::ledger::{Context, Error};
use spend_ledger::model::role::{Accounts, Role};
use tokio::time::Instant;

use super::{context, grouped, reserve};
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

/// At once, for every verb that does not ask the database first, at a process that
/// has just recognised the key.
#[tokio::test]
async fn revoked_for_every_verb() {
    let service = service().await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve_bulk("job", "10").await.expect(201);
    let call = worker.call(&job, "call", "2").await.expect(201);
    let before = service.books().await;
    let key = service.database.lines("select id::text from api_key where role = 'worker'").await.remove(0);
    service.ledger.revoke_key(&context(), key.parse().unwrap()).await.unwrap();
    let id = job.id();
    let refused = [
        worker.reserve_bulk("another", "1").await,
        // A repeat, a refusal by policy and one by room tell it nothing either.
        worker.reserve_bulk("job", "10").await,
        worker.reserve("nothing", serde_json::json!({"operation": "nothing", "units": 1})).await,
        worker.reserve_bulk("too much", "99").await,
        worker.post(&format!("/v1/reservations/{id}/renew"), serde_json::json!({"attempt": job.token()})).await,
        worker.extend(&job, "20").await,
        worker.call(&job, "another", "1").await,
        worker.settle_call(&job, "call", "1").await,
        worker.settle(&job, "5").await,
        worker
            .post(
                &format!("/v1/reservations/{}/settle", uuid::Uuid::now_v7()),
                serde_json::json!({"attempt": "1.x", "units": 1}),
            )
            .await,
    ];
    for answer in refused {
        let code = answer.problem(401, "unauthenticated");
        assert!(code.body.get("reservation").is_none());
    }
    drop(call);
    assert_eq!(service.books().await, before);
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
