//! However many ask at once, exactly what fits is admitted, in one budget and
//! in many, and nobody waits for anybody in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::{count, times_that_run_backwards};
use crate::support::contention::Replicas;
use crate::support::server::{TestDatabase, server};
use crate::support::{Answer, Client, NORTHSTAR, Service};

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

    service.ledger.close().await;
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
    let ended = async {
        while count(
            database,
            "select count(*) from pg_stat_activity where datname = current_database() and usename = 'spend_ledger'",
        )
        .await
            > 0
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the sessions of the service end");
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(count(database, deadlocks).await, 0);
}
