//! The Idempotency-Key is the job's identity within its account: RULES.md,
//! section 3, "Retry identity".

use futures_util::future::join_all;
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::support::contention::{HeldLock, Replicas};
use crate::support::{Answer, Client, NORTHSTAR, Service};

const THE_PERIOD: &str = "select from budget_period where budget = 'daily' for update";
const NOTHING_RESERVED: [&str; 1] = ["northstar daily : 100 100 0 0 0"];

/// That an answer is a repeat: of the reservation, by its header, with the
/// token or wholly without.
#[track_caller]
fn repeated(answer: Answer, reservation: &Answer, with_token: bool) -> Answer {
    let answer = answer.expect(200);
    assert_eq!(answer.id(), reservation.id());
    assert_eq!(answer.headers["idempotency-replayed"], "true");
    if with_token {
        assert_eq!(answer.token(), reservation.token());
    } else {
        let attempt = answer.body["attempt"].as_object().unwrap();
        assert!(!attempt.contains_key("token"), "absent, not null: {:#}", answer.body);
        assert_eq!(attempt["number"], 1);
    }
    answer
}

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

/// Sends a body as it stands.
async fn reserve_as_written(client: &Client, key: &str, body: &str) -> Answer {
    let request = client.request(Method::POST, "/v1/reservations").header("idempotency-key", key);
    client.send(request.header("content-type", "application/json").body(body.to_owned())).await
}

