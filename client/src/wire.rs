//! The lower layer: one request to the service, repeated until it is answered.
//!
//! A request is built once: its address, key and body are the same bytes at every
//! try. That is what makes it safe to repeat when nobody knows what became of it.
//! Everything in this library goes through here; it is public for programs that
//! want to see every try, such as a load test.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Url};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use crate::endpoint::Key;
use crate::error::{BuildError, Error};

/// The first pause between two tries; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause that is not the service's own wish.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The longest key of a job or a call, in bytes.
const LONGEST_KEY: usize = 255;

/// How long an answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long one try may take. The service bounds its own work well below the default.
    pub try_timeout: Duration,
    /// How long a request is repeated. When it has passed one last try is made,
    /// unless the service asked to be asked again later than that; if it is zero
    /// there is only one.
    pub retry_for: Duration,
}

impl Default for Patience {
    /// 15 seconds for a try, a minute for all of them: enough to restart the service.
    fn default() -> Self {
        Self { try_timeout: Duration::from_secs(15), retry_for: Duration::from_secs(60) }
    }
}

/// A request, the same at every try.
#[derive(Debug, Clone)]
pub struct Request {
    url: Url,
    idempotency_key: Option<HeaderValue>,
    body: Option<Vec<u8>>,
    hang_up_after: Option<Duration>,
}

impl Request {
    /// A GET.
    #[must_use]
    pub fn get(url: Url) -> Self {
        Self { url, idempotency_key: None, body: None, hang_up_after: None }
    }

    /// A POST of JSON.
    #[must_use]
    pub fn post(url: Url, body: &serde_json::Value) -> Self {
        Self { body: Some(body.to_string().into_bytes()), ..Self::get(url) }
    }

    /// With the header `Idempotency-Key`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the key is not 1 to 255 visible ASCII characters.
    pub fn with_key(self, key: &str) -> Result<Self, Error> {
        let field = "the job's key";
        check_key(field, key)?;
        let invalid = |_| Error::Invalid { field, reason: "cannot be sent in a header" };
        Ok(Self { idempotency_key: Some(HeaderValue::from_str(key).map_err(invalid)?), ..self })
    }

    /// Loses the answer to the first try on purpose, for tests: the request is
    /// sent, the connection is closed after this long, and the same request is
    /// sent again at once.
    #[must_use]
    pub fn hang_up_after(self, patience: Option<Duration>) -> Self {
        Self { hang_up_after: patience, ..self }
    }
}

/// What became of a request.
#[derive(Debug)]
pub struct Exchange {
    /// Tries, the first included.
    pub tries: u64,
    /// Answers that were lost on purpose.
    pub lost: u64,
    /// The answer, or what went wrong last.
    pub outcome: Result<Answer, String>,
    /// Without an answer: when the service asked to come back, which was too late
    /// for this request.
    pub retry_after: Option<Duration>,
}

/// An answer that is no invitation to try again.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Whether the service says that it had done this before.
    pub replayed: bool,
    /// When the service asked to come back.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Vec<u8>,
    /// From sending the try that it answers to its last byte.
    pub latency: Duration,
}

