//! Jobs that are dropped before what they started has ended.

use std::time::Duration;

use spend_ledger_client::{CallError, CallState, Client, Error, Failure, Job, JobState, Paid, Report, TakeOver};
use tokio::sync::{oneshot, watch};

use crate::support::{Fake, Trouble, broken, builder, bulk, client, five, in_time, never};

/// A job of a client that asks once.
async fn impatient() -> (Fake, Client, Job) {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    (fake, client, job)
}

/// A job whose call `c-1` has cost 5, which the service could not be told.
async fn untold() -> (Fake, Client, Job) {
    let (fake, client, job) = impatient().await;
    fake.trouble("settle_call", [Trouble::Busy(0)]);
    let done = job.call("c-1", 6).run(five).await.unwrap();
    assert!(matches!(done.report, Report::Pending(Error::Unreachable { .. })));
    (fake, client, job)
}

#[tokio::test]
async fn a_handle_of_a_dropped_job_says_nothing_of_the_next_ones_call() {
    let fake = Fake::start().await;
    let client = builder(&fake).try_timeout(Duration::from_secs(60)).build().unwrap();
    let first = client.reserve("job-1", bulk(30)).await.unwrap();
    // Its first try is not decided, and its second not before the gate opens.
    let (open, gate) = watch::channel(false);
    fake.trouble("calls", [Trouble::Busy(0), Trouble::Held(gate)]);
    let handle = first.clone();
    let stale = tokio::spawn(async move { handle.call("c-1", 10).run(never).await.map(|_| ()) });
    fake.sees("calls", 2).await;
    drop(first);
    let second = client.reserve("job-1", bulk(30)).await.unwrap();
    let (sent, paying) = oneshot::channel();
    let (paid, bill) = oneshot::channel::<()>();
    let handle = second.clone();
    let call = tokio::spawn(async move {
        let pay = || async {
            sent.send(()).unwrap();
            bill.await.unwrap();
            five().await
        };
        handle.call("c-1", 10).run(pay).await
    });
    paying.await.unwrap();
    open.send(true).unwrap();
    let told = in_time(stale).await.unwrap().unwrap_err();
    assert!(matches!(&told, CallError::AlreadyAdmitted { call: Some(call), .. } if call.state == CallState::InFlight));
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("in_flight"));
    paid.send(()).unwrap();
    assert!(call.await.unwrap().unwrap().report.is_acknowledged());
    assert_eq!(fake.seen("settle_call").len(), 1);
    assert_eq!(second.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn what_was_admitted_for_a_job_that_was_dropped_meanwhile_is_not_paid() {
    let fake = Fake::start().await;
    let client = builder(&fake).try_timeout(Duration::from_secs(60)).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    let (open, gate) = watch::channel(false);
    fake.trouble("calls", [Trouble::Held(gate)]);
    let handle = job.clone();
    let call = tokio::spawn(async move { handle.call("c-1", 10).run(never).await.map(|_| ()) });
    fake.sees("calls", 1).await;
    drop(job);
    open.send(true).unwrap();
    assert!(matches!(in_time(call).await.unwrap(), Err(CallError::Stopped(JobState::Over))));
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("not_sent"));
}

