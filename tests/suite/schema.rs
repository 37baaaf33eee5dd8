//! What the database itself refuses, whoever asks, and the databases that the
//! service refuses.

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::{Value, json};
use spend_ledger::boot::SERVICE_LOGIN;
use spend_ledger::ledger::schema::{self, SchemaError};
use spend_ledger::postgres::OWNER;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::process::program;
use crate::support::server::{TestDatabase, server};
use crate::support::{NORTHSTAR, Service};

const APPEND_ONLY: [&str; 5] =
    ["journal_entry", "reservation_event", "audit_entry", "policy_version", "operation_revision"];
const SERVICE: &str = "spend_ledger_service";
const FINANCE: &str = "spend_ledger_finance";

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

const DENIED: &str = "42501";

#[tokio::test]
async fn what_finance_can_read_is_explained() {
    let database = TestDatabase::new().await;
    let mut owner = database.connect().await;
    let tables = lines(
        &mut owner,
        "select c.relname::text from pg_class c
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
           and c.relname <> 'test_clock' and obj_description(c.oid, 'pg_class') is null
         order by 1",
    )
    .await;
    let columns = lines(
        &mut owner,
        "select format('%s.%s', c.relname, a.attname)
         from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
           and c.relname <> 'test_clock'
           and has_column_privilege('spend_ledger_finance', c.oid, a.attnum, 'select')
           and col_description(c.oid, a.attnum) is null
         order by c.relname, a.attnum",
    )
    .await;
    let functions = lines(
        &mut owner,
        "select p.proname::text from pg_proc p
         where p.pronamespace = 'public'::regnamespace and obj_description(p.oid, 'pg_proc') is null order by 1",
    )
    .await;
    assert!(
        tables.is_empty() && columns.is_empty() && functions.is_empty(),
        "without a comment:\ntables {}\ncolumns {}\nfunctions {}",
        tables.join(" "),
        columns.join(" "),
        functions.join(" ")
    );
}

#[tokio::test]
async fn constraints_have_names_that_say_what_they_are() {
    let database = TestDatabase::new().await;
    let mut owner = database.connect().await;
    let unnamed = lines(
        &mut owner,
        "select format('%s %s', conrelid::regclass, conname) from pg_constraint
         where connamespace = 'public'::regnamespace and contype = 'c' and conname ~ '_check[0-9]*$'",
    )
    .await;
    assert!(unnamed.is_empty(), "{unnamed:?}");
    // None is switched off.
    let off = lines(
        &mut owner,
        "select conname::text from pg_constraint
         where connamespace = 'public'::regnamespace and not convalidated
         union all
         select tgname::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
         where c.relnamespace = 'public'::regnamespace and not tgisinternal and tgenabled <> 'O'",
    )
    .await;
    assert!(off.is_empty(), "{off:?}");
}

#[tokio::test]
async fn what_is_append_only_refuses_its_owner_too() {
    let (service, mut owner) = books().await;
    let before = service.books().await;
    for table in APPEND_ONLY {
        let column = &lines(
            &mut owner,
            &format!("select attname::text from pg_attribute where attrelid = '{table}'::regclass and attnum = 1"),
        )
        .await[0];
        for statement in [
            format!("update {table} set {column} = {column}"),
            format!("update {table} set {column} = {column} where false"),
            format!("delete from {table}"),
            format!("delete from {table} where false"),
            format!("truncate {table}"),
            format!("truncate {table} cascade"),
        ] {
            assert_eq!(refused(&mut owner, &statement).await.0, "23001", "{statement}");
        }
        // Nor has anybody else the right to ask.
        for role in [SERVICE, FINANCE] {
            let rights = lines(
                &mut owner,
                &format!(
                    "select p from unnest(array['update', 'delete', 'truncate', 'trigger']) p
                     where has_table_privilege('{role}', '{table}', p)
                        or p = 'update' and has_any_column_privilege('{role}', '{table}', p)"
                ),
            )
            .await;
            assert!(rights.is_empty(), "{role} may {rights:?} {table}");
        }
    }
    // A table that another one is truncated with is safe as well.
    assert_eq!(refused(&mut owner, "truncate operation cascade").await.0, "23001");
    assert_eq!(service.books().await, before);
}

