//! Many copies of one request, and many requests for one ceiling, at two processes
//! of the service at once.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{THE_OPEN_RESERVATION, count};
use crate::support::contention::HeldLock;
use crate::support::server::TestDatabase;
use crate::support::{Answer, Client, NORTHSTAR, Options, Service};

/// Two processes of the service that can have all requests of a storm under way.
struct Storm {
    service: Service,
    _other: Service,
    /// At each process.
    workers: [Client; 2],
    job: Answer,
}

impl Storm {
    /// On a reservation of so many units for calls.
    async fn over(policy: &str, units: &str) -> Self {
        let options = || Options { max_connections: 56, ..Options::sessions() };
        let service = Service::on(TestDatabase::new().await, options()).await;
        service.apply(policy).await;
        let other = Service::on(service.database.clone(), options()).await;
        let worker = service.worker(&["northstar"]).await;
        let job = worker.reserve_bulk("job", units).await.expect(201);
        let workers = [worker.clone(), worker.at(other.address)];
        Self { service, _other: other, workers, job }
    }

    fn path(&self, verb: &str) -> String {
        format!("/v1/reservations/{}{verb}", self.job.id())
    }

    fn admission(&self, call: &str, units: u32) -> Value {
        json!({"attempt": self.job.token(), "call": call, "units": units})
    }

    /// Sends these to `path`, in turn at both processes.
    fn send(&self, path: &str, bodies: impl IntoIterator<Item = Value>) -> Vec<JoinHandle<Answer>> {
        let path = self.path(path);
        let sent = bodies.into_iter().enumerate().map(|(n, body)| {
            let (worker, path) = (self.workers[n % 2].clone(), path.clone());
            tokio::spawn(async move { worker.post(&path, body).await })
        });
        sent.collect()
    }

    /// Sends these to `path` and lets them go when all of them wait for the
    /// reservation.
    async fn meet(&self, path: &str, bodies: Vec<Value>) -> Vec<Answer> {
        let all = bodies.len() as i64;
        let held = HeldLock::hold(&self.service.database, THE_OPEN_RESERVATION).await;
        let sent = self.send(path, bodies);
        self.service.waiting_for_a_lock(all).await;
        held.release().await;
        join_all(sent).await.into_iter().map(Result::unwrap).collect()
    }

    /// The one row of this query.
    async fn row(&self, query: &str) -> String {
        let rows = self.service.database.lines(query).await;
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.into_iter().next().unwrap()
    }

    /// `version settled in_flight unknown reserved` of the reservation.
    async fn stand(&self) -> String {
        self.row(
            "select format('%s %s %s %s %s', version, trim_scale(settled), trim_scale(in_flight),
                           trim_scale(unknown_units), trim_scale(reserved))
             from reservation",
        )
        .await
    }
}

fn with_status(answers: &[Answer], status: u16) -> Vec<&Answer> {
    answers.iter().filter(|answer| answer.status == status).collect()
}

/// The version of the reservation that an answer shows.
fn version(answer: &Answer) -> i64 {
    let shown = if answer.status.is_success() { &answer.body } else { &answer.body["reservation"] };
    shown["version"].as_i64().unwrap_or_else(|| panic!("no version in {:#}", answer.body))
}

#[tokio::test]
async fn of_fifty_copies_of_a_call_one_is_admitted() {
    let storm = Storm::over(NORTHSTAR, "40").await;
    let answers = storm.meet("/calls", vec![storm.admission("c", 10); 50]).await;
    let (new, repeated) = (with_status(&answers, 201), with_status(&answers, 200));
    assert_eq!((new.len(), repeated.len()), (1, 49));
    assert_eq!(new[0].body["state"], "in_flight");
    assert_eq!((new[0].text("remaining"), version(new[0])), ("30", 2));
    assert!(repeated.iter().all(|answer| answer.body == new[0].body), "{answers:#?}");
    assert_eq!(storm.stand().await, "2 0 10 0 40");
    assert_eq!(count(&storm.service.database, "select count(*) from call").await, 1);
    storm.service.books().await;
}

