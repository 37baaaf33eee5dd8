//! Two verbs that meet on one reservation or one period come out as one after
//! the other, in both orders.

use futures_util::future::join_all;
use serde_json::json;

use super::{THE_OPEN_RESERVATION, THE_PERIOD};
use crate::support::contention::HeldLock;
use crate::support::{Answer, Client, NORTHSTAR, Service};

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
        worker.settle(&reservation, got.reservation.split(' ').nth(3).unwrap()).await.expect(200);
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
                let answer = client.reserve(&format!("new-{n}"), body).await.expect(201);
                format!("201 {} {} {}", answer.text("state"), answer.text("ceiling"), answer.text("settled"))
            }));
            service.waiting_for_a_lock(waiting.len() as i64).await;
        }
        held.release().await;
        let answers: Vec<String> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(
            answers,
            ["200 settled 50 30", "200 active 50 20", "200 active 60 0", "201 active 7 0", "201 active 7 0"]
        );
        let books = service.books().await;
        assert_eq!(books.periods, ["northstar daily : 1000 846 104 0 50", " all : 2000 1846 104 0 50"]);
        assert_eq!(books.entries_of("reserve").len(), 2 * 5);
        assert_eq!(books.entries_of("extend").len(), 2);
    }
}
