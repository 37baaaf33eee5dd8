//! Work in every state that a job can be in, left as it is, and read again to the
//! row and the unit when much time has passed.

use reqwest::Method;
use serde_json::{Value, json};

use super::server::TestDatabase;
use super::{Answer, Client};

/// Budgets of every kind: that begin anew, carry forward, never end, are shared.
pub const POLICY: &str = "
providers:
  transformer: { unit: transformation, enforcement: calls }
  direct: { unit: transformation, enforcement: worker }
operations:
  bulk: { provider: transformer, explicit: true, max_units: 100 }
  stream: { provider: direct, explicit: true, max_units: 100 }
plans:
  standard:
    budgets:
      daily: { unit: transformation, limit: 230, period: day, timezone: America/New_York }
      monthly: { unit: transformation, limit: 1000, period: month, timezone: UTC, rollover: carry_forward }
      ever: { unit: transformation, limit: 5000, period: total }
accounts:
  northstar: { plan: standard }
pools:
  shared: { provider: transformer, unit: transformation, limit: 100000, period: year, timezone: UTC }
";

/// What the open jobs hold of each budget of the account.
pub const HELD: u32 = 22 + 15 + 20 + 14 + 20 + 10 + 6 + 6 + 5;

/// The jobs whose workers have vanished, and whose lease runs out.
const ACTIVE: [&str; 4] = ["active", "active-worker", "taken-over", "taken-over-worker"];

/// Who asks.
pub struct Parties {
    pub worker: Client,
    pub operator: Client,
    pub finance: Client,
}

/// The old work, and all that was read of it.
pub struct OldWork {
    /// Each key with its reservation as it was answered, the token of its current
    /// attempt in it.
    pub jobs: Vec<(&'static str, Answer)>,
    superseded: Vec<(String, String)>,
    then: String,
    budgets: Vec<Value>,
    liabilities: Vec<Value>,
    periods: Vec<String>,
    rows: Vec<String>,
}

impl Parties {
    async fn reserve(&self, key: &str, operation: &str, units: u32) -> Answer {
        self.worker.reserve(key, json!({"operation": operation, "units": units, "holder": "w-1"})).await
    }

    async fn call(&self, of: &Answer, call: &str, units: u32, ends: Option<Value>) {
        let path = format!("/v1/reservations/{}/calls", of.id());
        let admit = json!({"attempt": of.token(), "call": call, "units": units});
        self.worker.post(&path, admit).await.expect(201);
        if let Some(mut end) = ends {
            end["attempt"] = of.token().into();
            self.worker.post(&format!("{path}/{call}/settle"), end).await.expect(200);
        }
    }

    /// The job in the hands of another, its lease not being waited for.
    async fn take_over(&self, of: &Answer, stated: Value) -> Answer {
        let mut body = json!({"previous": 1, "holder": "w-1", "force": true});
        body.as_object_mut().unwrap().extend(stated.as_object().unwrap().clone());
        self.operator.post(&format!("/v1/reservations/{}/attempts", of.id()), body).await.expect(201)
    }

    async fn verb(&self, of: &Answer, verb: &str, body: Value) -> Answer {
        self.worker.post(&format!("/v1/reservations/{}/{verb}", of.id()), body).await
    }
}

fn settled(units: u32) -> Option<Value> {
    Some(json!({"units": units}))
}

fn unknown() -> Option<Value> {
    Some(json!({"outcome": "unknown"}))
}

fn evidence() -> Value {
    json!({"kind": "process_stopped", "detail": "its machine is gone"})
}

impl OldWork {
    /// Does it all, and reads it. The policy is in force, and nothing else is there.
    pub async fn new(parties: &Parties, database: &TestDatabase) -> Self {
        let (open, superseded) = still_open(parties).await;
        let jobs = [open, ended(parties).await].concat();
        // What is available is less than this.
        parties.reserve("refused", "bulk", 100).await.problem(429, "budget_exhausted");
        let then = jobs[0].1.text("created_at").to_owned();
        let (budgets, periods, rows) = (vec![], vec![], vec![]);
        let mut work = Self { jobs, superseded, then, budgets, liabilities: vec![], periods, rows };
        work.periods =
            database.lines("select quote_literal(id::text) from budget_period where ends_at is not null").await;
        work.budgets = work.budgets_then(parties).await;
        work.liabilities = liabilities(parties).await;
        work.rows = work.rows(database).await;
        work
    }