#[tokio::test]
async fn the_service_can_do_what_its_verbs_do_and_no_more() {
    let (service, mut owner) = books().await;
    let before = service.books().await;
    let may = |right: &'static str| {
        format!(
            "select c.relname::text from pg_class c
             where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
               and has_table_privilege('{SERVICE}', c.oid, '{right}')
             order by 1"
        )
    };
    assert_eq!(lines(&mut owner, &may("delete")).await, ["refusal"]);
    for right in ["truncate", "trigger", "references"] {
        assert_eq!(lines(&mut owner, &may(right)).await, Vec::<String>::new(), "{right}");
    }
    // The columns that it may write again.
    let columns = |table: &str| {
        format!(
            "select attname::text from pg_attribute
             where attrelid = '{table}'::regclass and attnum > 0 and not attisdropped
               and has_column_privilege('{SERVICE}', attrelid, attnum, 'update')
             order by 1"
        )
    };
    let mutable = |text: &str| -> Vec<String> {
        let sorted: BTreeSet<String> = text.split_whitespace().map(str::to_owned).collect();
        sorted.into_iter().collect()
    };
    assert_eq!(
        lines(&mut owner, &columns("reservation")).await,
        mutable(
            "state ceiling settled in_flight unknown_units stated_outstanding reserved liability version \
             attempt_number attempt_holder attempt_token attempt_settled attempt_in_flight attempt_stated attempt_done lease_expires_at provider_request_id \
             updated_at closed_at"
        )
    );
    assert_eq!(
        lines(&mut owner, &columns("budget_period")).await,
        mutable("limit_units carried granted available reserved liability settled entry_no last_entry_at closed_at")
    );
    assert_eq!(lines(&mut owner, &columns("api_key")).await, ["revoked_at"]);
    assert_eq!(lines(&mut owner, &columns("refinery_schema_history")).await, Vec::<String>::new());
    for role in [SERVICE, FINANCE] {
        let owns = format!(
            "select relname::text from pg_class where relnamespace = 'public'::regnamespace
               and pg_has_role('{role}', relowner, 'member')
             union all select 'superuser' from pg_roles where rolname = '{role}' and (rolsuper or rolcreaterole)
             union all select 'create in public' where has_schema_privilege('{role}', 'public', 'create')
             union all select 'create in the database' where has_database_privilege('{role}', current_database(), 'create')"
        );
        assert_eq!(lines(&mut owner, &owns).await, Vec::<String>::new(), "{role}");
    }

    // And in fact.
    let mut connection = PgConnection::connect(&service.database.service_url).await.unwrap();
    for statement in [
        "delete from reservation",
        "delete from reservation where false",
        "delete from budget_period",
        "delete from journal_entry",
        "delete from api_key",
        "delete from account",
        "truncate reservation",
        "update reservation set account = 'southstar'",
        "update reservation set period_ids = '{}'",
        "update reservation set estimate = 0",
        "update reservation set idempotency_key = 'x'",
        "update budget_period set account = 'southstar'",
        "update budget_period set ends_at = null",
        "update budget_period set unit = 'x'",
        "update journal_entry set amount = 1",
        "update reservation_event set at = now()",
        "update audit_entry set actor = 'x'",
        "update policy_version set source = ''",
        "update operation_revision set pricing = '{}'",
        "update api_key set role = 'operator'",
        "update api_key set key_hash = decode(repeat('00', 32), 'hex')",
        "update policy_state set only_row = true",
        "insert into policy_state (only_row, version) values (true, 9)",
        "alter table journal_entry disable trigger all",
        "drop table journal_entry",
        "create table mine (x int)",
        "create or replace function ledger_clock() returns timestamptz language sql return now()",
        "set session_replication_role = replica",
        "set role spend_ledger_finance",
    ] {
        assert_eq!(refused(&mut connection, statement).await.0, DENIED, "{statement}");
    }
    assert_eq!(service.books().await, before);
}

