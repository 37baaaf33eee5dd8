//! What goes on beside an archive: nobody waits for it, and what comes to a month that
//! is being archived is not taken out with it.

use std::sync::mpsc;
use std::time::Duration;

use spend_ledger::ledger::archive::{ArchiveError, Left, Watcher, archive, check};
use sqlx::Executor as _;

use super::{Spring, is_whole};

/// Stops while the first row of the journal is written, and of calls, until told to
/// go on.
struct Holding {
    stops: bool,
    reached: tokio::sync::mpsc::UnboundedSender<()>,
    go: mpsc::Receiver<()>,
}

impl Watcher for Holding {
    fn say(&mut self, line: &str) {
        // The calls come next.
        self.stops |= line.starts_with("journal_entry_2040_04: archived");
    }

    fn row(&mut self) {
        if std::mem::take(&mut self.stops) {
            self.reached.send(()).unwrap();
            self.go.recv().unwrap();
        }
    }
}

/// Archives in a thread of its own.
fn archive_beside(spring: &Spring, mut watcher: impl Watcher + Send + 'static) -> std::thread::JoinHandle<()> {
    let (url, ask) = (spring.database().owner_url.clone(), spring.ask("2040-05"));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(archive(&url, &ask, &mut watcher)).unwrap();
    })
}

/// Ends as a crash would once calls are recorded.
struct EndsWhenRecorded;

impl Watcher for EndsWhenRecorded {
    fn say(&mut self, line: &str) {
        assert!(!(line.starts_with("call_") && line.ends_with(": archived")), "the end");
    }

    fn row(&mut self) {}
}

/// The stretch that calls are in.
async fn month_of_calls(spring: &Spring) -> String {
    spring.months_of("call").await.remove(0)
}

async fn stretches_of_calls(spring: &Spring) -> Vec<String> {
    spring.database().lines("select name from stretches('call')").await
}

/// As the README says under Archiving.
async fn forget(spring: &Spring, stretch: &str) {
    spring
        .database()
        .execute(&format!(
            "begin;
             alter table archived_month disable trigger user;
             delete from archived_month where stretch = '{stretch}';
             alter table archived_month enable trigger user;
             commit"
        ))
        .await;
}

#[tokio::test]
async fn nobody_waits_while_a_month_is_written() {
    let spring = Spring::new().await;
    let old = month_of_calls(&spring).await;
    // Ids are of this machine's clock: from here on they are of another stretch.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let split = format!(
        "do $$
         declare
             now timestamptz := date_trunc('milliseconds', clock_timestamp());
             old record;
         begin
             select * into old from stretches('call') where name = '{old}';
             execute 'alter table call detach partition {old}';
             perform attach_stretch('call', '{old}', old.starts_at, now);
             perform attach_stretch('call', 'call_now', now, old.ends_at);
         end $$"
    );
    spring.database().execute(&split).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let job = spring.worker.reserve_bulk("now", "9").await.expect(201);
    for key in ["a", "b", "c"] {
        spring.worker.call(&job, key, "2").await.expect(201);
    }
    assert_eq!(spring.months_of("call").await, [old.clone(), "call_now".to_owned()]);

    let (reached, mut is_reached) = tokio::sync::mpsc::unbounded_channel();
    let (going, go) = mpsc::channel();
    let archiving = archive_beside(&spring, Holding { stops: true, reached, go });
    for key in ["a", "b"] {
        is_reached.recv().await.unwrap();
        let settled = tokio::time::timeout(Duration::from_secs(2), spring.worker.settle_call(&job, key, "1")).await;
        settled.expect("it waits for the archive").expect(200);
        going.send(()).unwrap();
    }
    tokio::task::spawn_blocking(|| archiving.join().unwrap()).await.unwrap();
    assert_eq!(spring.months_of("call").await, ["call_now"]);
    spring.worker.settle_call(&job, "c", "1").await.expect(200);
    spring.worker.finish(&job).await.expect(200);
    spring.holds(6).await;
}

