//! `verify` names every difference: the books of a few days, falsified in one
//! place after another by somebody whom neither triggers nor constraints stop.

use serde_json::json;
use spend_ledger::ledger::verify::{Verified, verify};

use crate::support::process::program;
use crate::support::server::TestDatabase;
use crate::support::{Client, NORTHSTAR, Service};

/// Books with most of what there is in them, and the names by which the
/// falsifications below call their parts.
async fn books() -> (TestDatabase, Vec<(&'static str, String)>) {
    let policy = NORTHSTAR.replace("period: day,", "period: day, rollover: carry_forward,")
        + "pools: { shared: { unit: transformation, limit: 1000, period: month } }\n";
    let policy = policy.replace("\naccounts:", "\naccounts:\n  eaststar: { plan: standard }");
    let service = Service::with_policy(&policy).await;
    let (north, south) = (service.worker(&["northstar"]).await, service.worker(&["southstar"]).await);
    let stream = |units: u32| json!({"operation": "stream", "units": units, "holder": "w-1"});

    service.database.set_clock("2026-03-03T12:00:00Z").await;
    let done = north.reserve_bulk("done", "40").await.expect(201);
    north.settle(&done, "30").await.expect(200);
    let job = north.reserve("job", stream(20)).await.expect(201);
    north.progress(&job, "5").await.expect(200);
    north.extend(&job, "35").await.expect(200);
    service.apply(&policy.replace("limit: 100,", "limit: 150,")).await;
    south.reserve_bulk("other", "50").await.expect(201);
    with_calls(&service.worker(&["eaststar"]).await).await;
    service.database.set_clock("2026-03-04T12:00:00Z").await;
    let over = north.reserve("over", stream(10)).await.expect(201);
    north.settle(&over, "160").await.expect(200);
    north.progress(&job, "15").await.expect(200);
    service.ledger.close().await;

    let database = service.database.clone();
    let one = async |query: &str| database.lines(query).await.remove(0);
    let period = "select id::text from budget_period where budget =";
    let ids = vec![
        ("{day}", one(&format!("{period} 'daily' and account = 'northstar' and ordinal = 1")).await),
        ("{next}", one(&format!("{period} 'daily' and account = 'northstar' and ordinal = 2")).await),
        ("{south}", one(&format!("{period} 'daily' and account = 'southstar'")).await),
        ("{pool}", one(&format!("{period} 'shared'")).await),
        ("{job}", job.id()),
        ("{done}", done.id()),
        ("{other}", one("select id::text from reservation where idempotency_key = 'other'").await),
        ("{calls}", one("select id::text from reservation where idempotency_key = 'calls'").await),
        ("{nobody}", "01890000-0000-7000-8000-000000000000".to_owned()),
    ];
    (database, ids)
}

/// A job with a call in flight, an unknown one, one that has ended, and usage that
/// came too late.
async fn with_calls(east: &Client) {
    let job = east.reserve_bulk("calls", "20").await.expect(201);
    let calls = format!("/v1/reservations/{}/calls", job.id());
    for (call, units) in [("flying", 5), ("lost", 6), ("done", 7)] {
        east.post(&calls, json!({"attempt": job.token(), "call": call, "units": units})).await.expect(201);
    }
    east.post(&format!("{calls}/lost/settle"), json!({"outcome": "unknown"})).await.expect(200);
    let end = format!("{calls}/done/settle");
    east.post(&end, json!({"attempt": job.token(), "units": 8})).await.expect(200);
    east.post(&end, json!({"attempt": job.token(), "units": 9})).await.problem(409, "call_already_settled");
}

async fn differences(database: &TestDatabase) -> (Verified, Vec<String>) {
    let mut said = Vec::new();
    let verified = verify(&database.owner_url, |difference| said.push(difference.to_owned())).await.unwrap();
    assert_eq!(verified.differences, u64::try_from(said.len()).unwrap());
    (verified, said)
}

const TABLES: [&str; 6] = ["budget_period", "journal_entry", "reservation", "reservation_event", "call", "late_usage"];

/// Gives the database a function that moves an amount out of `available`, in the
/// journal and in the balances, with nothing else behind it.
async fn with_slips(database: &TestDatabase) {
    database
        .execute(
            "create function slip(owner text, slipped uuid, event text, target text, amount numeric,
                                  reservation_account text, reservation uuid, version bigint)
                 returns void language sql as $$
                 update budget_period
                 set available = available - amount,
                     reserved = reserved + case target when 'reserved' then amount else 0 end,
                     liability = liability + case target when 'liability' then amount else 0 end,
                     settled = settled + case target when 'settled' then amount else 0 end,
                     entry_no = entry_no + 1
                 where account = owner and id = slipped;
                 insert into journal_entry
                 select account, id, entry_no, last_entry_at, event, 'x', 'available', target, amount,
                        available, reserved, liability, settled, reservation_account, reservation, version, null
                 from budget_period
                 where account = owner and id = slipped
             $$",
        )
        .await;
}