#[tokio::test]
async fn finance_reads_everything_but_secrets() {
    let (service, mut owner) = books().await;
    let before = service.books().await;
    sqlx::raw_sql("set role spend_ledger_finance").execute(&mut owner).await.unwrap();
    for table in [
        "policy_state",
        "policy_version",
        "provider",
        "operation",
        "operation_revision",
        "plan",
        "budget",
        "account",
        "pool",
        "audit_entry",
        "budget_period",
        "reservation_event",
        "journal_entry",
        "refusal",
    ] {
        lines(&mut owner, &format!("select to_jsonb(t)::text from {table} t")).await;
        let column = &lines(
            &mut owner,
            &format!("select attname::text from pg_attribute where attrelid = '{table}'::regclass and attnum = 1"),
        )
        .await[0];
        for statement in [
            format!("insert into {table} select * from {table}"),
            format!("update {table} set {column} = {column}"),
            format!("delete from {table}"),
            format!("truncate {table}"),
            format!("select * from {table} for update"),
        ] {
            assert_eq!(refused(&mut owner, &statement).await.0, DENIED, "{statement}");
        }
    }
    lines(&mut owner, "select id::text || role || created_by from api_key").await;
    let read = "select idempotency_key || state || ceiling || settled || coalesce(attempt_holder, '') from reservation";
    assert_eq!(lines(&mut owner, read).await.len(), 1);
    for statement in [
        "select key_hash from api_key",
        "select * from api_key",
        "select 1 from api_key where key_hash = decode(repeat('00', 32), 'hex')",
        "select id from api_key order by key_hash",
        "select api_key from api_key",
        "select attempt_token from reservation",
        "select * from reservation",
        "select to_jsonb(r) from reservation r",
        "select reservation_json(r) from reservation r",
        "select id from reservation where attempt_token like '1.%'",
        "update reservation set settled = 0",
        "update api_key set revoked_at = null",
        "delete from reservation",
        "insert into api_key (id, role) values (gen_random_uuid(), 'operator')",
        "create table mine (x int)",
    ] {
        assert_eq!(refused(&mut owner, statement).await.0, DENIED, "{statement}");
    }
    // Nor is a secret in what it can read.
    let token = "select attempt_token from reservation";
    sqlx::raw_sql("reset role").execute(&mut owner).await.unwrap();
    let token = &lines(&mut owner, token).await[0];
    for table in ["reservation_event", "journal_entry", "audit_entry", "refusal"] {
        let rows = lines(&mut owner, &format!("select t::text from {table} t")).await;
        assert!(!rows.iter().any(|row| row.contains(token.as_str())), "{table}");
    }
    assert_eq!(service.books().await, before);
}

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