#[tokio::test]
async fn what_was_paid_is_told_when_the_job_is_dropped() {
    let (fake, client, job) = untold().await;
    drop(job);
    fake.call_is("c-1", "settled").await;
    let again = client.reserve("job-1", bulk(30)).await.unwrap();
    assert_eq!(again.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn what_was_paid_is_told_by_the_next_job() {
    let (fake, client, job) = untold().await;
    fake.trouble("settle_call", [Trouble::Busy(0), Trouble::Busy(0)]);
    // As by `?` on a job that cannot be settled.
    let unsettled = job.settle_calls().await.unwrap_err();
    drop(unsettled);
    fake.sees("settle_call", 3).await;
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("in_flight"));
    let next = client.reserve("job-1", bulk(30)).await.unwrap();
    // Its key is not free before that is told.
    let again = next.call("c-1", 6).run(never).await.unwrap_err();
    assert!(matches!(again, CallError::AlreadyAdmitted { call: None, .. }), "{again}");
    assert_eq!(next.settle_calls().await.unwrap().settled, 5.into());
    assert_eq!(fake.seen("settle_call").len(), 4);
}

#[tokio::test]
async fn what_is_paid_after_the_job_was_dropped_is_told_by_the_next_job() {
    let (fake, client, job) = impatient().await;
    let (sent, paying) = oneshot::channel();
    let (paid, bill) = oneshot::channel::<()>();
    let handle = job.clone();
    let call = tokio::spawn(async move {
        let pay = || async {
            sent.send(()).unwrap();
            bill.await.unwrap();
            five().await
        };
        handle.call("c-1", 6).run(pay).await
    });
    paying.await.unwrap();
    drop(job);
    let next = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("settle_call", [Trouble::Busy(0)]);
    paid.send(()).unwrap();
    assert!(matches!(call.await.unwrap().unwrap().report, Report::Pending(_)));
    assert_eq!(next.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn what_a_lost_job_paid_is_told_by_its_client() {
    let (fake, client, job) = untold().await;
    fake.memory().books.only().lease_out = true;
    let _new = crate::support::client(&fake).take_over(job.id(), 1, TakeOver::default()).await.unwrap();
    fake.trouble("settle_call", [Trouble::Busy(0), Trouble::Busy(0)]);
    drop(job);
    fake.sees("settle_call", 2).await;
    let id = "id-job-1";
    assert_eq!(client.reservation(id).await.unwrap().attempt.unwrap().number, 2);
    assert!(matches!(client.deliver_reports().await, Err(Error::Unreachable { .. })));
    client.deliver_reports().await.unwrap();
    assert_eq!(fake.memory().books.only().settled, 5);
    client.deliver_reports().await.unwrap();
    assert_eq!(fake.seen("settle_call").len(), 4);
}

#[tokio::test]
async fn what_was_paid_is_told_once_the_process_is_let_in_again() {
    let (fake, _client, job) = impatient().await;
    fake.trouble("settle_call", [Trouble::Refused(401, "unauthenticated")]);
    let done = job.call("c-1", 6).run(five).await.unwrap();
    assert!(matches!(done.report, Report::Pending(error) if error.code() == Some("unauthenticated")));
    assert_eq!(job.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn a_dropped_jobs_unanswered_call_is_withdrawn_by_the_next_job() {
    let (fake, client, job) = impatient().await;
    fake.trouble("calls", [Trouble::Doubt]);
    assert!(matches!(job.call("c-1", 6).run(never).await, Err(CallError::NotAdmitted(_))));
    drop(job);
    let next = client.reserve("job-1", bulk(30)).await.unwrap();
    // It could have been paid by a task of the first one, for all that this one knows.
    let fenced = next.settle_calls().await.unwrap();
    assert_eq!((fenced.charged, fenced.unknown), (6.into(), 6.into()));
}

#[tokio::test]
async fn a_fenced_reservation_is_over_once_its_calls_are_told() {
    let (fake, client, job) = impatient().await;
    let handle = job.clone();
    let unknown = || async { Err::<Paid<()>, _>(Failure::Unknown(broken())) };
    assert!(matches!(job.call("c-1", 6).run(unknown).await, Err(CallError::Unknown { .. })));
    assert_eq!(job.settle_calls().await.unwrap().unknown, 6.into());
    let again = client.reserve("job-1", bulk(30)).await.unwrap_err();
    assert!(matches!(again, Error::Ended(reservation) if reservation.unknown == 6.into()));
    // Who finds out what the call has cost can still say so.
    handle.settle_call("c-1", 4).await.unwrap();
    assert_eq!(fake.memory().books.only().state, "settled");
}

#[tokio::test]
async fn a_fenced_reservation_is_this_processs_while_it_has_something_to_tell() {
    let (fake, client, job) = untold().await;
    fake.memory().books.only().state = "fenced";
    assert!(matches!(client.reserve("job-1", bulk(30)).await, Err(Error::Busy(_))));
    fake.trouble("settle_call", [Trouble::Busy(0)]);
    drop(job);
    fake.sees("settle_call", 2).await;
    let next = client.reserve("job-1", bulk(30)).await.unwrap();
    assert_eq!(next.state(), JobState::Cancelled);
    assert_eq!(next.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn a_fenced_worker_that_calls_the_provider_itself_can_say_what_it_used() {
    let fake = Fake::with(crate::support::Books { worker_enforcement: true, ..Default::default() }).await;
    let restarted = async || builder(&fake).holder("w-1").build().unwrap().reserve("job-1", bulk(30)).await;
    drop(restarted().await.unwrap());
    fake.memory().books.only().state = "fenced";
    let job = restarted().await.unwrap();
    assert_eq!(job.state(), JobState::Cancelled);
    assert_eq!(job.settle(12).await.unwrap().settled, 12.into());
    assert!(matches!(client(&fake).reserve("job-1", bulk(30)).await, Err(Error::Ended(_))));
}