/// Takes every constraint away and keeps a copy of the books.
async fn unguarded(database: &TestDatabase) {
    database
        .execute(
            "do $$
             declare
                 c record;
             begin
                 for c in select conrelid::regclass as of, conname from pg_constraint
                          join pg_class t on t.oid = conrelid
                          where conrelid::regclass::text ~
                                '^(budget_period|journal_entry|reservation|reservation_event|call|late_usage)'
                            and contype in ('c', 'u', 'p')
                          -- What a month has of its own stays when its table loses it.
                          order by t.relispartition loop
                     execute format('alter table %s drop constraint if exists %I', c.of, c.conname);
                 end loop;
             end $$;
             drop index reservation_id;
             create schema saved;",
        )
        .await;
    for table in TABLES {
        database.execute(&format!("create table saved.{table} as table {table}")).await;
    }
}

async fn restored(database: &TestDatabase) {
    let back = TABLES.map(|table| format!("delete from {table}; insert into {table} select * from saved.{table};"));
    database.execute(&format!("set session_replication_role = replica; {}", back.concat())).await;
}

/// Falsifications: what is done, and the words of a difference that names it.
/// `{day}` and the like are ids.
const FALSIFIED: [(&str, &str); 67] = [
    // Balances.
    ("update budget_period set available = available + 1 where id = '{day}'", "northstar daily period {day}: available is"),
    ("update budget_period set reserved = reserved + 1 where id = '{day}'", "northstar daily period {day}: reserved is"),
    ("update budget_period set liability = 1 where id = '{south}'", "southstar daily period {south}: liability is 1"),
    ("update budget_period set settled = settled - 1 where id = '{pool}'", "pool shared period {pool}: settled is"),
    ("update budget_period set granted = granted + 1 where id = '{day}'", "northstar daily period {day}: granted is"),
    ("update budget_period set limit_units = limit_units + 1 where id = '{day}'", "period {day}: limit is"),
    ("update budget_period set carried = carried + 1 where id = '{next}'", "period {next}: carried is"),
    // What adds up all the same.
    (
        "update budget_period set available = available - 1, reserved = reserved + 1 where id = '{day}'",
        "period {day}: reserved is",
    ),
    (
        "update budget_period set available = available + 1, granted = granted + 1, limit_units = limit_units + 1
         where id = '{day}'",
        "period {day}: granted is",
    ),
    (
        "update budget_period set limit_units = limit_units + 1, carried = carried + 1 where id = '{next}'",
        "{next}",
    ),
    ("update budget_period set entry_no = entry_no + 1 where id = '{day}'", "period {day}: says"),
    ("update budget_period set last_entry_at = last_entry_at + interval '1 us' where id = '{day}'", "period {day}: the time of its last"),
    ("update budget_period set reserved = 'NaN' where id = '{day}'", "{day}"),
    ("update budget_period set available = 'NaN' where id = '{pool}'", "{pool}"),
    // Entries that are missing or too many.
    ("delete from journal_entry where period_id = '{day}' and entry_no = 1", "period {day}: entry 2 follows entry 0"),
    ("delete from journal_entry where period_id = '{day}' and entry_no = 4", "period {day}: entry 5 follows entry 3"),
    (
        "delete from journal_entry e using budget_period p
         where p.id = '{day}' and e.period_id = p.id and e.entry_no = p.entry_no",
        "period {day}: says",
    ),
    ("delete from journal_entry where period_id = '{south}'", "period {south}: says 2 entries, the journal has 0"),
    (
        "insert into journal_entry select (e).* from (select e from journal_entry e where period_id = '{day}' and entry_no = 4) e",
        "period {day}: entry 4 follows entry 4",
    ),
    (
        "insert into journal_entry (account, period_id, entry_no, at, event, actor, source, target, amount,
                                    available, reserved, liability, settled)
         select account, id, entry_no + 1, last_entry_at, 'limit_raised', 'x', 'granted', 'available', 5,
                available + 5, reserved, liability, settled
         from budget_period where id = '{day}'",
        "period {day}: says",
    ),
    // Entries with balances that follow, and nothing behind them.
    ("select slip('northstar', '{day}', 'reserve', 'reserved', 1, null, null, null)",
     "northstar daily period {day}: reserved"),
    ("select slip('', '{pool}', 'fence', 'liability', 1, null, null, null)",
     "pool shared period {pool}: reserved"),
    ("select slip('northstar', '{day}', 'final_settlement', 'settled', 1, null, null, null)",
     "{day}"),
    ("select slip('northstar', '{day}', 'final_settlement', 'settled', 1, 'northstar', '{done}', 2)",
     "reservation {done} in period {day}: settled 30"),
    ("select slip('northstar', '{day}', 'extend', 'reserved', 1, 'northstar', '{nobody}', 1)",
     "reservation {nobody} version 1 does not belong there"),
    // Entries that say something else.
    ("update journal_entry set entry_no = entry_no + 1 where period_id = '{south}' and entry_no = 2", "period {south}: entry 3 follows entry 1"),
    ("update journal_entry set at = at - interval '1 hour' where period_id = '{day}' and entry_no = 3", "period {day}: the time of entry 3"),
    ("update journal_entry set at = at + interval '1 hour' where period_id = '{south}' and entry_no = 2", "period {south}: the time of its last"),
    ("update journal_entry set available = available + 1 where period_id = '{day}' and entry_no = 3", "period {day}: entry 3 stores available"),
    ("update journal_entry set reserved = reserved + 1 where period_id = '{day}' and entry_no = 3", "period {day}: entry 3 stores reserved"),
    ("update journal_entry set liability = 1 where period_id = '{day}' and entry_no = 3", "period {day}: entry 3 stores liability 1"),
    ("update journal_entry set settled = 0 where period_id = '{day}' and entry_no = 3", "period {day}: entry 3 stores settled 0"),
    ("update journal_entry set amount = amount + 1 where period_id = '{day}' and entry_no = 5", "period {day}: entry 5 stores"),
    ("update journal_entry set source = target, target = source where period_id = '{day}' and entry_no = 5", "period {day}: entry 5 stores"),
    ("update journal_entry set amount = 'NaN' where period_id = '{day}' and entry_no = 5", "{day}"),
    (
        "update journal_entry set reservation_id = '{done}' where period_id = '{day}' and reservation_id = '{job}'",
        "reservation {done} in period {day}",
    ),
    ("update journal_entry set reservation_version = 9 where reservation_id = '{done}'", "reservation {done} version 9 does not belong there"),
    ("update journal_entry set reservation_account = 'southstar' where reservation_id = '{done}'", "reservation {done}"),
    // Entries and reservations in periods that are not theirs.
    ("update journal_entry set period_id = '{next}', entry_no = 99 where period_id = '{day}' and entry_no = 6", "of period {next}: reservation {job}"),
    (
        "update journal_entry set account = 'southstar', period_id = '{south}', entry_no = 99
         where period_id = '{day}' and entry_no = 6",
        "of period {south}: reservation {job}",
    ),
    ("delete from budget_period where id = '{south}'", "period {south}, which does not exist"),
    ("update reservation set period_ids = array ['{pool}'::uuid] where id = '{job}'", "of period {day}: reservation {job}"),
    ("update reservation set period_ids = period_ids || '{nobody}'::uuid where id = '{job}'", "reservation {job} is charged to period {nobody}, which does not exist"),
    ("delete from reservation where id = '{done}'", "reservation {done} version 1 does not belong there"),
    // Reservations.
    ("update reservation set reserved = reserved + 1 where id = '{job}'", "reservation {job}: active, holds"),
    ("update reservation set ceiling = ceiling + 1 where id = '{job}'", "reservation {job}: active, holds"),
    ("update reservation set settled = settled + 1, reserved = reserved - 1 where id = '{job}'", "reservation {job} in period {day}: settled"),
    ("update reservation set state = 'settled', reserved = 0 where id = '{job}'", "reservation {job} in period {day}"),
    ("update reservation set reserved = 1, liability = -1 where id = '{done}'", "reservation {done}: settled, holds 1 reserved and -1"),
    ("update reservation set unknown_units = 3 where id = '{done}'", "{done}"),
    ("update reservation set version = version + 1 where id = '{job}'", "reservation {job}: version"),
    // Calls.
    ("update call set units = 4 where key = 'flying'", "reservation {calls}: in flight 5, of its attempt 5, unknown 6; its calls make 4, 4, 6"),
    ("update call set units = 4 where key = 'lost'", "its calls make 5, 5, 4"),
    ("update call set state = 'not_sent' where key = 'flying'", "its calls make 0, 0, 6"),
    ("update call set attempt_number = 2 where key = 'flying'", "its calls make 5, 0, 6"),
    ("delete from call where key = 'flying'", "reservation {calls}: in flight 5"),
    ("update call set actual = 9 where key = 'done'", "reservation {calls}: settled 8, its calls cost 9"),
    ("update call set attempt_number = 2 where key = 'done'", "call done of reservation {calls}: admitted by attempt 2, which never was"),
    ("update call set reservation_id = '{nobody}' where key = 'done'", "call done of reservation {nobody}"),
    ("update call set reservation_id = '{job}', account = 'northstar' where key = 'done'", "call done of reservation {job}"),
    ("update call set actual = 'NaN' where key = 'done'", "call done of reservation {calls}: not all"),
    ("update call set units = -1 where key = 'flying'", "call flying of reservation {calls}: not all"),
    ("update late_usage set units = 'NaN'", "its amount is not an amount"),
    ("update late_usage set attempt_number = 2", "of reservation {calls}: reported by attempt 2, which never was"),
    // Their history.
    ("delete from reservation_event where reservation_id = '{job}' and version = 2", "reservation {job}: version 4, its history has 3 events"),
    ("update reservation_event set ceiling = 99 where reservation_id = '{done}' and version = 2", "reservation {done}: its last event says settled, ceiling 99"),
    (
        "insert into reservation_event select (e).* from
             (select e from reservation_event e where reservation_id = '{done}' and version = 2) e;
         update reservation_event set reservation_id = '{nobody}' where ctid = (select max(ctid) from reservation_event)",
        "{nobody}",
    ),
];

