//! A month is archived, and the ledger goes on as if nothing had been taken away.

use serde_json::json;
use spend_ledger::ledger::archive::{ArchiveError, Ask, FileError, check};

use super::{Spring, stream};
use crate::support::process::program;

const MARCH: &str = "journal_entry_2040_03.csv";

/// The rows of the books, and which tables there are.
async fn everything(spring: &Spring) -> Vec<String> {
    let mut all =
        spring.database().lines("select relname::text from pg_class where relkind in ('r', 'p') order by 1").await;
    for table in ["journal_entry", "call", "budget_period", "reservation", "archived_month", "audit_entry"] {
        all.extend(spring.database().lines(&format!("select to_jsonb(t)::text from {table} t order by 1")).await);
    }
    all
}

#[tokio::test]
async fn what_straddles_an_archived_month_goes_on_and_a_job_is_the_same_job() {
    let spring = Spring::new().await;
    let before = spring.service.books().await;
    let said = spring.archive("2040-05").await;
    assert_eq!(spring.months_of("journal_entry").await, ["journal_entry_2040_05"]);
    assert!(said.iter().any(|line| line.contains("drop table journal_entry_2040_03;")), "{said:#?}");
    // March's day and April's, the two months, the total and the year of the pool.
    spring.holds(6).await;
    let after = spring.service.books().await;
    assert_eq!((&after.periods, &after.reservations), (&before.periods, &before.reservations));
    assert!(after.journal.len() < before.journal.len());
    assert!(!after.journal.is_empty() && after.journal.iter().all(|line| before.journal.contains(line)));
    // Nothing is left of the calls but their file, once no job can have any more.
    assert!(spring.months_of("call").await.is_empty());
    assert_eq!(spring.worker.calls_of(&spring.done).await, Vec::<String>::new());

    // What was open in March, in April and now.
    let (worker, straddling) = (&spring.worker, &spring.straddling);
    worker.progress(straddling, "16").await.expect(200);
    spring.holds(6).await;
    worker.settle(straddling, "18").await.expect(200);
    worker.settle(straddling, "18").await.expect(200);
    spring.finance.close(&spring.cancelled, "3", "an invoice").await.expect(200);
    spring.holds(6).await;
    // The same key is the same job, and no other.
    let repeated = worker.reserve_bulk("done", "40").await.expect(200);
    assert_eq!((repeated.id(), repeated.text("settled")), (spring.done.id(), "8"));
    worker.reserve_bulk("done", "41").await.problem(422, "idempotency_key_reused");
    worker.reserve("straddling", stream(20)).await.expect(200);
    assert_eq!(worker.history(&spring.done).await.len(), 4);
    let new = worker.reserve_bulk("new", "2").await.expect(201);
    worker.call(&new, "a", "2").await.expect(201);
    spring.holds(6).await;

    // The next month goes on from there; a day later it is another day.
    spring.database().set_clock("2040-06-03T12:00:00Z").await;
    worker.settle_call(&new, "a", "1").await.expect(200);
    spring.service.ledger.open_months().await.unwrap();
    spring.archive("2040-06").await;
    assert_eq!(spring.months_of("journal_entry").await, ["journal_entry_2040_06"]);
    spring.holds(8).await;
    worker.finish(&new).await.expect(200);
    spring.holds(8).await;
    // What was settled is all there is of it.
    let settled = "select trim_scale(settled)::text from budget_period where budget = 'ever'";
    assert_eq!(spring.database().lines(settled).await, ["51"]);
    let audited = "select format('%s %s', actor, subject) from audit_entry where action = 'archive' order by id";
    let audited = spring.database().lines(audited).await;
    assert!(audited.contains(&"test journal_entry_2040_05".to_owned()), "{audited:?}");
}

