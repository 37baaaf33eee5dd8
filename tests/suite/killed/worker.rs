//! The worker: a process of its own, this same program started for the one test
//! below. It does what a worker should, with the workers' library.

use std::net::SocketAddr;
use std::time::Duration;

use rust_decimal::Decimal;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spend_ledger_client as library;
use spend_ledger_client::{
    CallError, Done, Error, Failure, Job, JobState, Paid, Report, Request, ReservationState, TakeOver, Unsettled,
};

use crate::support::Client;
use crate::support::provider::Pay;
use crate::support::random::Random;

/// The environment variable with the orders.
pub const ORDERS: &str = "SPEND_LEDGER_TEST_WORKER";

/// The test that a worker's process runs.
pub const LIFE: &str = "killed::worker::life";

/// What the job reserves: less than its calls come to, so that some extend.
const RESERVED: u32 = 20;

/// Whose job a process is to do, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub ledger: SocketAddr,
    pub provider: SocketAddr,
    pub key: String,
    /// The job's key. Its calls follow from its seed.
    pub job: String,
    pub seed: u64,
    /// Made up by the library if it is none.
    pub holder: Option<String>,
    /// What this process does after the calls follows from this.
    pub life: u64,
    /// Before the paid request of this call, once it is admitted, the process stops
    /// itself, until it gets a line after it was told to go on.
    pub stops_before: Option<String>,
}

/// One of the job's calls.
#[derive(Debug, Clone)]
pub struct Planned {
    pub key: String,
    pub units: u32,
    pub outcome: Outcome,
    takes_millis: u64,
}

/// How a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Paid(u32),
    /// The provider answers with an error, and has charged this.
    Fails(u32),
    NotSent,
    /// Paid, but given up after so many milliseconds if it is not there by then.
    GivenUp(u32, u64),
}

impl Planned {
    /// The calls of a job.
    pub fn of(seed: u64) -> Vec<Self> {
        let mut random = Random::new(seed);
        let calls = 3 + random.below(3);
        let one = |number: u64| {
            let units = u32::try_from(4 + random.below(9)).unwrap();
            let charge = u32::try_from(random.below(u64::from(units) + 1)).unwrap();
            let outcome = match random.below(8) {
                0 => Outcome::Fails(charge),
                1 => Outcome::Fails(0),
                2 => Outcome::NotSent,
                3 => Outcome::GivenUp(charge, 1 + random.below(30)),
                _ => Outcome::Paid(charge),
            };
            Self { key: format!("c-{number}"), units, outcome, takes_millis: random.below(6) }
        };
        (1..=calls).map(one).collect()
    }
}

/// What a process does after the calls, before it settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Cancels,
    Fences,
    Settles,
}

impl Ending {
    pub fn of(seed: u64, life: u64) -> Self {
        Random::new(seed ^ (life << 32)).one_of(&[Self::Cancels, Self::Fences, Self::Settles, Self::Settles])
    }
}

#[test]
#[ignore = "what the processes of workers run: the other tests start them"]
fn life() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders = serde_json::from_str(&orders).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Worker::new(orders).live());
}

/// What becomes of the job is said, for whoever started the process.
fn say(what: &str) {
    println!("\nsaid: {what}");
}

struct Worker {
    orders: Orders,
    library: library::Client,
    /// For what the library does not have: lists, and fences.
    plain: Client,
    http: reqwest::Client,
}

impl Worker {
    fn new(orders: Orders) -> Self {
        let mut builder = library::Client::builder(format!("http://{}", orders.ledger), &orders.key).lease_seconds(5);
        if let Some(holder) = &orders.holder {
            builder = builder.holder(holder);
        }
        let (library, plain) = (builder.build().unwrap(), Client::new(orders.ledger, &orders.key));
        Self { orders, library, plain, http: reqwest::Client::new() }
    }

    async fn live(&self) {
        let Some(job) = self.start().await else { return };
        self.account_for_earlier_calls(&job).await;
        for call in Planned::of(self.orders.seed) {
            if let Some(state) = self.make(&job, &call).await {
                say(&format!("{} stopped {state:?}", call.key));
                break;
            }
        }
        self.finish(job).await;
    }

    /// The job, in the place of whoever had it; none if there is nothing left to do.
    async fn start(&self) -> Option<Job> {
        for _ in 0..50 {
            let held = match self.library.reserve(&self.orders.job, Request::new("bulk", RESERVED)).await {
                Ok(job) => return Some(job),
                Err(Error::Held(held)) => held,
                Err(Error::Ended(ended)) => {
                    if ended.state == ReservationState::Cancelling {
                        self.fence(&ended.id, ended.attempt.unwrap().number).await;
                    }
                    return None;
                }
                Err(error) => panic!("{error}"),
            };
            let number = held.attempt.unwrap().number;
            let taken = self.library.take_over(&held.id, number, TakeOver::default()).await;
            match taken.map_err(|error| error.code().unwrap_or_else(|| panic!("{error}")).to_owned()) {
                Ok(job) => {
                    say("taken over");
                    return Some(job);
                }
                // A worker would wait.
                Err(code) if code == "lease_current" => {
                    let later = self.http.post(format!("http://{}/later", self.orders.provider));
                    later.send().await.unwrap().error_for_status().unwrap();
                }
                Err(code) if matches!(code.as_str(), "not_active" | "stale_attempt") => {}
                Err(code) => panic!("{code}"),
            }
        }
        panic!("the job can be neither had nor taken over");
    }

