//! A paid provider that holds the ledger to its word: at every paid request it
//! looks, at that instant, what the ledger has charged for the job.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use uuid::Uuid;

use super::server::TestDatabase;

/// A paid request. The provider does as it is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pay {
    pub reservation: Uuid,
    pub call: String,
    /// The most that it may cost.
    pub units: u32,
    /// What it does cost.
    pub charge: u32,
    /// Whether the answer says so, or is an error.
    pub fails: bool,
    pub takes_millis: u64,
}

/// What one call was asked for and has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub most: Decimal,
    pub charged: Decimal,
}

/// The provider's own books of one reservation: what it has charged, by call.
pub type Bill = BTreeMap<String, Charge>;

/// A running provider. It ends with the test.
pub struct Provider {
    pub address: SocketAddr,
    state: Arc<Books>,
}

struct Books {
    database: PgPool,
    /// Locked while a request is compared with the ledger, so that nothing is
    /// charged for the same job meanwhile.
    bills: Mutex<HashMap<Uuid, Arc<tokio::sync::Mutex<Bill>>>>,
    wrong: Mutex<Vec<String>>,
}

impl Provider {
    /// A provider that reads this database past the service.
    pub async fn start(database: &TestDatabase) -> Self {
        let database = PgPoolOptions::new().max_connections(4).connect(&database.owner_url).await.unwrap();
        let state = Arc::new(Books { database, bills: Mutex::default(), wrong: Mutex::default() });
        let app = Router::new()
            .route("/pay", post(pay))
            .route("/bill/{reservation}/{call}", get(bill))
            .route("/later", post(later));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.with_state(Arc::clone(&state));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, state }
    }

    /// What was charged for a reservation.
    pub async fn bill(&self, reservation: Uuid) -> Bill {
        let bill = self.state.bill(reservation);
        let bill = bill.lock().await;
        bill.clone()
    }

    /// Moves the ledger's clock on by more than a lease of five seconds.
    pub async fn let_leases_run_out(&self) {
        self.state.move_clock().await;
    }

    /// Asserts that no paid request ever came that the ledger had not charged for.
    #[track_caller]
    pub fn was_always_charged_for(&self) {
        let wrong = self.state.wrong.lock().unwrap().clone();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

impl Books {
    fn bill(&self, reservation: Uuid) -> Arc<tokio::sync::Mutex<Bill>> {
        Arc::clone(self.bills.lock().unwrap().entry(reservation).or_default())
    }

    async fn move_clock(&self) {
        let later = sqlx::query("update test_clock set shift = shift + interval '6 seconds'");
        later.execute(&self.database).await.unwrap();
    }

    /// Compares a request with what the ledger has charged at this instant: all that
    /// the job was charged here, and the most that this request may add.
    async fn compare(&self, bill: &Bill, pay: &Pay) -> Result<(), String> {
        let most = Decimal::from(pay.units);
        if let Some(before) = bill.get(&pay.call) {
            return Err(format!("is asked for again, after {before:?}"));
        }
        let standing: Option<(Decimal, Option<String>, Option<Decimal>)> = sqlx::query_as(
            "select r.settled + r.reserved + r.liability, c.state, c.units
             from reservation r
             left join call c on c.account = r.account and c.reservation_id = r.id and c.key = $2
             where r.id = $1",
        )
        .bind(pay.reservation)
        .bind(&pay.call)
        .fetch_optional(&self.database)
        .await
        .unwrap();
        let Some((charged, state, admitted)) = standing else { return Err("has no reservation".to_owned()) };
        let may_be_spent: Decimal = bill.values().map(|charge| charge.charged).sum::<Decimal>() + most;
        if may_be_spent > charged {
            return Err(format!("makes {may_be_spent}, and the ledger has charged {charged}"));
        }
        match (state.as_deref(), admitted) {
            (Some("in_flight" | "unknown" | "settled"), Some(admitted)) if admitted >= most => Ok(()),
            (state, admitted) => Err(format!("of {most} is a call that is {state:?}, admitted for {admitted:?}")),
        }
    }
}

/// Charges at the instant at which it is asked, and answers some time later.
async fn pay(State(books): State<Arc<Books>>, Json(pay): Json<Pay>) -> (StatusCode, Json<Value>) {
    let (charge, fails, takes) = (pay.charge, pay.fails, Duration::from_millis(pay.takes_millis));
    // Not ended by a caller that hangs up.
    let charged = tokio::spawn(async move {
        let bill = books.bill(pay.reservation);
        let mut bill = bill.lock().await;
        if let Err(wrong) = books.compare(&bill, &pay).await {
            books.wrong.lock().unwrap().push(format!("{} of {} {wrong}", pay.call, pay.reservation));
        }
        let charge = bill.entry(pay.call).or_insert(Charge { most: 0.into(), charged: 0.into() });
        charge.most += Decimal::from(pay.units);
        charge.charged += Decimal::from(pay.charge);
    });
    charged.await.unwrap();
    tokio::time::sleep(takes).await;
    let status = if fails { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
    (status, Json(json!({ "charged": charge })))
}

/// What a request has cost, for who has lost the answer.
async fn bill(
    State(books): State<Arc<Books>>,
    Path((reservation, call)): Path<(Uuid, String)>,
) -> (StatusCode, Json<Value>) {
    let bill = books.bill(reservation);
    match bill.lock().await.get(&call) {
        Some(charge) => (StatusCode::OK, Json(json!({ "charged": charge.charged.to_string() }))),
        None => (StatusCode::NOT_FOUND, Json(Value::Null)),
    }
}

/// For a worker that would have to wait until a lease has run out.
async fn later(State(books): State<Arc<Books>>) {
    books.move_clock().await;
}