#[tokio::test]
async fn two_copies_that_meet_in_two_processes_are_one_job() {
    // 50 leave room for a second one, 100 do not: in one case it is the key that
    // stops the copy, in the other it finds no room first.
    for units in ["50", "100"] {
        let service = Service::with_policy(NORTHSTAR).await;
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
    let service = Service::with_policy(NORTHSTAR).await;
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
        let service = Service::with_policy(NORTHSTAR).await;
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
    let service = Service::with_policy(NORTHSTAR).await;
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
async fn the_same_key_with_another_request_is_an_error_and_changes_nothing() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let explicit = json!({"operation": "bulk", "units": 5, "member": "ann", "provider_key": "a",
                          "reference": "job-1", "labels": {"team": "reports"}, "holder": "w-1"});
    let priced = json!({"operation": "export", "quantities": {"formats": 2, "weight": 6}, "holder": "w-1"});
    let bare = json!({"operation": "bulk", "units": 5, "holder": "w-1"});
    for (key, body) in [("explicit", &explicit), ("priced", &priced), ("bare", &bare)] {
        worker.reserve(key, body.clone()).await.expect(201);
    }
    let before = service.books().await;
    // `Null` leaves the field out.
    let others = [
        ("explicit", &explicit, "operation", json!("stream")),
        ("explicit", &explicit, "units", json!("5.000000000001")),
        ("explicit", &explicit, "units", json!(1000)),
        ("explicit", &explicit, "member", json!("ben")),
        ("explicit", &explicit, "member", json!("Ann")),
        ("explicit", &explicit, "member", Value::Null),
        ("explicit", &explicit, "provider_key", json!("b")),
        ("explicit", &explicit, "provider_key", Value::Null),
        ("explicit", &explicit, "reference", json!("job-2")),
        ("explicit", &explicit, "reference", json!("")),
        ("explicit", &explicit, "reference", Value::Null),
        ("explicit", &explicit, "labels", json!({"team": "exports"})),
        ("explicit", &explicit, "labels", json!({"Team": "reports"})),
        ("explicit", &explicit, "labels", json!({"team": "reports", "more": ""})),
        ("explicit", &explicit, "labels", Value::Null),
        ("priced", &priced, "quantities", json!({"formats": 3, "weight": 6})),
        // As many units, but another request.
        ("priced", &priced, "quantities", json!({"formats": 6, "weight": 2})),
        ("priced", &priced, "quantities", json!({"formats": 2})),
        ("priced", &priced, "quantities", json!({"formats": 2, "weight": 31})),
        ("priced", &priced, "quantities", json!({"formats": 2, "weight": 6, "pages": 1})),
        ("priced", &priced, "quantities", Value::Null),
        ("priced", &priced, "operation", json!("nothing")),
        ("bare", &bare, "member", json!("ann")),
        ("bare", &bare, "provider_key", json!("a")),
        ("bare", &bare, "reference", json!("")),
        ("bare", &bare, "labels", json!({"": ""})),
    ];
    for (key, body, field, value) in others {
        let mut other = body.clone();
        other[field] = value.clone();
        let answer = worker.reserve(key, other.clone()).await;
        if field == "labels" && value == json!({"": ""}) {
            // No label at all has no name.
            answer.problem(400, "invalid_request");
            continue;
        }
        let problem = answer.problem(422, "idempotency_key_reused");
        assert_eq!(problem.text("retry"), "never", "{other}");
        assert!(!problem.body.to_string().contains("token"), "{:#}", problem.body);
    }
    assert_eq!(service.books().await, before);
    // The job itself is still answered from its key.
    assert_eq!(worker.reserve("explicit", explicit).await.expect(200).token().split('.').next(), Some("1"));
}

#[tokio::test]
async fn the_same_meaning_in_other_bytes_is_the_same_request() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    // Each of a group is the first once, and a repeat of each other one.
    let groups: [&[&str]; 3] = [
        &[
            r#"{"operation":"bulk","units":5,"holder":"w-1"}"#,
            r#"{"holder":"w-1","units":5,"operation":"bulk"}"#,
            r#"{"operation":"bulk","units":"5.0","holder":"w-1"}"#,
            r#"{"operation":"bulk","units":"5","holder":"w-1"}"#,
            r#"{"operation":"bulk","units":5e0,"holder":"w-1"}"#,
            r#"{"operation":"bulk","units":0.5E+1,"holder":"w-1"}"#,
            r#"{"operation":"bulk","units":"5.000000000000","holder":"w-1"}"#,
            "{ \"operation\" : \"b\\u0075lk\",\n\t\"units\": 50e-1, \"holder\": \"w-1\" }",
            r#"{"operation":"bulk","units":5,"holder":"w-1","labels":{}}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","labels":null,"member":null,"provider_key":null,"reference":null}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","quantities":null}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","quantities":{}}"#,
            r#"{"operation":"bulk","units":5,"holder":"w-1","account":null,"lease_seconds":null}"#,
        ],
        &[
            r#"{"operation":"export","holder":"w-1"}"#,
            r#"{"operation":"export","quantities":null,"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{},"units":null,"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"formats":1},"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"weight":"5.00"},"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"weight":5,"formats":"1"},"holder":"w-1"}"#,
            r#"{"operation":"export","quantities":{"formats":1e0,"weight":5.0},"holder":"w-1"}"#,
        ],
        &[
            r#"{"operation":"bulk","units":5,"labels":{"a":"1","b":"2"},"reference":"é","holder":"w-1"}"#,
            r#"{"reference":"\u00e9","labels":{"b":"2","a":"1"},"operation":"bulk","units":"5","holder":"w-1"}"#,
        ],
    ];
    let mut jobs = 0;
    for group in groups {
        for first in group {
            let key = format!("job-{jobs:02}");
            jobs += 1;
            let reservation = reserve_as_written(&worker, &key, first).await.expect(201);
            for same in group {
                let repeat = reserve_as_written(&worker, &key, same).await;
                assert_eq!(repeat.status, 200, "{first} and {same}: {:#}", repeat.body);
                assert_eq!(repeated(repeat, &reservation, true).body, reservation.body, "{first} and {same}");
            }
            worker.settle(&reservation, "0").await.expect(200);
        }
    }
    let books = service.books().await;
    assert_eq!(books.periods, NOTHING_RESERVED);
    assert_eq!((books.reservations.len(), books.entries_of("reserve").len()), (jobs, jobs));
}

#[tokio::test]
async fn account_holder_and_lease_are_not_part_of_the_request() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = json!({"operation": "bulk", "units": 5, "holder": "w-1", "lease_seconds": 300});
    let job = worker.reserve("job", body).await.expect(201);
    for (body, with_token) in [
        (json!({"operation": "bulk", "units": 5, "holder": "w-1", "account": "northstar"}), true),
        (json!({"operation": "bulk", "units": 5, "holder": "w-1", "lease_seconds": 5}), true),
        (json!({"operation": "bulk", "units": 5, "holder": "w-2", "lease_seconds": 5}), false),
        (json!({"operation": "bulk", "units": 5}), false),
        (json!({"operation": "bulk", "units": 5, "holder": "w-1"}), true),
    ] {
        let repeat = repeated(worker.reserve("job", body).await, &job, with_token);
        let attempt = &repeat.body["attempt"];
        assert_eq!((&attempt["holder"], &attempt["overdue"]), (&json!("w-1"), &json!(false)));
        // A repeat is no renewal.
        assert_eq!(attempt["lease_expires_at"], job.body["attempt"]["lease_expires_at"]);
        assert_eq!(repeat.body["version"], 1);
    }
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 95 5 0 0"]);
    assert_eq!(books.journal.len(), 2);
}

