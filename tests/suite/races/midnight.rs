//! When a period ends while requests are in flight, each belongs wholly to the
//! one or to the other, and times never run backwards.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;

use super::{Pressure, THE_PERIOD, count, times_that_run_backwards};
use crate::support::contention::{HeldLock, Replicas};
use crate::support::server::TestDatabase;
use crate::support::{Answer, Client, NORTHSTAR, Service};

/// Reservations charged to a period that was not open when they were admitted.
async fn charged_to_another_time(database: &TestDatabase) -> i64 {
    count(
        database,
        "select count(*) from reservation r join budget_period p on p.id = any (r.period_ids)
         where r.created_at < p.starts_at or r.created_at >= p.ends_at",
    )
    .await
}

/// Five days in a row end. Of each, twenty requests are answered before midnight
/// and forty are in flight over it, while jobs of the days before settle.
async fn days_end_under_load(rollover: &str, sessions: bool) {
    let policy = NORTHSTAR
        .replace("limit: 100,", &format!("limit: 1000, rollover: {rollover},"))
        .replace("max_units: 100 ", "max_units: 1000 ")
        + &format!(
            "pools:\n  all: {{ unit: transformation, limit: 5000, period: day, timezone: America/New_York, \
             rollover: {rollover} }}\n"
        );
    let service = Service::with_sessions(&policy).await;
    let database = &service.database;
    // With sessions forty requests wait for locks, else three groups of them.
    let (replicas, in_flight) = match sessions {
        true => (Replicas::with_sessions(database, 3).await, 30),
        false => (Replicas::start(database, 3).await, 3),
    };
    let worker = service.worker(&["northstar"]).await;
    let mut running: Vec<Answer> = Vec::new();
    for day in 10..15 {
        let midnight = format!("2026-03-{}T04:00:00Z", day + 1);
        database.set_clock(&format!("2026-03-{day}T23:59:50-04:00")).await;
        let older = running.len() / 2;
        let before = join_all(asking(&replicas, &worker, &format!("{day}-before"), 20)).await;
        running.extend(before.into_iter().map(|answer| in_one_day(answer.unwrap(), "period_ends_at", &midnight)));

        // What is asked now is decided when the day is over.
        let held = HeldLock::hold(database, THE_PERIOD).await;
        let waiting = asking(&replicas, &worker, &format!("{day}-over"), 40);
        service.waiting_for_a_lock(in_flight).await;
        let settling = settling(&replicas, &worker, running.drain(..older));
        database.set_clock(&midnight).await;
        held.release().await;
        let over = join_all(waiting).await;
        running.extend(over.into_iter().map(|answer| in_one_day(answer.unwrap(), "period_starts_at", &midnight)));
        for settled in join_all(settling).await {
            settled.unwrap();
        }
        // Something is used of the new day in any case.
        running.push(worker.reserve_bulk(&format!("{day}-last"), "5").await.expect(201));
        // Refused, after what was released has been given back.
        let refused = worker.reserve_bulk(&format!("{day}-refused"), "1000").await.problem(429, "budget_exhausted");
        assert_eq!(refused.body["breaches"].as_array().unwrap().len(), 1);
        these_days_hold(&service, i64::from(day) - 8, rollover == "carry_forward").await;
    }

    // When all have settled nothing is carried, and the last day has the rest.
    let last = "2026-03-15T04:00:00Z";
    let mut used = 0;
    for job in &running {
        worker.settle(job, "5").await.expect(200);
        used += if job.body["budgets"][0]["period_starts_at"] == last { 5 } else { 0 };
    }
    assert_eq!(used, 41 * 5);
    worker.reserve_bulk("rest", &(1000 - used).to_string()).await.expect(201);
    let books = service.books().await;
    let line = format!("northstar daily : 1000 0 {} 0 {used}", 1000 - used);
    assert_eq!(books.periods.iter().filter(|period| **period == line).count(), 1, "{:#?}", books.periods);
    assert_eq!(times_that_run_backwards(database).await, 0);
}

/// So many requests for 5 at once, in all processes.
fn asking(replicas: &Replicas, worker: &Client, key: &str, count: usize) -> Vec<JoinHandle<Answer>> {
    let ask = |n| {
        let (client, key) = (replicas.at(worker, n), format!("{key}-{n}"));
        tokio::spawn(async move { client.reserve_bulk(&key, "5").await.expect(201) })
    };
    (0..count).map(ask).collect()
}

/// These jobs settle at once, in all processes.
fn settling(replicas: &Replicas, worker: &Client, jobs: impl Iterator<Item = Answer>) -> Vec<JoinHandle<Answer>> {
    let settle = |(n, job)| {
        let client = replicas.at(worker, n);
        tokio::spawn(async move { client.settle(&job, "3").await.expect(200) })
    };
    jobs.enumerate().map(settle).collect()
}

/// A reservation that is charged to two periods, which begin or end then.
fn in_one_day(answer: Answer, bound: &str, midnight: &str) -> Answer {
    let budgets = answer.body["budgets"].as_array().unwrap();
    assert_eq!(budgets.len(), 2);
    // Both days begin and end at the same time: never one of each.
    assert_eq!(budgets[0]["period_starts_at"], budgets[1]["period_starts_at"]);
    assert_eq!(budgets[0][bound], midnight);
    answer
}

