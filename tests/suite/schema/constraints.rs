//! The database refuses amounts, reservations and balances that can never be.

use serde_json::{Value, json};
use sqlx::Connection as _;

use super::{books, lines, refused};
use crate::support::server::TestDatabase;

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

/// Every amount in every table, and what makes it not a number.
#[tokio::test]
async fn not_a_number_is_refused_everywhere() {
    let (service, mut owner) = books().await;
    let worker = service.worker(&["northstar"]).await;
    worker.reserve_bulk("refused", "101").await.problem(400, "too_expensive");
    service.ledger.close().await;
    sqlx::raw_sql(
        "insert into pool (name, unit, limit_units, period, timezone, rollover, mode)
         values ('p', 'transformation', 1, 'day', 'UTC', 'original_period', 'enforce');
         insert into journal_checkpoint
         select account, id, '2026-03-01', 1, last_entry_at, available, reserved, liability, settled, granted, limit_units,
                carried, sha256('')
         from budget_period;
         insert into reservation_checkpoint select account, id, id, '2026-03-01', 0, 0, 0 from reservation",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    let columns = lines(
        &mut owner,
        "select format('%s %s', c.relname, a.attname)
         from pg_class c
         join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           and a.atttypid = 'numeric'::regtype
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
                     'starts_at', '2001-01-01', 'ends_at', '2001-01-02', 'entry_no', 999, 'version', 999,
                     'key', 'another', 'call_key', 'another') as new) k
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

const AT: &str = "2026-03-03T12:00:00Z";

fn no_attempt() -> Value {
    json!({"attempt_number": null, "attempt_holder": null, "attempt_token": null, "lease_expires_at": null})
}

fn waiting() -> Value {
    with(&no_attempt(), json!({"state": "waiting", "settled": 0, "attempt_settled": 0, "reserved": 10}))
}

fn settled() -> Value {
    json!({"state": "settled", "reserved": 0, "closed_at": AT})
}

fn with(base: &Value, change: Value) -> Value {
    let mut whole = base.clone();
    whole.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    whole
}

/// The states of a life, as they are.
fn good_reservations() -> Vec<Value> {
    let (waiting, settled) = (waiting(), settled());
    vec![
        json!({}),
        waiting.clone(),
        settled.clone(),
        with(&waiting, json!({"state": "expired", "reserved": 0, "closed_at": AT})),
        with(&waiting, json!({"state": "cancelled", "reserved": 0, "closed_at": AT})),
        json!({"state": "cancelling", "reserved": 0, "liability": 6, "liability_since": AT}),
        json!({"state": "fenced", "reserved": 0, "liability": 0}),
        json!({"state": "fenced", "reserved": 0, "liability": 2, "unknown_units": 2, "liability_since": AT}),
        json!({"in_flight": 5, "reserved": 6}),
        json!({"in_flight": 5, "unknown_units": 3, "stated_outstanding": 1, "reserved": 5, "liability": 4,
               "liability_since": AT}),
    ]
}

/// What no reservation ever is, and the constraint that says so.
fn bad_reservations() -> Vec<(Value, &'static str)> {
    let (no_attempt, waiting, settled) = (no_attempt(), waiting(), settled());
    vec![
        (with(&settled, json!({"reserved": 5})), "reservation_holds_by_the_formula"),
        (with(&settled, json!({"liability": 5})), "reservation_holds_by_the_formula"),
        (with(&settled, json!({"in_flight": 1})), "reservation_closed_has_nothing_outstanding"),
        (with(&settled, json!({"unknown_units": 1})), "reservation_closed_has_nothing_outstanding"),
        (with(&settled, json!({"closed_at": null})), "reservation_closed_when_it_ended"),
        (with(&settled, no_attempt.clone()), "reservation_started_has_an_attempt"),
        (json!({"closed_at": AT}), "reservation_closed_when_it_ended"),
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
        (json!({"state": "cancelling", "reserved": 0, "liability": 6}), "reservation_liability_is_dated"),
        (json!({"liability_since": AT}), "reservation_liability_is_dated"),
        (json!({"attempt_number": 2}), "reservation_every_attempt_had_a_token"),
        (json!({"superseded_tokens": ["1.x"]}), "reservation_every_attempt_had_a_token"),
        (
            json!({"attempt_number": 2, "superseded_tokens": ["1.x"]}),
            "reservation_every_attempt_had_settled_something_or_zero",
        ),
        (
            json!({"attempt_number": 2, "superseded_tokens": ["1.x"], "superseded_settled": [-1]}),
            "reservation_every_attempt_had_settled_something_or_zero",
        ),
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
    ]
}

#[tokio::test]
async fn a_reservation_cannot_be_what_it_never_is() {
    let (service, mut owner) = books().await;
    let before = service.books().await;
    for good in good_reservations() {
        let mut transaction = owner.begin().await.unwrap();
        let made = sqlx::raw_sql(sqlx::AssertSqlSafe(copy_of_the_job(&good))).execute(&mut *transaction).await;
        assert_eq!(made.unwrap_or_else(|error| panic!("{good}: {error}")).rows_affected(), 1);
        transaction.rollback().await.unwrap();
    }
    for (bad, constraint) in bad_reservations() {
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

/// What changes with every admission is in no index of the busiest row, and its page
/// has room for the next version of it: it is changed in place (HOT).
#[tokio::test]
async fn the_busiest_row_stays_on_its_page() {
    let database = TestDatabase::new().await;
    let indexed = "select distinct a.attname::text
                   from pg_index i
                   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any (i.indkey)
                   where i.indrelid = 'budget_period'::regclass
                   order by 1";
    assert_eq!(database.lines(indexed).await, ["account", "budget", "id", "member", "ordinal", "starts_at"]);
    let predicates = "select indexrelid::regclass::text from pg_index
                      where indrelid = 'budget_period'::regclass and (indpred is not null or indexprs is not null)";
    assert!(database.lines(predicates).await.is_empty());
    let room = "select unnest(reloptions) from pg_class where oid = 'budget_period'::regclass";
    assert_eq!(database.lines(room).await, ["fillfactor=50"]);
}