#[tokio::test]
async fn a_holder_that_was_left_out_cannot_be_told_from_another() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = json!({"operation": "bulk", "units": 5});
    let job = worker.reserve("job", body.clone()).await.expect(201);
    assert!(!job.token().is_empty());
    let repeat = repeated(worker.reserve("job", body.clone()).await, &job, false);
    // The name that the service made up is no secret: it is not enough.
    let made_up = repeat.body["attempt"]["holder"].as_str().unwrap().to_owned();
    assert_eq!(job.body["attempt"]["holder"], made_up.as_str());
    repeated(worker.reserve("job", body).await, &job, false);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 95 5 0 0"]);
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

fn bulk_of(units: u32) -> Value {
    json!({"operation": "bulk", "units": units, "holder": "w-1"})
}

#[tokio::test]
async fn the_same_key_in_another_account_is_another_job() {
    let service = Service::with_policy(NORTHSTAR).await;
    let north = service.worker(&["northstar"]).await;
    let south = service.worker(&["southstar"]).await;
    let fleet = service.fleet().await;
    let one = north.reserve_bulk("job", "30").await.expect(201);
    let two = south.reserve_bulk("job", "40").await.expect(201);
    assert_ne!((one.id(), one.token()), (two.id(), two.token()));
    for (account, units, job) in [("northstar", 30, &one), ("southstar", 40, &two)] {
        let body = json!({"operation": "bulk", "units": units, "holder": "w-1", "account": account});
        repeated(fleet.reserve("job", body).await, job, true);
    }
    // Of the other account nothing can be found out by its key.
    south.reserve_bulk("job", "30").await.problem(422, "idempotency_key_reused");
    let other_account = json!({"operation": "bulk", "units": 30, "holder": "w-1", "account": "northstar"});
    south.reserve("job", other_account).await.problem(403, "forbidden");
    fleet.reserve("job", bulk_of(30)).await.problem(400, "invalid_request");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 70 30 0 0", "southstar daily : 100 60 40 0 0"]);
}

#[tokio::test]
async fn a_repeat_shows_the_reservation_as_it_is_now_and_takes_nothing() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = json!({"operation": "stream", "units": 40, "holder": "w-1"});
    let job = worker.reserve("job", body.clone()).await.expect(201);
    let state = |answer: &Answer| {
        let text = |field: &str| answer.text(field).to_owned();
        format!(
            "{} {} {} {} {}",
            text("state"),
            text("ceiling"),
            text("settled"),
            text("charged"),
            answer.body["version"]
        )
    };
    worker.progress(&job, "10").await.expect(200);
    worker.extend(&job, "45").await.expect(200);
    let repeat = repeated(worker.reserve("job", body.clone()).await, &job, true);
    assert_eq!(state(&repeat), "active 45 10 45 3");
    assert_eq!(repeat.text("estimate"), "40");
    let settled = worker.settle(&job, "42").await.expect(200);
    let after = service.books().await;
    let repeat = repeated(worker.reserve("job", body.clone()).await, &job, true);
    assert_eq!(state(&repeat), "settled 45 42 42 4");
    assert_eq!(repeat.body, settled.body);
    let by_another = json!({"operation": "stream", "units": 40, "holder": "w-2"});
    assert_eq!(state(&repeated(worker.reserve("job", by_another).await, &job, false)), "settled 45 42 42 4");
    // Also on another day, and when the account has used all of that day, and
    // after more than thirteen months.
    service.database.set_clock("2099-06-01T12:00:00Z").await;
    worker.reserve_bulk("all", "100").await.expect(201);
    assert_eq!(state(&repeated(worker.reserve("job", body.clone()).await, &job, true)), "settled 45 42 42 4");
    service.database.set_clock("2100-08-01T12:00:00Z").await;
    assert_eq!(state(&repeated(worker.reserve("job", body).await, &job, true)), "settled 45 42 42 4");
    let books = service.books().await;
    assert_eq!(books.journal[..after.journal.len()], after.journal);
    assert_eq!(books.periods, ["northstar daily : 100 58 0 0 42", "northstar daily : 100 0 100 0 0"]);
}