/// So many days have been opened, each once, and the last one carries exactly
/// what those before it hold, or nothing.
async fn these_days_hold(service: &Service, days: i64, carries: bool) {
    let database = &service.database;
    service.books().await;
    assert_eq!(charged_to_another_time(database).await, 0);
    let numbered = "select count(*) from (select account, budget, ordinal from budget_period
                                          group by 1, 2, 3 having count(*) = 1) period";
    assert_eq!(count(database, numbered).await, 2 * days, "one period for each budget and day");
    assert_eq!(count(database, "select count(*) from budget_period").await, 2 * days);
    assert_eq!(count(database, "select max(ordinal) from budget_period").await, days);
    // Exactly what the earlier days hold is carried.
    let not_carried_right = "select count(*) from budget_period p
         where p.carried <> (select coalesce(sum(e.reserved + e.liability), 0) from budget_period e
                             where e.account = p.account and e.budget = p.budget and e.ordinal < p.ordinal)
           and p.account <> ''
           and p.ordinal = (select max(ordinal) from budget_period)";
    let carried = count(database, "select count(*) from budget_period where carried > 0").await;
    if carries {
        assert_eq!(count(database, not_carried_right).await, 0);
        assert!(carried > 0);
    } else {
        assert_eq!(carried, 0);
    }
}

#[tokio::test]
async fn the_day_ends_under_load() {
    days_end_under_load("original_period", true).await;
}

#[tokio::test]
async fn the_day_ends_under_load_with_carry_forward() {
    days_end_under_load("carry_forward", true).await;
}

#[tokio::test]
async fn the_day_ends_under_load_for_those_who_are_decided_together() {
    days_end_under_load("carry_forward", false).await;
}

/// The clock is read by one transaction after the other, so that the second sees
/// what the first has opened only after it has found nothing open.
#[tokio::test]
async fn of_two_that_find_nothing_open_one_opens_the_period() {
    for period in ["day, timezone: America/New_York", "total"] {
        let policy = NORTHSTAR.replace("day, timezone: America/New_York", period);
        let service = Service::with_sessions(&policy).await;
        let database = &service.database;
        let worker = service.worker(&["northstar"]).await;
        database
            .execute(
                "create or replace function ledger_clock() returns timestamptz language plpgsql volatile as
                     $$begin perform pg_advisory_xact_lock(7); return clock_timestamp(); end$$",
            )
            .await;
        let held = HeldLock::hold(database, "select from policy_state for update").await;
        // In one process one of them would open it for both.
        let other = service.another().await;
        let asking = [("here", worker.clone()), ("there", worker.at(other.address))]
            .map(|(key, worker)| tokio::spawn(async move { worker.reserve_bulk(key, "10").await }));
        service.waiting_for_a_lock(2).await;
        let clock = HeldLock::hold(database, "select pg_advisory_xact_lock(7)").await;
        held.release().await;
        let both_wait = async {
            let waiting = "select count(*) from pg_stat_activity
                           where datname = current_database() and wait_event = 'advisory'";
            while count(database, waiting).await < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(15), both_wait).await.expect("both are about to open it");
        clock.release().await;
        for answer in join_all(asking).await {
            answer.unwrap().expect(201);
        }
        assert_eq!(service.books().await.periods, ["northstar daily : 100 80 20 0 0"], "{period}");
    }
}

#[tokio::test]
async fn a_limit_changed_while_the_day_ends_is_the_new_days_limit() {
    let policy = |limit: u32| NORTHSTAR.replace("limit: 100,", &format!("limit: {limit},"));
    let service = Service::with_policy(&policy(1000)).await;
    let database = &service.database;
    let replicas = Replicas::start(database, 3).await;
    let worker = service.worker(&["northstar"]).await;
    for (day, limit) in (10..15).zip([900, 800, 950, 700, 600]) {
        database.set_clock(&format!("2026-03-{day}T23:59:50-04:00")).await;
        let asking: Vec<_> = (0..30)
            .map(|n| {
                let client = replicas.at(&worker, n);
                tokio::spawn(async move { client.reserve_bulk(&format!("{day}-{n}"), "1").await.expect(201) })
            })
            .collect();
        let midnight = format!("2026-03-{}T00:00:00-04:00", day + 1);
        let policy = policy(limit);
        tokio::join!(service.apply(&policy), database.set_clock(&midnight));
        for answer in join_all(asking).await {
            answer.unwrap();
        }
        // So that there is one, whoever was late.
        worker.reserve_bulk(&format!("{day}-last"), "1").await.expect(201);
        let books = service.books().await;
        let newest = books.periods.last().unwrap();
        assert!(newest.starts_with(&format!("northstar daily : {limit} ")), "{:#?}", books.periods);
        assert_eq!(charged_to_another_time(database).await, 0);
    }
}

