//! Months are opened ahead; where they are not, what comes has a place all the same.

use std::time::{Duration, Instant};

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{Spring, is_whole, stream};
use crate::support::old_work::POLICY;
use crate::support::{Client, NORTHSTAR, Service};

/// A job from its beginning to its end, with a call and a refusal.
async fn work(worker: &Client, key: &str) {
    let job = worker.reserve_bulk(key, "3").await.expect(201);
    worker.call(&job, "a", "2").await.expect(201);
    worker.settle_call(&job, "a", "1").await.expect(200);
    worker.finish(&job).await.expect(200);
    worker.reserve_bulk(&format!("{key}-refused"), "101").await.problem(400, "too_expensive");
}

async fn stretches(service: &Service, table: &str) -> Vec<String> {
    service.database.lines(&format!("select name from stretches('{table}')")).await
}

async fn opened(service: &Service) -> Vec<(usize, Option<String>)> {
    let months = service.ledger.open_months().await.unwrap();
    months.into_iter().map(|months| (months.opened.len(), months.obstacle)).collect()
}

#[tokio::test]
async fn what_comes_when_no_month_is_open_has_a_place_and_gets_its_month_later() {
    let service = Service::with_policy(POLICY).await;
    let worker = service.worker(&["northstar"]).await;
    is_whole(&service.database).await;
    // The service has been off for years, or its months could not be opened.
    service.database.set_clock("2040-03-05T12:00:00Z").await;
    work(&worker, "later").await;
    let later = "select count(*)::text from journal_entry_later";
    assert_ne!(service.database.lines(later).await, ["0"]);
    service.books().await;
    assert_eq!(opened(&service).await[0], (3, None));
    is_whole(&service.database).await;
    let names = stretches(&service, "journal_entry").await;
    let expected =
        ["through_2040_03", "2040_04", "2040_05", "2040_06", "later"].map(|name| format!("journal_entry_{name}"));
    assert!(names.ends_with(&expected), "{names:?}");
    assert_eq!(service.database.lines(later).await, ["0"]);
    assert_eq!(opened(&service).await[0], (0, None));
    service.books().await;
    // Time goes on, and nothing happens for most of a year.
    service.database.set_clock("2041-01-31T23:59:59Z").await;
    assert_eq!(opened(&service).await[0], (4, None));
    service.database.set_clock("2041-02-01T00:00:01Z").await;
    assert_eq!(opened(&service).await[0], (1, None));
    let names = stretches(&service, "journal_entry").await;
    let expected = ["through_2040_12", "2041_01", "2041_02", "2041_03", "2041_04", "2041_05", "later"];
    assert!(names.ends_with(&expected.map(|name| format!("journal_entry_{name}"))), "{names:?}");
    work(&worker, "on").await;
    is_whole(&service.database).await;
    service.books().await;
}

#[tokio::test]
async fn a_clock_that_was_years_ahead_stops_no_work() {
    let service = Service::with_policy(POLICY).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2056-01-01T12:00:00Z").await;
    work(&worker, "ahead").await;
    service.database.set_clock("2040-03-05T12:00:00Z").await;
    let refused = Some("journal_entry_later holds rows of 2056-01".to_owned());
    assert_eq!(opened(&service).await[0], (0, refused));
    work(&worker, "back").await;
    service.database.set_clock("1999-03-05T12:00:00Z").await;
    work(&worker, "far-back").await;
    is_whole(&service.database).await;
    service.books().await;
    // What is in the way is found without a lock that anybody waits for.
    service.database.set_clock("2040-03-06T12:00:00Z").await;
    let mut writer = service.database.connect().await;
    writer.execute("begin; lock table journal_entry in row exclusive mode").await.unwrap();
    assert_eq!(opened(&service).await[0].1, Some("journal_entry_later holds rows of 2056-01".to_owned()));
    writer.execute("rollback").await.unwrap();
    // The owner gets out of it.
    let rows = "select to_jsonb(e)::text from journal_entry e order by 1";
    let before = service.database.lines(rows).await;
    let made = service.database.lines("select split_later('journal_entry')::text").await;
    assert_ne!(made, ["0"]);
    assert_eq!(service.database.lines(rows).await, before);
    is_whole(&service.database).await;
    let names = stretches(&service, "journal_entry").await;
    let expected =
        ["2040_05", "2040_06", "through_2040_12", "through_2041_12"].map(|name| format!("journal_entry_{name}"));
    assert!(names.windows(4).any(|four| four == expected), "{names:?}");
    let last = ["journal_entry_through_2056_12".to_owned(), "journal_entry_later".to_owned()];
    assert!(names.ends_with(&last), "{names:?}");
    assert_eq!(opened(&service).await[0], (0, None));
    work(&worker, "in-its-month").await;
    assert_ne!(service.database.lines("select count(*)::text from journal_entry_2040_03").await, ["0"]);
    service.books().await;
}