#[tokio::test]
async fn a_month_of_calls_stays_until_every_job_of_it_has_ended() {
    let spring = Spring::new().await;
    let open = spring.worker.reserve_bulk("open", "5").await.expect(201);
    let months = spring.months_of("call").await;
    assert_eq!(months.len(), 1);
    let said = spring.archive("2040-05").await;
    let reason = format!("{}: stays, since reservation {} of northstar is active", months[0], open.id());
    assert!(said.contains(&reason), "{said:#?}");
    assert_eq!(spring.months_of("call").await, months);
    spring.worker.call(&open, "a", "2").await.expect(201);
    spring.holds(6).await;
    spring.finance.close(&open, "1", "it was one").await.expect(200);
    let said = spring.archive("2040-05").await;
    assert!(said.contains(&format!("{}: archived", months[0])), "{said:#?}");
    spring.holds(6).await;
    // Finance has closed it: what its call came to is told too late, whatever it was.
    // It is kept; what the file says of the call is not looked at.
    spring.worker.settle_call(&open, "a", "2").await.problem(409, "already_settled");
    let late =
        "select format('%s %s %s %s %s', reservation_id, attempt_number, call_key, trim_scale(units), recorded = 0)
                from late_usage";
    assert_eq!(spring.database().lines(late).await, [format!("{} 1 a 2 t", open.id())]);
    // Who never had an attempt of it tells it nothing.
    let foreign = json!({"attempt": "1.of-nobody", "units": 3});
    spring.worker.end_call(&open, "a", foreign).await.problem(404, "not_found");
    spring.holds(6).await;
    let checked =
        check(&spring.database().owner_url, &spring.file(&format!("{}.csv", months[0])), |_| {}).await.unwrap();
    assert_eq!((checked.rows, checked.differences), (2, 0));
}

#[tokio::test]
async fn only_what_has_wholly_passed_is_archived_and_only_by_the_owner() {
    let spring = Spring::new().await;
    let before = everything(&spring).await;
    for asked in ["2040-06", "2041-01"] {
        match spring.try_archive(&spring.ask(asked)).await {
            Err(ArchiveError::NotPassed { .. }) => {}
            other => panic!("{asked}: {other:?}"),
        }
    }
    // Not in the first hour of the next one, when its last statements may be under way.
    spring.database().set_clock("2040-05-01T00:30:00Z").await;
    assert!(matches!(spring.try_archive(&spring.ask("2040-05")).await, Err(ArchiveError::NotPassed { .. })));
    spring.database().set_clock("2040-05-10T12:00:00Z").await;
    let files = spring.files();
    let files = files.to_str().unwrap();
    let run = async |url: &str, arguments: &[&str]| {
        let output = program(&["archive", "--database-url", url]).args(arguments).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, said, told) = run(&spring.database().service_url, &["--before", "2040-05", "--to", files]).await;
    assert_eq!((code, said.as_str()), (Some(1), ""), "{told}");
    assert!(told.contains("does not own the ledger's tables"), "{told}");
    let (code, _, told) = run(&spring.database().owner_url, &["--before", "2040-06", "--to", files]).await;
    assert_eq!(code, Some(1));
    assert!(told.contains("the months before 2040-06 have not all passed for at least an hour"), "{told}");
    for wrong in [&["--before", "2040-5", "--to", files][..], &["--before", "2040-05"], &["--check"], &[]] {
        assert_eq!(run(&spring.database().owner_url, wrong).await.0, Some(2), "{wrong:?}");
    }
    let (code, said, told) =
        run(&spring.database().owner_url, &["--before", "2040-05", "--to", files, "--dry-run"]).await;
    assert_eq!(code, Some(0), "{told}");
    assert!(said.contains("journal_entry_2040_03: ") && said.contains("rows would be written to"), "{said}");
    assert!(!spring.files().exists());
    assert_eq!(everything(&spring).await, before);
    // And then it is done.
    let (code, said, told) = run(&spring.database().owner_url, &["--before", "2040-05", "--to", files]).await;
    assert_eq!(code, Some(0), "{told}");
    assert!(said.contains("journal_entry_2040_04: archived, with checkpoints of"), "{said}");
    spring.holds(6).await;
    let march = spring.file(MARCH);
    let (code, said, told) = run(&spring.database().owner_url, &["--check", march.to_str().unwrap()]).await;
    assert_eq!((code, said.lines().count()), (Some(0), 1), "{said}{told}");
    let output = program(&["verify", "--database-url", &spring.database().owner_url]).output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.trim_end().ends_with("; started from 6 checkpoints"), "{said}");
}

