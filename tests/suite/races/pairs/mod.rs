//! Every two verbs that meet on one reservation come out as one after the other.
//!
//! No outcome is written down here: for every pair the two serial outcomes are
//! found by sending the requests one after the other, each order on a copy of the
//! same start. Then they meet, on other copies and at two processes of the service:
//! a third session holds a lock until both wait, in a known order, and lets go.

mod compare;
mod of_calls;
mod of_workers;
mod verbs;

use std::collections::HashMap;

use futures_util::StreamExt as _;
use serde_json::json;
use sqlx::PgConnection;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use crate::support::contention::HeldLock;
use crate::support::copies::{all_of, copy_account, reservations_of};
use crate::support::server::TestDatabase;
use crate::support::{Answer, Client, NORTHSTAR, Options, Service};
use compare::Outcome;
use verbs::{Clients, JOB, Verb};

/// Tests of this kind take many connections: so many at once.
static TURN: Semaphore = Semaphore::const_new(2);

/// How many pairs meet at once, each on an account of its own.
const AT_ONCE: usize = 8;

const NOON: &str = "2026-03-04T12:00:00Z";
const TWO_MINUTES_LATER: &str = "2026-03-04T12:02:00Z";

/// How two requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum How {
    OneAfterTheOther,
    /// Both wait for the reservation.
    BehindTheReservation,
    /// The first has the reservation and waits for the period, the second waits for
    /// the first.
    BehindThePeriod,
}

use How::{BehindThePeriod, BehindTheReservation, OneAfterTheOther};

/// What a verb does to the start when it is the first.
#[derive(Debug, Clone, Copy)]
struct Alone {
    /// Anything: what changes nothing is in nobody's way.
    changes: bool,
    waits_for_the_period: bool,
}

/// Two verbs by number, the one that is ahead first.
#[derive(Debug, Clone, Copy)]
struct Run {
    ahead: usize,
    behind: usize,
    how: How,
}

/// Two processes of the service on one database, whose clock stands still: so times
/// can be compared like everything else.
struct Stage {
    service: Service,
    _other: Service,
    /// At the first process and at the other one.
    clients: [Clients; 2],
    /// The tokens that the start has come to.
    tokens: Vec<String>,
    _turn: SemaphorePermit<'static>,
}

impl Stage {
    /// With another reservation that leaves the account 15 beside one of 40.
    async fn new() -> Self {
        let turn = TURN.acquire().await.unwrap();
        let options = || Options { max_connections: AT_ONCE as u32 * 2 + 4, ..Options::sessions() };
        let service = Service::on(TestDatabase::new().await, options()).await;
        service.apply(NORTHSTAR).await;
        let other = Service::on(service.database.clone(), options()).await;
        let here = Clients {
            worker: service.fleet().await,
            operator: service.operator().await,
            finance: service.finance().await,
        };
        let there = |client: &Client| client.at(other.address);
        let elsewhere =
            Clients { worker: there(&here.worker), operator: there(&here.operator), finance: there(&here.finance) };
        service.database.stop_clock(NOON).await;
        let body = json!({"account": "northstar", "operation": "stream", "units": 45, "holder": "w-9"});
        here.worker.reserve("other", body).await.expect(201);
        Self { service, _other: other, clients: [here, elsewhere], tokens: Vec::new(), _turn: turn }
    }

    /// Reserves what all verbs are about. The token of its first attempt.
    async fn reserve(&mut self, operation: &str, units: u32) -> String {
        let body = json!({"account": "northstar", "operation": operation, "units": units, "holder": "w-1"});
        let job = self.clients[0].worker.reserve(JOB, body).await.expect(201);
        self.tokens.push(job.token());
        job.token()
    }

    /// Does this to the reservation, which must work.
    async fn done(&mut self, verb: Verb) -> Answer {
        let account = "northstar".to_owned();
        let id = reservations_of(&self.service.database, JOB, std::slice::from_ref(&account)).await[0];
        let answer = verb.clone().send(self.clients[0].clone(), account, id.to_string()).await;
        assert!(answer.status.is_success(), "{}: {:#}", verb.name, answer.body);
        answer
    }

    /// Somebody else takes over. The new token.
    async fn taken_over(&mut self, verb: Verb) -> String {
        let token = self.done(verb).await.token();
        self.tokens.push(token.clone());
        token
    }

    /// The lease has run out.
    async fn later(&self) {
        self.service.database.stop_clock(TWO_MINUTES_LATER).await;
    }

