//! A database from before there were months is brought up to date with all that is in
//! it: no row is lost, and its work goes on.

use spend_ledger::ledger::schema;

use super::{Spring, differences, is_whole};
use crate::support::server::TestDatabase;
use crate::support::{Options, Service};

/// The tables of that time, in an order in which they can be filled.
const TABLES: [&str; 19] = [
    "policy_state",
    "policy_version",
    "provider",
    "operation",
    "operation_revision",
    "plan",
    "budget",
    "account",
    "pool",
    "api_key",
    "audit_entry",
    "budget_period",
    "reservation",
    "reservation_event",
    "journal_entry",
    "refusal",
    "call",
    "late_usage",
    "refinery_schema_history",
];
const THEN: i32 = 6;

/// A database as it was then, with the rows of one of today.
async fn as_it_was(today: &TestDatabase) -> TestDatabase {
    let then = TestDatabase::empty().await;
    then.execute(
        "create table refinery_schema_history
             (version int4 primary key, name varchar(255), applied_on varchar(255), checksum varchar(255))",
    )
    .await;
    let mut files: Vec<_> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name[1..].split_once("__").unwrap().0.parse::<i32>().unwrap(), path)
        })
        .filter(|(version, _)| *version <= THEN)
        .collect();
    files.sort();
    for (_, path) in files {
        then.execute(&std::fs::read_to_string(path).unwrap()).await;
    }
    for table in TABLES {
        let history =
            if table == "refinery_schema_history" { format!("where version <= {THEN}") } else { String::new() };
        let query = format!("select coalesce(jsonb_agg(t), '[]')::text from {table} t {history}");
        let rows = today.lines(&query).await.remove(0).replace('\'', "''");
        then.execute(&format!(
            "set session_replication_role = replica; delete from {table};
             insert into {table} select * from jsonb_populate_recordset(null::{table}, '{rows}')"
        ))
        .await;
    }
    then
}

/// Every row of the tables that lie in months now.
async fn rows(database: &TestDatabase) -> Vec<String> {
    let mut rows = Vec::new();
    for table in ["journal_entry", "call", "refusal", "reservation"] {
        rows.extend(database.lines(&format!("select to_jsonb(t)::text from {table} t order by 1")).await);
    }
    rows
}

#[tokio::test]
async fn what_there_was_becomes_the_first_stretch() {
    let spring = Spring::new().await;
    spring.worker.reserve_bulk("refused", "101").await.problem(400, "too_expensive");
    spring.service.ledger.close().await;
    let then = as_it_was(spring.database()).await;
    let before = rows(&then).await;
    let applied = schema::migrate(&then.owner_url).await.unwrap();
    assert_eq!(applied.first(), Some(&7));
    assert_eq!(rows(&then).await, before);
    let (_, said) = differences(&then).await;
    assert!(said.is_empty(), "{said:#?}");
    is_whole(&then).await;
    // Its newest entries are of 2040, by a clock that this machine's is far behind.
    let first = "select name from stretches('journal_entry') limit 1";
    assert_eq!(then.lines(first).await, ["journal_entry_through_2040_05"]);
    // It is the table itself, with its indexes; nothing was copied.
    let indexes =
        then.lines("select indexname::text from pg_indexes where tablename = 'journal_entry_through_2040_05'").await;
    assert_eq!(indexes, ["journal_entry_through_2040_05_pkey"]);
    let call = "select indexname::text from pg_indexes where tablename ~ '^call_through' union all
                select format('%s %s', conname, contype) from pg_constraint where conrelid = 'call'::regclass and contype = 'p'";
    assert!(then.lines(call).await.ends_with(&["call_pkey p".to_owned()]));

    let service = Service::on(then, Options::default()).await;
    let worker = service.worker(&["northstar"]).await;
    let repeated = worker.reserve_bulk("done", "40").await.expect(200);
    assert_eq!(repeated.id(), spring.done.id());
    worker.settle(&spring.straddling, "18").await.expect(200);
    let job = worker.reserve_bulk("new", "5").await.expect(201);
    worker.call(&job, "a", "5").await.expect(201);
    worker.settle_call(&job, "a", "4").await.expect(200);
    worker.finish(&job).await.expect(200);
    service.books().await;
}
