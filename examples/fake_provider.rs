//! A paid provider, for trying things out: charges for every request, and says
//! what it has charged.
//!
//! ```text
//! cargo run --example fake_provider            # on 127.0.0.1:9090, or PROVIDER_LISTEN
//! curl -d '{"page": 1}' http://127.0.0.1:9090/transform
//! curl http://127.0.0.1:9090/bill
//! ```
//!
//! See `worker.rs` for a worker that pays it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

/// What was asked for and charged so far.
#[derive(Default)]
struct Bill {
    requests: u64,
    charged: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::var("PROVIDER_LISTEN").unwrap_or_else(|_| "127.0.0.1:9090".to_owned());
    let app = Router::new().route("/transform", post(transform)).route("/bill", get(bill));
    let listener = tokio::net::TcpListener::bind(&address).await?;
    eprintln!("the provider listens on http://{}", listener.local_addr()?);
    axum::serve(listener, app.with_state(Arc::default())).await?;
    Ok(())
}

/// Works on a page, and charges 10 to 12 units for it: nobody knows before.
async fn transform(State(bill): State<Arc<Mutex<Bill>>>, Json(request): Json<Value>) -> Json<Value> {
    let page = request["page"].as_u64().unwrap_or_default();
    let charge = 10 + page % 3;
    let mut bill = bill.lock().unwrap_or_else(PoisonError::into_inner);
    bill.requests += 1;
    bill.charged += charge;
    let text = format!("page {page}, transformed");
    Json(json!({ "id": format!("req-{}", bill.requests), "charged": charge, "text": text }))
}

async fn bill(State(bill): State<Arc<Mutex<Bill>>>) -> Json<Value> {
    let bill = bill.lock().unwrap_or_else(PoisonError::into_inner);
    Json(json!({ "requests": bill.requests, "charged": bill.charged }))
}