impl Answer {
    /// Whether the service did what was asked.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The problem that an answer without success describes; empty if it is none.
    #[must_use]
    pub fn problem(&self) -> Problem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What is read of `application/problem+json`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Problem {
    /// What is wrong, for a program. Stable.
    pub code: Option<String>,
    /// What is wrong, for a person.
    pub detail: Option<String>,
    /// Whether asking again can help: `never`, `after_release`, `after_reset` or `transient`.
    pub retry: Option<String>,
    /// When asking again may help, in seconds.
    pub retry_after_seconds: Option<u64>,
}

/// Why a try has to be repeated.
struct Transient {
    reason: String,
    /// When the service asked to come back.
    retry_after: Option<Duration>,
}

enum Tried {
    Answered(Answer),
    Lost,
    Transient(Transient),
}

/// A pool of connections to the service.
#[derive(Debug, Clone)]
pub struct Wire {
    http: reqwest::Client,
    patience: Patience,
}

impl Wire {
    /// Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// If the HTTP client cannot be set up, as for want of file descriptors.
    pub fn new(key: &Key, patience: Patience) -> Result<Self, BuildError> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, key.0.clone())]);
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("spend-ledger-client/", env!("CARGO_PKG_VERSION")))
            // What stands in between could repeat or answer a request by itself, and
            // would be measured and counted as the service.
            .no_proxy()
            // A redirected POST becomes a GET, and that is no longer the request.
            .redirect(reqwest::redirect::Policy::none())
            // Tries are counted here, and nowhere else.
            .retry(reqwest::retry::never())
            .build()?;
        Ok(Self { http, patience })
    }

    /// How long answers are waited for unless somebody says otherwise.
    #[must_use]
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// Sends the request until it is answered, or until the time for repeating it
    /// has run out.
    pub async fn send(&self, request: &Request) -> Exchange {
        self.send_within(request, self.patience).await
    }

    /// As [`send`](Self::send), with a patience of its own.
    pub async fn send_within(&self, request: &Request, patience: Patience) -> Exchange {
        let deadline = Instant::now() + patience.retry_for;
        let (mut tries, mut lost, mut failures) = (0, 0, 0);
        loop {
            let hang_up = request.hang_up_after.filter(|_| tries == 0);
            tries += 1;
            let last = Instant::now() >= deadline;
            let trouble = match self.attempt(request, hang_up, patience.try_timeout).await {
                Tried::Answered(answer) => return Exchange { tries, lost, outcome: Ok(answer), retry_after: None },
                // The worker knows nothing now, and asks again at once.
                Tried::Lost => {
                    lost += 1;
                    continue;
                }
                Tried::Transient(trouble) => trouble,
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            let asked = trouble.retry_after.unwrap_or_default();
            // A service that is in trouble is not asked before it said.
            if last || patience.retry_for.is_zero() || asked > remaining {
                let retry_after = trouble.retry_after;
                return Exchange { tries, lost, outcome: Err(trouble.reason), retry_after };
            }
            sleep(pause(failures, random()).max(asked).min(remaining)).await;
            failures += 1;
        }
    }

    async fn attempt(&self, request: &Request, hang_up: Option<Duration>, limit: Duration) -> Tried {
        let answer = self.try_once(request, limit);
        let answer = match hang_up {
            None => answer.await,
            Some(patience) => match timeout(patience, answer).await {
                // A connection that never came about loses no answer.
                Ok(Err(error)) if error.is_connect() => Err(error),
                _ => return Tried::Lost,
            },
        };
        match answer {
            Ok(answer) => judge(answer),
            Err(error) => Tried::Transient(Transient { reason: root(&error, limit), retry_after: None }),
        }
    }

    async fn try_once(&self, request: &Request, limit: Duration) -> Result<Answer, reqwest::Error> {
        let method = if request.body.is_some() { Method::POST } else { Method::GET };
        let mut builder = self.http.request(method, request.url.clone()).timeout(limit);
        if let Some(key) = &request.idempotency_key {
            builder = builder.header("idempotency-key", key);
        }
        if let Some(body) = &request.body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        let started = Instant::now();
        let response = builder.send().await?;
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let retry_after =
            header(RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let replayed = header("idempotency-replayed") == Some("true");
        let status = response.status().as_u16();
        let body = response.bytes().await?.to_vec();
        let latency = started.elapsed();
        Ok(Answer { status, replayed, retry_after, body, latency })
    }
}

/// Tells answers from invitations to try again. A refusal by a budget or by the
/// state of a reservation is an answer, whatever it says about later: only the
/// server's own trouble is repeated.
fn judge(mut answer: Answer) -> Tried {
    if answer.is_success() {
        return Tried::Answered(answer);
    }
    let problem = answer.problem();
    let stated = problem.retry_after_seconds.map(Duration::from_secs);
    answer.retry_after = answer.retry_after.or(stated);
    let transient = match problem.retry.as_deref() {
        _ if matches!(answer.status, 409 | 429) => false,
        Some(retry) => retry == "transient",
        // Not the service's own words: something on the way to it is in trouble.
        None => answer.status >= 500 || answer.status == 408,
    };
    if !transient {
        return Tried::Answered(answer);
    }
    let code = problem.code.unwrap_or_else(|| "no code".to_owned());
    let reason = format!("answered {} ({code})", answer.status);
    Tried::Transient(Transient { reason, retry_after: answer.retry_after })
}

/// Doubles from failure to failure up to its bound; somewhere in the upper half,
/// so that workers that failed together do not come back together.
fn pause(failures: u32, random: u64) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    let millis = whole.as_millis() as u64;
    Duration::from_millis(millis / 2 + random % (millis / 2 + 1))
}

/// A number that no other process draws at the same time. The keys of the standard
/// library's hash tables are random, which is all that pauses and names need.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Whether a key of a job or a call is one.
pub(crate) fn check_key(field: &'static str, key: &str) -> Result<(), Error> {
    let visible = (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    let reason = "must be 1 to 255 visible ASCII characters";
    if visible { Ok(()) } else { Err(Error::Invalid { field, reason }) }
}

/// The innermost cause: "connection refused" rather than "error sending request".
fn root(error: &reqwest::Error, limit: Duration) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", limit.as_secs_f32());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, body: &str) -> Tried {
        let (body, latency) = (body.as_bytes().to_vec(), Duration::ZERO);
        judge(Answer { status, replayed: false, retry_after: None, body, latency })
    }

    #[test]
    fn only_the_servers_own_trouble_is_repeated() {
        for (status, body) in [
            (200, "{}"),
            (400, r#"{"code": "too_expensive", "retry": "never"}"#),
            (404, ""),
            (409, r#"{"code": "stale_attempt", "retry": "transient"}"#),
            (409, r#"{"code": "lease_current", "retry": "transient", "retry_after_seconds": 30}"#),
            (429, r#"{"code": "provider_pace", "retry": "transient"}"#),
            (503, r#"{"code": "capacity_full", "retry": "after_release"}"#),
        ] {
            assert!(matches!(judged(status, body), Tried::Answered(_)), "{status} {body}");
        }
        for (status, body) in [(500, ""), (502, "<html>"), (408, ""), (425, r#"{"retry": "transient"}"#)] {
            assert!(matches!(judged(status, body), Tried::Transient(_)), "{status} {body}");
        }
        let Tried::Transient(full) = judged(503, r#"{"code": "overloaded", "retry_after_seconds": 7}"#) else {
            panic!("an overloaded service is asked again");
        };
        assert_eq!(full.reason, "answered 503 (overloaded)");
        assert_eq!(full.retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn pauses_grow_to_their_bound() {
        for random in 0..100 {
            assert!((25..=50).contains(&pause(0, random).as_millis()));
            assert!((1000..=2000).contains(&pause(6, random).as_millis()));
            assert!((1000..=2000).contains(&pause(u32::MAX, random).as_millis()));
        }
        assert_ne!(random(), random());
    }

    #[test]
    fn keys_are_visible_ascii() {
        assert!(check_key("key", "export/2024:17").is_ok());
        for bad in ["", "two words", "ü", "tab\t", &"k".repeat(256)] {
            assert!(check_key("key", bad).is_err(), "{bad}");
        }
    }
}