    /// Asserts that not a row and not a unit of it has changed, leases apart.
    pub async fn is_unchanged(&self, database: &TestDatabase, context: &str) {
        let rows = self.rows(database).await;
        let news: Vec<_> = rows.iter().filter(|row| !self.rows.contains(row)).collect();
        let gone: Vec<_> = self.rows.iter().filter(|row| !rows.contains(row)).collect();
        assert!(news.is_empty() && gone.is_empty(), "{context}\ngone: {gone:#?}\nnew: {news:#?}");
    }

    /// The budgets as they were then. One that never ends is also settled by others.
    async fn budgets_then(&self, parties: &Parties) -> Vec<Value> {
        let path = format!("/v1/accounts/northstar/budgets?at={}", self.then);
        let mut budgets = parties.worker.get(&path).await.expect(200).body["items"].as_array().unwrap().clone();
        for budget in budgets.iter_mut().filter(|budget| budget["period_ends_at"].is_null()) {
            *budget = json!({"reserved": budget["reserved"], "liability": budget["liability"]});
        }
        budgets
    }

    /// Every row of the work and of its periods that end.
    async fn rows(&self, database: &TestDatabase) -> Vec<String> {
        let ids: Vec<String> = self.jobs.iter().map(|(_, job)| format!("'{}'", job.id())).collect();
        let (ids, periods) = (ids.join(", "), self.periods.join(", "));
        let of_jobs = ["reservation_event", "call", "late_usage"];
        let of_jobs =
            of_jobs.map(|table| format!("select '{table} ' || t::text from {table} t where reservation_id in ({ids})"));
        let query = format!(
            "select 'reservation ' || (to_jsonb(t) - 'lease_expires_at')::text from reservation t where id in ({ids})
             union all {}
             union all select 'period ' || t::text from budget_period t where id in ({periods})
             union all select 'entry ' || t::text from journal_entry t where period_id in ({periods}) or reservation_id in ({ids})
             order by 1",
            of_jobs.join(" union all ")
        );
        database.lines(&query).await
    }

    /// Reads everything as everybody may, and asserts that it shows what it showed.
    pub async fn is_read(&self, parties: &Parties) {
        let Parties { worker, operator, finance } = parties;
        for path in ["/readyz", "/metrics", "/v1/reservations?limit=500", "/v1/accounts/northstar/budgets"] {
            worker.get(path).await.expect(200);
        }
        operator.get("/v1/audit").await.expect(200);
        assert_eq!(finance.get("/v1/late-usage").await.expect(200).body["items"].as_array().unwrap().len(), 1);
        for (key, job) in &self.jobs {
            let path = format!("/v1/reservations/{}", job.id());
            let now = worker.get(&format!("{path}?events=true")).await.expect(200).body;
            let active = ACTIVE.contains(key);
            assert_eq!(now["attempt"]["overdue"].as_bool(), Some(active), "{key}: {now:#}");
            worker.get(&format!("{path}/calls")).await.expect(200);
        }
        assert_eq!(self.budgets_then(parties).await, self.budgets);
        assert_eq!(liabilities(parties).await, self.liabilities);
    }

    /// Every token asks for a new lease. The current one gets it, and that is all.
    pub async fn leases_are_renewed(&self, parties: &Parties) {
        for (key, job) in &self.jobs {
            let renewed = parties.verb(job, "renew", json!({"attempt": job.token()})).await.expect(200);
            let active = ACTIVE.contains(key);
            assert_eq!(
                (renewed.text("state") == "active", &renewed.body["attempt"]["overdue"]),
                (active, &json!(false))
            );
        }
        for (id, token) in &self.superseded {
            let path = format!("/v1/reservations/{id}/renew");
            parties.worker.post(&path, json!({"attempt": token})).await.problem(409, "stale_attempt");
        }
    }

