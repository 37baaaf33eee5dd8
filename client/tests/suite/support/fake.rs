//! A small service that follows the contract: one account, one budget. What goes
//! wrong is ordered beforehand, verb by verb.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::books::{Answer, Books};
use super::in_time;

/// What goes wrong with a request.
#[derive(Clone)]
pub enum Trouble {
    /// It is decided, and the answer never arrives.
    Lost,
    /// It is decided, and the answer says that nobody knows.
    Doubt,
    /// It is decided twice, as by a service that repeats its own statement, and the
    /// second answer is given.
    Repeated,
    /// It is decided once this is true, and answered then.
    Held(watch::Receiver<bool>),
    /// It is not decided: the service asks to come back after so many seconds.
    Busy(u64),
    /// It is refused.
    Refused(u16, &'static str),
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub verb: String,
    pub body: String,
    pub key: Option<String>,
    pub at: Instant,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

#[derive(Default)]
pub struct Memory {
    pub books: Books,
    seen: Vec<Seen>,
    troubles: BTreeMap<&'static str, VecDeque<Trouble>>,
}

/// The service. Its server ends with the test's runtime.
#[derive(Clone)]
pub struct Fake {
    pub url: String,
    memory: Arc<Mutex<Memory>>,
    arrivals: watch::Sender<usize>,
}

impl Fake {
    pub async fn start() -> Self {
        Self::with(Books::default()).await
    }

    pub async fn with(books: Books) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let memory = Arc::new(Mutex::new(Memory { books, ..Memory::default() }));
        let fake = Self { url, memory, arrivals: watch::Sender::new(0) };
        let app = Router::new()
            .route("/v1/reservations", post(reserve))
            .route("/v1/reservations/{id}", get(show))
            .route("/v1/reservations/{id}/calls", post(admit).get(list))
            .route("/v1/reservations/{id}/{verb}", post(act))
            .route("/v1/reservations/{id}/calls/{call}/settle", post(settle_call))
            .with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        fake
    }

    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    /// Orders what goes wrong with the next requests of this verb.
    pub fn trouble(&self, verb: &'static str, troubles: impl IntoIterator<Item = Trouble>) {
        self.memory().troubles.entry(verb).or_default().extend(troubles);
    }

    /// The requests of this verb so far.
    pub fn seen(&self, verb: &str) -> Vec<Seen> {
        self.memory().seen.iter().filter(|seen| seen.verb == verb).cloned().collect()
    }

    pub fn all(&self) -> Vec<String> {
        self.memory().seen.iter().map(|seen| seen.verb.clone()).collect()
    }

    /// Waits until so many requests of this verb have arrived.
    pub async fn sees(&self, verb: &str, count: usize) {
        let mut arrivals = self.arrivals.subscribe();
        in_time(async {
            while self.seen(verb).len() < count {
                arrivals.changed().await.unwrap();
            }
        })
        .await;
    }

    /// Waits until the call is in this state.
    pub async fn call_is(&self, call: &str, state: &str) {
        let mut arrivals = self.arrivals.subscribe();
        in_time(async {
            while self.memory().books.call_state(call).as_deref() != Some(state) {
                arrivals.changed().await.unwrap();
            }
        })
        .await;
    }

    async fn answer(
        self,
        verb: &str,
        headers: &HeaderMap,
        body: &Bytes,
        decide: impl Fn(&mut Books) -> Answer,
    ) -> Response {
        let trouble = {
            let mut memory = self.memory();
            let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
            let body = String::from_utf8(body.to_vec()).unwrap();
            memory.seen.push(Seen { verb: verb.to_owned(), body, key, at: Instant::now() });
            memory.troubles.get_mut(verb).and_then(VecDeque::pop_front)
        };
        self.arrived();
        if let Some(Trouble::Held(gate)) = &trouble {
            gate.clone().wait_for(|open| *open).await.unwrap();
        }
        let decided = match trouble {
            Some(Trouble::Busy(seconds)) => {
                let body = json!({ "code": "overloaded", "retry": "transient", "retry_after_seconds": seconds });
                let headers = [("retry-after", seconds.to_string())];
                return (StatusCode::SERVICE_UNAVAILABLE, headers, body.to_string()).into_response();
            }
            Some(Trouble::Refused(status, code)) => Answer::problem(status, code, None),
            Some(Trouble::Repeated) => {
                decide(&mut self.memory().books);
                decide(&mut self.memory().books)
            }
            _ => decide(&mut self.memory().books),
        };
        self.arrived();
        match trouble {
            Some(Trouble::Lost) => pending().await,
            Some(Trouble::Doubt) => Answer::problem(503, "deadline_exceeded", None).into_response(),
            _ => decided.into_response(),
        }
    }

    /// Wakes whoever waits for something to have happened.
    fn arrived(&self) {
        self.arrivals.send_modify(|count| *count += 1);
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let replayed = if self.replayed { "true" } else { "false" };
        let status = StatusCode::from_u16(self.status).unwrap();
        (status, [("idempotency-replayed", replayed)], self.body.to_string()).into_response()
    }
}

fn parsed(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap()
}

async fn reserve(State(fake): State<Fake>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    fake.answer("reserve", &headers, &body, |books| books.reserve(&key, &parsed(&body))).await
}

async fn show(State(fake): State<Fake>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    fake.answer("get", &headers, &Bytes::new(), |books| Answer::ok(200, books.show(&id, None))).await
}

async fn list(State(fake): State<Fake>, Path(id): Path<String>, headers: HeaderMap, uri: Uri) -> Response {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    fake.answer("list", &headers, &Bytes::new(), |books| books.list(&id, &query)).await
}

async fn admit(fake: State<Fake>, Path(id): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    act(fake, Path((id, "calls".to_owned())), headers, body).await
}

async fn act(
    State(fake): State<Fake>,
    Path((id, verb)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    fake.answer(&verb, &headers, &body, |books| books.act(&id, &verb, &parsed(&body))).await
}

async fn settle_call(
    State(fake): State<Fake>,
    Path((id, call)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    fake.answer("settle_call", &headers, &body, |books| books.settle_call(&id, &call, &parsed(&body))).await
}
