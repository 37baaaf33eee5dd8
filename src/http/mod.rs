//! The HTTP floor: one file per resource. Each handler parses, calls one verb
//! and answers; no rule lives here.

mod answers;
mod attempts;
mod audit;
mod body;
mod budgets;
mod caller;
mod calls;
mod cancel;
mod everyone;
mod extend;
mod fence;
mod keys;
mod late_usage;
mod layers;
mod liabilities;
mod lists;
mod openapi;
mod policy;
mod problem;
mod reservations;
mod said;
mod settle;
mod text;
mod views;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use openapi::document;

use crate::ledger::Ledger;
use everyone::Document;
use problem::Problem;

/// How the service answers.
#[derive(Debug, Clone, Copy)]
pub struct HttpOptions {
    /// How long a request may take until it is answered 503.
    pub deadline: Duration,
    /// How many requests may be in flight; more are answered 503 at once.
    pub max_in_flight: usize,
    /// How many connections may be open; more wait.
    pub max_connections: usize,
}

/// How long a client may take to send the head of a request; an idle connection
/// is closed after it.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// A failed accept means that the process is short of something: it is given time.
const AFTER_A_FAILED_ACCEPT: Duration = Duration::from_millis(100);

impl Default for HttpOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(8), max_in_flight: 1024, max_connections: 4096 }
    }
}

/// What every handler can get at.
#[derive(Clone)]
struct App {
    ledger: Ledger,
    options: HttpOptions,
    /// One for each request that may be in flight.
    places: Arc<Semaphore>,
    document: Document,
}

impl FromRef<App> for Document {
    fn from_ref(app: &App) -> Self {
        app.document.clone()
    }
}

impl FromRef<App> for Ledger {
    fn from_ref(app: &App) -> Self {
        app.ledger.clone()
    }
}

/// The whole API over a ledger.
pub fn router(ledger: Ledger, options: HttpOptions) -> Router {
    let (routes, contract) = openapi::routes().split_for_parts();
    let places = Arc::new(Semaphore::new(options.max_in_flight));
    let app = App { ledger, options, places, document: Document(openapi::yaml(&contract).into()) };
    routes
        .fallback(|| async { Problem::not_found("path") })
        .method_not_allowed_fallback(|request: Request| async move {
            Problem::method_not_allowed(request.method().as_str())
        })
        .layer(from_fn_with_state(app.clone(), layers::deadline))
        .layer(from_fn_with_state(app.clone(), layers::observe))
        .layer(from_fn(layers::request_id))
        .with_state(app)
}

/// Serves the API until `stop` is ready, then answers what is in flight and
/// returns. Connections are bounded in number, and each in how long it may take to
/// say what it wants.
///
/// # Errors
///
/// The listener has no address.
pub async fn serve(
    listener: TcpListener,
    ledger: Ledger,
    options: HttpOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let app = router(ledger, options);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    let places = Arc::new(Semaphore::new(options.max_connections));
    let open = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        // Who finds no place waits in the system's own queue, which is bounded.
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let (stream, _) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(AFTER_A_FAILED_ACCEPT).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app.clone()));
        let connection = open.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
    drop(listener);
    open.shutdown().await;
    Ok(())
}