#[tokio::test]
async fn every_falsification_is_named() {
    let (database, ids) = books().await;
    let (verified, said) = differences(&database).await;
    assert!(said.is_empty(), "{said:#?}");
    assert_eq!((verified.periods, verified.reservations), (5, 5));
    unguarded(&database).await;
    with_slips(&database).await;
    let named = |text: &str| ids.iter().fold(text.to_owned(), |text, (name, id)| text.replace(name, id));
    let mut missed = Vec::new();
    for (statement, words) in FALSIFIED {
        let (statement, words) = (named(statement), named(words));
        database.execute(&format!("set session_replication_role = replica; {statement}")).await;
        let mut said = Vec::new();
        let verified = verify(&database.owner_url, |difference| said.push(difference.to_owned())).await;
        if !said.iter().any(|difference| difference.contains(&words)) {
            missed.push(format!("{statement}\n  expected: {words}\n  said: {said:#?}\n  {verified:?}"));
        }
        restored(&database).await;
    }
    assert_eq!(differences(&database).await.1, Vec::<String>::new());
    assert!(missed.is_empty(), "{} falsifications were not named:\n{}", missed.len(), missed.join("\n"));
}

#[tokio::test]
async fn periods_that_overlap_are_named() {
    let (database, ids) = books().await;
    unguarded(&database).await;
    let id = |name: &str| ids.iter().find(|(other, _)| *other == name).unwrap().1.clone();
    let (day, next) = (id("{day}"), id("{next}"));
    for change in [
        format!("starts_at = starts_at - interval '1 us' where id = '{next}'"),
        format!("ends_at = ends_at + interval '1 us' where id = '{day}'"),
        format!("ends_at = null where id = '{day}'"),
    ] {
        database.execute(&format!("set session_replication_role = replica; update budget_period set {change}")).await;
        let (_, said) = differences(&database).await;
        assert_eq!(said.len(), 1, "{change}: {said:#?}");
        assert!(said[0].starts_with(&format!("northstar daily period {next} begins at")), "{said:#?}");
        restored(&database).await;
    }
    // One that follows at once, or later, does not overlap.
    database
        .execute(&format!("update budget_period set ends_at = ends_at - interval '1 hour' where id = '{day}'"))
        .await;
    assert_eq!(differences(&database).await.1, Vec::<String>::new());
}

