//! A policy that is applied while requests are decided is in force for all that
//! are decided after it, and for none before.

use std::sync::atomic::Ordering;

use serde_json::json;
use spend_ledger::ledger::Context;

use super::{Pressure, THE_PERIOD, count, times_that_run_backwards};
use crate::support::contention::{HeldLock, Replicas};
use crate::support::{Books, NORTHSTAR, Service};

/// At each entry of the (only) period, what is charged is within the limit in
/// force, if the entry is an admission. Answers how many were admitted under
/// each limit.
fn admissions_by_limit(books: &Books) -> Vec<(i64, usize)> {
    let (mut limit, mut charged) = (0, 0);
    let mut counts: Vec<(i64, usize)> = Vec::new();
    for line in &books.journal {
        let words: Vec<&str> = line.split(' ').collect();
        let (event, amount) = (words[2], words[4].parse::<i64>().unwrap());
        match words[3] {
            "granted>available" => limit += amount,
            "available>granted" => limit -= amount,
            "available>reserved" => charged += amount,
            "reserved>available" => charged -= amount,
            "reserved>settled" => {}
            other => panic!("{other}"),
        }
        if words[3].contains("granted") {
            counts.push((limit, 0));
        }
        if event == "reserve" || event == "extend" {
            assert!(charged <= limit, "{line}: {charged} charged of {limit}");
            counts.last_mut().unwrap().1 += 1;
        }
    }
    counts
}

#[tokio::test]
async fn a_limit_lowered_under_load_is_in_force_at_once() {
    let policy = |limit: u32| NORTHSTAR.replace("limit: 100,", &format!("limit: {limit},"));
    let service = Service::with_policy(&policy(1000)).await;
    let replicas = Replicas::start(&service.database, 3).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve_bulk("job", "5").await.expect(201);
    let pressure = Pressure::start(&replicas, &worker, 9);

    // In the middle of it, to less than will be asked for.
    pressure.until(|admitted, _| admitted >= 40).await;
    service.apply(&policy(400)).await;
    pressure.until(|_, refused| refused >= 20).await;
    // To less than is charged already.
    service.apply(&policy(150)).await;
    let so_far = pressure.refused.load(Ordering::Relaxed);
    pressure.until(|_, refused| refused >= so_far + 20).await;
    // Raised, and lowered while the new room is taken.
    let so_far = pressure.admitted.load(Ordering::Relaxed);
    service.apply(&policy(900)).await;
    pressure.until(|admitted, _| admitted >= so_far + 20).await;
    service.apply(&policy(600)).await;
    let so_far = pressure.refused.load(Ordering::Relaxed);
    pressure.until(|_, refused| refused >= so_far + 20).await;
    // Raised, and frozen.
    let so_far = pressure.admitted.load(Ordering::Relaxed);
    service.apply(&policy(1000)).await;
    pressure.until(|admitted, _| admitted >= so_far + 20).await;
    service.apply(&policy(0)).await;
    for turn in 0..3 {
        let at = replicas.at(&worker, turn);
        let refused = at.reserve_bulk(&format!("frozen-{turn}"), "5").await.problem(429, "budget_exhausted");
        assert_eq!((refused.body["retry"].as_str(), refused.headers.get("retry-after")), (Some("never"), None));
        let refused = at.extend(&job, "6").await.problem(429, "budget_exhausted");
        assert_eq!((refused.body["retry"].as_str(), refused.headers.get("retry-after")), (Some("never"), None));
    }
    pressure.stop().await;
    let frozen = service.books().await;
    // What had been admitted before can be settled.
    worker.settle(&job, "5").await.expect(200);

    let by_limit = admissions_by_limit(&frozen);
    let limits: Vec<i64> = by_limit.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(limits, [1000, 400, 150, 900, 600, 1000, 0]);
    assert!(by_limit[0].1 >= 40 && by_limit[3].1 >= 20 && by_limit[5].1 >= 20, "{by_limit:?}");
    assert_eq!((by_limit[2].1, by_limit[6].1), (0, 0), "{by_limit:?}");
    let books = service.books().await;
    assert_eq!(books.journal.len(), frozen.journal.len() + 1);
    assert_eq!(times_that_run_backwards(&service.database).await, 0);
}

#[tokio::test]
async fn a_limit_lowered_while_a_reservation_waits_for_its_period() {
    for (limit, retry) in [(0, "never"), (40, "after_release")] {
        let service = Service::with_sessions(NORTHSTAR).await;
        let worker = service.worker(&["northstar"]).await;
        worker.reserve_bulk("before", "30").await.expect(201);
        let lowered = NORTHSTAR.replace("limit: 100,", &format!("limit: {limit},"));
        let held = HeldLock::hold(&service.database, THE_PERIOD).await;
        let ledger = service.ledger.clone();
        let applying =
            tokio::spawn(async move { ledger.apply_policy(&Context::system("test"), &lowered, false).await.unwrap() });
        service.waiting_for_a_lock(1).await;
        let asking = worker.clone();
        let reserving = tokio::spawn(async move { asking.reserve_bulk("job", "20").await });
        service.waiting_for_a_lock(2).await;
        held.release().await;
        applying.await.unwrap();
        let refused = reserving.await.unwrap().problem(429, "budget_exhausted");
        assert_eq!(refused.text("retry"), retry);
        assert_eq!(refused.headers.contains_key("retry-after"), limit > 0);
        let books = service.books().await;
        assert_eq!(books.periods, [format!("northstar daily : {limit} {} 30 0 0", limit - 30)]);
        assert_eq!(books.reservations, ["before active 1 30 0 30 0"]);
    }
}

