//! Calls: admitted first, paid once, and never hidden.

use std::future::pending;

use spend_ledger_client::{CallError, CallItem, CallState, Error, Failure, JobState, Paid, Report};
use tokio::sync::{oneshot, watch};

use crate::support::{Trouble, broken, builder, bulk, five, job, never};

#[tokio::test]
async fn a_call_above_the_ceiling_is_refused_or_extends_it() {
    let (fake, _client, job) = job(12).await;
    job.call("c-1", 10).run(five).await.unwrap();
    let error = job.call("c-2", 8).run(never).await.unwrap_err();
    let CallError::NotAdmitted(Error::Refused(refusal)) = error else { panic!("{error}") };
    assert_eq!((refusal.code.as_str(), refusal.amount("remaining")), ("ceiling_reached", Some(7.into())));
    // The refusal leaves the key unused.
    job.call("c-2", 8).extend().run(five).await.unwrap();
    assert_eq!(fake.seen("calls")[2].json()["extend"], true);
    let error = job.call("c-3", 2000).extend().run(never).await.unwrap_err();
    assert!(matches!(error, CallError::NotAdmitted(error) if error.code() == Some("budget_exhausted")));
    assert_eq!(job.settle_calls().await.unwrap().settled, 10.into());
}

#[tokio::test]
async fn a_key_is_paid_for_once() {
    let (fake, client, job) = job(30).await;
    job.call("c-1", 10).run(five).await.unwrap();
    let again = job.call("c-1", 10).run(never).await.unwrap_err();
    assert!(matches!(again, CallError::AlreadyAdmitted { call: None, .. }), "{again}");
    assert_eq!(fake.seen("calls").len(), 1);
    // After the job was dropped only the service remembers.
    drop(job);
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    let again = job.call("c-1", 10).run(never).await.unwrap_err();
    assert!(matches!(again, CallError::AlreadyAdmitted { call: Some(call), .. } if call.state == CallState::Settled));
}

#[tokio::test]
async fn a_repeat_is_paid_for_only_if_nobody_else_can_have() {
    let (fake, _client, _job) = job(30).await;
    // A process that was restarted under its name, and died between yes and paying.
    let reserve = async || builder(&fake).holder("w-1").build().unwrap().reserve("job-2", bulk(30)).await.unwrap();
    let before = reserve().await;
    let (sent, mut paying) = oneshot::channel();
    let handle = before.clone();
    let life = tokio::spawn(async move {
        let pay = || async {
            sent.send(()).unwrap();
            pending().await
        };
        handle.call("c-1", 10).run::<(), std::io::Error, _, _>(pay).await.map(|_| ())
    });
    (&mut paying).await.unwrap();
    // The answer to its first try is lost: the call could be either's.
    let after = reserve().await;
    fake.trouble("calls", [Trouble::Doubt]);
    let error = after.call("c-1", 10).run(never).await.unwrap_err();
    assert!(matches!(&error, CallError::AlreadyAdmitted { call: Some(call), .. } if call.state == CallState::InFlight));
    let early = after.settle_calls().await.unwrap_err();
    assert_eq!(early.error.code(), Some("calls_in_flight"));
    assert_eq!(early.job.call_unknown("c-1").await.unwrap().state, CallState::Unknown);
    assert_eq!(early.job.settle_calls().await.unwrap().charged, 10.into());
    life.abort();
}

#[tokio::test]
async fn what_the_service_has_repeated_within_is_this_jobs_own() {
    let (fake, client, job) = job(30).await;
    fake.trouble("calls", [Trouble::Repeated]);
    job.call("c-1", 10).run(five).await.unwrap();
    assert_eq!(fake.seen("calls").len(), 1);
    // Not if another job may have asked for it.
    drop(job);
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("calls", [Trouble::Repeated]);
    let error = job.call("c-2", 10).run(never).await.unwrap_err();
    assert!(matches!(&error, CallError::AlreadyAdmitted { call: Some(call), .. } if call.state == CallState::InFlight));
}