#[tokio::test]
async fn an_admission_that_had_no_room_is_named() {
    let (database, ids) = books().await;
    with_slips(&database).await;
    let south = &ids.iter().find(|(name, _)| *name == "{south}").unwrap().1;
    // Everything about it adds up; but nobody may have been told yes.
    let over = "01890000-0000-7000-8000-000000000001";
    database
        .execute(&format!(
            "insert into reservation
                 select (jsonb_populate_record(r, jsonb_build_object('id', '{over}', 'idempotency_key', 'over',
                     'period_ids', array ['{south}'], 'estimate', 500, 'ceiling', 500, 'reserved', 500))).*
                 from reservation r where idempotency_key = 'other';
             insert into reservation_event
                 select (jsonb_populate_record(e, jsonb_build_object('reservation_id', '{over}', 'ceiling', 500,
                     'reserved', 500))).*
                 from reservation_event e
                 join reservation r on r.id = e.reservation_id and r.idempotency_key = 'other';
             select slip('southstar', '{south}', 'reserve', 'reserved', 500, 'southstar', '{over}', 1);"
        ))
        .await;
    let (_, said) = differences(&database).await;
    assert_eq!(said, [format!("southstar daily period {south}: entry 3 (reserve) took available to -400")]);
    for event in ["extend", "call_admitted"] {
        let rename = format!(
            "set session_replication_role = replica; update journal_entry set event = '{event}' where period_id = '{south}' and entry_no = 3"
        );
        database.execute(&rename).await;
        let (_, said) = differences(&database).await;
        assert_eq!(said, [format!("southstar daily period {south}: entry 3 ({event}) took available to -400")]);
    }
}

