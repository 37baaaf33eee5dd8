//! A small service for tests: one account, one budget that never ends, the
//! answers that the real one gives. Its memory survives its process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

/// How the service is set up, and what it remembers.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) limit: u64,
    /// Units per token.
    pub(super) price: u64,
    pub(super) refuses_extensions: bool,
    /// Answered instead of anything else to whoever reserves.
    pub(super) says: Option<(u16, &'static str)>,
    /// How many more reservations are answered with 503 after they were made.
    pub(super) stumbles: u64,
    pub(super) jobs: BTreeMap<String, Job>,
    pub(super) requests: u64,
}

pub(super) struct Job {
    request: Value,
    estimate: u64,
    pub(super) ceiling: u64,
    pub(super) settled: Option<u64>,
}

impl Memory {
    pub(super) fn settled(&self) -> u64 {
        self.jobs.values().filter_map(|job| job.settled).sum()
    }

    fn available(&self) -> u64 {
        let charged = self.jobs.values().map(|job| job.settled.unwrap_or(job.ceiling));
        self.limit.saturating_sub(charged.sum())
    }

    fn show(&self, key: &str) -> Value {
        let job = &self.jobs[key];
        let settled = job.settled.unwrap_or(0);
        let state = if job.settled.is_some() { "settled" } else { "active" };
        json!({
            "id": key, "state": state, "estimate": job.estimate.to_string(),
            "ceiling": job.ceiling.to_string(), "settled": settled.to_string(),
            "overrun": settled.saturating_sub(job.ceiling).to_string(),
            "attempt": { "number": 1, "holder": job.request["holder"], "token": format!("1.{key}") },
        })
    }
}

/// A service and the process that it runs in.
pub(super) struct Fake {
    pub(super) memory: Arc<Mutex<Memory>>,
    pub(super) address: SocketAddr,
    process: Option<tokio::runtime::Runtime>,
}

impl Fake {
    pub(super) fn start(memory: Memory) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut fake = Self { memory: Arc::new(Mutex::new(memory)), address, process: None };
        fake.revive();
        fake
    }

    /// Ends it with every connection, in the middle of whatever it does.
    pub(super) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.shutdown_background();
        }
    }

    /// Starts it again where it was.
    pub(super) fn revive(&mut self) {
        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let app = Router::new()
            .route("/v1/reservations", post(reserve))
            .route("/v1/reservations/{id}/extend", post(extend))
            .route("/v1/reservations/{id}/settle", post(settle))
            .route("/v1/accounts/{account}/budgets", get(budgets))
            .with_state(Arc::clone(&self.memory));
        // The port is free as soon as the killed process's listener is dropped.
        let listener = (0..100)
            .find_map(|_| {
                let listener = std::net::TcpListener::bind(self.address);
                listener.inspect_err(|_| std::thread::sleep(Duration::from_millis(10))).ok()
            })
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        self.address = listener.local_addr().unwrap();
        process.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
        self.process = Some(process);
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

type Shared = State<Arc<Mutex<Memory>>>;

/// What was decided is on its way for a moment: long enough to be lost.
async fn answer(decided: Response) -> Response {
    tokio::time::sleep(Duration::from_millis(3)).await;
    decided
}

fn problem(status: u16, code: &str) -> Response {
    let retry = if status == 503 { "transient" } else { "never" };
    let body = json!({ "code": code, "title": code, "detail": "as the test asked", "retry": retry });
    (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
}

fn amount(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

async fn reserve(State(memory): Shared, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let decided = decide_reserve(&mut memory.lock().unwrap(), key, body);
    answer(decided).await
}

fn decide_reserve(memory: &mut Memory, key: String, request: Value) -> Response {
    memory.requests += 1;
    if let Some((status, code)) = memory.says {
        return problem(status, code);
    }
    if let Some(job) = memory.jobs.get(&key) {
        if job.request != request {
            return problem(422, "idempotency_key_reused");
        }
        return ([("idempotency-replayed", "true")], Json(memory.show(&key))).into_response();
    }
    let tokens = match request.get("units") {
        Some(units) => amount(units),
        None => {
            let quantities = request["quantities"].as_object().unwrap();
            assert!(quantities.keys().eq(["output", "prompt"]));
            quantities.values().map(amount).sum()
        }
    };
    let estimate = tokens * memory.price;
    if estimate > memory.available() {
        return problem(429, "budget_exhausted");
    }
    memory.jobs.insert(key.clone(), Job { request, estimate, ceiling: estimate, settled: None });
    if memory.stumbles > 0 {
        memory.stumbles -= 1;
        return ([("retry-after", "0")], problem(503, "deadline_exceeded")).into_response();
    }
    (StatusCode::CREATED, Json(memory.show(&key))).into_response()
}

async fn extend(State(memory): Shared, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    let decided = decide_extend(&mut memory.lock().unwrap(), &id, &body);
    answer(decided).await
}

fn decide_extend(memory: &mut Memory, id: &str, body: &Value) -> Response {
    memory.requests += 1;
    assert_eq!(body["attempt"], format!("1.{id}"));
    let ceiling = amount(&body["ceiling"]);
    let more = ceiling.saturating_sub(memory.jobs[id].ceiling);
    if memory.refuses_extensions || more > memory.available() {
        return problem(429, "budget_exhausted");
    }
    memory.jobs.get_mut(id).unwrap().ceiling += more;
    Json(memory.show(id)).into_response()
}

async fn settle(State(memory): Shared, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    let decided = decide_settle(&mut memory.lock().unwrap(), &id, &body);
    answer(decided).await
}

fn decide_settle(memory: &mut Memory, id: &str, body: &Value) -> Response {
    memory.requests += 1;
    assert_eq!(body["attempt"], format!("1.{id}"));
    let units = amount(&body["units"]);
    if *memory.jobs.get_mut(id).unwrap().settled.get_or_insert(units) != units {
        return problem(409, "already_settled");
    }
    Json(memory.show(id)).into_response()
}

async fn budgets(State(memory): Shared) -> Response {
    let memory = memory.lock().unwrap();
    let reserved: u64 = memory.jobs.values().filter(|job| job.settled.is_none()).map(|job| job.ceiling).sum();
    Json(json!({ "next_cursor": null, "items": [{
        "budget": "tokens", "member": null, "unit": "token", "limit": memory.limit.to_string(),
        "available": memory.available().to_string(), "reserved": reserved.to_string(),
        "liability": "0", "settled": memory.settled().to_string(), "mode": "enforce",
    }] }))
    .into_response()
}