    /// Every two of these verbs, and every verb with itself, in both orders; but not
    /// behind a verb that changes nothing.
    async fn every_two(&self, verbs: &[Verb]) {
        let mut observer = self.service.database.connect().await;
        let alone = self.alone(&mut observer, verbs).await;
        let mut runs = Vec::new();
        for ahead in 0..verbs.len() {
            for behind in 0..verbs.len() {
                let run = |how| Run { ahead, behind, how };
                if alone[ahead].changes || verbs[ahead].only_reads() {
                    runs.push(run(OneAfterTheOther));
                }
                if alone[ahead].changes {
                    runs.push(run(BehindTheReservation));
                }
                if alone[ahead].changes && alone[ahead].waits_for_the_period {
                    runs.push(run(BehindThePeriod));
                }
            }
        }
        let name = |run: &Run| format!("{}/{}/{:?}", verbs[run.ahead].name, verbs[run.behind].name, run.how);
        let accounts: Vec<String> = runs.iter().map(name).collect();
        copy_account(&self.service.database, "northstar", &accounts).await;
        let ids = reservations_of(&self.service.database, JOB, &accounts).await;
        let asked: Vec<Asked> = (0..runs.len())
            .map(|n| {
                let verbs = [runs[n].ahead, runs[n].behind].map(|verb| verbs[verb].clone());
                Asked { run: n, account: accounts[n].clone(), id: ids[n].to_string(), verbs }
            })
            .collect();

        let mut answers: Vec<(usize, [Answer; 2])> = Vec::new();
        let of = |how: How| asked.iter().filter(|asked| runs[asked.run].how == how).collect::<Vec<_>>();
        answers.extend(
            futures_util::stream::iter(of(OneAfterTheOther).into_iter().map(|asked| self.one_after_the_other(asked)))
                .buffer_unordered(AT_ONCE)
                .collect::<Vec<_>>()
                .await,
        );
        for how in [BehindTheReservation, BehindThePeriod] {
            for batch in of(how).chunks(AT_ONCE) {
                answers.extend(self.meet(&mut observer, how, batch).await);
            }
        }
        answers.sort_by_key(|(run, _)| *run);

        let rows = all_of(&self.service.database, &accounts).await;
        let outcomes = answers.iter().map(|(n, answers)| {
            for answer in answers {
                assert!(!answer.status.is_server_error(), "{}: {} {}", accounts[*n], answer.status, answer.body);
            }
            let run = runs[*n];
            // In the order of the verbs, whichever was ahead.
            let mut answers = [&answers[0], &answers[1]];
            if run.behind < run.ahead {
                answers.reverse();
            }
            Outcome::new(answers, &rows[*n], &accounts[*n], &self.tokens)
        });
        compare_runs(verbs, &runs, &outcomes.collect::<Vec<_>>());
        self.service.books().await;
    }

    /// What each verb does alone, while somebody holds a lock and lets go. All but a
    /// repeat wait for the reservation's.
    async fn alone(&self, observer: &mut PgConnection, verbs: &[Verb]) -> Vec<Alone> {
        let mut waits = Vec::new();
        let mut changes = Vec::new();
        for how in [BehindThePeriod, BehindTheReservation] {
            let mut accounts: Vec<String> = verbs.iter().map(|verb| format!("{}/{how:?}", verb.name)).collect();
            accounts.push(format!("untouched/{how:?}"));
            copy_account(&self.service.database, "northstar", &accounts).await;
            let ids = reservations_of(&self.service.database, JOB, &accounts).await;
            let mut these = Vec::new();
            for n in (0..verbs.len()).collect::<Vec<_>>().chunks(AT_ONCE) {
                let held = self.hold(how, &n.iter().map(|&n| accounts[n].as_str()).collect::<Vec<_>>()).await;
                let sent: Vec<_> =
                    n.iter().map(|&n| self.spawn(0, &verbs[n], &accounts[n], &ids[n].to_string())).collect();
                these.extend(held.met_by(observer, &sent).await);
                held.release().await;
                futures_util::future::join_all(sent).await;
            }
            waits.push(these);
            let rows = all_of(&self.service.database, &accounts).await;
            let mut rows = rows.iter().zip(&accounts).map(|(rows, of)| Outcome::untouched(rows, of, &self.tokens));
            let untouched = rows.next_back().unwrap();
            changes = rows.map(|rows| rows != untouched).collect();
        }
        for (verb, waits) in verbs.iter().zip(&waits[1]) {
            assert_eq!(*waits, !verb.only_reads(), "{}: does it wait for the reservation?", verb.name);
        }
        let alone = waits[0].iter().zip(changes);
        alone.map(|(&waits_for_the_period, changes)| Alone { changes, waits_for_the_period }).collect()
    }