#[tokio::test]
async fn the_command_says_it_with_its_exit_code() {
    let (database, ids) = books().await;
    let run = async || {
        let output = program(&["verify", "--database-url", &database.owner_url]).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, said, _) = run().await;
    assert_eq!((code, said.lines().count()), (Some(0), 1), "{said}");
    assert!(said.starts_with("the books hold: 5 budget periods, "), "{said}");

    let day = &ids.iter().find(|(name, _)| *name == "{day}").unwrap().1;
    database
        .execute(&format!(
            "set session_replication_role = replica;
             update journal_entry set available = available + 1, settled = settled - 1
             where period_id = '{day}' and entry_no = 3"
        ))
        .await;
    let (code, said, told) = run().await;
    assert_eq!((code, said.lines().count()), (Some(1), 2), "{said}");
    assert!(said.lines().all(|line| line.contains(&format!("period {day}: entry 3 stores"))), "{said}");
    assert!(told.contains("2 differences in 5 budget periods"), "{told}");

    let nowhere =
        program(&["verify", "--database-url", "postgres://nobody@127.0.0.1:1/nothing"]).output().await.unwrap();
    assert_eq!((nowhere.status.code(), nowhere.stdout.len()), (Some(1), 0));
    assert!(!nowhere.stderr.is_empty());
}

/// A mistyped directory must not be found in good order.
#[tokio::test]
async fn there_is_nothing_to_verify_where_there_is_no_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let typo = directory.path().join("typo");
    let output = program(&["verify", "--data-dir", typo.to_str().unwrap()]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no ledger in"), "{output:?}");
    assert!(!typo.exists());
}
