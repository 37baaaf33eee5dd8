//! A month of the journal: into a file, and what is left of it.

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use super::file::{MonthFile, line};
use super::record::{COLUMNS, Thread, entries_of};
use super::{ArchiveError, Ask, Session, Stretch, Watcher, begin_reading, connect, record};

/// An entry as it is written.
#[derive(sqlx::FromRow)]
struct Written {
    period_id: Uuid,
    fields: Vec<Option<String>>,
}

impl Session {
    /// Writes the month to its file, checking on the way that it follows what is
    /// archived, and records it with its checkpoints.
    pub(super) async fn archive_journal(
        &mut self,
        stretch: &Stretch,
        ask: &Ask,
        watcher: &mut impl Watcher,
    ) -> Result<(), ArchiveError> {
        let mut reader = connect(&self.url).await?;
        let mut reading = begin_reading(&mut reader).await?;
        // Whoever is still writing to this month is waited for, for a while. Others do
        // not wait for this: an entry locks the month that it goes to, and no other.
        let lock = format!("set local lock_timeout = '10s'; lock table {} in share mode", stretch.name);
        reading.execute(AssertSqlSafe(lock)).await?;
        let mut writing = self.connection.begin().await?;
        let mut file = MonthFile::create(&ask.to, &stretch.file(), &COLUMNS)?;
        let periods = write_all(&mut reading, &mut writing, stretch, &mut file, watcher).await?;
        // Nobody writes to it any more: what had passed stays as it was read.
        keep_sums(&mut writing, stretch).await?;
        let written = file.finish()?;
        watcher.say(&format!("{}: {} entries are in {}", stretch.name, written.rows, written.path.display()));
        record(&mut writing, "journal_entry", stretch, &written, Some(periods), ask).await?;
        writing.commit().await?;
        reading.commit().await?;
        reader.close().await?;
        watcher.say(&format!("{}: archived, with checkpoints of {periods} periods", stretch.name));
        Ok(())
    }
}

/// Streams the entries to the file, and a checkpoint for each period to the database.
/// Answers how many periods there were.
async fn write_all(
    reading: &mut PgConnection,
    writing: &mut PgConnection,
    stretch: &Stretch,
    file: &mut MonthFile,
    watcher: &mut impl Watcher,
) -> Result<i64, ArchiveError> {
    let month = stretch.month();
    let mut differences = Vec::new();
    let mut periods = 0;
    let mut current: Option<Thread> = None;
    let query = entries_of(&stretch.name);
    let mut entries = sqlx::query_as::<_, Written>(AssertSqlSafe(query)).fetch(reading);
    while let Some(Written { period_id, fields }) = entries.try_next().await? {
        let fields: Vec<Option<&str>> = fields.iter().map(Option::as_deref).collect();
        let account = fields.first().copied().flatten().unwrap_or_default();
        let mut say = |difference: String| differences.push(difference);
        let mut thread = match current.take() {
            Some(thread) if thread.period == period_id && thread.account == account => thread,
            before => {
                if let Some(done) = before {
                    keep(writing, &done, month).await?;
                }
                periods += 1;
                match Thread::pick_up(writing, account, period_id, month, &mut say).await? {
                    Some(thread) => thread,
                    None => {
                        watcher.say(&format!("entries of period {period_id}, which does not exist"));
                        return Err(ArchiveError::Differences(1, stretch.name.clone()));
                    }
                }
            }
        };
        let text = line(fields.iter().copied());
        thread.add(&fields, &text, &mut say);
        if !differences.is_empty() {
            differences.iter().for_each(|difference| watcher.say(difference));
            let count = u64::try_from(differences.len()).unwrap_or(u64::MAX);
            return Err(ArchiveError::Differences(count, stretch.name.clone()));
        }
        file.row(&text)?;
        watcher.row();
        current = Some(thread);
    }
    if let Some(done) = current {
        keep(writing, &done, month).await?;
    }
    Ok(periods)
}

/// Keeps a period's checkpoint.
async fn keep(writing: &mut PgConnection, thread: &Thread, month: chrono::NaiveDate) -> Result<(), sqlx::Error> {
    let Thread { account, period, chain, head } = thread;
    sqlx::query(
        "insert into journal_checkpoint (account, period_id, month, entry_no, at, available, reserved, liability,
                                         settled, granted, limit_units, carried, head)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    )
    .bind(account)
    .bind(period)
    .bind(month)
    .bind(chain.entry_no)
    .bind(chain.at)
    .bind(chain.balance("available"))
    .bind(chain.balance("reserved"))
    .bind(chain.balance("liability"))
    .bind(chain.balance("settled"))
    .bind(chain.balance("granted"))
    .bind(chain.balance("limit"))
    .bind(chain.balance("carried"))
    .bind(head.as_slice())
    .execute(writing)
    .await?;
    Ok(())
}

/// Keeps what the month's entries come to for each reservation that had not ended by
/// its end: whoever asks later, it is the same.
async fn keep_sums(writing: &mut PgConnection, stretch: &Stretch) -> Result<(), sqlx::Error> {
    let query = format!(
        "insert into reservation_checkpoint (account, reservation_id, period_id, month, settled, reserved, liability)
         select e.reservation_account, e.reservation_id, e.period_id, $1,
                sum(case 'settled' when e.target then e.amount when e.source then -e.amount else 0 end),
                sum(case 'reserved' when e.target then e.amount when e.source then -e.amount else 0 end),
                sum(case 'liability' when e.target then e.amount when e.source then -e.amount else 0 end)
         from {} e
         join reservation r on r.account = e.reservation_account and r.id = e.reservation_id
         where (r.closed_at is null or r.closed_at >= $2) and e.event <> 'adjustment'
         group by 1, 2, 3",
        stretch.name
    );
    sqlx::query(AssertSqlSafe(query)).bind(stretch.month()).bind(stretch.ends_at).execute(writing).await?;
    Ok(())
}
