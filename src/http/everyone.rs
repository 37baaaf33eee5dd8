//! What needs no key: health, readiness, metrics, and the contract.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use crate::ledger::{Context, Ledger, schema};

/// How long the database may take to say that it is there.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// How the service is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    /// `ok`, or `unavailable`.
    status: &'static str,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
    /// The schema version that the program needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_version: Option<u32>,
}

/// The process answers.
#[utoipa::path(
    get, path = "/healthz", tag = "everyone", operation_id = "health",
    responses((status = 200, description = "It does", body = Health)),
    security(()),
)]
pub(super) async fn health() -> axum::Json<Health> {
    axum::Json(Health { status: "ok", detail: None, schema_version: None })
}

/// The database answers, is durable and writable, and has the right schema.
#[utoipa::path(
    get, path = "/readyz", tag = "everyone", operation_id = "ready",
    responses(
        (status = 200, description = "Ready", body = Health),
        (status = 503, description = "Not ready, and why", body = Health),
    ),
    security(()),
)]
pub(super) async fn ready(State(ledger): State<Ledger>) -> Response {
    let context = Context { actor: "readiness".to_owned(), key: None, deadline: Instant::now() + READY_WITHIN };
    let detail = match ledger.database().fitness(&context).await {
        Ok(Ok(())) => None,
        Err(_) => Some("the database does not answer"),
        Ok(Err(error)) => {
            tracing::warn!(%error, "not ready");
            Some("the database is not fit: the service's log says why")
        }
    };
    match detail {
        None => {
            let health = Health { status: "ok", detail, schema_version: Some(schema::newest_version()) };
            axum::Json(health).into_response()
        }
        Some(_) => {
            let health = Health { status: "unavailable", detail, schema_version: None };
            let retry = [(header::RETRY_AFTER, "1")];
            (StatusCode::SERVICE_UNAVAILABLE, retry, axum::Json(health)).into_response()
        }
    }
}

/// What is counted, in the Prometheus text format: also what is open, by account
/// and budget, as the list of liabilities has it, at most some seconds old.
#[utoipa::path(
    get, path = "/metrics", tag = "everyone", operation_id = "metrics",
    responses((status = 200, description = "The metrics", body = String, content_type = "application/openmetrics-text")),
    security(()),
)]
pub(super) async fn metrics(State(ledger): State<Ledger>) -> Response {
    let context = Context { actor: "metrics".to_owned(), key: None, deadline: Instant::now() + READY_WITHIN };
    // Without the database the counters are all there is to say; the gauges are
    // as old as the last time.
    if let Err(error) = ledger.show_open(&context).await {
        tracing::warn!(%error, "what is open could not be counted");
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], ledger.metrics().text()).into_response()
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.yaml", tag = "everyone", operation_id = "openapi",
    responses((status = 200, description = "The contract, as it is checked in", body = serde_json::Value, content_type = "application/yaml")),
    security(()),
)]
pub(super) async fn document(State(document): State<Document>) -> Response {
    ([(header::CONTENT_TYPE, "application/yaml")], document.0.to_string()).into_response()
}

/// The contract as text.
#[derive(Clone)]
pub(super) struct Document(pub Arc<str>);
