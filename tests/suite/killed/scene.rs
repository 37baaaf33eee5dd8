//! Jobs whose workers come to harm: a service, a provider, and the processes.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use rust_decimal::Decimal;
use rustix::process::Signal;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use uuid::Uuid;

use super::worker::{LIFE, ORDERS, Orders};
use crate::support::provider::Provider;
use crate::support::relay::{Relay, Stroke};
use crate::support::{Client, NORTHSTAR, Service};

pub struct Scene {
    pub service: Service,
    pub provider: Provider,
    pub worker: Client,
    finance: Client,
}

/// One job: whose key, and who has worked on it.
pub struct Assignment {
    pub job: String,
    pub seed: u64,
    at_work: watch::Sender<u64>,
    relays: Vec<Relay>,
}

/// One process of a worker.
pub struct Life {
    pub pid: u32,
    pub relay: Relay,
    pub child: Child,
}

/// How a process ended.
#[derive(Debug)]
pub enum End {
    /// By the signal, sent at this.
    Killed(String),
    /// By itself, well; what it said.
    Well(Vec<String>),
}

/// What the ledger says of a job.
#[derive(Debug, sqlx::FromRow)]
pub struct Standing {
    pub id: Uuid,
    pub state: String,
    pub settled: Decimal,
    pub outstanding: Decimal,
    pub charged: Decimal,
}

#[derive(sqlx::FromRow)]
struct Call {
    key: String,
    state: String,
    units: Decimal,
    actual: Option<Decimal>,
}

impl Scene {
    pub async fn new() -> Self {
        let service = Service::with_policy(&NORTHSTAR.replace("limit: 100,", "limit: 1000000,")).await;
        service.database.set_clock("2026-03-03T10:00:00Z").await;
        let provider = Provider::start(&service.database).await;
        let (worker, finance) = (service.worker(&["northstar"]).await, service.finance().await);
        Self { service, provider, worker, finance }
    }

    pub fn assign(&self, number: u64) -> Assignment {
        let (job, at_work) = (format!("job-{number}"), watch::Sender::new(0));
        Assignment { job, seed: number, at_work, relays: Vec::new() }
    }

    /// Starts a process that does a job.
    pub async fn start(&self, of: &Assignment, holder: Option<String>, life: u64, stroke: Option<Stroke>) -> Life {
        self.start_with(of, stroke, |orders| Orders { holder, life, ..orders }).await
    }