#[tokio::test]
async fn of_fifty_copies_of_the_end_of_a_call_one_counts() {
    let storm = Storm::over(NORTHSTAR, "40").await;
    storm.workers[0].post(&storm.path("/calls"), storm.admission("c", 10)).await.expect(201);
    let answers = storm.meet("/calls/c/settle", vec![json!({"attempt": storm.job.token(), "units": 12}); 50]).await;
    assert_eq!(with_status(&answers, 200).len(), 50, "{answers:#?}");
    assert!(answers.iter().all(|answer| answer.body == answers[0].body), "{answers:#?}");
    assert_eq!((answers[0].text("actual"), version(&answers[0])), ("12", 3));
    assert_eq!(storm.stand().await, "3 12 0 0 28");
    let books = storm.service.books().await;
    assert_eq!(books.entries_of("call_settled"), ["daily 3 call_settled reserved>settled 12"]);
    assert_eq!(count(&storm.service.database, "select count(*) from late_usage").await, 0);
}

/// Ends that contradict one another: the first one counts, the usage of the others
/// is kept, once for each amount.
#[tokio::test]
async fn of_ends_that_contradict_one_another_one_counts() {
    let storm = Storm::over(NORTHSTAR, "40").await;
    storm.workers[0].post(&storm.path("/calls"), storm.admission("c", 10)).await.expect(201);
    let ends = (0..40).map(|n| json!({"attempt": storm.job.token(), "units": 8 + n / 2 % 5})).collect();
    let answers = storm.meet("/calls/c/settle", ends).await;
    let (settled, refused) = (with_status(&answers, 200), with_status(&answers, 409));
    assert_eq!((settled.len(), refused.len()), (8, 32), "{answers:#?}");
    let actual = settled[0].text("actual");
    for refused in refused {
        let refused = refused.clone().problem(409, "call_already_settled");
        assert_eq!((refused.text("settled"), version(&refused)), (actual, 3));
    }
    let kept = storm.service.database.lines("select trim_scale(units)::text from late_usage order by units").await;
    let others: Vec<String> = (8..13).map(|units| units.to_string()).filter(|units| units != actual).collect();
    assert_eq!(kept, others);
    storm.service.books().await;
}

#[tokio::test]
async fn calls_are_admitted_up_to_the_ceiling() {
    let storm = Storm::over(NORTHSTAR, "100").await;
    let calls = (0..40).map(|n| storm.admission(&format!("c-{n}"), 5)).collect();
    let answers = storm.meet("/calls", calls).await;
    let (admitted, refused) = (with_status(&answers, 201), with_status(&answers, 409));
    assert_eq!((admitted.len(), refused.len()), (20, 20));
    // Each one is counted for those after it.
    let mut remaining: Vec<u32> = admitted.iter().map(|answer| answer.text("remaining").parse().unwrap()).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..20).map(|n| n * 5).collect::<Vec<_>>());
    for refused in refused {
        let refused = refused.clone().problem(409, "ceiling_reached");
        assert_eq!((refused.text("ceiling"), refused.text("remaining")), ("100", "0"));
        assert_eq!(version(&refused), 21);
    }
    assert_eq!(storm.stand().await, "21 0 100 0 100");
    assert_eq!(count(&storm.service.database, "select count(*) from call").await, 20);
    let books = storm.service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 0 100 0 0"]);
}

/// The same where each raises the ceiling that it needs.
#[tokio::test]
async fn calls_that_raise_the_ceiling_are_admitted_up_to_the_budget() {
    let storm = Storm::over(&NORTHSTAR.replace("max_units: 100", "max_units: 1000"), "25").await;
    let extending = |n| {
        let mut body = storm.admission(&format!("c-{n}"), 5);
        body["extend"] = true.into();
        body
    };
    let answers = storm.meet("/calls", (0..40).map(extending).collect()).await;
    let (admitted, refused) = (with_status(&answers, 201), with_status(&answers, 400));
    assert_eq!((admitted.len(), refused.len()), (20, 20), "{answers:#?}");
    for refused in refused {
        // More than a whole day allows: no retry can help.
        assert_eq!(version(&refused.clone().problem(400, "too_expensive")), 21);
    }
    assert_eq!(storm.stand().await, "21 0 100 0 100");
    let books = storm.service.books().await;
    assert_eq!(books.entries_of("call_admitted").len(), 15);
    assert_eq!(books.periods, ["northstar daily : 100 0 100 0 0"]);
}

