//! Copies that meet, and copies of what was lost on the way, are one job with
//! one token.

use futures_util::future::join_all;
use serde_json::json;

use super::{NOTHING_RESERVED, THE_PERIOD, bulk_of, repeated};
use crate::support::contention::{HeldLock, Replicas};
use crate::support::{Answer, NORTHSTAR, Service};

/// That of copies exactly one was admitted and the others are repeats of it,
/// with its token.
#[track_caller]
fn one_of_them(answers: Vec<Answer>) -> Answer {
    let (admitted, repeats): (Vec<Answer>, Vec<Answer>) = answers.into_iter().partition(|a| a.status == 201);
    assert_eq!(admitted.len(), 1, "exactly one is admitted, the others are answered from its key");
    assert!(!admitted[0].headers.contains_key("idempotency-replayed"));
    let count = repeats.len();
    for (n, repeat) in repeats.into_iter().enumerate() {
        let repeat = repeated(repeat, &admitted[0], true);
        assert_eq!(repeat.body, admitted[0].body, "repeat {n} of {count}");
    }
    admitted.into_iter().next().unwrap()
}

#[tokio::test]
async fn two_copies_that_meet_in_two_processes_are_one_job() {
    // 50 leave room for a second one, 100 do not: in one case it is the key that
    // stops the copy, in the other it finds no room first.
    for units in ["50", "100"] {
        let service = Service::with_sessions(NORTHSTAR).await;
        let other = service.another().await;
        let worker = service.worker(&["northstar"]).await;
        let before = worker.reserve_bulk("before", "1").await.expect(201);
        worker.settle(&before, "0").await.expect(200);
        let held = HeldLock::hold(&service.database, THE_PERIOD).await;
        let copies: Vec<_> = [worker.clone(), worker.at(other.address)]
            .into_iter()
            .map(|client| tokio::spawn(async move { client.reserve_bulk("job", units).await }))
            .collect();
        service.waiting_for_a_lock(2).await;
        held.release().await;
        let answers: Vec<Answer> = join_all(copies).await.into_iter().map(Result::unwrap).collect();
        let admitted = one_of_them(answers);
        assert_eq!(admitted.text("charged"), units);
        let books = service.books().await;
        let available = 100 - units.parse::<u32>().unwrap();
        assert_eq!(books.periods, [format!("northstar daily : 100 {available} {units} 0 0")]);
        assert_eq!(books.journal[3..], [format!("daily 4 reserve available>reserved {units}")]);
        assert_eq!(books.reservations[1..], [format!("job active 1 {units} 0 {units} 0")]);
    }
}

#[tokio::test]
async fn two_copies_of_different_holders_are_one_job_and_one_token() {
    let service = Service::with_sessions(NORTHSTAR).await;
    let other = service.another().await;
    let worker = service.worker(&["northstar"]).await;
    let before = worker.reserve_bulk("before", "1").await.expect(201);
    worker.settle(&before, "0").await.expect(200);
    let held = HeldLock::hold(&service.database, THE_PERIOD).await;
    let copies: Vec<_> = [(worker.clone(), "w-1"), (worker.at(other.address), "w-2")]
        .into_iter()
        .map(|(client, holder)| {
            let body = json!({"operation": "bulk", "units": 100, "holder": holder});
            tokio::spawn(async move { client.reserve("job", body).await })
        })
        .collect();
    service.waiting_for_a_lock(2).await;
    held.release().await;
    let mut answers: Vec<Answer> = join_all(copies).await.into_iter().map(Result::unwrap).collect();
    if answers[0].status != 201 {
        answers.reverse();
    }
    let second = answers.pop().unwrap();
    let first = answers.pop().unwrap().expect(201);
    assert!(!first.token().is_empty());
    let second = repeated(second, &first, false);
    assert_eq!(second.body["attempt"]["holder"], first.body["attempt"]["holder"]);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 0 100 0 0"]);
}

#[tokio::test]
async fn two_different_requests_that_meet_with_one_key_are_one_job_and_an_error() {
    for (units, others) in [(50, 40), (100, 90), (40, 100)] {
        let service = Service::with_sessions(NORTHSTAR).await;
        let other = service.another().await;
        let worker = service.worker(&["northstar"]).await;
        let before = worker.reserve_bulk("before", "1").await.expect(201);
        worker.settle(&before, "0").await.expect(200);
        let held = HeldLock::hold(&service.database, THE_PERIOD).await;
        let requests: Vec<_> = [(worker.clone(), units), (worker.at(other.address), others)]
            .into_iter()
            .map(|(client, units)| tokio::spawn(async move { client.reserve_bulk("job", &units.to_string()).await }))
            .collect();
        service.waiting_for_a_lock(2).await;
        held.release().await;
        let mut answers: Vec<Answer> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        if answers[0].status != 201 {
            answers.reverse();
        }
        answers.pop().unwrap().problem(422, "idempotency_key_reused");
        let taken: u32 = answers.pop().unwrap().expect(201).text("charged").parse().unwrap();
        assert!([units, others].contains(&taken));
        let books = service.books().await;
        assert_eq!(books.periods, [format!("northstar daily : 100 {} {taken} 0 0", 100 - taken)]);
        assert_eq!(books.journal.len(), 4);
    }
}