#[tokio::test]
async fn a_reservation_ahead_of_a_lowered_limit_stays_admitted() {
    let service = Service::with_sessions(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("before", "30").await.expect(201);
    let held = HeldLock::hold(&service.database, THE_PERIOD).await;
    let asking = worker.clone();
    let reserving = tokio::spawn(async move { asking.reserve_bulk("job", "50").await });
    service.waiting_for_a_lock(1).await;
    let ledger = service.ledger.clone();
    let lowered = NORTHSTAR.replace("limit: 100,", "limit: 40,");
    let applying =
        tokio::spawn(async move { ledger.apply_policy(&Context::system("test"), &lowered, false).await.unwrap() });
    service.waiting_for_a_lock(2).await;
    held.release().await;
    applying.await.unwrap();
    reserving.await.unwrap().expect(201);
    worker.reserve_bulk("more", "1").await.problem(429, "budget_exhausted");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 40 -40 80 0 0"]);
    assert_eq!(
        books.journal[2..],
        ["daily 3 reserve available>reserved 50", "daily 4 limit_lowered available>granted 60"]
    );
}

/// RULES.md, section 3: the decision is made against the policy in force; an
/// estimate made from an older policy is made again. A policy that was applied
/// while the decision waited for its period is in force when it is made.
#[tokio::test]
async fn a_reservation_that_waited_is_decided_by_the_policy_in_force() {
    let dearer = NORTHSTAR.replace("rate: 1,", "rate: 2,");
    let retired = NORTHSTAR.replace("  export:\n", "  report:\n");
    let stopped =
        format!("{NORTHSTAR}pools:\n  stop: {{ unit: transformation, limit: 0, period: day, timezone: UTC }}\n");
    // With the price, the limit of this period, so that applying waits as well.
    let dearer_and_less = dearer.replace("limit: 100,", "limit: 99,");
    for (policy, ahead, admitted, code) in [
        (&dearer, "reservation", true, ""),
        (&retired, "reservation", false, "unknown_operation"),
        (&stopped, "reservation", false, "budget_exhausted"),
        (&dearer_and_less, "policy", true, ""),
    ] {
        let service = Service::with_sessions(NORTHSTAR).await;
        let worker = service.worker(&["northstar"]).await;
        worker.reserve_bulk("before", "30").await.expect(201);
        let held = HeldLock::hold(&service.database, THE_PERIOD).await;
        let reserve = {
            let worker = worker.clone();
            async move { worker.reserve("job", json!({"operation": "export"})).await }
        };
        let apply = {
            let (ledger, policy) = (service.ledger.clone(), policy.clone());
            async move { ledger.apply_policy(&Context::system("test"), &policy, false).await.unwrap() }
        };
        let (reserving, applying);
        if ahead == "policy" {
            applying = tokio::spawn(apply);
            service.waiting_for_a_lock(1).await;
            reserving = tokio::spawn(reserve);
            service.waiting_for_a_lock(2).await;
        } else {
            reserving = tokio::spawn(reserve);
            service.waiting_for_a_lock(1).await;
            applying = tokio::spawn(apply);
            // Applied, or waiting for the period itself: then it comes second.
            tokio::select! {
                () = service.waiting_for_a_lock(2) => {}
                () = async { while !applying.is_finished() { tokio::task::yield_now().await } } => {}
            }
        }
        held.release().await;
        let (answer, _) = (reserving.await.unwrap(), applying.await.unwrap());
        let limit = if ahead == "policy" { 99 } else { 100 };
        let taken = if answer.status == 201 { answer.text("estimate").parse::<i32>().unwrap() } else { 0 };
        let day = format!("northstar daily : {limit} {} {} 0 0", limit - 30 - taken, 30 + taken);
        assert_eq!(service.books().await.periods[0], day);
        let after_the_policy = count(
            &service.database,
            "select count(*) from reservation r join policy_version v on v.version = 2
             where r.idempotency_key = 'job' and r.created_at > v.applied_at",
        )
        .await;
        if answer.status == 201 && after_the_policy == 0 {
            assert_eq!((answer.text("estimate"), answer.text("state")), ("5", "active"));
        } else if admitted {
            let estimate = answer.expect(201).text("estimate").to_owned();
            assert_eq!(estimate, "10", "admitted after the policy was applied, at the price before it");
        } else {
            assert_ne!(answer.status, 201, "admitted after {code} was in force");
            let refused = answer.problem(if code == "budget_exhausted" { 429 } else { 422 }, code);
            assert_eq!(refused.text("retry"), "never");
        }
    }
}
