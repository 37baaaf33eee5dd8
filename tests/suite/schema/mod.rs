//! What the database itself refuses, whoever asks, and the databases that the
//! service refuses.

mod constraints;
mod migrating;
mod rights;

use serde_json::json;
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::support::{NORTHSTAR, Service};

/// The lines of a query.
async fn lines(connection: &mut PgConnection, query: &str) -> Vec<String> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(query.to_owned())).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// A database with a reservation in every table that it writes, and a connection
/// as its owner.
async fn books() -> (Service, PgConnection) {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": 10, "holder": "w-1"})).await.expect(201);
    worker.progress(&job, "4").await.expect(200);
    // A call with a usage that came too late, of a job that takes nothing.
    let calls = worker.reserve("calls", json!({"operation": "bulk", "units": 1, "holder": "w-1"})).await.expect(201);
    let path = format!("/v1/reservations/{}/calls", calls.id());
    worker.post(&path, json!({"attempt": calls.token(), "call": "c", "units": 1})).await.expect(201);
    let path = format!("{path}/c/settle");
    worker.post(&path, json!({"attempt": calls.token(), "units": 0})).await.expect(200);
    worker.post(&path, json!({"attempt": calls.token(), "units": 1})).await.problem(409, "call_already_settled");
    worker.settle(&calls, "0").await.expect(200);
    let owner = service.database.connect().await;
    (service, owner)
}

/// What a statement is refused with: the SQLSTATE and the constraint, if any. It
/// must be refused, and nothing stays of it.
async fn refused(connection: &mut PgConnection, statement: &str) -> (String, String) {
    let mut transaction = connection.begin().await.unwrap();
    let result = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut *transaction).await;
    transaction.rollback().await.unwrap();
    let Err(error) = result else { panic!("{statement}\nwas not refused") };
    let error = error.into_database_error().unwrap_or_else(|| panic!("{statement}: no error of the database"));
    (error.code().unwrap_or_default().into_owned(), error.constraint().unwrap_or_default().to_owned())
}
