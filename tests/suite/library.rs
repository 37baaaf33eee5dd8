//! The workers' library against the real service: what it promises is what the
//! books say.

use std::future::pending;
use std::time::Duration;

use spend_ledger_client as library;
use spend_ledger_client::{Amount, CallError, CallState, Error, Failure, JobState, Paid, Request, TakeOver};
use tokio::sync::oneshot;

use crate::support::{Client, NORTHSTAR, Service};

type Answered = Result<Paid<&'static str>, Failure<std::io::Error>>;

/// The library with the key of a client.
fn library(service: &Service, client: &Client, lease_seconds: u32) -> library::Client {
    let builder = library::Client::builder(format!("http://{}", service.address), client.key.as_str());
    builder.lease_seconds(lease_seconds).build().unwrap()
}

fn export() -> Request {
    Request::new("export", Amount::quantities([("formats", 3), ("weight", 12)])).reference("three formats")
}

async fn costs(units: u32) -> Answered {
    Ok(Paid::new(units, "value").provider_request_id("req-1"))
}

async fn never() -> Answered {
    panic!("paid for");
}

/// settled, reserved, liability, available.
async fn daily(client: &Client) -> [String; 4] {
    client.balance("northstar", "daily", None).await
}

#[tokio::test]
async fn calls_end_as_they_ended() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let client = library(&service, &worker, 60);
    let job = client.reserve("job-1", export()).await.unwrap();
    assert_eq!(job.reservation().enforcement, library::Enforcement::Calls);
    let done = job.call("settled", 12).run(|| costs(11)).await.unwrap();
    assert!(done.report.is_acknowledged());
    let not_sent = async || Answered::Err(Failure::NotSent(std::io::Error::other("no route")));
    assert!(
        matches!(job.call("not/sent?", 12).run(not_sent).await, Err(CallError::NotSent { report, .. }) if report.is_acknowledged())
    );
    let (pays, paying) = oneshot::channel();
    let forever = || {
        pays.send(()).unwrap();
        pending::<Answered>()
    };
    tokio::select! {
        _ = job.call("dropped", 12).run(forever) => panic!("ended"),
        paying = paying => paying.unwrap(),
    }
    let error = job.call("too-much", 30).run(never).await.unwrap_err();
    let CallError::NotAdmitted(Error::Refused(refusal)) = error else { panic!("{error}") };
    assert_eq!((refusal.code.as_str(), refusal.amount("remaining")), ("ceiling_reached", Some(13.into())));
    job.call("quantities", Amount::quantities([("formats", 2), ("weight", 10)]))
        .extend()
        .run(|| costs(20))
        .await
        .unwrap();
    let again = job.call("settled", 12).run(never).await.unwrap_err();
    assert!(matches!(again, CallError::AlreadyAdmitted { .. }));
    let keys = |calls: Vec<library::CallItem>| calls.into_iter().map(|call| call.call).collect::<Vec<_>>();
    assert_eq!(keys(job.calls(None).await.unwrap()), ["quantities", "dropped", "not/sent?", "settled"]);
    let handle = job.clone();
    let fenced = job.settle_calls().await.unwrap();
    assert_eq!((fenced.state, fenced.unknown), (library::ReservationState::Fenced, 12.into()));
    let over = client.reserve("job-1", export()).await.unwrap_err();
    assert!(matches!(over, Error::Ended(reservation) if reservation.state == fenced.state));
    let unknown = handle.calls(CallState::Unknown).await.unwrap();
    assert_eq!((unknown[0].units, keys(unknown)), (12.into(), vec!["dropped".to_owned()]));
    assert_eq!(daily(&worker).await, ["31", "0", "12", "57"]);
    service.books().await;
}

