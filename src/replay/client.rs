//! One request to the service, repeated until it is answered.
//!
//! A request is built once: its address, key and body are the same bytes at every
//! try. That is what makes it safe to repeat when nobody knows what became of it.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Url};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::args::ReplayArgs;
use super::choices::mix;

/// How long one try may take. The service bounds its own work well below this.
const TRY_TIMEOUT: Duration = Duration::from_secs(15);
/// The first pause between two tries; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause that is not the service's own wish.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Reserve,
    Extend,
    Settle,
    Books,
}

/// A request, the same at every try.
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) url: Url,
    /// `Idempotency-Key`, where the service asks for one.
    pub(super) key: Option<HeaderValue>,
    /// JSON; none for a GET.
    pub(super) body: Option<Vec<u8>>,
    /// After how long the worker hangs up on the first try, if its answer is to be lost.
    pub(super) loses_answer: Option<Duration>,
    /// Spreads the pauses of different workers.
    pub(super) spread: u64,
}

/// What became of a request.
pub(super) struct Exchange {
    pub(super) kind: Kind,
    /// Tries, the first included.
    pub(super) tries: u64,
    /// Answers that were lost on purpose.
    pub(super) lost: u64,
    /// The answer, or what went wrong last.
    pub(super) outcome: Result<Answer, String>,
}

/// An answer that is no invitation to try again.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Whether the service says that it had done this before.
    pub(super) replayed: bool,
    pub(super) body: Vec<u8>,
    /// From sending the try that it answers to its last byte.
    pub(super) latency: Duration,
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The problem that an answer without success describes.
    pub(super) fn problem(&self) -> Problem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What is read of `application/problem+json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Problem {
    pub(super) code: Option<String>,
    pub(super) detail: Option<String>,
    retry: Option<String>,
    retry_after_seconds: Option<u64>,
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
pub(super) struct Client {
    http: reqwest::Client,
    retry_for: Duration,
}

impl Client {
    pub(super) fn new(args: &ReplayArgs) -> Result<Self, reqwest::Error> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, args.key.0.clone())]);
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("spend-ledger-replay/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(usize::from(args.concurrency))
            .timeout(TRY_TIMEOUT)
            // What stands in between would be measured and counted as the service.
            .no_proxy()
            // A redirected POST becomes a GET, and that is no longer the request.
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .build()?;
        Ok(Self { http, retry_for: args.retry_for })
    }

    /// Sends the request until it is answered, or until the time for repeating it
    /// has run out: then one last try is made.
    pub(super) async fn send(&self, request: &Request) -> Exchange {
        let deadline = Instant::now() + self.retry_for;
        let (kind, mut tries, mut lost, mut failures) = (request.kind, 0, 0, 0);
        loop {
            let hang_up = request.loses_answer.filter(|_| tries == 0);
            tries += 1;
            let last = Instant::now() >= deadline;
            let trouble = match self.attempt(request, hang_up).await {
                Tried::Answered(answer) => {
                    return Exchange { kind, tries, lost, outcome: Ok(answer) };
                }
                // The worker knows nothing now, and asks again at once.
                Tried::Lost => {
                    lost += 1;
                    continue;
                }
                Tried::Transient(trouble) => trouble,
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if last || self.retry_for.is_zero() {
                return Exchange { kind, tries, lost, outcome: Err(trouble.reason) };
            }
            let asked = trouble.retry_after.unwrap_or_default();
            sleep(pause(failures, request.spread).max(asked).min(remaining)).await;
            failures += 1;
        }
    }

    async fn attempt(&self, request: &Request, hang_up: Option<Duration>) -> Tried {
        let answer = self.try_once(request);
        let answer = match hang_up {
            None => answer.await,
            Some(patience) => match timeout(patience, answer).await {
                // A connection that never came about loses no answer.
                Ok(Err(error)) if error.is_connect() => Err(error),
                _ => return Tried::Lost,
            },
        };
        match answer {
            Ok((answer, retry_after)) => judge(answer, retry_after),
            Err(error) => Tried::Transient(Transient { reason: root(&error), retry_after: None }),
        }
    }

    async fn try_once(&self, request: &Request) -> Result<(Answer, Option<Duration>), reqwest::Error> {
        let method = if request.body.is_some() { Method::POST } else { Method::GET };
        let mut builder = self.http.request(method, request.url.clone());
        if let Some(key) = &request.key {
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
        Ok((Answer { status, replayed, body, latency }, retry_after))
    }
}

/// Tells answers from invitations to try again. A refusal by a budget is an
/// answer, whatever it says about later: only the server's own trouble is repeated.
fn judge(answer: Answer, retry_after: Option<Duration>) -> Tried {
    if answer.is_success() || answer.status == 429 {
        return Tried::Answered(answer);
    }
    let problem = answer.problem();
    let transient = problem.retry.as_deref() == Some("transient") && answer.status != 409;
    if answer.status < 500 && answer.status != 408 && !transient {
        return Tried::Answered(answer);
    }
    let stated = problem.retry_after_seconds.map(Duration::from_secs);
    let code = problem.code.unwrap_or_else(|| "no code".to_owned());
    Tried::Transient(Transient {
        reason: format!("answered {} ({code})", answer.status),
        retry_after: retry_after.or(stated),
    })
}

/// Doubles from failure to failure up to its bound; somewhere in the upper half,
/// so that workers that failed together do not come back together.
fn pause(failures: u32, spread: u64) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
    let millis = whole.as_millis() as u64;
    Duration::from_millis(millis / 2 + mix(spread ^ u64::from(failures)) % (millis / 2 + 1))
}

/// The innermost cause: "connection refused" rather than "error sending request".
fn root(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", TRY_TIMEOUT.as_secs());
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
        judge(Answer { status, replayed: false, body, latency }, None)
    }

    #[test]
    fn only_the_servers_own_trouble_is_repeated() {
        for (status, body) in [
            (200, "{}"),
            (400, r#"{"code": "too_expensive", "retry": "never"}"#),
            (409, r#"{"code": "stale_attempt", "retry": "transient"}"#),
            (429, r#"{"code": "provider_pace", "retry": "transient"}"#),
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
        for spread in 0..100 {
            assert!((25..=50).contains(&pause(0, spread).as_millis()));
            assert!((1000..=2000).contains(&pause(6, spread).as_millis()));
            assert!((1000..=2000).contains(&pause(u32::MAX, spread).as_millis()));
        }
        assert_ne!(pause(3, 1), pause(3, 2));
    }
}