/// A job is admitted, the policy becomes stricter, and the repeat is answered as
/// before, although a new request would be refused.
async fn after_a_stricter_policy(before: &str, after: &str, body: Value, status: u16, code: &str) {
    let service = Service::with_policy(before).await;
    // A process that knows the older policy only, and one that starts later.
    let other = service.another().await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", body.clone()).await.expect(201);
    service.apply(after).await;
    let later = service.another().await;
    let books = service.books().await;
    for address in [other.address, service.address, later.address] {
        let client = worker.at(address);
        assert_eq!(repeated(client.reserve("job", body.clone()).await, &job, true).body, job.body, "{code}");
        let problem = client.reserve("new", body.clone()).await.problem(status, code);
        if code != "budget_exhausted" {
            assert_eq!(problem.text("retry"), "never");
        }
        // Another request with the key is that, whatever the policy.
        let mut another = body.clone();
        another["reference"] = json!("another");
        client.reserve("job", another).await.problem(422, "idempotency_key_reused");
    }
    let now = service.books().await;
    assert_eq!((&now.reservations, now.journal.len()), (&books.reservations, books.journal.len()), "{code}");
}

fn export() -> Value {
    json!({"operation": "export", "quantities": {"formats": 5, "weight": 10}, "holder": "w-1"})
}

#[tokio::test]
async fn a_repeat_after_the_bounds_were_narrowed() {
    let after = NORTHSTAR.replace("formats: { min: 1, max: 10,", "formats: { min: 1, max: 3,");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_max_units_was_lowered() {
    let after = NORTHSTAR.replace("max_units: 60", "max_units: 20");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "too_expensive").await;
}

#[tokio::test]
async fn a_repeat_after_a_quantity_was_renamed() {
    let after = NORTHSTAR.replace("formats: {", "files: {").replace("[formats, weight]", "[files, weight]");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_the_operation_was_retired() {
    let after = NORTHSTAR.replace("  export:\n", "  report:\n");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 422, "unknown_operation").await;
}

#[tokio::test]
async fn a_repeat_after_the_account_was_retired() {
    let after = NORTHSTAR.replace("  northstar: { plan: standard }\n", "");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 422, "unknown_account").await;
}

#[tokio::test]
async fn a_repeat_after_the_account_was_frozen() {
    let after =
        NORTHSTAR.replace("northstar: { plan: standard }", "northstar: { plan: standard, limits: { daily: 0 } }");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 429, "budget_exhausted").await;
}

#[tokio::test]
async fn a_repeat_after_the_limit_became_less_than_the_request() {
    let after =
        NORTHSTAR.replace("northstar: { plan: standard }", "northstar: { plan: standard, limits: { daily: 49 } }");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "too_expensive").await;
}

#[tokio::test]
async fn a_repeat_after_the_budget_is_gone() {
    let after = NORTHSTAR
        .replace("accounts:", "  none: { budgets: {} }\naccounts:")
        .replace("  northstar: { plan: standard }", "  northstar: { plan: none }");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 422, "no_budget").await;
}

#[tokio::test]
async fn a_repeat_after_a_budget_per_member_was_added() {
    let after = NORTHSTAR
        .replace("accounts:", "      each: { unit: transformation, limit: 100, period: day, per: member }\naccounts:");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_its_provider_key_was_withdrawn() {
    let mut body = export();
    body["provider_key"] = json!("a");
    let after = NORTHSTAR.replace("keys: [a, b]", "keys: [b]");
    after_a_stricter_policy(NORTHSTAR, &after, body, 400, "invalid_request").await;
}

#[tokio::test]
async fn a_repeat_after_a_frozen_pool_was_added() {
    let after =
        format!("{NORTHSTAR}pools:\n  stop: {{ unit: transformation, limit: 0, period: day, timezone: UTC }}\n");
    after_a_stricter_policy(NORTHSTAR, &after, export(), 429, "budget_exhausted").await;
}

#[tokio::test]
async fn a_default_is_the_one_of_the_time_of_the_estimate() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let body = |quantities: Value| json!({"operation": "export", "quantities": quantities, "holder": "w-1"});
    let left_out = worker.reserve("left-out", body(json!({"formats": 2}))).await.expect(201);
    let stated = worker.reserve("stated", body(json!({"formats": 2, "weight": 5}))).await.expect(201);
    // Two changes, so that the one before is not the one at the time.
    let policies = [
        NORTHSTAR.replace("max: 30, default: 5", "max: 30, default: 6"),
        NORTHSTAR.replace("max: 30, default: 5", "max: 30, default: 7"),
        NORTHSTAR.replace("max: 30, default: 5", "max: 30"),
    ];
    for policy in policies {
        service.apply(&policy).await;
        for (key, job) in [("left-out", &left_out), ("stated", &stated)] {
            for same in [json!({"formats": 2}), json!({"formats": 2, "weight": "5.0"})] {
                assert_eq!(repeated(worker.reserve(key, body(same)).await, job, true).body, job.body);
            }
            for other in [6, 7] {
                let other = body(json!({"formats": 2, "weight": other}));
                worker.reserve(key, other).await.problem(422, "idempotency_key_reused");
            }
        }
    }
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 80 20 0 0"]);
    assert_eq!(books.journal.len(), 3);
}