/// By the clock of a host that is slow, an id is of a month that has been archived.
#[tokio::test]
async fn what_comes_to_an_archived_month_before_it_is_detached_keeps_it() {
    let spring = Spring::new().await;
    let month = month_of_calls(&spring).await;
    let (url, ask) = (spring.database().owner_url.clone(), spring.ask("2040-05"));
    let run = tokio::spawn(async move { archive(&url, &ask, &mut EndsWhenRecorded).await });
    assert!(run.await.unwrap_err().is_panic());
    let slow = spring.worker.reserve_bulk("slow", "5").await.expect(201);
    spring.worker.call(&slow, "a", "2").await.expect(201);
    for _ in 0..600 {
        match spring.try_archive(&spring.ask("2040-05")).await {
            Err(ArchiveError::UnderWay) => tokio::time::sleep(Duration::from_millis(50)).await,
            said => {
                let reason = format!("{month}: stays, since reservation {} of northstar is active", slow.id());
                assert!(said.as_ref().unwrap().contains(&reason), "{said:#?}");
                break;
            }
        }
    }
    spring.worker.settle_call(&slow, "a", "1").await.expect(200);
    spring.worker.finish(&slow).await.expect(200);
    let error = spring.try_archive(&spring.ask("2040-05")).await.unwrap_err();
    assert!(
        matches!(&error, ArchiveError::NotAsArchived { found: 2, recorded: 1, left: Left::InPlace, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("archive it again"), "{error}");
    assert!(stretches_of_calls(&spring).await.contains(&month));
    assert_eq!(spring.worker.calls_of(&slow).await.len(), 1);
    spring.holds(6).await;

    forget(&spring, &month).await;
    let file = spring.file(&format!("{month}.csv"));
    std::fs::rename(&file, spring.file("first.csv")).unwrap();
    spring.archive("2040-05").await;
    assert!(!stretches_of_calls(&spring).await.contains(&month));
    let checked = check(&spring.database().owner_url, &file, |_| {}).await.unwrap();
    assert_eq!((checked.rows, checked.differences), (2, 0));
    spring.holds(6).await;
}

#[tokio::test]
async fn what_comes_while_a_month_is_detached_brings_it_back() {
    let spring = Spring::new().await;
    let month = month_of_calls(&spring).await;
    let mut writer = spring.database().connect().await;
    writer
        .execute(
            "begin;
             insert into call
             select (late).* from (select jsonb_populate_record(c, '{\"key\": \"late\"}') as late from call c) c",
        )
        .await
        .unwrap();
    let (url, ask) = (spring.database().owner_url.clone(), spring.ask("2040-05"));
    let run = tokio::spawn(async move {
        let mut said = super::Lines::default();
        archive(&url, &ask, &mut said).await
    });
    let pending = "select name from stretches('call') where detaching";
    for _ in 0..600 {
        if !spring.database().lines(pending).await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(spring.database().lines(pending).await, std::slice::from_ref(&month));
    writer.execute("commit").await.unwrap();
    let error = run.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ArchiveError::NotAsArchived { found: 2, recorded: 1, left: Left::InPlace, .. }),
        "{error:?}"
    );
    assert!(spring.database().lines(pending).await.is_empty());
    assert_eq!(spring.months_of("call").await, std::slice::from_ref(&month));
    is_whole(spring.database()).await;
    // Without that row, it is what was archived.
    writer.execute("delete from call where key = 'late'").await.unwrap();
    spring.archive("2040-05").await;
    assert!(spring.months_of("call").await.is_empty());
    spring.holds(6).await;
}

#[tokio::test]
async fn time_that_was_taken_out_has_a_place_without_a_lock_on_the_table() {
    let spring = Spring::new().await;
    let database = spring.database();
    spring.archive("2040-04").await;
    database.execute("alter table journal_entry detach partition journal_entry_2040_04").await;
    let mut user = database.connect().await;
    user.execute("begin; lock table journal_entry in row exclusive mode").await.unwrap();
    database.execute("set lock_timeout = '200ms'; select cover_what_is_earlier('journal_entry')").await;
    user.execute("rollback").await.unwrap();
    is_whole(database).await;
    let earlier = "select name from stretches('journal_entry') where is_of_what_is_earlier('journal_entry', name)";
    let names = database.lines(earlier).await;
    assert_eq!(names.first().unwrap(), "journal_entry_earlier");
    assert_eq!(names.last().unwrap(), "journal_entry_earlier_through_2040_04");
    // Neither is archived, and rows of a wrong clock are told of.
    let stray = "insert into journal_entry select * from journal_entry_2040_04 limit 1";
    database.execute(stray).await;
    let said = spring.try_archive(&spring.ask("2040-05")).await.unwrap();
    let told =
        "journal_entry_earlier_through_2040_04: 1 rows were written by a clock that had been set back; they stay";
    assert!(said.contains(&told.to_owned()), "{said:#?}");
    database.execute("set session_replication_role = replica; delete from journal_entry_earlier_through_2040_04").await;
    // When a month is opened, which takes the table for a moment, they become one.
    database.set_clock("2040-06-01T12:00:00Z").await;
    assert_eq!(spring.service.ledger.open_months().await.unwrap()[0].obstacle, None);
    assert_eq!(database.lines(earlier).await, ["journal_entry_earlier"]);
    is_whole(database).await;
}
