//! Verbs on different reservations that meet on one period, and verbs that are
//! charged to several. (Verbs that meet on one reservation: `pairs`.)

use futures_util::future::join_all;
use serde_json::json;

use super::THE_PERIOD;
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
    /// `status state ceiling settled`.
    async fn send(self, client: Client, reservation: Answer) -> String {
        let answer = match self {
            Settle(units) => client.settle(&reservation, units).await,
            Progress(units) => client.progress(&reservation, units).await,
            Extend(ceiling) => client.extend(&reservation, ceiling).await,
        };
        let text = |field: &str| answer.body[field].as_str().unwrap_or("-");
        format!("{} {} {} {}", answer.status.as_u16(), text("state"), text("ceiling"), text("settled"))
    }
}

#[tokio::test]
async fn an_extension_and_a_reservation_for_the_last_room() {
    for extension_ahead in [true, false] {
        let service = Service::with_sessions(NORTHSTAR).await;
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
        let service = Service::with_sessions(&policy).await;
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