/// Whoever may make tables does not thereby make a month.
#[tokio::test]
async fn a_table_of_somebody_else_becomes_no_month() {
    let service = Service::with_policy(NORTHSTAR).await;
    let database = &service.database;
    database.set_clock("2040-03-05T12:00:00Z").await;
    let mut stranger = PgConnection::connect(&database.service_url).await.unwrap();
    let mine = "create table journal_entry_2040_05 (like journal_entry)";
    let error = stranger.execute(mine).await.unwrap_err();
    assert_eq!(error.into_database_error().unwrap().code().unwrap(), "42501");
    database.execute("grant create on schema public to spend_ledger_service").await;
    stranger.execute(mine).await.unwrap();
    assert!(service.ledger.open_months().await.is_err());
    assert!(!stretches(&service, "journal_entry").await.contains(&"journal_entry_2040_05".to_owned()));
    is_whole(database).await;
    stranger.execute("drop table journal_entry_2040_05").await.unwrap();
    assert_eq!(opened(&service).await[0].1, None);
    assert!(stretches(&service, "journal_entry").await.contains(&"journal_entry_2040_05".to_owned()));
    is_whole(database).await;
    service.books().await;
}

#[tokio::test]
async fn many_open_them_at_once_while_others_work() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.fleet().await;
    service.database.set_clock("2040-03-05T12:00:00Z").await;
    let working = tokio::spawn(async move {
        for n in 0..20 {
            let body = serde_json::json!({"account": "northstar", "operation": "stream", "units": 2, "holder": "w"});
            let job = worker.reserve(&format!("job-{n}"), body).await.expect(201);
            worker.settle(&job, "1").await.expect(200);
        }
    });
    for time in ["2040-03-05T12:00:00Z", "2040-04-05T12:00:00Z", "2040-07-05T12:00:00Z"] {
        service.database.set_clock(time).await;
        let all: Vec<_> = (0..8)
            .map(|_| {
                let ledger = service.ledger.clone();
                tokio::spawn(async move { ledger.open_months().await.unwrap() })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
    }
    working.await.unwrap();
    // Who gave up is asked again an hour later.
    opened(&service).await;
    is_whole(&service.database).await;
    let names = stretches(&service, "call").await;
    assert!(names.ends_with(&["call_2040_10".to_owned(), "call_later".to_owned()]), "{names:?}");
    let twice = "select name from (select unnest(array['journal_entry', 'call', 'refusal']) as t) t, stretches(t.t)
                 group by name having count(*) > 1";
    assert!(service.database.lines(twice).await.is_empty());
    service.books().await;
}

#[tokio::test]
async fn whoever_uses_a_table_is_not_kept_waiting() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2040-03-05T12:00:00Z").await;
    let mut reader = service.database.connect().await;
    reader.execute("begin; select count(*) from journal_entry").await.unwrap();
    let started = Instant::now();
    let (opening, ()) = tokio::join!(opened(&service), work(&worker, "meanwhile"));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(opening[0], (0, Some("journal_entry is in use".to_owned())));
    assert_eq!(opening[2].1, None, "each table is opened by itself");
    reader.execute("rollback").await.unwrap();
    assert_eq!(opened(&service).await[0].1, None);
    service.books().await;
}

