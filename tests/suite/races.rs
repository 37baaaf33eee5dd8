//! Requests that meet: whatever the order in which they come, the outcome is
//! that of one of them after the other, in every process of the service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use spend_ledger::ledger::Context;

use crate::support::contention::{HeldLock, Replicas};
use crate::support::server::{TestDatabase, server};
use crate::support::{Answer, Books, Client, NORTHSTAR, Service};

const THE_PERIOD: &str = "select from budget_period where budget = 'daily' for update";
const THE_OPEN_RESERVATION: &str = "select from reservation where state = 'active' for update";

/// A number that the database answers with.
async fn count(database: &TestDatabase, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&mut database.connect().await).await.unwrap()
}

/// Entry times that run backwards against entry numbers, in any period or in
/// the history of any reservation.
async fn times_that_run_backwards(database: &TestDatabase) -> i64 {
    count(
        database,
        "select (select count(*) from (select at < lag(at) over (partition by account, period_id order by entry_no)
                                              as back from journal_entry) entry where back)
              + (select count(*) from (select at < lag(at) over (partition by account, reservation_id order by version)
                                              as back from reservation_event) event where back)",
    )
    .await
}

/// Reservations charged to a period that was not open when they were admitted.
async fn charged_to_another_time(database: &TestDatabase) -> i64 {
    count(
        database,
        "select count(*) from reservation r join budget_period p on p.id = any (r.period_ids)
         where r.created_at < p.starts_at or r.created_at >= p.ends_at",
    )
    .await
}

/// Numbers that differ enough, the same in every run.
struct Dice(u64);

impl Dice {
    /// A number from 0 to `sides` - 1.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn bulk(account: &str, units: u64) -> Value {
    json!({"operation": "bulk", "units": units, "account": account, "holder": "w-1"})
}

/// A policy with another one's accounts, all on its plan `standard`.
fn with_accounts(policy: &str, names: impl Iterator<Item = String>) -> String {
    let (head, _) = policy.split_once("accounts:").unwrap();
    let listed: String = names.map(|name| format!("  {name}: {{ plan: standard }}\n")).collect();
    format!("{head}accounts:\n{listed}")
}

#[tokio::test]
async fn of_two_hundred_exactly_the_twenty_that_fit_are_admitted_every_time() {
    const ROUNDS: usize = 50;
    const REQUESTS: usize = 200;
    let account = |round: usize| format!("account-{round:02}");
    let service = Service::with_policy(&with_accounts(NORTHSTAR, (0..ROUNDS).map(account))).await;
    let replicas = Replicas::start(&service.database, 3).await;
    let fleet = service.fleet().await;
    for round in 0..ROUNDS {
        let body = bulk(&account(round), 5);
        let asking = (0..REQUESTS).map(|n| {
            let client = replicas.at(&fleet, n);
            let body = body.clone();
            async move { client.reserve(&format!("job-{n:03}"), body).await }
        });
        let mut admitted = BTreeSet::new();
        for answer in join_all(asking).await {
            if answer.status == 201 {
                assert_eq!((answer.text("state"), answer.text("charged")), ("active", "5"));
                admitted.insert(answer.id());
            } else {
                let refused = answer.problem(429, "budget_exhausted");
                assert_eq!(refused.body["retry"], "after_release");
                let breaches = refused.body["breaches"].as_array().unwrap();
                assert_eq!(breaches.len(), 1, "{:#}", refused.body);
                assert_eq!(
                    (&breaches[0]["budget"], &breaches[0]["requested"], &breaches[0]["available"]),
                    (&json!("daily"), &json!("5"), &json!("0"))
                );
            }
        }
        assert_eq!(admitted.len(), 20, "in round {round}");
        let books = service.books().await;
        assert_eq!(books.periods.len(), round + 1);
        assert_eq!(books.periods[round], format!("{} daily : 100 0 100 0 0", account(round)));
        assert_eq!(books.reservations.len(), 20 * (round + 1));
        let mut journal = vec!["daily 1 period_opened granted>available 100".to_owned()];
        journal.extend((2..22).map(|entry| format!("daily {entry} reserve available>reserved 5")));
        assert_eq!(books.journal[21 * round..], journal);
    }
}