#[tokio::test]
async fn a_reservation_that_waits_over_midnight_belongs_to_the_new_day() {
    for rollover in ["original_period", "carry_forward"] {
        let policy = NORTHSTAR.replace("limit: 100,", &format!("limit: 100, rollover: {rollover},"))
            + "pools:\n  month: { unit: transformation, limit: 500, period: month, timezone: UTC }\n";
        let service = Service::with_sessions(&policy).await;
        let database = &service.database;
        let worker = service.worker(&["northstar"]).await;
        database.set_clock("2026-03-10T23:59:00-04:00").await;
        let running = worker.reserve_bulk("running", "30").await.expect(201);
        let held = HeldLock::hold(database, THE_PERIOD).await;
        let spawn = |n: u32| {
            let client = worker.clone();
            tokio::spawn(async move { client.reserve_bulk(&format!("late-{n}"), "20").await })
        };
        let late = [spawn(0), spawn(1), spawn(2)];
        // An extension waits as well: it stays where its reservation is.
        let extending = {
            let (client, running) = (worker.clone(), running.clone());
            tokio::spawn(async move { client.extend(&running, "35").await })
        };
        service.waiting_for_a_lock(4).await;
        database.set_clock("2026-03-11T00:00:00-04:00").await;
        held.release().await;
        for late in late {
            let late = late.await.unwrap().expect(201);
            assert_eq!(late.body["budgets"][0]["period_starts_at"], "2026-03-11T04:00:00Z");
            assert_eq!(late.body["budgets"][1]["period_starts_at"], "2026-03-01T00:00:00Z");
        }
        assert_eq!(extending.await.unwrap().expect(200).body["budgets"], running.body["budgets"]);
        assert_eq!(charged_to_another_time(database).await, 0);
        let books = service.books().await;
        // Carried is what the old day held when the new one opened: 30 or,
        // after the extension, 35.
        let carried = count(database, "select max(carried)::bigint from budget_period").await;
        assert!(if rollover == "carry_forward" { [30, 35].contains(&carried) } else { carried == 0 });
        assert_eq!(
            books.periods,
            [
                "northstar daily : 100 65 35 0 0".to_owned(),
                format!("northstar daily : 100 {} 60 0 0", 40 - carried),
                " month : 500 405 95 0 0".to_owned(),
            ]
        );
    }
}

#[tokio::test]
async fn a_full_day_is_no_reason_to_refuse_who_waited_into_the_next() {
    let service = Service::with_sessions(NORTHSTAR).await;
    let database = &service.database;
    let worker = service.worker(&["northstar"]).await;
    database.set_clock("2026-03-10T23:59:00-04:00").await;
    worker.reserve_bulk("running", "10").await.expect(201);
    let held = HeldLock::hold(database, THE_PERIOD).await;
    let spawn = |n: u32| {
        let client = worker.clone();
        tokio::spawn(async move { client.reserve_bulk(&format!("late-{n}"), "90").await })
    };
    // Of two that both fit when they asked, the new day has room for one.
    let late = [spawn(0), spawn(1)];
    service.waiting_for_a_lock(2).await;
    database.set_clock("2026-03-11T00:00:00-04:00").await;
    held.release().await;
    let mut answers = Vec::new();
    for late in late {
        answers.push(late.await.unwrap());
    }
    answers.sort_by_key(|answer| answer.status);
    let refused = answers.pop().unwrap().problem(429, "budget_exhausted");
    assert_eq!(
        (refused.text("retry"), &refused.body["breaches"]),
        (
            "after_release",
            &json!([{"budget": "daily", "requested": "90", "available": "10", "resets_at": "2026-03-12T04:00:00Z"}])
        )
    );
    let admitted = answers.pop().unwrap().expect(201);
    assert_eq!((admitted.text("state"), admitted.text("charged")), ("active", "90"));
    assert_eq!(admitted.body["budgets"][0]["period_starts_at"], "2026-03-11T04:00:00Z");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 90 10 0 0", "northstar daily : 100 10 90 0 0"]);
}

#[tokio::test]
async fn entry_times_never_run_backwards_whatever_the_clock_does() {
    let service = Service::with_policy(&NORTHSTAR.replace("limit: 100,", "limit: 100000,")).await;
    let database = &service.database;
    database.set_clock("2026-03-10T12:00:00-04:00").await;
    let replicas = Replicas::start(database, 3).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": 1, "holder": "w-1"})).await.expect(201);
    let pressure = Pressure::start(&replicas, &worker, 12);
    for (step, time) in ["12:00:05", "11:59:00", "12:10:00", "12:00:00", "12:05:00"].into_iter().enumerate() {
        let enough = 30 * (step + 1);
        pressure.until(|admitted, _| admitted >= enough).await;
        database.set_clock(&format!("2026-03-10T{time}-04:00")).await;
        worker.extend(&job, &(step + 2).to_string()).await.expect(200);
    }
    pressure.stop().await;
    assert_eq!(times_that_run_backwards(database).await, 0);
    let books = service.books().await;
    assert!(books.entries_of("reserve").len() > 150);
    assert_eq!(books.entries_of("extend").len(), 5);
    assert_eq!(count(database, "select count(*) from budget_period").await, 1);
}