/// Every amount in every table, and what makes it not a number.
#[tokio::test]
async fn not_a_number_is_refused_everywhere() {
    let (service, mut owner) = books().await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("refused", "101").await.problem(400, "too_expensive");
    service.ledger.close().await;
    sqlx::raw_sql(
        "insert into pool (name, unit, limit_units, period, timezone, rollover, mode)
         values ('p', 'transformation', 1, 'day', 'UTC', 'original_period', 'enforce')",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    let columns = lines(
        &mut owner,
        "select format('%s %s', c.relname, a.attname)
         from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and a.atttypid = 'numeric'::regtype
         order by 1",
    )
    .await;
    assert!(columns.len() > 25, "{columns:?}");
    let mut taken = Vec::new();
    for column in columns {
        let (table, column) = column.split_once(' ').unwrap();
        for (bad, code) in [("NaN", "23514"), ("Infinity", "22003"), ("-Infinity", "22003")] {
            // A copy of a row, with another key where there is one.
            let statement = format!(
                "insert into {table}
                 select (jsonb_populate_record(t, jsonb_build_object('{column}', '{bad}') || k.new)).*
                 from {table} t
                 cross join lateral (select jsonb_build_object(
                     'id', gen_random_uuid(), 'idempotency_key', 'another', 'name', 'another', 'ordinal', 99,
                     'starts_at', '2001-01-01', 'ends_at', '2001-01-02', 'entry_no', 999, 'version', 999) as new) k
                 limit 1"
            );
            let mut transaction = owner.begin().await.unwrap();
            let result = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.clone())).execute(&mut *transaction).await;
            transaction.rollback().await.unwrap();
            match result {
                Ok(done) => {
                    assert_eq!(done.rows_affected(), 1, "{table} has no row to copy");
                    taken.push(format!("{table}.{column} = {bad}"));
                }
                Err(error) => {
                    let error = error.into_database_error().unwrap();
                    assert_eq!(error.code().as_deref(), Some(code), "{table}.{column} = {bad}: {error}");
                }
            }
        }
    }
    assert!(taken.is_empty(), "taken by the database:\n{}", taken.join("\n"));
}

/// Copies the reservation `job`, which is active with a ceiling of 10, 4 of it
/// settled, and changes what is given.
fn copy_of_the_job(change: &Value) -> String {
    let mut row = json!({"id": "0190a0a0-0000-7000-8000-000000000000", "idempotency_key": "copy"});
    row.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    format!(
        "insert into reservation select (jsonb_populate_record(r, '{row}')).* from reservation r
         where idempotency_key = 'job'"
    )
}

