//! Who gets a job, and what is said to who does not.

use spend_ledger_client::{Amount, Error, Evidence, JobState, Request, Retry, TakeOver};

use crate::support::{Fake, Trouble, builder, bulk, client, five, job};

#[tokio::test]
async fn a_job_is_reserved_worked_on_and_settled() {
    let (fake, client, job) = job(30).await;
    assert_eq!((job.id(), job.attempt(), job.state()), ("id-job-1", 1, JobState::Running));
    let done = job.call("c-1", 12).run(five).await.unwrap();
    assert_eq!(done.value, "value");
    assert!(done.report.is_acknowledged());
    let settled = job.settle_calls().await.unwrap();
    assert_eq!((settled.settled, settled.charged), (5.into(), 5.into()));
    let again = client.reserve("job-1", bulk(30)).await.unwrap_err();
    assert!(matches!(again, Error::Ended(reservation) if reservation.settled == 5.into()));
    assert_eq!(fake.all(), ["reserve", "calls", "settle_call", "settle", "reserve"]);
}

#[tokio::test]
async fn what_was_asked_for_is_what_is_sent() {
    let fake = Fake::start().await;
    let client = builder(&fake).account("northstar").holder("w-17").lease_seconds(30).build().unwrap();
    let request = Request::new("export", Amount::quantities([("formats", 3), ("weight", 12)]))
        .member("ann")
        .provider_key("a")
        .reference("order-9")
        .label("team", "reports");
    let _job = client.reserve("job-1", request).await.unwrap();
    let seen = fake.seen("reserve").remove(0);
    assert_eq!(seen.key.as_deref(), Some("job-1"));
    let expected = serde_json::json!({
        "operation": "export", "quantities": { "formats": "3", "weight": "12" }, "account": "northstar",
        "member": "ann", "provider_key": "a", "reference": "order-9", "labels": { "team": "reports" },
        "holder": "w-17", "lease_seconds": 30,
    });
    assert_eq!(seen.json(), expected);
}

#[tokio::test]
async fn a_refusal_says_why_and_is_not_repeated() {
    let fake = Fake::start().await;
    let error = client(&fake).reserve("job-1", bulk(1001)).await.unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!((refusal.status, refusal.code.as_str()), (429, "budget_exhausted"));
    assert_eq!(refusal.retry, Retry::AfterReset);
    assert_eq!(error.to_string(), "budget_exhausted: as the test asked");
    assert_eq!(fake.seen("reserve").len(), 1);
    let error = client(&fake).reserve("two words", bulk(1)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }));
    assert_eq!(fake.seen("reserve").len(), 1);
}

#[tokio::test]
async fn a_job_is_worked_on_once_in_a_process() {
    let (fake, client, first) = job(30).await;
    let second = client.clone().reserve("job-1", bulk(30)).await.unwrap_err();
    assert!(matches!(second, Error::Busy(reservation) if reservation.id == first.id()));
    let other = crate::support::client(&fake).reserve("job-1", bulk(30)).await.unwrap_err();
    let Error::Held(reservation) = other else { panic!("{other}") };
    assert_eq!(reservation.attempt.unwrap().holder, client.holder());
    drop(first);
    let again = client.reserve("job-1", bulk(30)).await.unwrap();
    assert_eq!(again.attempt(), 1);
}

#[tokio::test]
async fn dropping_a_job_says_nothing_and_gives_nothing_back() {
    let (fake, client, job) = job(30).await;
    let handle = job.clone();
    drop(job);
    assert_eq!(handle.state(), JobState::Over);
    let late = handle.call("c-1", 5).run(five).await.unwrap_err();
    assert_eq!(late.to_string(), "the job has stopped: Over");
    let shown = client.reservation("id-job-1").await.unwrap();
    assert_eq!(shown.charged, 30.into());
    assert_eq!(fake.all(), ["reserve", "get"]);
}

#[tokio::test]
async fn a_job_is_taken_over_once_its_lease_has_run_out() {
    let (fake, first, old) = job(30).await;
    let second = client(&fake);
    let Err(Error::Held(held)) = second.reserve("job-1", bulk(30)).await else { panic!("not held") };
    let previous = held.attempt.unwrap().number;
    let early = second.take_over(&held.id, previous, TakeOver::default()).await.unwrap_err();
    assert_eq!(early.code(), Some("lease_current"));
    fake.memory().books.only().lease_out = true;
    let new = second.take_over(&held.id, previous, TakeOver::default()).await.unwrap();
    assert_eq!(new.attempt(), 2);
    // The old worker is told by whatever it asks for next.
    let refused = old.extend(40).await.unwrap_err();
    assert_eq!(refused.code(), Some("stale_attempt"));
    assert_eq!(old.stopped().await, JobState::Lost);
    assert_eq!(new.call("c-1", 12).run(five).await.unwrap().value, "value");
    assert_eq!(new.settle_calls().await.unwrap().settled, 5.into());
    drop(old);
    assert!(matches!(first.reserve("job-1", bulk(30)).await, Err(Error::Ended(_))));
}

#[tokio::test]
async fn a_takeover_says_what_it_knows() {
    let fake = Fake::with(crate::support::Books { worker_enforcement: true, ..Default::default() }).await;
    let job = client(&fake).reserve("job-1", bulk(50)).await.unwrap();
    fake.memory().books.only().lease_out = true;
    let second = builder(&fake).holder("w-2").build().unwrap();
    let refused = second.take_over(job.id(), 1, TakeOver::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some("evidence_required"));
    let evidence = Some(Evidence::ProcessStopped("exit code 137".to_owned()));
    let stated = TakeOver { evidence, outstanding: Some(20.into()) };
    fake.trouble("attempts", [Trouble::Doubt]);
    let taken = second.take_over(job.id(), 1, stated).await.unwrap();
    let seen = fake.seen("attempts");
    assert_eq!(seen[1].body, seen[2].body);
    let expected = serde_json::json!({
        "previous": 1, "holder": "w-2", "lease_seconds": 60, "outstanding": "20",
        "evidence": { "kind": "process_stopped", "detail": "exit code 137" },
    });
    assert_eq!(seen[1].json(), expected);
    taken.progress(7).await.unwrap();
    assert_eq!(taken.settle(25).await.unwrap().settled, 25.into());
    assert_eq!(fake.seen("settle")[0].json()["final"], false);
}
