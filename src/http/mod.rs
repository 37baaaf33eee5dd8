//! The HTTP floor: one file per resource. Each handler parses, calls one verb
//! and answers; no rule lives here.

mod audit;
mod body;
mod budgets;
mod caller;
mod everyone;
mod keys;
mod layers;
mod lists;
mod openapi;
mod policy;
mod problem;
mod reservations;
mod views;

use std::future::Future;
use std::time::Duration;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

pub use openapi::document;

use crate::ledger::Ledger;
use everyone::Document;
use problem::Problem;

/// How the service answers.
#[derive(Debug, Clone, Copy)]
pub struct HttpOptions {
    /// How long a request may take until it is answered 503.
    pub deadline: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(8) }
    }
}

/// What every handler can get at.
#[derive(Clone)]
struct App {
    ledger: Ledger,
    options: HttpOptions,
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
    let app = App { ledger, options, document: Document(openapi::yaml(&contract).into()) };
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
/// returns.
///
/// # Errors
///
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    ledger: Ledger,
    options: HttpOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
    });
    axum::serve(listener, router(ledger, options)).with_graceful_shutdown(stop).await
}
