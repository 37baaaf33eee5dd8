//! Leases: kept while the job lives, and what is learnt by keeping them.

use std::time::Duration;

use spend_ledger_client::{Client, JobState};

use crate::support::{Clock, Fake, Trouble, builder, bulk};

const SECOND: Duration = Duration::from_secs(1);

/// Patient beyond all that these tests do with time.
fn client(fake: &Fake) -> Client {
    builder(fake).try_timeout(SECOND * 3600).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_after_every_third_of_it() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let job = client(&fake).reserve("job-1", bulk(10)).await.unwrap();
    clock.until(fake.sees("renew", 3)).await;
    let start = fake.seen("reserve")[0].at;
    for (n, renewal) in fake.seen("renew").iter().enumerate() {
        let after = renewal.at - start;
        let due = SECOND * 20 * (u32::try_from(n).unwrap() + 1);
        assert!((due - SECOND / 2..due + SECOND).contains(&after), "{after:?} instead of {due:?}");
        assert_eq!(renewal.json()["lease_seconds"], 60);
    }
    assert!(job.lease_left() > SECOND * 35, "{:?}", job.lease_left());
    drop(job);
    clock.pass(SECOND * 60).await;
    assert_eq!(fake.seen("renew").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn renewing_goes_on_through_a_long_outage() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let job = client(&fake).reserve("job-1", bulk(10)).await.unwrap();
    fake.trouble("renew", vec![Trouble::Busy(10); 12]);
    clock.until(fake.sees("renew", 12)).await;
    assert_eq!((job.state(), job.lease_left()), (JobState::Running, Duration::ZERO));
    clock.until(fake.sees("renew", 14)).await;
    assert!(job.lease_left() > SECOND * 30);
}

#[tokio::test(start_paused = true)]
async fn renewing_waits_for_as_long_as_the_service_asks() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let job = client(&fake).reserve("job-1", bulk(10)).await.unwrap();
    // Longer than a renewal is repeated.
    fake.trouble("renew", [Trouble::Busy(30)]);
    clock.until(fake.sees("renew", 2)).await;
    let seen = fake.seen("renew");
    let pause = seen[1].at - seen[0].at;
    assert!((SECOND * 30..SECOND * 31).contains(&pause), "{pause:?}");
    assert_eq!(job.state(), JobState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_learnt_by_renewing() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let client = client(&fake);
    let job = client.reserve("job-1", bulk(10)).await.unwrap();
    let mut watched = job.watch();
    client.cancel(job.id(), None).await.unwrap();
    assert_eq!(clock.until(job.stopped()).await, JobState::Cancelled);
    assert!(watched.has_changed().unwrap());
    assert_eq!(*watched.borrow_and_update(), JobState::Cancelled);
    // There is nothing left to renew.
    clock.pass(SECOND * 60).await;
    assert_eq!(fake.seen("renew").len(), 1);
    assert_eq!(job.settle_calls().await.unwrap().charged, 0.into());
}

#[tokio::test(start_paused = true)]
async fn a_takeover_is_learnt_by_renewing() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let job = client(&fake).reserve("job-1", bulk(10)).await.unwrap();
    fake.memory().books.only().lease_out = true;
    let new = client(&fake).take_over(job.id(), 1, Default::default()).await.unwrap();
    assert_eq!(clock.until(job.stopped()).await, JobState::Lost);
    assert_eq!(new.state(), JobState::Running);
}

#[tokio::test(start_paused = true)]
async fn what_was_had_before_is_renewed_at_once() {
    let _clock = Clock::stopped();
    let fake = Fake::start().await;
    let client = client(&fake);
    drop(client.reserve("job-1", bulk(10)).await.unwrap());
    let job = client.reserve("job-1", bulk(10)).await.unwrap();
    // No time passes.
    fake.sees("renew", 1).await;
    assert_eq!(job.state(), JobState::Running);
}