#[tokio::test]
async fn a_refused_request_leaves_its_key_unused() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let all = worker.reserve_bulk("all", "100").await.expect(201);
    // By room, by the policy, and by what is no request at all.
    let refused = [
        ("room", json!({"operation": "bulk", "units": 10}), 429, "budget_exhausted"),
        ("bound", json!({"operation": "bulk", "units": 101}), 400, "too_expensive"),
        ("zero", json!({"operation": "bulk", "units": 0}), 400, "invalid_request"),
        ("range", json!({"operation": "export", "quantities": {"formats": 11}}), 400, "invalid_request"),
        ("quantity", json!({"operation": "export", "quantities": {"pages": 1}}), 400, "invalid_request"),
        ("operation", json!({"operation": "nothing"}), 422, "unknown_operation"),
        ("provider", json!({"operation": "bulk", "units": 1, "provider_key": "c"}), 400, "invalid_request"),
        ("account", json!({"operation": "bulk", "units": 1, "account": "southstar"}), 403, "forbidden"),
        ("field", json!({"operation": "bulk", "units": 1, "unit": "token"}), 400, "invalid_request"),
    ];
    let before = service.books().await;
    for (key, body, status, code) in &refused {
        // Twice: the second refusal is no repeat of the first.
        worker.reserve(key, body.clone()).await.problem(*status, code);
        worker.reserve(key, body.clone()).await.problem(*status, code);
    }
    assert_eq!(service.books().await, before);
    worker.settle(&all, "0").await.expect(200);
    for (key, ..) in &refused {
        worker.reserve_bulk(key, "2").await.expect(201);
    }
    let books = service.books().await;
    let charged = 2 * refused.len();
    assert_eq!(books.periods, [format!("northstar daily : 100 {} {charged} 0 0", 100 - charged)]);
    assert_eq!(books.reservations.len(), 1 + refused.len());
}

#[tokio::test]
async fn keys_of_every_allowed_form_are_identities_of_their_own() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let longest = "k".repeat(255);
    let other_longest = format!("{}l", &longest[..254]);
    let visible: String = ('!'..='~').collect();
    let keys = ["k", "K", "0", "\"", "%20", "k,k", &longest, &other_longest, &visible];
    let mut ids = std::collections::BTreeSet::new();
    for key in keys {
        let job = worker.reserve_bulk(key, "1").await.expect(201);
        repeated(worker.reserve_bulk(key, "1").await, &job, true);
        ids.insert(job.id());
    }
    assert_eq!(ids.len(), keys.len());
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 91 9 0 0"]);
    assert_eq!(books.entries_of("reserve").len(), keys.len());
}

#[tokio::test]
async fn a_key_that_is_none_is_refused_by_name() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("job", "1").await.expect(201);
    let before = service.books().await;
    let header = |bytes: &[u8]| HeaderValue::from_bytes(bytes).unwrap();
    let long = "k".repeat(256);
    let wrong: [&[HeaderValue]; 9] = [
        &[],
        &[header(b"")],
        &[header(long.as_bytes())],
        &[header(b"a job")],
        &[header(b"a\tjob")],
        &[header("ключ".as_bytes())],
        &[header(b"job\xff")],
        &[header(b"job"), header(b"job")],
        &[header(b"one"), header(b"two")],
    ];
    for keys in wrong {
        let mut request = worker.request(Method::POST, "/v1/reservations").json(&bulk_of(1));
        for key in keys {
            request = request.header("idempotency-key", key.clone());
        }
        let problem = worker.send(request).await.problem(400, "invalid_request");
        assert_eq!(problem.body["errors"][0]["field"], "Idempotency-Key", "{keys:?}");
        assert_eq!(problem.text("retry"), "never");
    }
    assert_eq!(service.books().await, before);
}