#[tokio::test]
async fn months_of_refusals_are_dropped_whole_when_all_of_them_are_old() {
    let service = Service::with_policy(NORTHSTAR).await;
    let database = &service.database;
    let refused = |time: &str, count: u32| {
        format!(
            "insert into refusal (id, at, account, operation, code, observed, units, detail)
             select overlay(gen_random_uuid()::text placing left(first_id_of('{time}')::text, 14) || '7' from 1 for 15)::uuid,
                    '{time}', 'northstar', 'bulk', 'too_expensive', false, 101, '{{}}'
             from generate_series(1, {count})"
        )
    };
    database.set_clock("2040-03-05T12:00:00Z").await;
    service.ledger.open_months().await.unwrap();
    for (time, count) in [("2040-03-10T00:00:00Z", 70), ("2040-04-10T00:00:00Z", 50), ("2040-05-10T00:00:00Z", 3)] {
        database.execute(&refused(time, count)).await;
    }
    // Of another clock: it is in March's stretch, and young.
    database.execute("update refusal set at = '2040-06-20' where ctid = '(0,1)' and at = '2040-04-10'").await;
    database.set_clock("2040-07-01T00:00:00Z").await;
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 0, "nobody counts a month");
    assert!(!stretches(&service, "refusal").await.contains(&"refusal_2040_03".to_owned()));
    is_whole(database).await;
    database.set_clock("2040-08-01T00:00:00Z").await;
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 49, "the young one keeps its month");
    assert!(stretches(&service, "refusal").await.contains(&"refusal_2040_04".to_owned()));
    database.set_clock("2040-12-01T00:00:00Z").await;
    // Whoever reads is not in the way of the rest: rows go one by one.
    let mut reader = database.connect().await;
    reader.execute("begin; select count(*) from refusal").await.unwrap();
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 4);
    reader.execute("rollback").await.unwrap();
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 0);
    let names = stretches(&service, "refusal").await;
    assert_eq!(names[0], "refusal_earlier");
    assert!(!names.contains(&"refusal_2040_05".to_owned()), "{names:?}");
    is_whole(database).await;
    // What a clock that is behind says still has a place.
    database.execute(&refused("2040-01-10T00:00:00Z", 2)).await;
    assert_eq!(service.ledger.sweep_refusals().await.unwrap(), 2);
    service.books().await;
}

#[tokio::test]
async fn a_month_is_guarded_like_its_table() {
    let spring = Spring::new().await;
    let database = spring.database();
    let mut owner = database.connect().await;
    let mut service = PgConnection::connect(&database.service_url).await.unwrap();
    let denied = async |connection: &mut PgConnection, statement: &str| {
        let error = connection.execute(sqlx::AssertSqlSafe(statement.to_owned())).await.unwrap_err();
        error.into_database_error().unwrap().code().unwrap().into_owned()
    };
    let months = spring.months_of("journal_entry").await;
    assert_eq!(months, ["journal_entry_2040_03", "journal_entry_2040_04", "journal_entry_2040_05"]);
    let after = database.lines("select name from stretches('journal_entry')").await;
    for month in months.iter().chain(&after) {
        for statement in ["update {} set amount = 1", "delete from {}", "delete from {} where false", "truncate {}"] {
            let statement = statement.replace("{}", month);
            assert_eq!(denied(&mut owner, &statement).await, "23001", "{statement}");
            assert_eq!(denied(&mut service, &statement).await, "42501", "{statement}");
        }
    }
    for table in ["journal_entry", "call", "refusal"] {
        for month in database.lines(&format!("select name from stretches('{table}')")).await {
            for statement in ["select * from {}", "insert into {} select * from {}", "drop table {}"] {
                let statement = statement.replace("{}", &month);
                assert_eq!(denied(&mut service, &statement).await, "42501", "{statement}");
            }
        }
    }
    for statement in [
        "alter table journal_entry detach partition journal_entry_2040_03",
        "create table mine partition of journal_entry for values from ('1990-01-01') to ('1991-01-01')",
        "select attach_stretch('journal_entry', 'mine', '-infinity', '1990-01-01')",
        "select rename_stretch('journal_entry', 'mine')",
        "select split_later('journal_entry')",
        "select cover_what_is_earlier('journal_entry'), 1 / (select count(*) from journal_entry_2040_03)",
        "insert into journal_checkpoint select * from journal_checkpoint",
        "insert into archived_month select * from archived_month",
    ] {
        assert_eq!(denied(&mut service, statement).await, "42501", "{statement}");
    }
    let finance = "set role spend_ledger_finance; select open_months('call')";
    assert_eq!(denied(&mut owner, finance).await, "42501");
    // A number is used once in a month, whoever writes.
    let again = "reset role; insert into journal_entry select * from journal_entry where at >= '2040-04-01' limit 1";
    assert_eq!(denied(&mut owner, again).await, "23505");
    // The clock of the test is no month's concern.
    spring.worker.reserve("still", stream(1)).await.expect(201);
    spring.holds(0).await;
}
