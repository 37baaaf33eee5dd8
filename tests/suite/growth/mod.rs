//! What grows with time lies in months, and old months can be archived: the ledger
//! works on beside it, the books hold, and a job is the same job after it.

mod archiving;
mod beside;
mod falsified;
mod interrupted;
mod migrated;
mod months;

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde_json::json;
use spend_ledger::ledger::archive::{ArchiveError, Ask, Watcher, archive};
use spend_ledger::ledger::verify::{Verified, verify};

use crate::support::old_work::POLICY;
use crate::support::server::TestDatabase;
use crate::support::{Answer, Client, Service};

/// A spring of work, in a year that this machine's clock is far from: what ended in
/// March, what was still open in April, and what came in May. It is the tenth of May.
pub struct Spring {
    pub service: Service,
    pub worker: Client,
    pub finance: Client,
    /// Ended in March.
    pub done: Answer,
    /// Open since March, with 15 of 20 used by April.
    pub straddling: Answer,
    /// Open since March, and cancelled in April: all of it is liability.
    pub cancelled: Answer,
    files: tempfile::TempDir,
}

impl Spring {
    pub async fn new() -> Self {
        let service = Service::with_policy(POLICY).await;
        service.database.set_clock("2040-03-05T12:00:00Z").await;
        let opened = service.ledger.open_months().await.unwrap();
        assert!(opened.iter().all(|months| months.obstacle.is_none()), "{opened:?}");
        let (worker, finance) = (service.worker(&["northstar"]).await, service.finance().await);
        let done = worker.reserve_bulk("done", "40").await.expect(201);
        worker.call(&done, "a", "10").await.expect(201);
        worker.settle_call(&done, "a", "8").await.expect(200);
        worker.finish(&done).await.expect(200);
        let straddling = worker.reserve("straddling", stream(20)).await.expect(201);
        worker.progress(&straddling, "5").await.expect(200);
        let cancelled = worker.reserve("cancelled", stream(7)).await.expect(201);
        service.database.set_clock("2040-04-10T12:00:00Z").await;
        worker.progress(&straddling, "15").await.expect(200);
        worker.cancel(&cancelled).await.expect(200);
        let april = worker.reserve("april", stream(30)).await.expect(201);
        worker.settle(&april, "12").await.expect(200);
        service.database.set_clock("2040-05-10T12:00:00Z").await;
        service.ledger.open_months().await.unwrap();
        let may = worker.reserve("may", stream(9)).await.expect(201);
        worker.settle(&may, "9").await.expect(200);
        let files = tempfile::tempdir().unwrap();
        let spring = Self { service, worker, finance, done, straddling, cancelled, files };
        spring.holds(0).await;
        spring
    }

    pub fn database(&self) -> &TestDatabase {
        &self.service.database
    }

    /// The directory of the files.
    pub fn files(&self) -> PathBuf {
        self.files.path().join("archive")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.files().join(name)
    }

    pub fn ask(&self, before: &str) -> Ask {
        Ask { before: month(before), to: self.files(), drop: false, dry_run: false, actor: "test".to_owned() }
    }

    /// Archives the months before this one. Answers what was said.
    pub async fn archive(&self, before: &str) -> Vec<String> {
        self.try_archive(&self.ask(before)).await.unwrap()
    }

    pub async fn try_archive(&self, ask: &Ask) -> Result<Vec<String>, ArchiveError> {
        let mut said = Lines::default();
        archive(&self.database().owner_url, ask, &mut said).await?;
        Ok(said.0)
    }

    /// The books hold, and so many periods start from a checkpoint.
    pub async fn holds(&self, checkpoints: u64) {
        let (verified, said) = differences(self.database()).await;
        assert!(said.is_empty(), "{}", said.join("\n"));
        assert_eq!(verified.checkpoints, checkpoints);
        is_whole(self.database()).await;
    }

    /// Names of the stretches that are still a part of their table and hold rows.
    pub async fn months_of(&self, table: &str) -> Vec<String> {
        let mut months = Vec::new();
        for name in self.database().lines(&format!("select name from stretches('{table}')")).await {
            if self.database().lines(&format!("select 'row' from {name} limit 1")).await.len() == 1 {
                months.push(name);
            }
        }
        months
    }
}

/// Keeps what is said.
#[derive(Default)]
pub struct Lines(Vec<String>);

impl Watcher for Lines {
    fn say(&mut self, line: &str) {
        self.0.push(line.to_owned());
    }

    fn row(&mut self) {}
}

pub fn stream(units: u32) -> serde_json::Value {
    json!({"operation": "stream", "units": units, "holder": "w-1"})
}

pub fn month(text: &str) -> DateTime<Utc> {
    format!("{text}-01T00:00:00Z").parse().unwrap()
}

/// What `verify` says.
pub async fn differences(database: &TestDatabase) -> (Verified, Vec<String>) {
    let mut said = Vec::new();
    let verified = verify(&database.owner_url, |difference| said.push(difference.to_owned())).await.unwrap();
    (verified, said)
}

/// The stretches of each table cover all of time.
pub async fn is_whole(database: &TestDatabase) {
    for table in ["journal_entry", "call", "refusal"] {
        let gaps = database
            .lines(&format!(
                "select format('%s begins at %s, and not at %s', name, starts_at, before)
                 from (select name, starts_at, lag(ends_at, 1, '-infinity') over (order by starts_at) as before
                       from stretches('{table}')) s
                 where starts_at <> before
                 union all
                 select format('ends at %s', max(ends_at)) from stretches('{table}') having max(ends_at) <> 'infinity'"
            ))
            .await;
        assert!(gaps.is_empty(), "{table}: {gaps:?}");
    }
}

/// Changes a file by hand.
pub fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, change(text)).unwrap();
}