/// Many budgets of one reservation: three of the account (one only for one
/// operation), one of the member, and up to three pools.
const MANY_BUDGETS: &str = "
providers:
  direct: { unit: transformation, enforcement: worker, keys: [a, b] }
operations:
  bulk: { provider: direct, explicit: true, max_units: 100 }
  stream: { provider: direct, explicit: true, max_units: 100 }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 120, period: day, timezone: America/New_York }
      monthly: { unit: transformation, limit: 120, period: month, timezone: UTC }
      streams: { unit: transformation, limit: 40, period: total, operation: stream }
      each: { unit: transformation, limit: 50, period: day, timezone: Asia/Tokyo, per: member }
pools:
  a-pool: { unit: transformation, limit: 520, period: month, timezone: UTC }
  key-a: { provider: direct, provider_key: a, unit: transformation, limit: 200, period: day, timezone: UTC }
  z-pool: { provider: direct, unit: transformation, limit: 520, period: total }
accounts:
";

/// What one worker's jobs take at the end, by `account budget member` (a pool's
/// account is empty), and the budgets that refused.
#[derive(Default)]
struct Tally {
    taken: BTreeMap<String, Decimal>,
    refused_by: BTreeMap<String, usize>,
    refused_by_several: usize,
    extended: usize,
    not_extended: usize,
}

impl Tally {
    fn charge(&mut self, account: &str, member: &str, operation: &str, key: &str, charged: &str) {
        let mut budgets = vec![
            format!("{account} daily "),
            format!("{account} monthly "),
            format!("{account} each {member}"),
            " a-pool ".to_owned(),
            " z-pool ".to_owned(),
        ];
        if operation == "stream" {
            budgets.push(format!("{account} streams "));
        }
        if key == "a" {
            budgets.push(" key-a ".to_owned());
        }
        for budget in budgets {
            *self.taken.entry(budget).or_default() += charged.parse::<Decimal>().unwrap();
        }
    }

