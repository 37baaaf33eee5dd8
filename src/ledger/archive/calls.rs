//! A month of calls: into a file, once every reservation of that month has ended. A
//! reservation that has ended admits no more calls, and the books need no old ones.

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use super::file::{MonthFile, line};
use super::{ArchiveError, Ask, Session, Stretch, Watcher, begin_reading, connect, record};

const COLUMNS: [&str; 11] = [
    "account",
    "reservation_id",
    "key",
    "id",
    "attempt_number",
    "state",
    "units",
    "actual",
    "provider_request_id",
    "admitted_at",
    "ended_at",
];

/// How many reservations are named that are in the way.
const NAMED: usize = 10;

/// Whether a reservation of that time may still have calls, and which.
pub(super) async fn has_open_reservations(
    connection: &mut PgConnection,
    stretch: &Stretch,
    watcher: &mut impl Watcher,
) -> Result<bool, sqlx::Error> {
    let open: Vec<(Uuid, String, String)> = sqlx::query_as(
        "select id, account, state
         from reservation
         where id >= coalesce(first_id_of($1), '00000000-0000-0000-0000-000000000000') and id < first_id_of($2)
           and enforcement = 'calls' and closed_at is null
         order by id
         limit 11",
    )
    .bind(stretch.starts_at)
    .bind(stretch.ends_at)
    .fetch_all(connection)
    .await?;
    for (id, account, state) in open.iter().take(NAMED) {
        watcher.say(&format!("{}: stays, since reservation {id} of {account} is {state}", stretch.name));
    }
    if open.len() > NAMED {
        watcher.say(&format!("{}: and others", stretch.name));
    }
    Ok(!open.is_empty())
}

impl Session {
    /// Writes the month to its file and records it, unless a reservation of that time
    /// is open in what is read: what is in the file never changes. No lock is needed
    /// for that, and there must be none: every end of a call would wait for it. Answers
    /// whether it was archived.
    pub(super) async fn archive_calls(
        &mut self,
        stretch: &Stretch,
        ask: &Ask,
        watcher: &mut impl Watcher,
    ) -> Result<bool, ArchiveError> {
        let mut reader = connect(&self.url).await?;
        let mut reading = begin_reading(&mut reader).await?;
        if has_open_reservations(&mut reading, stretch, watcher).await? {
            return Ok(false);
        }
        let mut file = MonthFile::create(&ask.to, &stretch.file(), &COLUMNS)?;
        let query = format!(
            r#"select array[account, reservation_id::text, key, id::text, attempt_number::text, state,
                            trim_scale(units)::text, trim_scale(actual)::text, provider_request_id,
                            to_char(admitted_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                            to_char(ended_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')]
               from {}
               order by account collate "C", reservation_id, key collate "C""#,
            stretch.name
        );
        let mut calls = sqlx::query_scalar::<_, Vec<Option<String>>>(AssertSqlSafe(query)).fetch(&mut *reading);
        while let Some(fields) = calls.try_next().await? {
            file.row(&line(fields.iter().map(Option::as_deref)))?;
            watcher.row();
        }
        drop(calls);
        let written = file.finish()?;
        watcher.say(&format!("{}: {} calls are in {}", stretch.name, written.rows, written.path.display()));
        let mut writing = self.connection.begin().await?;
        record(&mut writing, "call", stretch, &written, None, ask).await?;
        writing.commit().await?;
        reading.commit().await?;
        reader.close().await?;
        watcher.say(&format!("{}: archived", stretch.name));
        Ok(true)
    }
}
