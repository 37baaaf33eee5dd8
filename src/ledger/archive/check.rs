//! Proves a file against what was recorded when it was written: every byte by its
//! SHA-256, and every entry of the journal by the chains that the checkpoints end.

use std::fs::File;
use std::path::Path;

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

use super::file::{FileError, Hashing, hash, line};
use super::record::{COLUMNS, Thread, checkpoint};
use super::{ArchiveError, connect, stretch_of};

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Rows of the file.
    pub rows: u64,
    /// Budget periods, if it is of the journal.
    pub periods: u64,
    /// Things that are not as they must be.
    pub differences: u64,
}

#[derive(sqlx::FromRow)]
struct Recorded {
    of_table: String,
    month: NaiveDate,
    row_count: i64,
    periods: Option<i64>,
    sha256: Vec<u8>,
}

/// Checks a file; `report` is told each difference as a sentence.
///
/// # Errors
///
/// The file cannot be read, or no month was archived under its name; the database.
pub async fn check(url: &str, path: &Path, mut report: impl FnMut(&str)) -> Result<Checked, ArchiveError> {
    let mut connection = connect(url).await?;
    let query = "select of_table, month, row_count, periods, sha256 from archived_month where stretch = $1";
    let recorded: Option<Recorded> =
        sqlx::query_as(query).bind(stretch_of(path)).fetch_optional(&mut connection).await?;
    let recorded = recorded.ok_or_else(|| ArchiveError::NotArchived(path.display().to_string()))?;
    let mut differences = 0;
    let mut say = |difference: String| {
        differences += 1;
        report(&difference);
    };
    let mut checked = Checked::default();
    let sha256 = if recorded.of_table == "journal_entry" {
        check_journal(&mut connection, path, recorded.month, &mut checked, &mut say).await?
    } else {
        checked.rows = u64::try_from(recorded.row_count).unwrap_or(0);
        hash(path)?
    };
    let file = path.display();
    if sha256.as_slice() != recorded.sha256 {
        say(format!("{file}: its SHA-256 is not the one of the file that was written"));
    }
    if i64::try_from(checked.rows) != Ok(recorded.row_count) {
        say(format!("{file}: has {} rows, {} were written", checked.rows, recorded.row_count));
    }
    if recorded.periods.is_some_and(|periods| i64::try_from(checked.periods) != Ok(periods)) {
        let periods = recorded.periods.unwrap_or_default();
        say(format!("{file}: has entries of {} periods, {periods} were written", checked.periods));
    }
    checked.differences = differences;
    Ok(checked)
}

async fn check_journal(
    connection: &mut PgConnection,
    path: &Path,
    month: NaiveDate,
    checked: &mut Checked,
    say: &mut impl FnMut(String),
) -> Result<[u8; 32], ArchiveError> {
    let file = Hashing::new(File::open(path).map_err(FileError::system(path))?);
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(file);
    if !reader.headers().map_err(|error| FileError::text(path, error))?.iter().eq(COLUMNS) {
        say(format!("{}: its first line does not name the columns of the journal", path.display()));
    }
    let mut current: Option<Thread> = None;
    let mut row = csv::StringRecord::new();
    while reader.read_record(&mut row).map_err(|error| FileError::text(path, error))? {
        checked.rows += 1;
        let account = row.get(0).unwrap_or_default();
        let Some(period) = row.get(1).and_then(|period| period.parse::<Uuid>().ok()) else {
            say(format!("{}: row {} names no period", path.display(), checked.rows));
            continue;
        };
        let mut thread = match current.take() {
            Some(thread) if thread.period == period && thread.account == account => thread,
            before => {
                if let Some(done) = before {
                    finish(connection, &done, month, say).await?;
                }
                checked.periods += 1;
                match Thread::pick_up(connection, account, period, month, say).await? {
                    Some(thread) => thread,
                    None => {
                        say(format!("{}: row {} is of a period that does not exist", path.display(), checked.rows));
                        continue;
                    }
                }
            }
        };
        // What is absent was written as nothing.
        let fields: Vec<Option<&str>> = row.iter().map(Some).collect();
        thread.add(&fields, &line(fields.iter().copied()), say);
        current = Some(thread);
    }
    if let Some(done) = current {
        finish(connection, &done, month, say).await?;
    }
    Ok(reader.into_inner().finish())
}

/// Compares the end of a period's chain with its checkpoint.
async fn finish(
    connection: &mut PgConnection,
    thread: &Thread,
    month: NaiveDate,
    say: &mut impl FnMut(String),
) -> Result<(), sqlx::Error> {
    let (chain, place) = (&thread.chain, &thread.chain.place);
    let Some(stored) = checkpoint(connection, "month = $3", &thread.account, thread.period, month).await? else {
        say(format!("{place}: has no checkpoint for {}", month.format("%Y-%m")));
        return Ok(());
    };
    if stored.entry_no != chain.entry_no || Some(stored.at) != chain.at {
        say(format!("{place}: ends with entry {}, its checkpoint with entry {}", chain.entry_no, stored.entry_no));
    }
    chain.compare_all(&stored.stored(), "of its checkpoint is", say);
    if stored.head != thread.head {
        say(format!("{place}: its entries are not those that its checkpoint was made from"));
    }
    Ok(())
}