    async fn hold(&self, how: How, accounts: &[&str]) -> HeldLock {
        let accounts = accounts.join("', '");
        let rows = match how {
            BehindThePeriod => format!("budget_period where account in ('{accounts}')"),
            _ => format!("reservation where idempotency_key = '{JOB}' and account in ('{accounts}')"),
        };
        HeldLock::hold(&self.service.database, &format!("select from {rows} for update")).await
    }

    fn spawn(&self, process: usize, verb: &Verb, account: &str, id: &str) -> JoinHandle<Answer> {
        tokio::spawn(verb.clone().send(self.clients[process].clone(), account.to_owned(), id.to_owned()))
    }

    async fn one_after_the_other(&self, asked: &Asked) -> (usize, [Answer; 2]) {
        let send = |n: usize| self.spawn(n, &asked.verbs[n], &asked.account, &asked.id);
        let ahead = send(0).await.unwrap();
        (asked.run, [ahead, send(1).await.unwrap()])
    }

    /// Each of these pairs meets behind one lock.
    async fn meet(&self, observer: &mut PgConnection, how: How, pairs: &[&Asked]) -> Vec<(usize, [Answer; 2])> {
        let held = self.hold(how, &pairs.iter().map(|asked| asked.account.as_str()).collect::<Vec<_>>()).await;
        let send = |n: usize| {
            pairs.iter().map(move |asked| self.spawn(n, &asked.verbs[n], &asked.account, &asked.id)).collect::<Vec<_>>()
        };
        let mut sent = send(0);
        let ahead = held.met_by(observer, &sent).await;
        sent.extend(send(1));
        let both = held.met_by(observer, &sent).await;
        held.release().await;
        for (n, asked) in pairs.iter().enumerate() {
            assert!(ahead[n] && both[n], "{}: the first one did not wait", asked.account);
            let waits = both[pairs.len() + n];
            assert_eq!(waits, !asked.verbs[1].only_reads(), "{}: does the second one wait?", asked.account);
        }
        let mut ahead = futures_util::future::join_all(sent).await;
        let behind = ahead.split_off(pairs.len());
        let answers = ahead.into_iter().zip(behind).map(|(ahead, behind)| [ahead.unwrap(), behind.unwrap()]);
        pairs.iter().map(|asked| asked.run).zip(answers).collect()
    }
}

/// Two requests about one copy.
struct Asked {
    run: usize,
    account: String,
    id: String,
    verbs: [Verb; 2],
}

/// Every two verbs that have met must have come out in the order in which they
/// waited; what only reads comes before what it did not wait for.
fn compare_runs(verbs: &[Verb], runs: &[Run], outcomes: &[Outcome]) {
    let serial: HashMap<(usize, usize), &Outcome> = runs
        .iter()
        .zip(outcomes)
        .filter(|(run, _)| run.how == OneAfterTheOther)
        .map(|(run, outcome)| ((run.ahead, run.behind), outcome))
        .collect();
    let mut wrong = Vec::new();
    for (run, got) in runs.iter().zip(outcomes).filter(|(run, _)| run.how != OneAfterTheOther) {
        let (ahead, behind) = (run.ahead, run.behind);
        let order = if verbs[behind].only_reads() { (behind, ahead) } else { (ahead, behind) };
        let wanted = serial[&order];
        if *got != *wanted {
            let reverse = serial.get(&(order.1, order.0));
            wrong.push(format!(
                "{} ahead of {}, {:?}: got {}, one after the other {}{}\n{}",
                verbs[ahead].name,
                verbs[behind].name,
                run.how,
                got.summary(),
                wanted.summary(),
                if reverse == Some(&got) { " (it is the other order's outcome)" } else { "" },
                wanted.differences(got)
            ));
        }
    }
    let shown = wrong.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {} runs came out as no order does:\n{shown}", wrong.len(), runs.len());
    // Both orders are told apart: a verb that changes something is seen by another.
    let told = |one: usize, other: usize| match (serial.get(&(one, other)), serial.get(&(other, one))) {
        (Some(first), Some(second)) => first != second,
        _ => false,
    };
    for (n, verb) in verbs.iter().enumerate().filter(|(n, _)| runs.iter().any(|run| run.ahead == *n)) {
        let any = (0..verbs.len()).any(|m| told(n, m));
        assert!(any, "no other verb tells whether {} came before or after it", verb.name);
    }
}