    /// The same, with other orders.
    pub async fn start_with(
        &self,
        of: &Assignment,
        stroke: Option<Stroke>,
        change: impl FnOnce(Orders) -> Orders,
    ) -> Life {
        let relay = Relay::start(self.service.address, self.provider.address, stroke, of.at_work.clone()).await;
        let orders = change(Orders {
            ledger: relay.ledger,
            provider: relay.provider,
            key: self.worker.key.clone(),
            job: of.job.clone(),
            seed: of.seed,
            holder: None,
            life: 0,
            stops_before: None,
        });
        let child = Command::new(std::env::current_exe().unwrap())
            .args([LIFE, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        relay.watch(pid);
        Life { pid, relay, child }
    }

    /// What the ledger says of a job, read past the service.
    pub async fn standing(&self, job: &str) -> Standing {
        sqlx::query_as(
            "select id, state, settled, outstanding_units(r) as outstanding, settled + reserved + liability as charged
             from reservation r where idempotency_key = $1",
        )
        .bind(job)
        .fetch_one(&mut self.service.database.connect().await)
        .await
        .unwrap()
    }

    /// The token of a job's current attempt.
    pub async fn token(&self, job: &str) -> String {
        let query = sqlx::query_scalar("select attempt_token from reservation where idempotency_key = $1").bind(job);
        query.fetch_one(&mut self.service.database.connect().await).await.unwrap()
    }

    /// A job has ended when nothing more can be spent for it: the ledger has each
    /// call at what the provider has charged for it, or at the most that it may have.
    pub async fn is_covered(&self, mut of: Assignment) {
        of.let_late_in();
        for relay in of.relays.drain(..) {
            relay.close().await;
        }
        self.provider.was_always_charged_for();
        let job = of.job;
        let standing = self.standing(&job).await;
        assert!(matches!(standing.state.as_str(), "settled" | "fenced"), "{job}: {standing:?}");
        let bill = self.provider.bill(standing.id).await;
        let calls = self.calls(standing.id).await;
        for (key, charge) in &bill {
            let call = calls.iter().find(|call| call.key == *key);
            let call = call.unwrap_or_else(|| panic!("{job}: {key} was paid for and never admitted"));
            let counted = match call.state.as_str() {
                "settled" => call.actual.unwrap(),
                "in_flight" | "unknown" => call.units,
                _ => Decimal::ZERO,
            };
            let exact = call.state == "settled";
            assert!(
                counted >= charge.charged && (!exact || counted == charge.charged) && call.units >= charge.most,
                "{job}: {key} has cost {charge:?} and is {} at {counted} of {}",
                call.state,
                call.units
            );
        }
        for call in calls.iter().filter(|call| call.state == "settled") {
            assert!(bill.contains_key(&call.key), "{job}: {} was settled and never asked for", call.key);
        }
        let spent: Decimal = bill.values().map(|charge| charge.charged).sum();
        assert!(standing.settled + standing.outstanding >= spent, "{job}: {standing:?}, spent {spent}");
        assert!(standing.charged >= spent, "{job}: {standing:?}, spent {spent}");
    }

    async fn calls(&self, reservation: Uuid) -> Vec<Call> {
        sqlx::query_as("select key, state, units, actual from call where reservation_id = $1 order by key")
            .bind(reservation)
            .fetch_all(&mut self.service.database.connect().await)
            .await
            .unwrap()
    }

    /// In the end finance settles by the provider's bill what nobody knew. Then the
    /// books say what the bill says, and nothing is left open.
    pub async fn is_settled_by_the_bill(&self, jobs: &[String]) {
        let (mut spent, mut charged) = (Decimal::ZERO, Decimal::ZERO);
        for job in jobs {
            let standing = self.standing(job).await;
            let bill = self.provider.bill(standing.id).await;
            spent += bill.values().map(|charge| charge.charged).sum::<Decimal>();
            charged += standing.charged;
            for call in self.calls(standing.id).await {
                if !matches!(call.state.as_str(), "in_flight" | "unknown") {
                    continue;
                }
                let charged = bill.get(&call.key).map_or(Decimal::ZERO, |charge| charge.charged);
                let settle = json!({ "units": charged.to_string(), "reason": "the provider's bill" });
                let path = format!("/v1/reservations/{}/calls/{}/settle", standing.id, call.key);
                self.finance.post(&path, settle).await.expect(200);
            }
        }
        assert!(charged >= spent, "{charged} charged, {spent} spent");
        let [settled, reserved, liability, _] = self.worker.balance("northstar", "daily", None).await;
        assert_eq!([settled, reserved, liability], [spent.to_string(), "0".to_owned(), "0".to_owned()]);
        self.service.books().await;
    }
}

impl Assignment {
    /// What was kept back arrives now at the latest.
    pub fn let_late_in(&self) {
        self.at_work.send_modify(|count| *count += 1);
    }

    /// Waits for the end of a process.
    pub async fn end_of(&mut self, life: Life) -> End {
        let output = life.child.wait_with_output().await.unwrap();
        self.relays.push(life.relay);
        if output.status.signal() == Some(Signal::KILL.as_raw()) {
            return End::Killed(self.relays.last().unwrap().struck().await);
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}, {}\n{said}\n{log}", self.job, output.status);
        End::Well(said.lines().filter_map(|line| line.strip_prefix("said: ")).map(str::to_owned).collect())
    }
}