#[tokio::test]
async fn a_reservation_cannot_be_what_it_never_is() {
    let (service, mut owner) = books().await;
    let before = service.books().await;
    let at = "2026-03-03T12:00:00Z";
    let no_attempt =
        json!({"attempt_number": null, "attempt_holder": null, "attempt_token": null, "lease_expires_at": null});
    let with = |base: &Value, change: Value| {
        let mut whole = base.clone();
        whole.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        whole
    };
    let waiting = with(&no_attempt, json!({"state": "waiting", "settled": 0, "attempt_settled": 0, "reserved": 10}));
    let settled = json!({"state": "settled", "reserved": 0, "closed_at": at});

    // The states of a life, as they are.
    for good in [
        json!({}),
        waiting.clone(),
        settled.clone(),
        with(&waiting, json!({"state": "expired", "reserved": 0, "closed_at": at})),
        with(&waiting, json!({"state": "cancelled", "reserved": 0, "closed_at": at})),
        json!({"state": "cancelling", "reserved": 0, "liability": 6}),
        json!({"state": "fenced", "reserved": 0, "liability": 0}),
        json!({"state": "fenced", "reserved": 0, "liability": 2, "unknown_units": 2}),
        json!({"in_flight": 5, "reserved": 6}),
        json!({"in_flight": 5, "unknown_units": 3, "stated_outstanding": 1, "reserved": 5, "liability": 4}),
    ] {
        let mut transaction = owner.begin().await.unwrap();
        let made = sqlx::raw_sql(sqlx::AssertSqlSafe(copy_of_the_job(&good))).execute(&mut *transaction).await;
        assert_eq!(made.unwrap_or_else(|error| panic!("{good}: {error}")).rows_affected(), 1);
        transaction.rollback().await.unwrap();
    }
    for (bad, constraint) in [
        (with(&settled, json!({"reserved": 5})), "reservation_holds_by_the_formula"),
        (with(&settled, json!({"liability": 5})), "reservation_holds_by_the_formula"),
        (with(&settled, json!({"in_flight": 1})), "reservation_closed_has_nothing_outstanding"),
        (with(&settled, json!({"unknown_units": 1})), "reservation_closed_has_nothing_outstanding"),
        (with(&settled, json!({"closed_at": null})), "reservation_closed_when_it_ended"),
        (with(&settled, no_attempt.clone()), "reservation_started_has_an_attempt"),
        (json!({"closed_at": at}), "reservation_closed_when_it_ended"),
        (no_attempt.clone(), "reservation_started_has_an_attempt"),
        (json!({"attempt_token": null}), "reservation_attempt_is_whole"),
        (json!({"lease_expires_at": null}), "reservation_attempt_is_whole"),
        (json!({"attempt_number": 0}), "reservation_attempt_is_whole"),
        // More or less than the ceiling leaves.
        (json!({"reserved": 5}), "reservation_holds_by_the_formula"),
        (json!({"reserved": 7}), "reservation_holds_by_the_formula"),
        (json!({"in_flight": 7}), "reservation_holds_by_the_formula"),
        // In the wrong bucket.
        (json!({"reserved": 0, "liability": 6}), "reservation_liability_by_the_formula"),
        (json!({"unknown_units": 2}), "reservation_liability_by_the_formula"),
        (json!({"state": "cancelling"}), "reservation_liability_by_the_formula"),
        (json!({"state": "fenced", "in_flight": 6}), "reservation_liability_by_the_formula"),
        (json!({"reserved": -1, "liability": 7, "unknown_units": 7}), "reservation_holds_by_the_formula"),
        (json!({"state": "fenced", "reserved": -1, "liability": 1}), "reservation_liability_by_the_formula"),
        (
            with(&waiting, json!({"liability": -1, "reserved": 11, "stated_outstanding": -1})),
            "reservation_amounts_are_not_negative",
        ),
        // What never started has spent nothing.
        (with(&waiting, json!({"settled": 1, "reserved": 9})), "reservation_never_started_has_spent_nothing"),
        (with(&waiting, json!({"in_flight": 1})), "reservation_never_started_has_spent_nothing"),
        (
            json!({"state": "waiting", "settled": 0, "attempt_settled": 0, "reserved": 10}),
            "reservation_never_started_has_spent_nothing",
        ),
        (json!({"estimate": -1}), "reservation_amounts_are_not_negative"),
        (json!({"attempt_settled": 5}), "reservation_attempt_settled_is_part_of_settled"),
        (json!({"version": 0}), "reservation_version_counts_from_one"),
        (json!({"enforcement": "hope"}), "reservation_enforcement_is_known"),
        (json!({"state": "lost", "reserved": 0}), "reservation_state_is_known"),
        (json!({"idempotency_key": "job"}), "reservation_key"),
    ] {
        let (code, named) = refused(&mut owner, &copy_of_the_job(&bad)).await;
        let expected = if constraint == "reservation_key" { "23505" } else { "23514" };
        assert_eq!((code.as_str(), named.as_str()), (expected, constraint), "{bad}");
    }
    // A change is refused as a row is.
    for (change, constraint) in [
        ("state = 'settled'", "reservation_closed_when_it_ended"),
        ("settled = 5", "reservation_holds_by_the_formula"),
        ("ceiling = 11", "reservation_holds_by_the_formula"),
        ("reserved = reserved + 1", "reservation_holds_by_the_formula"),
    ] {
        let (code, named) = refused(&mut owner, &format!("update reservation set {change}")).await;
        assert_eq!((code.as_str(), named.as_str()), ("23514", constraint), "{change}");
    }
    assert_eq!(service.books().await, before);
}