#[tokio::test]
async fn a_cancelled_job_stops_and_settles() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    // A short lease: a cancel is learnt within two seconds.
    let client = library(&service, &worker, 5);
    let job = client.reserve("job-1", export()).await.unwrap();
    job.call("c-1", 12).run(|| costs(12)).await.unwrap();
    let outside = library(&service, &worker, 60);
    outside.cancel(job.id(), Some("the user has left")).await.unwrap();
    assert_eq!(daily(&worker).await, ["12", "0", "24", "64"]);
    let stopped = tokio::time::timeout(Duration::from_secs(60), job.stopped()).await;
    assert_eq!(stopped.unwrap(), JobState::Cancelled);
    assert!(matches!(job.call("c-2", 12).run(never).await, Err(CallError::Stopped(JobState::Cancelled))));
    job.settle_calls().await.unwrap();
    assert_eq!(daily(&worker).await, ["12", "0", "0", "88"]);
    assert!(matches!(client.reserve("job-1", export()).await, Err(Error::Ended(_))));
    service.books().await;
}

#[tokio::test]
async fn a_job_that_was_abandoned_is_taken_over() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T10:00:00Z").await;
    let first = library(&service, &worker, 60);
    let second = library(&service, &worker, 60);
    let job = first.reserve("job-1", export()).await.unwrap();
    job.call("c-1", 12).run(|| costs(12)).await.unwrap();
    let old = job.clone();
    drop(job);
    let Err(Error::Held(held)) = second.reserve("job-1", export()).await else { panic!("not held") };
    let early = second.take_over(&held.id, 1, TakeOver::default()).await.unwrap_err();
    assert_eq!(early.code(), Some("lease_current"));
    service.database.set_clock("2026-03-03T10:01:01Z").await;
    let new = second.take_over(&held.id, 1, TakeOver::default()).await.unwrap();
    assert_eq!(new.attempt(), 2);
    let taken = new.call("c-1", 12).run(never).await.unwrap_err();
    assert!(matches!(taken, CallError::NotAdmitted(error) if error.code() == Some("call_key_taken")));
    assert_eq!(old.extend(60).await.unwrap_err().code(), Some("stale_attempt"));
    assert_eq!(old.settle_call("c-1", 12).await.unwrap().actual, Some(12.into()));
    new.call("c-2", 12).run(|| costs(10)).await.unwrap();
    assert_eq!(new.settle_calls().await.unwrap().settled, 22.into());
    assert_eq!(daily(&worker).await, ["22", "0", "0", "78"]);
    service.books().await;
}

#[tokio::test]
async fn a_job_that_was_dropped_is_gone_on_with() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let client = library(&service, &worker, 60);
    let job = client.reserve("job-1", export()).await.unwrap();
    job.call("c-1", 12).run(|| costs(11)).await.unwrap();
    drop(job);
    let job = client.reserve("job-1", export()).await.unwrap();
    let again = job.call("c-1", 12).run(never).await.unwrap_err();
    assert!(matches!(again, CallError::AlreadyAdmitted { call: Some(call), .. } if call.state == CallState::Settled));
    let other = client.reserve("job-1", Request::new("bulk", 3)).await.unwrap_err();
    assert_eq!(other.refusal().map(|refusal| refusal.status), Some(422));
    let other = job.call("c-2", 12).run(|| costs(10)).await.unwrap();
    assert!(other.report.is_acknowledged());
    assert_eq!(job.settle_calls().await.unwrap().settled, 21.into());
    assert_eq!(daily(&worker).await, ["21", "0", "0", "79"]);
    service.books().await;
}

#[tokio::test]
async fn usage_is_reported_where_the_worker_calls_the_provider() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let client = library(&service, &worker, 60);
    let job = client.reserve("job-1", Request::new("stream", 20)).await.unwrap();
    assert_eq!(job.reservation().enforcement, library::Enforcement::Worker);
    job.progress(15).await.unwrap();
    job.extend(30).await.unwrap();
    assert_eq!(job.progress(10).await.unwrap_err().code(), Some("usage_decreases"));
    assert_eq!(job.settle(25).await.unwrap().settled, 25.into());
    assert_eq!(daily(&worker).await, ["25", "0", "0", "75"]);
    service.books().await;
}