/// Whoever comes first has the job; nobody else has anything of it.
#[tokio::test]
async fn of_many_takeovers_one_has_the_job() {
    let storm = Storm::over(NORTHSTAR, "40").await;
    storm.service.database.set_clock("2126-03-04T12:00:00Z").await;
    let take = |n: usize| json!({"previous": 1, "holder": format!("w-{}", 2 + n / 2)});
    let answers = storm.meet("/attempts", (0..40).map(take).collect()).await;
    let (first, again) = (with_status(&answers, 201), with_status(&answers, 200));
    assert_eq!((first.len(), again.len(), with_status(&answers, 409).len()), (1, 1, 38), "{answers:#?}");
    assert_eq!(first[0].body["attempt"]["number"], 2);
    // The holder's own copy has the same token.
    assert_eq!(again[0].body, first[0].body);
    for refused in with_status(&answers, 409) {
        let refused = refused.clone().problem(409, "stale_attempt");
        assert_eq!(refused.body["reservation"]["attempt"]["holder"], first[0].body["attempt"]["holder"]);
        assert_eq!(refused.body["reservation"]["attempt"].get("token"), None);
    }
    let attempts = "select format('%s %s %s %s', attempt_number, version, cardinality(superseded_tokens),
                                  (select count(*) from reservation_event where event = 'takeover'))
                    from reservation";
    assert_eq!(storm.row(attempts).await, "2 2 1 1");
    storm.service.books().await;
}

/// What came of calls around a cancel: all that were admitted have a version of the
/// reservation before the cancel's, all others saw the cancel.
fn came_before_the_cancel(calls: &[Answer], cancelled: i64) -> usize {
    let admitted = with_status(calls, 201);
    for call in &admitted {
        assert!(version(call) < cancelled, "admitted after the cancel at version {cancelled}: {:#}", call.body);
    }
    for refused in calls.iter().filter(|answer| answer.status != 201) {
        assert_eq!(version(&refused.clone().problem(409, "not_active")), cancelled);
    }
    assert_eq!(cancelled, 2 + admitted.len() as i64);
    admitted.len()
}

#[tokio::test]
async fn no_call_is_admitted_after_a_cancel() {
    let storm = Storm::over(&NORTHSTAR.replace("limit: 100,", "limit: 1000,"), "100").await;
    let calls = |from: u32| (from..from + 20).map(|n| storm.admission(&format!("c-{n}"), 1)).collect::<Vec<_>>();
    let held = HeldLock::hold(&storm.service.database, THE_OPEN_RESERVATION).await;
    let mut sent = storm.send("/calls", calls(0));
    storm.service.waiting_for_a_lock(20).await;
    let cancel = storm.send("/cancel", [json!({})]).remove(0);
    storm.service.waiting_for_a_lock(21).await;
    sent.extend(storm.send("/calls", calls(20)));
    storm.service.waiting_for_a_lock(41).await;
    held.release().await;
    let cancelled = cancel.await.unwrap().expect(200);
    assert_eq!(cancelled.text("state"), "cancelling");
    let calls = join_all(sent.into_iter().chain(storm.send("/calls", calls(40)))).await;
    let calls: Vec<Answer> = calls.into_iter().map(Result::unwrap).collect();
    // Among more than two who wait Postgres promises no order: but the very first
    // one comes first, and what is sent when the cancel is answered comes after it.
    let admitted = came_before_the_cancel(&calls, version(&cancelled));
    assert!(admitted >= 1 && calls[40..].iter().all(|call| call.status == 409), "{admitted}");
    assert_eq!(storm.row("select state from reservation").await, "cancelling");
    assert_eq!(storm.stand().await, format!("{} 0 {admitted} 0 0", 2 + admitted));
    let last = storm.row("select event from reservation_event order by version desc limit 1").await;
    assert_eq!(last, "cancel");
    assert_eq!(storm.service.books().await.periods, ["northstar daily : 1000 900 0 100 0"]);
}

/// The same when nobody holds them back: cancels at random moments of a storm.
#[tokio::test]
async fn no_call_is_admitted_after_a_cancel_at_any_moment() {
    let mut storm = Storm::over(&NORTHSTAR.replace("limit: 100,", "limit: 1000,"), "100").await;
    for round in 0..5 {
        if round > 0 {
            storm.job = storm.workers[0].reserve_bulk(&format!("job-{round}"), "100").await.expect(201);
        }
        let calls = |from: u32| (from..from + 20).map(|n| storm.admission(&format!("c-{n}"), 1)).collect::<Vec<_>>();
        let mut sent = storm.send("/calls", calls(0));
        let cancel = storm.send("/cancel", [json!({})]).remove(0);
        sent.extend(storm.send("/calls", calls(20)));
        let cancelled = version(&cancel.await.unwrap().expect(200));
        let calls = join_all(sent.into_iter().chain(storm.send("/calls", calls(40)))).await;
        let calls: Vec<Answer> = calls.into_iter().map(Result::unwrap).collect();
        came_before_the_cancel(&calls, cancelled);
        assert!(calls[40..].iter().all(|call| call.status == 409));
    }
    storm.service.books().await;
}