#[tokio::test]
async fn balances_cannot_be_what_they_never_are() {
    let (service, mut owner) = books().await;
    let before = service.books().await;
    assert_eq!(before.periods, ["northstar daily : 100 90 6 0 4"]);
    for (change, constraint) in [
        ("available = available + 1", "budget_period_buckets_add_up_to_granted"),
        ("reserved = reserved - 1", "budget_period_buckets_add_up_to_granted"),
        ("settled = settled + 0.000000000001", "budget_period_buckets_add_up_to_granted"),
        ("limit_units = 101", "budget_period_granted_is_limit_less_carried"),
        ("limit_units = 101, granted = 101", "budget_period_buckets_add_up_to_granted"),
        ("carried = 1", "budget_period_granted_is_limit_less_carried"),
        ("reserved = -1, available = 97", "budget_period_reserved_is_not_negative"),
        ("liability = -1, available = 91", "budget_period_liability_is_not_negative"),
        ("settled = -1, available = 95", "budget_period_settled_is_not_negative"),
        ("limit_units = -1, granted = -1, available = -11", "budget_period_limit_is_not_negative"),
        ("carried = -1, granted = 101, available = 91", "budget_period_carried_is_not_negative"),
        ("entry_no = -1", "budget_period_entries_count_from_zero"),
        ("ends_at = starts_at", "budget_period_ends_after_it_starts"),
    ] {
        let (code, named) = refused(&mut owner, &format!("update budget_period set {change}")).await;
        assert_eq!((code.as_str(), named.as_str()), ("23514", constraint), "{change}");
    }
    let copy = |change: Value| {
        format!("insert into budget_period select (jsonb_populate_record(p, '{change}')).* from budget_period p")
    };
    for (change, constraint) in [
        (json!({"id": "0190a0a0-0000-7000-8000-000000000000", "ordinal": 2}), "budget_period_starts_once"),
        (
            json!({"id": "0190a0a0-0000-7000-8000-000000000000", "starts_at": "2001-01-01"}),
            "budget_period_follows_one_another",
        ),
    ] {
        assert_eq!(refused(&mut owner, &copy(change)).await, ("23505".to_owned(), constraint.to_owned()));
    }
    let entry = |change: Value| {
        format!(
            "insert into journal_entry select (jsonb_populate_record(e, '{change}')).* from journal_entry e
             where event = 'reserve'"
        )
    };
    for (change, constraint) in [
        (json!({"entry_no": 9, "amount": 0}), "journal_entry_amount_is_positive"),
        (json!({"entry_no": 9, "amount": -1}), "journal_entry_amount_is_positive"),
        (json!({"entry_no": 9, "source": "reserved"}), "journal_entry_moves_between_buckets"),
        (json!({"entry_no": 9, "source": "granted"}), "journal_entry_moves_between_buckets"),
        (json!({"entry_no": 9, "target": "nowhere"}), "journal_entry_moves_between_buckets"),
        (json!({"entry_no": 0}), "journal_entry_counts_from_one"),
        (json!({"entry_no": 9, "reservation_id": null}), "journal_entry_names_a_whole_reservation"),
        (json!({"entry_no": 9, "reservation_version": null}), "journal_entry_names_a_whole_reservation"),
    ] {
        assert_eq!(refused(&mut owner, &entry(change)).await, ("23514".to_owned(), constraint.to_owned()));
    }
    assert_eq!(refused(&mut owner, &entry(json!({"amount": 1}))).await.0, "23505", "an entry number is used once");
    for (statement, constraint) in [
        ("insert into policy_state values (false, 1)", "policy_state_has_one_row"),
        ("update operation set max_units = 0", "operation_max_units_bounds"),
        ("update budget set limit_units = -1", "budget_limit_is_not_negative"),
        ("update api_key set key_hash = '\\x00'", "api_key_hash_is_sha256"),
        ("update api_key set role = 'root', accounts = null", "api_key_role_is_known"),
        ("update api_key set accounts = '{}'", "api_key_bound_to_something"),
        ("update api_key set role = 'operator'", "api_key_only_workers_are_bound"),
        ("update account set name = ''", "account_name_is_not_empty"),
    ] {
        assert_eq!(refused(&mut owner, statement).await, ("23514".to_owned(), constraint.to_owned()), "{statement}");
    }
    assert_eq!(service.books().await, before);
}