#[tokio::test]
async fn calls_in_flight_are_found_and_ended() {
    let (fake, _client, _job) = job(30).await;
    let restarted = async || builder(&fake).holder("w-1").build().unwrap().reserve("job-2", bulk(30)).await.unwrap();
    let before = restarted().await;
    before.call("c-0", 6).run(five).await.unwrap();
    let paying: Vec<_> = ["c-1", "c-2", "c-3"]
        .map(|key| {
            let handle = before.clone();
            tokio::spawn(async move { handle.call(key, 6).run::<(), std::io::Error, _, _>(pending).await.map(|_| ()) })
        })
        .into();
    for key in ["c-1", "c-2", "c-3"] {
        fake.call_is(key, "in_flight").await;
    }
    let job = restarted().await;
    let unsettled = job.settle_calls().await.unwrap_err();
    assert_eq!(unsettled.error.code(), Some("calls_in_flight"));
    let job = unsettled.job;
    let keys = |calls: Vec<CallItem>| calls.into_iter().map(|call| call.call).collect::<Vec<_>>();
    assert_eq!(keys(job.calls(None).await.unwrap()), ["c-0", "c-1", "c-2", "c-3"]);
    let in_flight = job.calls(CallState::InFlight).await.unwrap();
    assert_eq!((in_flight[0].units, in_flight[0].attempt, in_flight[0].actual), (6.into(), 1, None));
    for call in keys(in_flight) {
        job.call_unknown(&call).await.unwrap();
    }
    assert_eq!(keys(job.calls(CallState::Settled).await.unwrap()), ["c-0"]);
    assert!(matches!(job.calls(CallState::Other).await, Err(Error::Invalid { .. })));
    let fenced = job.settle_calls().await.unwrap();
    assert_eq!((fenced.settled, fenced.unknown), (5.into(), 18.into()));
    paying.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_failed_request_is_unknown_unless_it_was_not_sent() {
    let (fake, _client, job) = job(30).await;
    let fails: fn() -> Result<u32, std::io::Error> = || Err(broken());
    let call = job.call("c-1", 10).run(|| async move {
        let cost = fails()?;
        Ok(Paid::new(cost, "value"))
    });
    let error = call.await.unwrap_err();
    assert!(matches!(&error, CallError::Unknown { report, .. } if report.is_acknowledged()));
    assert_eq!(error.to_string(), "the paid request failed: connection reset");
    let not_sent = || async { Err::<Paid<()>, _>(Failure::NotSent(broken())) };
    let error = job.call("c-2", 10).run(not_sent).await.unwrap_err();
    assert!(
        matches!(error, CallError::NotSent { report: Report::Acknowledged(call), .. } if call.remaining == 20.into())
    );
    // Found out later from the provider.
    job.settle_call("c-1", 3).await.unwrap();
    assert_eq!(job.settle_calls().await.unwrap().settled, 3.into());
    assert_eq!(fake.memory().books.only().calls["c-1"].actual, Some(3));
}

#[tokio::test]
async fn a_paid_request_that_is_dropped_is_unknown() {
    let (fake, _client, job) = job(30).await;
    let handle = job.clone();
    let (sent, paying) = oneshot::channel();
    let task = tokio::spawn(async move {
        let pay = || async {
            sent.send(()).unwrap();
            pending().await
        };
        handle.call("c-1", 10).run::<(), std::io::Error, _, _>(pay).await.map(|_| ())
    });
    paying.await.unwrap();
    task.abort();
    fake.call_is("c-1", "unknown").await;
    let fenced = job.settle_calls().await.unwrap();
    assert_eq!((fenced.charged, fenced.unknown), (10.into(), 10.into()));
}

#[tokio::test]
async fn a_paid_request_that_panics_is_unknown() {
    let (fake, _client, job) = job(30).await;
    let handle = job.clone();
    let task = tokio::spawn(async move { handle.call("c-1", 10).run(never).await.map(|_| ()) });
    assert!(task.await.unwrap_err().is_panic());
    fake.call_is("c-1", "unknown").await;
    let handle = job.clone();
    let at_once =
        || -> std::future::Ready<Result<Paid<()>, Failure<std::io::Error>>> { panic!("before there was a future") };
    let task = tokio::spawn(async move { handle.call("c-2", 10).run(at_once).await.map(|_| ()) });
    assert!(task.await.unwrap_err().is_panic());
    fake.call_is("c-2", "unknown").await;
}

#[tokio::test]
async fn a_drop_that_could_not_be_reported_is_reported_before_settling() {
    let fake = crate::support::Fake::start().await;
    let client = builder(&fake).retry_for(std::time::Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("settle_call", [Trouble::Busy(0)]);
    {
        let call = job.call("c-1", 10).run::<(), std::io::Error, _, _>(pending);
        let never = tokio::time::timeout(std::time::Duration::from_millis(100), call).await;
        assert!(never.is_err());
    }
    fake.sees("settle_call", 1).await;
    assert_eq!(job.settle_calls().await.unwrap().unknown, 10.into());
}

#[tokio::test]
async fn dropped_before_the_ledgers_yes_nothing_is_paid_and_the_key_is_free() {
    let (fake, _client, job) = job(30).await;
    let (open, gate) = watch::channel(false);
    fake.trouble("calls", [Trouble::Held(gate)]);
    {
        let mut call = std::pin::pin!(job.call("c-1", 10).run(never));
        tokio::select! {
            _ = &mut call => panic!("answered"),
            () = fake.sees("calls", 1) => {}
        }
    }
    open.send(true).unwrap();
    job.call("c-1", 10).run(five).await.unwrap();
    assert_eq!(job.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn a_stopped_job_pays_for_nothing() {
    let (fake, client, job) = job(30).await;
    client.cancel(job.id(), Some("the user closed the tab")).await.unwrap();
    assert_eq!(fake.seen("cancel")[0].json()["reason"], "the user closed the tab");
    assert_eq!(job.state(), JobState::Running);
    let told = job.call("c-1", 10).run(never).await.unwrap_err();
    assert!(matches!(told, CallError::Stopped(JobState::Cancelled)), "{told}");
    assert_eq!(fake.seen("calls").len(), 1);
    let here = job.call("c-2", 10).run(never).await.unwrap_err();
    assert!(matches!(here, CallError::Stopped(JobState::Cancelled)));
    assert_eq!(fake.seen("calls").len(), 1);
    assert_eq!(job.settle_calls().await.unwrap().charged, 0.into());
}

#[tokio::test]
async fn a_cancel_that_is_learnt_while_the_ledger_says_yes_is_in_time() {
    let (fake, _client, job) = job(30).await;
    let (open, gate) = watch::channel(false);
    fake.trouble("calls", [Trouble::Held(gate)]);
    let handle = job.clone();
    let call = tokio::spawn(async move { handle.call("c-1", 10).run(never).await.map(|_| ()) });
    fake.sees("calls", 1).await;
    // As if the yes had been decided first and were on its way for longer.
    job.cancel(None).await.unwrap();
    fake.memory().books.only().state = "active";
    open.send(true).unwrap();
    assert!(matches!(call.await.unwrap(), Err(CallError::Stopped(JobState::Cancelled))));
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("not_sent"));
}

#[tokio::test]
async fn a_call_of_an_earlier_attempt_is_not_repeated() {
    let (fake, _client, old) = job(30).await;
    old.call("c-1", 10).run(five).await.unwrap();
    fake.memory().books.only().lease_out = true;
    let new = crate::support::client(&fake).take_over(old.id(), 1, Default::default()).await.unwrap();
    let error = new.call("c-1", 10).run(never).await.unwrap_err();
    assert!(matches!(&error, CallError::NotAdmitted(error) if error.code() == Some("call_key_taken")), "{error}");
    // Its token is stale for the other attempt's call, and for nothing else.
    assert_eq!(new.settle_call("c-1", 4).await.unwrap_err().code(), Some("stale_attempt"));
    assert_eq!(new.state(), JobState::Running);
    // What the old attempt was admitted for it may still settle, but not ask for more.
    let stale = old.call("c-2", 10).run(never).await.unwrap_err();
    assert!(matches!(stale, CallError::Stopped(JobState::Lost)), "{stale}");
}

#[tokio::test]
async fn keys_that_no_address_can_hold_are_refused_here() {
    let (fake, _client, job) = job(30).await;
    for key in ["", ".", "..", "two words", "é"] {
        let error = job.call(key, 1).run(never).await.unwrap_err();
        assert!(matches!(error, CallError::NotAdmitted(Error::Invalid { .. })), "{key}");
    }
    assert_eq!(fake.all(), ["reserve"]);
    let done = job.call("a/b?c=%20#d", 6).run(five).await.unwrap();
    assert!(done.report.is_acknowledged());
    assert_eq!(fake.memory().books.call_state("a/b?c=%20#d").as_deref(), Some("settled"));
}