#[tokio::test]
async fn two_copies_that_wait_over_midnight_are_one_job_of_the_new_day() {
    let service = Service::with_sessions(NORTHSTAR).await;
    let other = service.another().await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-10T23:59:00-04:00").await;
    worker.reserve_bulk("before", "10").await.expect(201);
    let held = HeldLock::hold(&service.database, THE_PERIOD).await;
    let copies: Vec<_> = [worker.clone(), worker.at(other.address)]
        .into_iter()
        .map(|client| tokio::spawn(async move { client.reserve_bulk("job", "90").await }))
        .collect();
    service.waiting_for_a_lock(2).await;
    service.database.set_clock("2026-03-11T00:00:00-04:00").await;
    held.release().await;
    one_of_them(join_all(copies).await.into_iter().map(Result::unwrap).collect());
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 90 10 0 0", "northstar daily : 100 10 90 0 0"]);
}

#[tokio::test]
async fn storms_of_copies_are_one_job_each() {
    let service = Service::with_policy(&NORTHSTAR.replace("limit: 100,", "limit: 1000,")).await;
    let replicas = Replicas::start(&service.database, 3).await;
    let worker = service.worker(&["northstar"]).await;
    let mut journal = vec!["daily 1 period_opened granted>available 1000".to_owned()];
    for storm in 0..4 {
        let key = format!("storm-{storm}");
        let copies = (0..50).map(|n| {
            let (client, key) = (replicas.at(&worker, n), key.clone());
            async move { client.reserve_bulk(&key, "7").await }
        });
        one_of_them(join_all(copies).await);
        let charged = 7 * (storm + 1);
        journal.push(format!("daily {} reserve available>reserved 7", storm + 2));
        let books = service.books().await;
        assert_eq!(books.periods, [format!("northstar daily : 1000 {} {charged} 0 0", 1000 - charged)]);
        assert_eq!(books.journal, journal);
        assert_eq!(books.reservations.len(), storm + 1);
        assert_eq!(books.reservations[storm], format!("{key} active 1 7 0 7 0"));
    }
}

#[tokio::test]
async fn a_storm_of_copies_that_takes_the_last_room_refuses_none_of_them() {
    let service = Service::with_policy(NORTHSTAR).await;
    let replicas = Replicas::start(&service.database, 3).await;
    let worker = service.worker(&["northstar"]).await;
    let mut entries = 1;
    for storm in 0..4 {
        let key = format!("storm-{storm}");
        let copies = (0..30).map(|n| {
            let (client, key) = (replicas.at(&worker, n), key.clone());
            async move { client.reserve_bulk(&key, "100").await }
        });
        let admitted = one_of_them(join_all(copies).await);
        let books = service.books().await;
        assert_eq!(books.periods, ["northstar daily : 100 0 100 0 0"]);
        assert_eq!(books.journal[entries..], [format!("daily {} reserve available>reserved 100", entries + 1)]);
        entries += 2;
        // Room for the next one.
        worker.settle(&admitted, "0").await.expect(200);
    }
    assert_eq!(service.books().await.periods, NOTHING_RESERVED);
}

#[tokio::test]
async fn a_lost_answer_is_found_again_everywhere() {
    let mut service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let other_key = service.worker(&["northstar"]).await;
    let of_both = service.worker(&["northstar", "southstar"]).await;
    let fleet = service.fleet().await;
    let body = json!({"operation": "bulk", "units": 60, "holder": "w-1", "account": "northstar"});
    let job = worker.reserve("job", body.clone()).await.expect(201);

    // With another key of the account, and with one of several or all.
    for client in [&worker, &other_key, &of_both, &fleet] {
        assert_eq!(repeated(client.reserve("job", body.clone()).await, &job, true).body, job.body);
    }
    // Through another process, and after the first has ended.
    let replicas = Replicas::start(&service.database, 1).await;
    repeated(replicas.at(&worker, 0).reserve("job", body.clone()).await, &job, true);
    service.stop();
    let another = service.another().await;
    for client in [&worker, &other_key, &of_both, &fleet] {
        let client = client.at(another.address);
        assert_eq!(repeated(client.reserve("job", body.clone()).await, &job, true).body, job.body);
    }
    replicas.terminate().await;
    let replicas = Replicas::start(&service.database, 1).await;
    let client = replicas.at(&other_key, 0);
    repeated(client.reserve("job", body.clone()).await, &job, true);
    // The token that was found again is good.
    client.settle(&job, "50").await.expect(200);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 50 0 0 50"]);
    assert_eq!(books.entries_of("reserve"), ["daily 2 reserve available>reserved 60"]);
}

#[tokio::test]
async fn a_caller_or_a_process_that_goes_away_in_the_middle_leaves_one_job_or_none() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let before = worker.reserve_bulk("before", "1").await.expect(201);
    worker.settle(&before, "0").await.expect(200);
    for (key, kill) in [("caller", false), ("process", true)] {
        let replicas = Replicas::start(&service.database, 1).await;
        let held = HeldLock::hold(&service.database, THE_PERIOD).await;
        let client = replicas.at(&worker, 0);
        let lost = tokio::spawn(async move { client.try_send(client.reserve_request(key, bulk_of(50))).await });
        service.waiting_for_a_lock(1).await;
        if kill {
            for process in replicas.processes {
                process.kill().await;
            }
            assert!(lost.await.unwrap().is_err());
        } else {
            lost.abort();
            assert!(lost.await.is_err());
        }
        held.release().await;
        // Whichever comes first, the lost one or this, there is one.
        let found = worker.reserve(key, bulk_of(50)).await;
        assert!([200, 201].contains(&found.status.as_u16()), "{:#}", found.body);
        repeated(worker.reserve(key, bulk_of(50)).await, &found, true);
        let books = service.books().await;
        assert_eq!(books.periods, ["northstar daily : 100 50 50 0 0"]);
        worker.settle(&found, "0").await.expect(200);
    }
    assert_eq!(service.books().await.entries_of("reserve").len(), 3);
}