    /// Calls of earlier lives that have not ended: what this process cannot know,
    /// it asks the provider, or says that it does not know it.
    async fn account_for_earlier_calls(&self, job: &Job) {
        let path = format!("/v1/reservations/{}/calls?state=in_flight&limit=500", job.id());
        let calls = self.plain.get(&path).await.expect(200);
        for call in calls.body["items"].as_array().unwrap() {
            let key = call["call"].as_str().unwrap();
            let own = call["attempt"] == job.attempt();
            let said = if own && let Some(charged) = self.charged(job.id(), key).await {
                job.settle_call(key, charged).await
            } else if own || self.orders.life.is_multiple_of(2) {
                job.call_unknown(key).await
            } else {
                continue;
            };
            // A late word of the earlier life may have come first.
            if let Err(error) = said {
                assert_eq!(error.code(), Some("call_already_settled"), "{error}");
            }
        }
    }

    async fn charged(&self, reservation: &str, key: &str) -> Option<Decimal> {
        let url = format!("http://{}/bill/{reservation}/{key}", self.orders.provider);
        let answer = self.http.get(url).send().await.unwrap();
        if answer.status() == 404 {
            return None;
        }
        let bill: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        Some(bill["charged"].as_str().unwrap().parse().unwrap())
    }

    /// Makes a call, and says why if the job must stop.
    async fn make(&self, job: &Job, call: &Planned) -> Option<JobState> {
        let paying = job.call(&call.key, call.units).extend().run(|| self.pay(job.id(), call));
        let done = match call.outcome {
            Outcome::GivenUp(_, millis) => match tokio::time::timeout(Duration::from_millis(millis), paying).await {
                Ok(done) => done,
                Err(_) => return None,
            },
            _ => paying.await,
        };
        match done {
            Ok(Done { report, .. }) | Err(CallError::Unknown { report, .. }) => {
                assert!(report.is_acknowledged(), "{}: {report:?}", call.key);
                say(&format!("{} told", call.key));
            }
            // Nobody but the current attempt is believed that nothing was sent.
            Err(CallError::NotSent { report: Report::Refused(refusal), .. }) => {
                assert_eq!(refusal.code, "stale_attempt", "{refusal}");
            }
            Err(CallError::NotSent { report, .. }) => assert!(report.is_acknowledged(), "{}: {report:?}", call.key),
            Err(CallError::Stopped(state)) => return Some(state),
            Err(CallError::AlreadyAdmitted { .. }) => {}
            Err(CallError::NotAdmitted(error)) if error.code() == Some("call_key_taken") => {}
            Err(error) => panic!("{}: {error}", call.key),
        }
        None
    }

    async fn pay(&self, reservation: &str, call: &Planned) -> Result<Paid<()>, Failure<String>> {
        if self.orders.stops_before.as_ref() == Some(&call.key) {
            kill_process(getpid(), Signal::STOP).unwrap();
            // The signal may reach another thread before this one.
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        let (charge, fails) = match call.outcome {
            Outcome::Paid(charge) | Outcome::GivenUp(charge, _) => (charge, false),
            Outcome::Fails(charge) => (charge, true),
            Outcome::NotSent => return Err(Failure::NotSent("no route".to_owned())),
        };
        let (key, units, takes_millis) = (call.key.clone(), call.units, call.takes_millis);
        let pay = Pay { reservation: reservation.parse().unwrap(), call: key, units, charge, fails, takes_millis };
        let request = self.http.post(format!("http://{}/pay", self.orders.provider)).json(&pay);
        let answer = request.send().await.and_then(reqwest::Response::error_for_status);
        answer.map(|_| Paid::new(charge, ())).map_err(|error| Failure::Unknown(error.to_string()))
    }

    async fn fence(&self, reservation: &str, number: u32) {
        let path = format!("/v1/reservations/{reservation}/fence");
        let answer = self.plain.post(&path, json!({ "attempt_number": number })).await;
        assert!(answer.status == 200 || answer.body["code"] == "stale_attempt", "{:#}", answer.body);
    }

    /// Settles, in one of three ways, whatever became of the job.
    async fn finish(&self, mut job: Job) {
        match Ending::of(self.orders.seed, self.orders.life) {
            _ if job.state() != JobState::Running => {}
            Ending::Cancels => drop(job.cancel(Some("no longer wanted")).await.unwrap()),
            Ending::Fences => self.fence(job.id(), job.attempt()).await,
            Ending::Settles => {}
        }
        for _ in 0..50 {
            let Unsettled { job: unsettled, error } = match job.settle_calls().await {
                Ok(settled) => return say(&format!("settled {:?} {}", settled.state, settled.settled)),
                Err(unsettled) => unsettled,
            };
            match error.code() {
                // What an earlier life had sent has arrived, or what was given up here.
                Some("calls_in_flight") => self.account_for_earlier_calls(&unsettled).await,
                Some("stale_attempt") => return say("lost"),
                _ => panic!("{error}"),
            }
            job = unsettled;
        }
        panic!("the job cannot be settled");
    }
}
