//! The database lets each role do what it is for and no more, and what is
//! append-only stays, whoever asks.

use std::collections::BTreeSet;

use sqlx::{Connection as _, PgConnection};

use super::{books, lines, refused};
use crate::support::server::TestDatabase;

const APPEND_ONLY: [&str; 9] = [
    "journal_entry",
    "reservation_event",
    "audit_entry",
    "policy_version",
    "operation_revision",
    "late_usage",
    "archived_month",
    "journal_checkpoint",
    "reservation_checkpoint",
];

const SERVICE: &str = "spend_ledger_service";
const FINANCE: &str = "spend_ledger_finance";
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
             where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
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
             attempt_number attempt_holder attempt_token superseded_tokens superseded_settled liability_since attempt_settled attempt_in_flight attempt_stated attempt_done lease_expires_at provider_request_id \
             updated_at closed_at"
        )
    );
    assert_eq!(
        lines(&mut owner, &columns("budget_period")).await,
        mutable("limit_units carried granted available reserved liability settled entry_no last_entry_at closed_at")
    );
    assert_eq!(lines(&mut owner, &columns("call")).await, mutable("state actual provider_request_id ended_at"));
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
    assert_eq!(service.books().await, before);
}

/// What the service would need to forget, forge or take over.
const FORBIDDEN: [&str; 33] = [
    "delete from reservation",
    "delete from reservation where false",
    "delete from call",
    "update call set units = 0",
    "update call set attempt_number = 2",
    "update late_usage set units = 0",
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
];

#[tokio::test]
async fn what_the_service_may_not_do_it_cannot_do() {
    let (service, _) = books().await;
    let before = service.books().await;
    let mut connection = PgConnection::connect(&service.database.service_url).await.unwrap();
    for statement in FORBIDDEN {
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
        "call",
        "late_usage",
        "refusal",
        "archived_month",
        "journal_checkpoint",
        "reservation_checkpoint",
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
    assert_eq!(lines(&mut owner, read).await.len(), 2);
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
        "select superseded_tokens from reservation",
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
    for table in ["reservation_event", "journal_entry", "audit_entry", "refusal", "call", "late_usage"] {
        let rows = lines(&mut owner, &format!("select t::text from {table} t")).await;
        assert!(!rows.iter().any(|row| row.contains(token.as_str())), "{table}");
    }
    assert_eq!(service.books().await, before);
}
