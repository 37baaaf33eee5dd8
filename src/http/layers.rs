//! What is done around every request: its id, its deadline, its count.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tokio::time::Instant;
use uuid::Uuid;

use super::App;
use super::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over from a caller.
const REQUEST_ID_LENGTH: usize = 128;

/// After this instant nothing more is sent to the database for the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(pub Instant);

/// Gives every request an id, the caller's if it sent a sane one, and every
/// answer the same. Renders problems, which carry it.
pub(super) async fn request_id(request: Request, next: Next) -> Response {
    let id = sane_id(request.headers()).unwrap_or_else(|| Uuid::now_v7().to_string());
    let mut response = next.run(request).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let headers = std::mem::take(response.headers_mut());
        response = problem.render(&id);
        for (name, value) in &headers {
            // What the router had to say, such as Allow.
            if !response.headers().contains_key(name) && name != axum::http::header::CONTENT_LENGTH {
                response.headers_mut().insert(name, value.clone());
            }
        }
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn sane_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let sane = |b: u8| b.is_ascii_alphanumeric() || b"._:@/-+=".contains(&b);
    (!id.is_empty() && id.len() <= REQUEST_ID_LENGTH && id.bytes().all(sane)).then(|| id.to_owned())
}

/// Refuses at once what is more than may be in flight. Runs the request to its end even if the caller goes away, and answers 503
/// when its deadline passes first: a connection to the database is never left
/// in the middle of a statement, and a dropped caller costs nobody else anything.
pub(super) async fn deadline(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let deadline = begun + app.options.deadline;
    // Nothing new is sent in the last tenth: what is refused for want of time
    // still has time to say so.
    request.extensions_mut().insert(Deadline(begun + app.options.deadline / 10 * 9));
    let Ok(place) = app.places.try_acquire_owned() else {
        return Problem::overloaded().into_response();
    };
    let work = tokio::spawn(async move {
        let response = next.run(request).await;
        drop(place);
        response
    });
    match tokio::time::timeout_at(deadline, work).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            tracing::error!(%error, "a request failed");
            Problem::internal().into_response()
        }
        Err(_) => Problem::deadline_exceeded().into_response(),
    }
}

/// Counts requests by route and status, and logs what went wrong.
pub(super) async fn observe(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = std::time::Instant::now();
    let method = request.method().clone();
    let route =
        request.extensions().get::<MatchedPath>().map_or("unmatched".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let elapsed = begun.elapsed();
    let status = response.status().as_u16();
    app.ledger.metrics().answered(method_label(&method), &route, status, elapsed);
    tracing::debug!(%method, route, status, ?elapsed, "answered");
    response
}

/// Anybody can make up a method; labels stay bounded.
fn method_label(method: &axum::http::Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "POST" | "PUT" | "DELETE" | "HEAD" | "OPTIONS" | "PATCH") => known,
        _ => "other",
    }
}
