//! The archive is ended at every step, run again, and comes to the same.

use std::time::Duration;

use spend_ledger::ledger::archive::{ArchiveError, Watcher, archive};
use sqlx::Executor as _;

use super::Spring;
use crate::support::process::program;

/// Ends the archive, as a crash would, when it says this.
struct Ending(&'static str);

impl Watcher for Ending {
    fn say(&mut self, line: &str) {
        assert!(!line.contains(self.0), "the end");
    }

    fn row(&mut self) {
        assert!(!self.0.is_empty(), "the end");
    }
}

/// Archives until that is said, and waits until the database has noticed.
async fn ended_at(spring: &Spring, step: &'static str) {
    let (url, ask) = (spring.database().owner_url.clone(), spring.ask("2040-05"));
    let run = tokio::spawn(async move { archive(&url, &ask, &mut Ending(step)).await });
    assert!(run.await.unwrap_err().is_panic(), "it never came to {step:?}");
}

/// Archives to the end, as soon as the run before is gone.
async fn to_the_end(spring: &Spring) -> Vec<String> {
    for _ in 0..600 {
        match spring.try_archive(&spring.ask("2040-05")).await {
            Err(ArchiveError::UnderWay) => tokio::time::sleep(Duration::from_millis(50)).await,
            said => return said.unwrap(),
        }
    }
    panic!("the run before never ended");
}

/// What must be the same in the end.
async fn result(spring: &Spring) -> Vec<String> {
    let mut result = Vec::new();
    for query in [
        "select to_jsonb(c)::text from journal_checkpoint c order by account, period_id, month",
        "select to_jsonb(c)::text from reservation_checkpoint c order by account, reservation_id, period_id, month",
        "select format('%s %s %s %s', stretch, row_count, periods, sha256) from archived_month order by 1",
        "select format('%s %s', name, detaching) from stretches('journal_entry')",
        "select format('%s %s', name, detaching) from stretches('call')",
        "select count(*)::text from audit_entry where action = 'archive'",
    ] {
        result.extend(spring.database().lines(query).await);
    }
    result
}

#[tokio::test]
async fn ended_at_any_step_it_goes_on_from_there() {
    let spring = Spring::new().await;
    let steps =
        ["entries are in", "checkpoints of", ": detached", "calls are in", ": archived", "table of its own", ""];
    let mut checkpoints = std::collections::BTreeSet::new();
    for step in steps {
        // At the first stretch that is empty, and once more where there are rows.
        for _ in 0..2 {
            let (url, ask) = (spring.database().owner_url.clone(), spring.ask("2040-05"));
            let run = tokio::spawn(async move { archive(&url, &ask, &mut Ending(step)).await });
            match run.await {
                Err(ended) => assert!(ended.is_panic()),
                Ok(Err(ArchiveError::UnderWay)) => tokio::time::sleep(Duration::from_millis(100)).await,
                Ok(other) => other.unwrap(),
            }
            let (verified, said) = super::differences(spring.database()).await;
            assert!(said.is_empty(), "after {step:?}: {said:#?}");
            checkpoints.insert(verified.checkpoints);
            spring.worker.renew(&spring.straddling, 60).await.expect(200);
        }
    }
    to_the_end(&spring).await;
    spring.holds(6).await;
    assert!(checkpoints.len() > 1, "{checkpoints:?}");
    // The same as in one go.
    let ended = result(&spring).await;
    let leftovers: Vec<_> = std::fs::read_dir(spring.files())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("unfinished"))
        .collect();
    assert_eq!(leftovers, Vec::<String>::new());
    assert_eq!(to_the_end(&spring).await.len(), ended.iter().filter(|line| line.contains(" \\x")).count());
    assert_eq!(result(&spring).await, ended);
}

#[tokio::test]
async fn ended_between_the_file_and_its_record_nothing_is_archived_yet() {
    let spring = Spring::new().await;
    ended_at(&spring, "journal_entry_2040_03: ").await;
    assert!(spring.file("journal_entry_2040_03.csv").exists());
    spring.holds(0).await;
    let written = std::fs::read(spring.file("journal_entry_2040_03.csv")).unwrap();
    to_the_end(&spring).await;
    assert_eq!(std::fs::read(spring.file("journal_entry_2040_03.csv")).unwrap(), written);
    spring.holds(6).await;
}

#[tokio::test]
async fn killed_while_it_detaches_it_is_ended_by_the_next_run() {
    let spring = Spring::new().await;
    spring.archive("2040-03").await;
    // A reader who takes his time: the month cannot go before him.
    let mut reader = spring.database().connect().await;
    reader.execute("begin; select count(*) from journal_entry").await.unwrap();
    let (url, files) = (spring.database().owner_url.clone(), spring.files());
    let arguments = ["archive", "--before", "2040-05", "--to", files.to_str().unwrap(), "--database-url", &url];
    let mut process = program(&arguments).spawn().unwrap();
    let pending = "select name from stretches('journal_entry') where detaching";
    for _ in 0..600 {
        if !spring.database().lines(pending).await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(spring.database().lines(pending).await, ["journal_entry_2040_03"]);
    process.kill().await.unwrap();
    let backend = "select pg_terminate_backend(pid)::text from pg_stat_activity
                   where datname = current_database() and query ~ '^alter table journal_entry detach'";
    assert_eq!(spring.database().lines(backend).await, ["true"]);
    // The service works on, and the books hold without the month.
    spring.worker.progress(&spring.straddling, "16").await.expect(200);
    let (verified, said) = super::differences(spring.database()).await;
    assert!(said.is_empty(), "{said:#?}");
    assert_eq!(verified.checkpoints, 4);
    reader.execute("rollback").await.unwrap();
    let said = to_the_end(&spring).await;
    assert_eq!(said[0], "journal_entry_2040_03: detached");
    assert!(spring.database().lines(pending).await.is_empty());
    spring.holds(6).await;
}

#[tokio::test]
async fn two_do_not_archive_at_once() {
    let spring = Spring::new().await;
    let mut other = spring.database().connect().await;
    other.execute("select pg_advisory_lock(8318260036558939239)").await.unwrap();
    assert!(matches!(spring.try_archive(&spring.ask("2040-05")).await, Err(ArchiveError::UnderWay)));
    assert!(spring.database().lines("select stretch from archived_month").await.is_empty());
}
