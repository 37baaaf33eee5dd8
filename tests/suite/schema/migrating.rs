//! The service migrates its database once, and refuses one that is older, newer
//! or could forget what it has acknowledged.

use std::process::Output;

use spend_ledger::boot::SERVICE_LOGIN;
use spend_ledger::ledger::schema::{self, SchemaError};
use spend_ledger::postgres::OWNER;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{books, lines};
use crate::support::process::program;
use crate::support::server::{TestDatabase, server};

/// An empty database on the server of this run: its URLs for the owner and for
/// the service, and its name.
async fn empty_database(name: &str) -> (String, String, String) {
    let server = tokio::task::spawn_blocking(server).await.unwrap();
    let name = format!("{name}_{}", std::process::id());
    let mut connection = PgConnection::connect(&server.url("postgres", OWNER)).await.unwrap();
    connection.execute(sqlx::AssertSqlSafe(format!("create database {name}"))).await.unwrap();
    (server.url(&name, OWNER), server.url(&name, SERVICE_LOGIN), name)
}

/// `serve` on this database, which must end by itself with exit code 1.
async fn serve(url: &str) -> String {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--database-url", url];
    let output = tokio::time::timeout(std::time::Duration::from_secs(60), program(&arguments).output());
    let Output { status, stdout, stderr } = output.await.expect("serve ends").unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(stdout.is_empty(), "messages go to stderr");
    assert!(!said.contains("listening on"), "{said}");
    said
}

async fn check(url: &str) -> Result<(), SchemaError> {
    schema::check(&mut PgConnection::connect(url).await.unwrap()).await
}

#[tokio::test]
async fn migrators_take_turns() {
    let (owner, service, _) = empty_database("migrators").await;
    let migrators: Vec<_> = (0..8)
        .map(|_| {
            let url = owner.clone();
            tokio::spawn(async move { schema::migrate(&url).await })
        })
        .collect();
    let mut applied = Vec::new();
    for migrator in migrators {
        applied.push(migrator.await.unwrap().unwrap());
    }
    applied.sort();
    let all: Vec<u32> = (1..=schema::newest_version()).collect();
    assert_eq!(applied.pop(), Some(all), "one of them applied everything");
    assert!(applied.iter().all(Vec::is_empty), "{applied:?}");
    check(&service).await.unwrap();
    assert!(schema::migrate(&owner).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_unmigrated_database_is_refused_with_what_to_do() {
    let (owner, service, _) = empty_database("unmigrated").await;
    assert!(matches!(check(&owner).await, Err(SchemaError::Behind { found: 0, .. })));
    for url in [&owner, &service] {
        let said = serve(url).await;
        assert!(said.contains("spend-ledger migrate"), "{said}");
    }
    // Refused, it made nothing.
    let mut connection = PgConnection::connect(&owner).await.unwrap();
    assert_eq!(schema::schema_version(&mut connection).await.unwrap(), 0);
    schema::migrate(&owner).await.unwrap();
    check(&service).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let database = TestDatabase::new().await;
    let mut owner = database.connect().await;
    let newer = schema::newest_version() + 7;
    sqlx::query(
        "insert into refinery_schema_history select $1, 'later', applied_on, checksum from refinery_schema_history limit 1",
    )
    .bind(i32::try_from(newer).unwrap())
    .execute(&mut owner)
    .await
    .unwrap();
    let known = schema::newest_version();
    for refused in [check(&database.service_url).await, schema::migrate(&database.owner_url).await.map(|_| ())] {
        match refused {
            Err(SchemaError::Newer { found, known: k }) => assert_eq!((found, k), (newer, known)),
            other => panic!("{other:?}"),
        }
    }
    let said = serve(&database.service_url).await;
    assert!(said.contains("newer") && said.contains(&format!("version {newer}")), "{said}");
    let output = program(&["migrate", "--database-url", &database.owner_url]).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("newer"), "{said}");
}

#[tokio::test]
async fn an_older_schema_is_refused() {
    let database = TestDatabase::new().await;
    let mut owner = database.connect().await;
    sqlx::raw_sql(
        "delete from refinery_schema_history where version = (select max(version) from refinery_schema_history)",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    let newest = schema::newest_version();
    match check(&database.service_url).await {
        Err(SchemaError::Behind { found, needed }) => assert_eq!((found, needed), (newest - 1, newest)),
        other => panic!("{other:?}"),
    }
    let said = serve(&database.service_url).await;
    assert!(said.contains("spend-ledger migrate"), "{said}");
}

#[tokio::test]
async fn a_database_that_could_forget_is_refused() {
    let database = TestDatabase::new().await;
    let mut owner = database.connect().await;
    let name = &lines(&mut owner, "select current_database()::text").await[0];
    check(&database.service_url).await.unwrap();
    for (scope, undo) in [
        (format!("alter database {name} set"), format!("alter database {name} reset")),
        (
            format!("alter role {SERVICE_LOGIN} in database {name} set"),
            format!("alter role {SERVICE_LOGIN} in database {name} reset"),
        ),
    ] {
        for (setting, value, advice) in [
            ("synchronous_commit", "off", "Set synchronous_commit = on"),
            ("default_transaction_read_only", "on", "make it writable"),
        ] {
            owner.execute(sqlx::AssertSqlSafe(format!("{scope} {setting} = {value}"))).await.unwrap();
            match check(&database.service_url).await {
                Err(SchemaError::NotDurable { setting: named, .. }) => assert_eq!(named, setting),
                Err(SchemaError::ReadOnly { .. }) => assert_eq!(setting, "default_transaction_read_only"),
                other => panic!("{scope} {setting}: {other:?}"),
            }
            let said = serve(&database.service_url).await;
            assert!(said.contains(setting) && said.contains(advice), "{said}");
            // The owner's session is read-only by now, unless it says otherwise.
            let undo = format!("set transaction_read_only = off; {undo} {setting}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(undo)).execute(&mut owner).await.unwrap();
        }
        // Waiting for the local disk only is durable enough.
        owner.execute(sqlx::AssertSqlSafe(format!("{scope} synchronous_commit = local"))).await.unwrap();
        check(&database.service_url).await.unwrap();
    }
}

/// A service that is running says that it is not ready any more.
#[tokio::test]
async fn readiness_follows_the_schema() {
    let (service, mut owner) = books().await;
    let worker = service.worker(&["northstar"]).await;
    worker.get("/readyz").await.expect(200);
    let insert = "insert into refinery_schema_history
                  select 999, 'later', applied_on, checksum from refinery_schema_history limit 1";
    sqlx::raw_sql(insert).execute(&mut owner).await.unwrap();
    let answer = worker.get("/readyz").await.expect(503);
    assert_eq!((answer.text("status"), answer.headers["retry-after"].to_str().unwrap()), ("unavailable", "1"));
    // The process is well, and what it does is not touched by it.
    worker.get("/healthz").await.expect(200);
    service.books().await;
}