    /// The same jobs are asked for again: they get what they had, and take nothing.
    pub async fn is_reserved_again(&self, parties: &Parties) {
        for (key, job) in &self.jobs {
            let (operation, units) = (job.text("operation"), job.text("estimate").parse().unwrap());
            let again = parties.reserve(key, operation, units).await.expect(200);
            assert_eq!((again.id(), again.token()), (job.id(), job.token()), "{key}");
        }
    }

    /// Finance ends what is still open, at what is known of it, and the old periods
    /// hold nothing any more.
    pub async fn is_closed(&self, parties: &Parties) {
        let mut settled = 0;
        for (key, job) in &self.jobs {
            let path = format!("/v1/reservations/{}", job.id());
            let now = parties.finance.get(&path).await.expect(200);
            let mut units: u32 = now.text("settled").parse().unwrap();
            if now.text("state") != "settled" {
                units += 1;
                let close = json!({"units": units, "reason": format!("{key} is long over")});
                parties.finance.post(&format!("{path}/settle"), close).await.expect(200);
            }
            settled += units;
        }
        for budget in self.budgets_then(parties).await {
            assert_eq!([&budget["reserved"], &budget["liability"]], ["0", "0"], "{budget:#}");
            if budget["period_ends_at"].is_string() {
                assert_eq!(budget["settled"], settled.to_string(), "{budget:#}");
            }
        }
    }
}

/// What is open, by budget; which of it is overdue is only a matter of time.
async fn liabilities(parties: &Parties) -> Vec<Value> {
    let body = parties.finance.get("/v1/liabilities?limit=500").await.expect(200).body;
    let mut totals = body["totals"].as_array().unwrap().clone();
    for total in &mut totals {
        assert_ne!(total["liability"], "0", "{total:#}");
        total.as_object_mut().unwrap().remove("overdue");
    }
    totals.push(body["late_usage"].clone());
    totals
}

/// Jobs that hold something, and tokens that are no longer current.
async fn still_open(parties: &Parties) -> (Vec<(&'static str, Answer)>, Vec<(String, String)>) {
    let active = parties.reserve("active", "bulk", 20).await.expect(201);
    parties.call(&active, "settled", 4, settled(3)).await;
    parties.call(&active, "in-flight", 4, None).await;
    parties.call(&active, "unknown", 2, unknown()).await;
    parties.worker.extend(&active, "25").await.expect(200);
    let direct = parties.reserve("active-worker", "stream", 20).await.expect(201);
    parties.worker.progress(&direct, "5").await.expect(200);

    let first = parties.reserve("taken-over", "bulk", 20).await.expect(201);
    parties.call(&first, "of-the-first", 5, None).await;
    let second = parties.take_over(&first, json!({})).await;
    parties.call(&second, "of-the-second", 3, None).await;
    let gone = parties.reserve("taken-over-worker", "stream", 20).await.expect(201);
    parties.worker.progress(&gone, "4").await.expect(200);
    let after = parties.take_over(&gone, json!({"evidence": evidence(), "outstanding": "9"})).await;
    parties.worker.progress(&after, "2").await.expect(200);
    let superseded = [first, gone].map(|job| (job.id(), job.token())).to_vec();

    let cancelled = parties.reserve("cancelling", "bulk", 20).await.expect(201);
    parties.call(&cancelled, "in-flight", 4, None).await;
    parties.verb(&cancelled, "cancel", json!({})).await.expect(200);
    let stopped = parties.reserve("cancelling-worker", "stream", 10).await.expect(201);
    parties.verb(&stopped, "cancel", json!({"reason": "the user has left"})).await.expect(200);

    let fenced = parties.reserve("fenced", "bulk", 20).await.expect(201);
    parties.call(&fenced, "in-flight", 4, None).await;
    parties.call(&fenced, "unknown", 2, unknown()).await;
    parties.verb(&fenced, "fence", json!({"attempt_number": 1})).await.expect(200);
    let by_evidence = parties.reserve("fenced-worker", "stream", 20).await.expect(201);
    parties.worker.progress(&by_evidence, "3").await.expect(200);
    let stated = json!({"attempt_number": 1, "evidence": evidence(), "outstanding": "6"});
    parties.verb(&by_evidence, "fence", stated).await.expect(200);
    let left = parties.reserve("settled-but-for-one", "bulk", 20).await.expect(201);
    parties.call(&left, "settled", 5, settled(4)).await;
    parties.call(&left, "unknown", 5, unknown()).await;
    parties.verb(&left, "settle", json!({"attempt": left.token()})).await.expect(200);
    let jobs = vec![
        ("active", active),
        ("active-worker", direct),
        ("taken-over", second),
        ("taken-over-worker", after),
        ("cancelling", cancelled),
        ("cancelling-worker", stopped),
        ("fenced", fenced),
        ("fenced-worker", by_evidence),
        ("settled-but-for-one", left),
    ];
    (jobs, superseded)
}

/// Jobs that hold nothing.
async fn ended(parties: &Parties) -> Vec<(&'static str, Answer)> {
    let done = parties.reserve("settled", "bulk", 10).await.expect(201);
    parties.call(&done, "settled", 5, settled(5)).await;
    parties.verb(&done, "settle", json!({"attempt": done.token()})).await.expect(200);
    let over = parties.reserve("overrun", "bulk", 5).await.expect(201);
    parties.call(&over, "settled", 5, settled(9)).await;
    parties.verb(&over, "settle", json!({"attempt": over.token()})).await.expect(200);
    let closed = parties.reserve("closed", "bulk", 10).await.expect(201);
    parties.call(&closed, "late", 4, None).await;
    let path = format!("/v1/reservations/{}", closed.id());
    let close = json!({"units": "7", "reason": "the provider's export says so"});
    parties.finance.post(&format!("{path}/settle"), close).await.expect(200);
    let late = json!({"attempt": closed.token(), "units": 4});
    let late = parties.worker.request(Method::POST, &format!("{path}/calls/late/settle")).json(&late);
    parties.worker.send(late).await.problem(409, "already_settled");
    vec![("settled", done), ("overrun", over), ("closed", closed)]
}

/// Every verb, on jobs of this day: nothing that an old one holds is in their way,
/// and nothing that they do touches it.
pub async fn new_work(parties: &Parties, day: &str) {
    let reserve =
        async |key: &str, operation: &str| parties.reserve(&format!("{day}-{key}"), operation, 10).await.expect(201);
    let job = reserve("settles", "bulk").await;
    parties.call(&job, "a", 4, settled(3)).await;
    parties.call(&job, "b", 4, Some(json!({"outcome": "not_sent"}))).await;
    parties.call(&job, "c", 4, unknown()).await;
    parties.worker.extend(&job, "30").await.expect(200);
    parties.worker.extend(&job, "90000").await.problem(400, "too_expensive");
    parties.verb(&job, "calls/c/settle", json!({"attempt": job.token(), "units": 2})).await.expect(200);
    parties.verb(&job, "settle", json!({"attempt": job.token()})).await.expect(200);
    let direct = reserve("reports", "stream").await;
    parties.worker.progress(&direct, "4").await.expect(200);
    parties.worker.settle(&direct, "6").await.expect(200);
    let fenced = reserve("is-fenced", "bulk").await;
    parties.verb(&fenced, "cancel", json!({})).await.expect(200);
    parties.verb(&fenced, "fence", json!({"attempt_number": 1})).await.expect(200);
    let first = reserve("is-taken-over", "bulk").await;
    let second = parties.take_over(&first, json!({})).await;
    parties.verb(&second, "settle", json!({"attempt": second.token(), "units": 1})).await.expect(200);
    let estimate = json!({"operation": "bulk", "units": 101});
    parties.worker.reserve(&format!("{day}-refused"), estimate).await.problem(400, "too_expensive");
}