#[tokio::test]
async fn what_is_dropped_is_in_its_file() {
    let spring = Spring::new().await;
    let dropping = || Ask { drop: true, ..spring.ask("2040-05") };
    // Another file has the name of the first with rows in it.
    std::fs::create_dir_all(spring.files()).unwrap();
    std::fs::write(spring.file(MARCH), "something else\n").unwrap();
    match spring.try_archive(&dropping()).await {
        Err(ArchiveError::File(FileError::Another(path))) => assert_eq!(path, spring.file(MARCH)),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_to_string(spring.file(MARCH)).unwrap(), "something else\n");
    spring.holds(0).await;
    std::fs::remove_file(spring.file(MARCH)).unwrap();
    spring.archive("2040-04").await;
    spring.holds(4).await;
    // It has been lost since, or changed.
    let kept = std::fs::read_to_string(spring.file(MARCH)).unwrap();
    std::fs::remove_file(spring.file(MARCH)).unwrap();
    assert!(matches!(spring.try_archive(&dropping()).await, Err(ArchiveError::File(FileError::System { .. }))));
    std::fs::write(spring.file(MARCH), kept.replace("northstar", "nordstern")).unwrap();
    assert!(matches!(spring.try_archive(&dropping()).await, Err(ArchiveError::File(FileError::NotArchived(_)))));
    std::fs::write(spring.file(MARCH), kept).unwrap();
    // A row has come to the table since.
    let extra =
        "insert into journal_entry_2040_03 select account, period_id, 999, at, event, actor, source, target, amount,
                     available, reserved, liability, settled, null, null, null, null
                 from journal_entry_2040_03 limit 1";
    spring.database().execute(extra).await;
    match spring.try_archive(&dropping()).await {
        Err(ArchiveError::NotAsArchived { stretch, .. }) => assert_eq!(stretch, "journal_entry_2040_03"),
        other => panic!("{other:?}"),
    }
    let forgotten = "set session_replication_role = replica; delete from journal_entry_2040_03 where entry_no = 999";
    spring.database().execute(forgotten).await;
    let said = spring.try_archive(&dropping()).await.unwrap();
    assert!(said.contains(&"journal_entry_2040_03: dropped".to_owned()), "{said:#?}");
    let left = "select relname::text from pg_class where relname ~ '^journal_entry_2040_0[34]$'";
    assert!(spring.database().lines(left).await.is_empty());
    spring.holds(6).await;
    // What is done is done.
    assert_eq!(spring.try_archive(&dropping()).await.unwrap(), Vec::<String>::new());
}

/// The file is the table: whoever has it can read it back.
#[tokio::test]
async fn a_file_can_be_read_back_into_a_table() {
    let spring = Spring::new().await;
    spring.archive("2040-05").await;
    let rows = async |table: &str| {
        let query = format!("select to_jsonb(t)::text from {table} t order by account, period_id, entry_no");
        spring.database().lines(&query).await
    };
    let mut reader = csv::Reader::from_path(spring.file(MARCH)).unwrap();
    let columns: Vec<String> = reader.headers().unwrap().iter().map(|name| format!("\"{name}\"")).collect();
    spring.database().execute("create table back (like journal_entry)").await;
    for row in reader.records() {
        // As COPY reads CSV, with FORCE_NOT_NULL for the account.
        let row = row.unwrap();
        let value = |(place, text): (usize, &str)| match text {
            "" if place > 0 => "null".to_owned(),
            text => format!("'{}'", text.replace('\'', "''")),
        };
        let values: Vec<String> = row.iter().enumerate().map(value).collect();
        spring
            .database()
            .execute(&format!("insert into back ({}) values ({})", columns.join(","), values.join(",")))
            .await;
    }
    let back = rows("back").await;
    assert!(back.len() > 10);
    assert_eq!(back, rows("journal_entry_2040_03").await);
}