    fn refused(&mut self, refused: &Answer) {
        let breaches = refused.body["breaches"].as_array().unwrap();
        assert!(!breaches.is_empty());
        self.refused_by_several += usize::from(breaches.len() > 1);
        for breach in breaches {
            *self.refused_by.entry(breach["budget"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }

    fn add(&mut self, other: Self) {
        for (budget, units) in other.taken {
            *self.taken.entry(budget).or_default() += units;
        }
        for (budget, times) in other.refused_by {
            *self.refused_by.entry(budget).or_default() += times;
        }
        self.refused_by_several += other.refused_by_several;
        self.extended += other.extended;
        self.not_extended += other.not_extended;
    }
}

/// A worker that reserves, reports progress, extends and settles, each step at
/// another process.
async fn jobs_of(worker: u64, clients: Vec<Client>) -> Tally {
    let mut dice = Dice(worker);
    let mut tally = Tally::default();
    for job in 0..24 {
        let account = format!("account-{}", dice.roll(5));
        let member = ["ann", "ben", "cy"][dice.roll(3) as usize];
        let operation = ["bulk", "stream"][dice.roll(2) as usize];
        let key = ["a", "b"][dice.roll(2) as usize];
        let units = 1 + dice.roll(14);
        let turns = [(); 4].map(|()| clients[dice.roll(clients.len() as u64) as usize].clone());
        let body = json!({"operation": operation, "units": units, "account": account, "member": member,
                          "provider_key": key, "holder": format!("w-{worker}")});
        let reserved = turns[0].reserve(&format!("{worker}-{job}"), body).await;
        if reserved.status != 201 {
            tally.refused(&reserved.problem(429, "budget_exhausted"));
            continue;
        }
        let mut ceiling = units;
        let mut last = reserved.clone();
        if dice.roll(2) == 0 {
            let wanted = ceiling + 1 + dice.roll(9);
            let extended = turns[1].extend(&reserved, &wanted.to_string()).await;
            if extended.status == 200 {
                tally.extended += 1;
                ceiling = wanted;
                last = extended;
            } else {
                tally.not_extended += 1;
                tally.refused(&extended.problem(429, "budget_exhausted"));
            }
        }
        let used = dice.roll(ceiling + 1);
        if dice.roll(2) == 0 {
            last = turns[2].progress(&reserved, &(used / 2).to_string()).await.expect(200);
        }
        // One in four is left running.
        if dice.roll(4) > 0 {
            last = turns[3].settle(&reserved, &used.to_string()).await.expect(200);
        }
        assert_eq!(last.text("overrun"), "0");
        tally.charge(&account, member, operation, key, last.text("charged"));
    }
    tally
}

#[tokio::test]
async fn many_budgets_in_every_order_neither_deadlock_nor_admit_too_much() {
    let accounts: String = (0..5).map(|n| format!("  account-{n}: {{ plan: standard }}\n")).collect();
    let service = Service::with_policy(&format!("{MANY_BUDGETS}{accounts}")).await;
    let replicas = Replicas::start(&service.database, 3).await;
    let fleet = service.fleet().await;
    let clients: Vec<Client> = (0..3).map(|n| replicas.at(&fleet, n)).collect();
    let workers = (0..24).map(|worker| tokio::spawn(jobs_of(worker, clients.clone())));
    let mut tally = Tally::default();
    for worker in join_all(workers).await {
        tally.add(worker.unwrap());
    }

    // Every kind of budget had to refuse, or the test says nothing.
    for budget in ["daily", "monthly", "streams", "each", "a-pool", "key-a", "z-pool"] {
        assert!(tally.refused_by.contains_key(budget), "{budget} never refused: {:?}", tally.refused_by);
    }
    assert!(tally.refused_by_several > 0 && tally.extended > 0 && tally.not_extended > 0);

    // What each budget has charged is what the answers said, and no more than
    // its limit at any time.
    let books = service.books().await;
    let mut charged = BTreeMap::new();
    for line in &books.periods {
        let (name, balances) = line.split_once(": ").unwrap();
        let numbers: Vec<Decimal> = balances.split(' ').map(|number| number.parse().unwrap()).collect();
        charged.insert(name.to_owned(), numbers[2] + numbers[3] + numbers[4]);
    }
    tally.taken.retain(|budget, units| !units.is_zero() || charged.contains_key(budget));
    charged.retain(|budget, units| !units.is_zero() || tally.taken.contains_key(budget));
    assert_eq!(charged, tally.taken);
    let below_zero = "select count(*) from journal_entry where available < 0";
    assert_eq!(count(&service.database, below_zero).await, 0);
    assert_eq!(times_that_run_backwards(&service.database).await, 0);

    no_deadlocks(&service.database, replicas, &clients).await;
}

/// Three witnesses: the processes, the server's log, the server's statistics.
async fn no_deadlocks(database: &TestDatabase, replicas: Replicas, clients: &[Client]) {
    for client in clients {
        let metrics = client.get("/metrics").await.expect(200);
        let metrics = metrics.body.as_str().unwrap().to_owned();
        assert!(metrics.contains("admissions"), "{metrics}");
        assert!(!metrics.contains(r#"reason="deadlock""#), "{metrics}");
    }
    let mut connection = database.connect().await;
    let sessions: Vec<i32> = sqlx::query_scalar(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(sessions.len() >= 3, "each process has a session: {sessions:?}");
    replicas.terminate().await;
    let log = std::fs::read_to_string(server().data_dir().join("postgres.log")).unwrap();
    for line in log.lines().filter(|line| line.contains("deadlock detected")) {
        let of_this_database = sessions.iter().any(|pid| line.contains(&format!("[{pid}]")));
        assert!(!of_this_database, "{line}");
    }
    // A session hands its statistics over when it ends at the latest.
    loop {
        let remaining: i64 =
            sqlx::query_scalar("select count(*) from pg_stat_activity where pid = any ($1) and usename = $2")
                .bind(&sessions)
                .bind(spend_ledger::boot::SERVICE_LOGIN)
                .fetch_one(&mut connection)
                .await
                .unwrap();
        // Those of the service in this process stay.
        if remaining <= 8 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(count(database, deadlocks).await, 0);
}

/// What a worker does with its reservation.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Settle(&'static str),
    Progress(&'static str),
    Extend(&'static str),
}
use Verb::{Extend, Progress, Settle};

impl Verb {
    /// `status code state ceiling settled`; no code of a success.
    async fn send(self, client: Client, reservation: Answer) -> String {
        let answer = match self {
            Settle(units) => client.settle(&reservation, units).await,
            Progress(units) => client.progress(&reservation, units).await,
            Extend(ceiling) => client.extend(&reservation, ceiling).await,
        };
        let (code, shown) = match answer.body.get("code") {
            Some(code) => (format!(" {}", code.as_str().unwrap()), &answer.body["reservation"]),
            None => (String::new(), &answer.body),
        };
        let text = |field: &str| shown[field].as_str().unwrap_or("-");
        format!("{}{code} {} {} {}", answer.status.as_u16(), text("state"), text("ceiling"), text("settled"))
    }
}

/// What comes of two verbs: their answers, the journal entries, and the
/// reservation, as `state version ceiling settled reserved liability`.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    answers: [String; 2],
    journal: Vec<String>,
    reservation: String,
}

fn outcome(answers: [&str; 2], journal: &[&str], reservation: &str) -> Outcome {
    Outcome {
        answers: answers.map(str::to_owned),
        journal: journal.iter().map(|&line| line.to_owned()).collect(),
        reservation: reservation.to_owned(),
    }
}

/// Two verbs on one reservation of 50 meet, in both orders, before the
/// reservation's lock and before the period's.
async fn meet(verbs: [Verb; 2], first_then_second: Outcome, second_then_first: Outcome) {
    let service = Service::with_policy(&NORTHSTAR.replace("limit: 100,", "limit: 1000,")).await;
    let other = service.another().await;
    let worker = service.worker(&["northstar"]).await;
    let clients = [worker.clone(), worker.at(other.address)];
    let serial = [first_then_second, second_then_first];
    let mut seen = [false; 2];
    for (run, (lock, ahead)) in
        [(THE_OPEN_RESERVATION, 0), (THE_OPEN_RESERVATION, 1), (THE_PERIOD, 0), (THE_PERIOD, 1)].into_iter().enumerate()
    {
        let body = json!({"operation": "stream", "units": 50, "holder": "w-1"});
        let reservation = worker.reserve(&format!("run-{run}"), body).await.expect(201);
        let before = service.books().await.journal.len();
        let held = HeldLock::hold(&service.database, lock).await;
        let send = |n: usize| tokio::spawn(verbs[n].send(clients[n].clone(), reservation.clone()));
        let one = send(ahead);
        service.waiting_for_a_lock(1).await;
        let two = send(1 - ahead);
        service.waiting_for_a_lock(2).await;
        held.release().await;
        let mut answers = [one.await.unwrap(), two.await.unwrap()];
        if ahead == 1 {
            answers.reverse();
        }
        let books = service.books().await;
        let got = Outcome {
            answers,
            journal: books.journal[before..]
                .iter()
                .map(|line| line.splitn(3, ' ').last().unwrap().to_owned())
                .collect(),
            reservation: books.reservations[run].split_once(' ').unwrap().1.to_owned(),
        };
        assert!(serial.contains(&got), "{verbs:?}, the {ahead}. ahead at {lock}: {got:#?}");
        for (order, seen) in serial.iter().zip(&mut seen) {
            *seen |= *order == got;
        }
        // Nothing of it is in the way of the next run.
        worker.settle(&reservation, got.reservation.split(' ').nth(3).unwrap()).await;
    }
    assert_eq!(seen, [true, true], "{verbs:?}: both orders must have been met");
}

#[tokio::test]
async fn two_settlements_at_different_amounts() {
    meet(
        [Settle("30"), Settle("40")],
        outcome(
            ["200 settled 50 30", "409 already_settled settled 50 30"],
            &["final_settlement reserved>settled 30", "final_settlement reserved>available 20"],
            "settled 2 50 30 0 0",
        ),
        outcome(
            ["409 already_settled settled 50 40", "200 settled 50 40"],
            &["final_settlement reserved>settled 40", "final_settlement reserved>available 10"],
            "settled 2 50 40 0 0",
        ),
    )
    .await;
}

#[tokio::test]
async fn two_settlements_at_the_same_amount() {
    let once = || {
        outcome(
            ["200 settled 50 30", "200 settled 50 30"],
            &["final_settlement reserved>settled 30", "final_settlement reserved>available 20"],
            "settled 2 50 30 0 0",
        )
    };
    meet([Settle("30"), Settle("30")], once(), once()).await;
}

#[tokio::test]
async fn a_settlement_and_an_extension() {
    meet(
        [Settle("30"), Extend("60")],
        outcome(
            ["200 settled 50 30", "409 not_active settled 50 30"],
            &["final_settlement reserved>settled 30", "final_settlement reserved>available 20"],
            "settled 2 50 30 0 0",
        ),
        outcome(
            ["200 settled 60 30", "200 active 60 0"],
            &[
                "extend available>reserved 10",
                "final_settlement reserved>settled 30",
                "final_settlement reserved>available 30",
            ],
            "settled 3 60 30 0 0",
        ),
    )
    .await;
}

#[tokio::test]
async fn a_settlement_with_overrun_and_an_extension() {
    meet(
        [Settle("70"), Extend("60")],
        outcome(
            ["200 settled 50 70", "409 not_active settled 50 70"],
            &["final_settlement reserved>settled 50", "final_settlement available>settled 20"],
            "settled 2 50 70 0 0",
        ),
        outcome(
            ["200 settled 60 70", "200 active 60 0"],
            &[
                "extend available>reserved 10",
                "final_settlement reserved>settled 60",
                "final_settlement available>settled 10",
            ],
            "settled 3 60 70 0 0",
        ),
    )
    .await;
}

#[tokio::test]
async fn two_extensions() {
    meet(
        [Extend("60"), Extend("70")],
        outcome(
            ["200 active 60 0", "200 active 70 0"],
            &["extend available>reserved 10", "extend available>reserved 10"],
            "active 3 70 0 70 0",
        ),
        outcome(["200 active 70 0", "200 active 70 0"], &["extend available>reserved 20"], "active 2 70 0 70 0"),
    )
    .await;
}

#[tokio::test]
async fn the_same_extension_twice() {
    let once =
        || outcome(["200 active 60 0", "200 active 60 0"], &["extend available>reserved 10"], "active 2 60 0 60 0");
    meet([Extend("60"), Extend("60")], once(), once()).await;
}

#[tokio::test]
async fn a_progressive_and_a_final_settlement() {
    meet(
        [Progress("20"), Settle("30")],
        outcome(
            ["200 active 50 20", "200 settled 50 30"],
            &[
                "progressive_settlement reserved>settled 20",
                "final_settlement reserved>settled 10",
                "final_settlement reserved>available 20",
            ],
            "settled 3 50 30 0 0",
        ),
        outcome(
            ["409 already_settled settled 50 30", "200 settled 50 30"],
            &["final_settlement reserved>settled 30", "final_settlement reserved>available 20"],
            "settled 2 50 30 0 0",
        ),
    )
    .await;
}

#[tokio::test]
async fn two_progressive_settlements() {
    meet(
        [Progress("20"), Progress("25")],
        outcome(
            ["200 active 50 20", "200 active 50 25"],
            &["progressive_settlement reserved>settled 20", "progressive_settlement reserved>settled 5"],
            "active 3 50 25 25 0",
        ),
        outcome(
            ["409 usage_decreases active 50 25", "200 active 50 25"],
            &["progressive_settlement reserved>settled 25"],
            "active 2 50 25 25 0",
        ),
    )
    .await;
}

#[tokio::test]
async fn a_progressive_settlement_and_an_extension() {
    meet(
        [Progress("20"), Extend("60")],
        outcome(
            ["200 active 50 20", "200 active 60 20"],
            &["progressive_settlement reserved>settled 20", "extend available>reserved 10"],
            "active 3 60 20 40 0",
        ),
        outcome(
            ["200 active 60 20", "200 active 60 0"],
            &["extend available>reserved 10", "progressive_settlement reserved>settled 20"],
            "active 3 60 20 40 0",
        ),
    )
    .await;
}

#[tokio::test]
async fn an_extension_and_a_reservation_for_the_last_room() {
    for extension_ahead in [true, false] {
        let service = Service::with_policy(NORTHSTAR).await;
        let worker = service.worker(&["northstar"]).await;
        let body = json!({"operation": "stream", "units": 50, "holder": "w-1"});
        let job = worker.reserve("job", body).await.expect(201);
        let held = HeldLock::hold(&service.database, THE_PERIOD).await;
        let extend = {
            let (worker, job) = (worker.clone(), job.clone());
            async move { worker.extend(&job, "60").await }
        };
        let reserve = {
            let worker = worker.clone();
            async move { worker.reserve_bulk("other", "45").await }
        };
        let (extended, reserved);
        if extension_ahead {
            extended = tokio::spawn(extend);
            service.waiting_for_a_lock(1).await;
            reserved = tokio::spawn(reserve);
        } else {
            reserved = tokio::spawn(reserve);
            service.waiting_for_a_lock(1).await;
            extended = tokio::spawn(extend);
        }
        service.waiting_for_a_lock(2).await;
        held.release().await;
        let (extended, reserved) = (extended.await.unwrap(), reserved.await.unwrap());
        let books = service.books().await;
        // Whichever came first has it, the other one nothing.
        if extended.status == 200 {
            let refused = reserved.problem(429, "budget_exhausted");
            assert_eq!(refused.body["breaches"][0]["available"], "40");
            assert_eq!(books.periods, ["northstar daily : 100 40 60 0 0"]);
            assert_eq!(books.reservations, ["job active 2 60 0 60 0"]);
            assert_eq!(books.journal[2..], ["daily 3 extend available>reserved 10"]);
        } else {
            let refused = extended.problem(429, "budget_exhausted");
            assert_eq!(refused.body["breaches"][0]["available"], "5");
            reserved.expect(201);
            assert_eq!(books.periods, ["northstar daily : 100 5 95 0 0"]);
            assert_eq!(books.reservations, ["job active 1 50 0 50 0", "other active 1 45 0 45 0"]);
            assert_eq!(books.journal[2..], ["daily 3 reserve available>reserved 45"]);
        }
    }
}

/// Of several periods the one that was waited for, and that others changed
/// meanwhile, is charged like those that were free.
#[tokio::test]
async fn what_waits_for_one_of_its_periods_is_charged_to_all_of_them() {
    let policy = NORTHSTAR.replace("limit: 100,", "limit: 1000,")
        + "pools:\n  all: { unit: transformation, limit: 2000, period: month, timezone: UTC }\n";
    for lock in [THE_PERIOD, "select from budget_period where account = '' for update"] {
        let service = Service::with_policy(&policy).await;
        let other = service.another().await;
        let worker = service.worker(&["northstar"]).await;
        let stream = |units: u32| json!({"operation": "stream", "units": units, "holder": "w-1"});
        let mut jobs = Vec::new();
        for key in ["settled", "progressed", "extended"] {
            jobs.push(worker.reserve(key, stream(50)).await.expect(201));
        }
        let held = HeldLock::hold(&service.database, lock).await;
        let clients = [worker.clone(), worker.at(other.address)];
        let mut waiting = Vec::new();
        for (n, verb) in [Settle("30"), Progress("20"), Extend("60")].into_iter().enumerate() {
            waiting.push(tokio::spawn(verb.send(clients[n % 2].clone(), jobs[n].clone())));
            service.waiting_for_a_lock(waiting.len() as i64).await;
        }
        for (n, client) in clients.into_iter().enumerate() {
            let body = stream(7);
            waiting.push(tokio::spawn(async move {
                client.reserve(&format!("new-{n}"), body).await.status.as_u16().to_string()
            }));
            service.waiting_for_a_lock(waiting.len() as i64).await;
        }
        held.release().await;
        let answers: Vec<String> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, ["200 settled 50 30", "200 active 50 20", "200 active 60 0", "201", "201"]);
        let books = service.books().await;
        assert_eq!(books.periods, ["northstar daily : 1000 846 104 0 50", " all : 2000 1846 104 0 50"]);
        assert_eq!(books.entries_of("reserve").len(), 2 * 5);
        assert_eq!(books.entries_of("extend").len(), 2);
    }
}

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

/// Workers that reserve 5 and settle some of it, over and over, until told.
struct Pressure {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    workers: Vec<tokio::task::JoinHandle<()>>,
}

impl Pressure {
    fn start(replicas: &Replicas, client: &Client, workers: usize) -> Self {
        let (stop, admitted, refused) = (Arc::default(), Arc::default(), Arc::default());
        let workers = (0..workers)
            .map(|worker| {
                let client = replicas.at(client, worker);
                let (stop, admitted, refused): (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>) =
                    (Arc::clone(&stop), Arc::clone(&admitted), Arc::clone(&refused));
                tokio::spawn(async move {
                    for job in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let reserved = client.reserve_bulk(&format!("{worker}-{job}"), "5").await;
                        if reserved.status == 201 {
                            admitted.fetch_add(1, Ordering::Relaxed);
                            if job % 3 == 0 {
                                client.settle(&reserved, "4").await.expect(200);
                            }
                        } else {
                            reserved.problem(429, "budget_exhausted");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        Self { stop, admitted, refused, workers }
    }

    async fn until(&self, enough: impl Fn(usize, usize) -> bool) {
        let both = || (self.admitted.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        let wait = async {
            while !enough(both().0, both().1) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("stuck at {:?}", both()));
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
    }
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
        let service = Service::with_policy(NORTHSTAR).await;
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
    let service = Service::with_policy(NORTHSTAR).await;
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
        let service = Service::with_policy(NORTHSTAR).await;
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
        service.books().await;
        let after_the_policy = count(
            &service.database,
            "select count(*) from reservation r join policy_version v on v.version = 2
             where r.idempotency_key = 'job' and r.created_at > v.applied_at",
        )
        .await;
        if answer.status == 201 && after_the_policy == 0 {
            assert_eq!(answer.text("estimate"), "5");
        } else if admitted {
            let estimate = answer.expect(201).text("estimate").to_owned();
            assert_eq!(estimate, "10", "admitted after the policy was applied, at the price before it");
        } else {
            assert_ne!(answer.status, 201, "admitted after {code} was in force");
            answer.problem(if code == "budget_exhausted" { 429 } else { 422 }, code);
        }
    }
}

/// Sixty requests are in flight when the day ends, five days in a row, while jobs
/// of the day before settle.
async fn days_end_under_load(rollover: &str) {
    const REQUESTS: usize = 60;
    let policy = NORTHSTAR
        .replace("limit: 100,", &format!("limit: 1000, rollover: {rollover},"))
        .replace("max_units: 100 ", "max_units: 1000 ")
        + &format!(
            "pools:\n  all: {{ unit: transformation, limit: 5000, period: day, timezone: America/New_York, \
             rollover: {rollover} }}\n"
        );
    let carries = rollover == "carry_forward";
    let service = Service::with_policy(&policy).await;
    let database = &service.database;
    let replicas = Replicas::start(database, 3).await;
    let worker = service.worker(&["northstar"]).await;
    let mut running: Vec<Answer> = Vec::new();
    let (mut before, mut after) = (0, 0);
    for day in 10..15 {
        database.set_clock(&format!("2026-03-{day}T23:59:50-04:00")).await;
        let answered = Arc::new(AtomicUsize::new(0));
        let settling: Vec<_> = running
            .drain(..running.len() / 2)
            .enumerate()
            .map(|(n, job)| {
                let client = replicas.at(&worker, n);
                tokio::spawn(async move {
                    client.settle(&job, "3").await.expect(200);
                })
            })
            .collect();
        let asking: Vec<_> = (0..REQUESTS)
            .map(|n| {
                let (client, answered) = (replicas.at(&worker, n), Arc::clone(&answered));
                tokio::spawn(async move {
                    let answer = client.reserve_bulk(&format!("{day}-{n}"), "5").await.expect(201);
                    answered.fetch_add(1, Ordering::Relaxed);
                    answer
                })
            })
            .collect();
        while answered.load(Ordering::Relaxed) < 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        database.set_clock(&format!("2026-03-{}T00:00:00-04:00", day + 1)).await;
        let midnight = format!("2026-03-{}T04:00:00Z", day + 1);
        for answer in join_all(asking).await {
            let answer = answer.unwrap();
            let budgets = answer.body["budgets"].as_array().unwrap();
            assert_eq!(budgets.len(), 2);
            // Both days begin and end at the same time: never one of each.
            assert_eq!(budgets[0]["period_starts_at"], budgets[1]["period_starts_at"]);
            if budgets[0]["period_starts_at"] == midnight.as_str() {
                after += 1;
            } else {
                assert_eq!(budgets[0]["period_ends_at"], midnight.as_str());
                before += 1;
            }
            running.push(answer);
        }
        for settled in join_all(settling).await {
            settled.unwrap();
        }
        // Something is used of the new day in any case.
        running.push(worker.reserve_bulk(&format!("{day}-last"), "5").await.expect(201));
        // Refused, after what was released has been given back.
        let refused = worker.reserve_bulk(&format!("{day}-refused"), "1000").await.problem(429, "budget_exhausted");
        assert_eq!(refused.body["breaches"].as_array().unwrap().len(), 1);

        service.books().await;
        assert_eq!(charged_to_another_time(database).await, 0);
        let days = i64::from(day) - 8;
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
    assert!(before >= 20 && after >= 20, "{before} before and {after} after midnight");

    // When all have settled nothing is carried, and the last day has the rest.
    let last = "2026-03-15T04:00:00Z";
    let mut used = 0;
    for job in &running {
        worker.settle(job, "5").await.expect(200);
        used += if job.body["budgets"][0]["period_starts_at"] == last { 5 } else { 0 };
    }
    worker.reserve_bulk("rest", &(1000 - used).to_string()).await.expect(201);
    let books = service.books().await;
    let line = format!("northstar daily : 1000 0 {} 0 {used}", 1000 - used);
    assert_eq!(books.periods.iter().filter(|period| **period == line).count(), 1, "{:#?}", books.periods);
    assert_eq!(times_that_run_backwards(database).await, 0);
}

#[tokio::test]
async fn the_day_ends_under_load() {
    days_end_under_load("original_period").await;
}

#[tokio::test]
async fn the_day_ends_under_load_with_carry_forward() {
    days_end_under_load("carry_forward").await;
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
        let service = Service::with_policy(&policy).await;
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
    let service = Service::with_policy(NORTHSTAR).await;
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
    let mut statuses = Vec::new();
    for late in late {
        statuses.push(late.await.unwrap().status.as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 429]);
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
