//! Answers that are lost, and services that are in trouble.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use spend_ledger_client::{CallError, CallState, Error, Failure, JobState, Paid, Report, TakeOver};

use crate::support::{Clock, Fake, Trouble, builder, bulk, client, five, in_time, job, never};

#[tokio::test]
async fn every_verb_recovers_its_lost_answers() {
    let fake = Fake::start().await;
    for verb in ["reserve", "calls", "settle_call", "extend", "cancel", "settle"] {
        fake.trouble(verb, [Trouble::Doubt, Trouble::Lost]);
    }
    let job = client(&fake).reserve("job-1", bulk(10)).await.unwrap();
    let paid = AtomicU32::new(0);
    let pay = || async {
        paid.fetch_add(1, Ordering::Relaxed);
        five().await
    };
    let done = job.call("c-1", 6).run(pay).await.unwrap();
    assert!(matches!(done.report, Report::Acknowledged(call) if call.state == CallState::Settled));
    assert_eq!(paid.load(Ordering::Relaxed), 1);
    assert_eq!(job.extend(20).await.unwrap().ceiling, 20.into());
    job.cancel(None).await.unwrap();
    assert_eq!(job.settle_calls().await.unwrap().settled, 5.into());
    for verb in ["reserve", "calls", "settle_call", "extend", "cancel", "settle"] {
        let seen = fake.seen(verb);
        assert_eq!(seen.len(), 3, "{verb}");
        assert!(seen.iter().all(|try_| (&try_.body, &try_.key) == (&seen[0].body, &seen[0].key)), "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_is_asked_again_when_it_said_and_not_for_ever() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let client = builder(&fake).try_timeout(Duration::from_secs(300)).build().unwrap();
    fake.trouble("reserve", [Trouble::Busy(7), Trouble::Busy(0)]);
    let job = clock.until(client.reserve("job-1", bulk(10))).await.unwrap();
    let seen = fake.seen("reserve");
    let pauses = [seen[1].at - seen[0].at, seen[2].at - seen[1].at];
    assert!((Duration::from_secs(7)..Duration::from_secs(8)).contains(&pauses[0]), "{pauses:?}");
    assert!(pauses[1] < Duration::from_secs(1), "{pauses:?}");

    fake.trouble("extend", vec![Trouble::Busy(5); 100]);
    let error = clock.until(job.extend(20)).await.unwrap_err();
    let Error::Unreachable { tries, reason, retry_after } = error else { panic!("{error}") };
    assert_eq!((reason.as_str(), retry_after), ("answered 503 (overloaded)", Some(Duration::from_secs(5))));
    assert!((11..=13).contains(&tries), "{tries}");
    let seen = fake.seen("extend");
    let all = seen[seen.len() - 1].at - seen[0].at;
    assert!((Duration::from_secs(50)..Duration::from_secs(61)).contains(&all), "{all:?}");
    assert!(seen.windows(2).all(|two| two[1].at - two[0].at >= Duration::from_secs(5)));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_for_more_patience_than_there_is_is_not_asked_again() {
    let clock = Clock::stopped();
    let fake = Fake::start().await;
    let client = builder(&fake).try_timeout(Duration::from_secs(300)).build().unwrap();
    fake.trouble("reserve", [Trouble::Busy(61)]);
    // No time passes.
    let error = in_time(client.reserve("job-1", bulk(10))).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { tries: 1, retry_after: Some(after), .. } if after.as_secs() == 61));
    // Without such a wish a last try comes at the end.
    fake.trouble("reserve", vec![Trouble::Refused(503, "overloaded"); 1000]);
    let asked = tokio::time::Instant::now();
    let error = clock.until(client.reserve("job-1", bulk(10))).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { retry_after: None, .. }), "{error}");
    let last = fake.seen("reserve").pop().unwrap().at - asked;
    assert!((Duration::from_secs(60)..Duration::from_secs(61)).contains(&last), "{last:?}");
}

#[tokio::test]
async fn what_may_have_been_admitted_is_asked_again_under_its_key() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(10)).await.unwrap();
    fake.trouble("calls", [Trouble::Doubt]);
    let error = job.call("c-1", 6).run(never).await.unwrap_err();
    assert!(matches!(error, CallError::NotAdmitted(Error::Unreachable { .. })), "{error}");
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("in_flight"));
    assert_eq!(job.call("c-1", 6).run(five).await.unwrap().value, "value");
    assert_eq!(job.settle_calls().await.unwrap().settled, 5.into());
}

#[tokio::test]
async fn what_may_have_been_admitted_and_was_not_paid_is_withdrawn() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("calls", [Trouble::Doubt, Trouble::Busy(0)]);
    for key in ["admitted", "not-admitted"] {
        assert!(matches!(job.call(key, 6).run(never).await, Err(CallError::NotAdmitted(_))));
    }
    let settled = job.settle_calls().await.unwrap();
    assert_eq!(settled.charged, 0.into());
    assert_eq!(fake.memory().books.call_state("admitted").as_deref(), Some("not_sent"));
}

#[tokio::test]
async fn a_refusal_does_not_hide_what_may_have_been_admitted_before() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("calls", [Trouble::Doubt]);
    assert!(matches!(job.call("c-1", 6).run(never).await, Err(CallError::NotAdmitted(Error::Unreachable { .. }))));
    let error = job.call("c-1", 8).run(never).await.unwrap_err();
    assert!(matches!(&error, CallError::NotAdmitted(error) if error.code() == Some("idempotency_key_reused")));
    let settled = job.settle_calls().await.unwrap();
    assert_eq!(settled.charged, 0.into());
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("not_sent"));
}

#[tokio::test]
async fn what_is_admitted_after_it_was_withdrawn_is_withdrawn_again() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("calls", [Trouble::Busy(0)]);
    assert!(matches!(job.call("c-1", 6).run(never).await, Err(CallError::NotAdmitted(Error::Unreachable { .. }))));
    fake.trouble("settle", [Trouble::Busy(0)]);
    let unsettled = job.settle_calls().await.unwrap_err();
    assert!(matches!(unsettled.error, Error::Unreachable { .. }));
    assert_eq!(fake.memory().books.call_state("c-1"), None);
    // The request was on its way for longer.
    let late = fake.seen("calls")[0].json();
    assert_eq!(fake.memory().books.act("id-job-1", "calls", &late).status, 201);
    let settled = unsettled.job.settle_calls().await.unwrap();
    assert_eq!((settled.charged, fake.seen("settle_call").len()), (0.into(), 2));
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("not_sent"));
}

#[tokio::test]
async fn what_was_withdrawn_and_is_not_there_may_be_asked_for_again() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    fake.trouble("calls", [Trouble::Busy(0)]);
    assert!(job.call("c-1", 6).run(never).await.is_err());
    fake.trouble("settle", [Trouble::Busy(0)]);
    let job = job.settle_calls().await.unwrap_err().job;
    job.call("c-1", 6).run(five).await.unwrap();
    assert_eq!(job.settle_calls().await.unwrap().charged, 5.into());
}

#[tokio::test]
async fn a_paid_result_survives_a_ledger_that_does_not_answer() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(10)).await.unwrap();
    fake.trouble("settle_call", [Trouble::Busy(0), Trouble::Busy(0)]);
    let done = job.call("c-1", 6).run(five).await.unwrap();
    assert_eq!(done.value, "value");
    assert!(matches!(done.report, Report::Pending(Error::Unreachable { .. })));
    // Still nobody: the job is not lost either.
    let unsettled = job.settle_calls().await.unwrap_err();
    assert!(matches!(unsettled.error, Error::Unreachable { .. }));
    assert_eq!(fake.seen("settle").len(), 0);
    let settled = unsettled.job.settle_calls().await.unwrap();
    assert_eq!((settled.settled, settled.charged), (5.into(), 5.into()));
}

#[tokio::test]
async fn a_lost_job_can_still_say_what_it_paid() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(10)).await.unwrap();
    fake.trouble("settle_call", [Trouble::Busy(0), Trouble::Busy(0)]);
    assert!(matches!(job.call("c-1", 6).run(five).await.unwrap().report, Report::Pending(_)));
    fake.memory().books.only().lease_out = true;
    let _new = crate::support::client(&fake).take_over(job.id(), 1, TakeOver::default()).await.unwrap();
    assert!(matches!(job.deliver_reports().await, Err(Error::Unreachable { .. })));
    job.deliver_reports().await.unwrap();
    assert_eq!(fake.memory().books.only().settled, 5);
    let unsettled = job.settle_calls().await.unwrap_err();
    assert_eq!((unsettled.error.code(), unsettled.job.state()), (Some("stale_attempt"), JobState::Lost));
    assert_eq!(fake.seen("settle_call").len(), 3);
}

#[tokio::test]
async fn a_paid_result_survives_a_ledger_that_says_no() {
    let (fake, _client, job) = job(10).await;
    fake.trouble("settle_call", [Trouble::Refused(409, "already_settled")]);
    let done = job.call("c-1", 6).run(five).await.unwrap();
    assert_eq!(done.value, "value");
    assert!(matches!(done.report, Report::Refused(refusal) if refusal.code == "already_settled"));
}

#[tokio::test]
async fn a_cost_that_is_no_amount_leaves_the_outcome_unknown() {
    let (fake, _client, job) = job(10).await;
    let pay = || async { Ok::<_, Failure<std::io::Error>>(Paid::new(-1, "value")) };
    let done = job.call("c-1", 6).run(pay).await.unwrap();
    assert!(matches!(done.report, Report::Refused(refusal) if refusal.status == 400));
    assert_eq!(fake.memory().books.call_state("c-1").as_deref(), Some("unknown"));
    assert_eq!(job.settle_calls().await.unwrap().charged, 6.into());
}

#[tokio::test]
async fn a_remembered_cost_that_is_no_amount_leaves_the_outcome_unknown() {
    let fake = Fake::start().await;
    let client = builder(&fake).retry_for(Duration::ZERO).build().unwrap();
    let job = client.reserve("job-1", bulk(30)).await.unwrap();
    let pay = || async { Ok::<_, Failure<std::io::Error>>(Paid::new(-1, "value")) };
    // Told late, before settling.
    fake.trouble("settle_call", [Trouble::Busy(0)]);
    let done = job.call("c-1", 6).run(pay).await.unwrap();
    assert!(matches!(done.report, Report::Pending(_)));
    // Told at once, and that it is unknown told late.
    fake.trouble("settle_call", [Trouble::Refused(400, "invalid_request"), Trouble::Busy(0)]);
    let done = job.call("c-2", 7).run(pay).await.unwrap();
    assert!(matches!(done.report, Report::Refused(_)));
    assert_eq!(fake.memory().books.call_state("c-2").as_deref(), Some("in_flight"));
    // And told late twice.
    fake.trouble("settle_call", [Trouble::Refused(400, "invalid_request"), Trouble::Busy(0)]);
    assert!(matches!(job.deliver_reports().await, Err(Error::Unreachable { .. })));
    let fenced = job.settle_calls().await.unwrap();
    assert_eq!((fenced.charged, fenced.unknown), (13.into(), 13.into()));
    for call in ["c-1", "c-2"] {
        assert_eq!(fake.memory().books.call_state(call).as_deref(), Some("unknown"));
    }
}
