//! Archive: write months that have passed to files and take them out of the tables
//! that grow, oldest first. What an archived month of the journal came to stays as a
//! checkpoint for each budget period, from which `verify` goes on.
//!
//! Each step can be repeated, and none relies on the one before it having been
//! acknowledged: the file is complete before it has its name; checkpoints and the
//! record of the month are one transaction; only a recorded month is detached; only
//! a detached table whose file has just been read is dropped. Until it is detached,
//! what is recorded is passed over where it still is. What came to a month after it
//! was written is seen by the count of its rows, before it is detached and after: the
//! month stays then, or comes back.

mod calls;
mod check;
mod detach;
mod error;
mod file;
mod journal;
mod record;

use std::path::{Path, PathBuf};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use super::months;
use super::schema::MIGRATION_LOCK;

pub use check::{Checked, check};
pub use error::{ArchiveError, Left};
pub use file::FileError;

/// For how long a month must have passed: no statement of the service that has read
/// the clock before its end is under way any more.
const MARGIN: TimeDelta = TimeDelta::hours(1);

/// What is to be archived.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The first instant that is not.
    pub before: DateTime<Utc>,
    /// The directory of the files.
    pub to: PathBuf,
    /// Whether to drop what has been detached.
    pub drop: bool,
    /// Whether to say only what would be done.
    pub dry_run: bool,
    /// Who is written down as having done it.
    pub actor: String,
}

/// Whoever watches a long piece of work.
pub trait Watcher {
    /// A step that has been taken, or what stands against it.
    fn say(&mut self, line: &str);
    /// One more row has been written.
    fn row(&mut self);
}

/// A stretch of time of a table.
#[derive(Debug, Clone, sqlx::FromRow)]
struct Stretch {
    name: String,
    /// None: from the beginning.
    starts_at: Option<DateTime<Utc>>,
    /// None: to the end.
    ends_at: Option<DateTime<Utc>>,
    detaching: bool,
}

impl Stretch {
    /// The last month that it has.
    fn month(&self) -> NaiveDate {
        use chrono::Datelike as _;
        let last = self.ends_at.unwrap_or(DateTime::<Utc>::MAX_UTC) - TimeDelta::microseconds(1);
        last.date_naive().with_day(1).unwrap_or(NaiveDate::MAX)
    }

    fn file(&self) -> String {
        format!("{}.csv", self.name)
    }

    /// Whether it stands for what has been taken out.
    fn is_of_what_is_earlier(&self, table: &str) -> bool {
        self.name.strip_prefix(table).is_some_and(|rest| rest.starts_with("_earlier"))
    }
}

/// The tables that are archived.
const TABLES: [&str; 2] = ["journal_entry", "call"];

/// A connection as the owner, with the right to go on for as long as it takes.
struct Session {
    url: String,
    connection: PgConnection,
}

/// Archives the months before a time.
///
/// # Errors
///
/// See [`ArchiveError`].
pub async fn archive(url: &str, ask: &Ask, watcher: &mut impl Watcher) -> Result<(), ArchiveError> {
    let mut session = Session::open(url).await?;
    session.must_have_passed(ask.before).await?;
    if !ask.dry_run {
        file::make_directory(&ask.to)?;
        months::open_all(&mut session.connection).await?;
    }
    for table in TABLES {
        if !ask.dry_run {
            session.finish_what_was_begun(table, watcher).await?;
        }
        session.archive_table(table, ask, watcher).await?;
        if !ask.dry_run {
            session.after_detaching(table, ask, watcher).await?;
        }
    }
    session.connection.close().await?;
    Ok(())
}

impl Session {
    async fn open(url: &str) -> Result<Self, ArchiveError> {
        let mut connection = connect(url).await?;
        let (user, owns): (String, bool) = sqlx::query_as(
            "select current_user::text, pg_has_role(c.relowner, 'usage')
             from pg_class c where c.oid = 'journal_entry'::regclass",
        )
        .fetch_one(&mut connection)
        .await?;
        if !owns {
            return Err(ArchiveError::NotOwner { user });
        }
        let alone: bool = sqlx::query_scalar("select pg_try_advisory_lock($1)")
            .bind(MIGRATION_LOCK)
            .fetch_one(&mut connection)
            .await?;
        if !alone {
            return Err(ArchiveError::UnderWay);
        }
        Ok(Self { url: url.to_owned(), connection })
    }

    async fn must_have_passed(&mut self, before: DateTime<Utc>) -> Result<(), ArchiveError> {
        let now: DateTime<Utc> = sqlx::query_scalar("select ledger_clock()").fetch_one(&mut self.connection).await?;
        if before + MARGIN > now {
            let text = |at: DateTime<Utc>, format: &str| at.format(format).to_string();
            return Err(ArchiveError::NotPassed { asked: text(before, "%Y-%m"), now: text(now, "%Y-%m-%dT%H:%M:%SZ") });
        }
        Ok(())
    }

    async fn stretches(&mut self, table: &str) -> Result<Vec<Stretch>, ArchiveError> {
        let query = "select name, nullif(starts_at, '-infinity') as starts_at, nullif(ends_at, 'infinity') as ends_at,
                            detaching
                     from stretches($1)";
        Ok(sqlx::query_as(query).bind(table).fetch_all(&mut self.connection).await?)
    }

    /// Archives the stretches of a table, oldest first.
    async fn archive_table(
        &mut self,
        table: &'static str,
        ask: &Ask,
        watcher: &mut impl Watcher,
    ) -> Result<(), ArchiveError> {
        for stretch in self.stretches(table).await? {
            if stretch.ends_at.is_none_or(|end| end > ask.before) {
                break;
            }
            if stretch.is_of_what_is_earlier(table) {
                self.tell_of_strays(&stretch, watcher).await?;
            } else if !self.archive_stretch(table, &stretch, ask, watcher).await? {
                break;
            }
        }
        Ok(())
    }

    /// Archives one stretch, as far as that has not been done. Answers whether the
    /// one after it may follow.
    async fn archive_stretch(
        &mut self,
        table: &'static str,
        stretch: &Stretch,
        ask: &Ask,
        watcher: &mut impl Watcher,
    ) -> Result<bool, ArchiveError> {
        let name = &stretch.name;
        if table == "call" && calls::has_open_reservations(&mut self.connection, stretch, watcher).await? {
            return Ok(false);
        }
        if self.recorded_rows(name).await?.is_some() {
            if ask.dry_run {
                watcher.say(&format!("{name}: is archived and would be detached"));
                return Ok(true);
            }
        } else if ask.dry_run {
            let rows: i64 = self.count(name).await?;
            watcher.say(&format!("{name}: {rows} rows would be written to {}", stretch.file()));
            return Ok(true);
        } else if table == "call" {
            if !self.archive_calls(stretch, ask, watcher).await?
                // Somebody may have begun a job of that time since, by another clock.
                || calls::has_open_reservations(&mut self.connection, stretch, watcher).await?
            {
                return Ok(false);
            }
        } else {
            self.archive_journal(stretch, ask, watcher).await?;
        }
        if let Some((found, recorded)) = self.differs(name).await? {
            return Err(ArchiveError::NotAsArchived { stretch: name.clone(), found, recorded, left: Left::InPlace });
        }
        self.detach(table, name, "concurrently", watcher).await?;
        self.must_have_gone_whole(name, false).await?;
        self.cover_what_is_earlier(table, watcher).await?;
        Ok(true)
    }

    async fn tell_of_strays(&mut self, stretch: &Stretch, watcher: &mut impl Watcher) -> Result<(), ArchiveError> {
        let rows = self.count(&stretch.name).await?;
        if rows > 0 {
            let name = &stretch.name;
            watcher.say(&format!("{name}: {rows} rows were written by a clock that had been set back; they stay"));
        }
        Ok(())
    }

    /// How many rows of this stretch were archived; none if it was not.
    async fn recorded_rows(&mut self, stretch: &str) -> Result<Option<i64>, ArchiveError> {
        let query = "select row_count from archived_month where stretch = $1";
        Ok(sqlx::query_scalar(query).bind(stretch).fetch_optional(&mut self.connection).await?)
    }

    /// How many rows a recorded stretch has and how many were archived, if these are
    /// not as many.
    async fn differs(&mut self, stretch: &str) -> Result<Option<(i64, i64)>, ArchiveError> {
        let recorded = self.recorded_rows(stretch).await?.unwrap_or_default();
        let found = self.count(stretch).await?;
        Ok((found != recorded).then_some((found, recorded)))
    }

    async fn count(&mut self, table: &str) -> Result<i64, ArchiveError> {
        let query = format!("select count(*) from {table}");
        Ok(sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut self.connection).await?)
    }
}

/// What is written down of a month, with what is left of it, in one transaction.
async fn record(
    transaction: &mut PgConnection,
    table: &str,
    stretch: &Stretch,
    written: &file::Written,
    periods: Option<i64>,
    ask: &Ask,
) -> Result<(), ArchiveError> {
    let rows = i64::try_from(written.rows).unwrap_or(i64::MAX);
    sqlx::query(
        "with m as (
             insert into archived_month
                 (of_table, month, stretch, starts_at, ends_at, row_count, periods, file, sha256, actor, at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, ledger_clock())
             returning *)
         insert into audit_entry (id, at, actor, action, subject, detail)
         select $11, m.at, m.actor, 'archive', m.stretch,
                jsonb_build_object('month', to_char(m.month, 'YYYY-MM'), 'rows', m.row_count, 'periods', m.periods,
                                   'file', m.file, 'sha256', encode(m.sha256, 'hex'))
         from m",
    )
    .bind(table)
    .bind(stretch.month())
    .bind(&stretch.name)
    .bind(stretch.starts_at)
    .bind(stretch.ends_at)
    .bind(rows)
    .bind(periods)
    .bind(stretch.file())
    .bind(written.sha256.as_slice())
    .bind(&ask.actor)
    .bind(Uuid::now_v7())
    .execute(transaction)
    .await?;
    Ok(())
}

/// A connection for work that takes as long as it takes.
async fn connect(url: &str) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    connection
        .execute(
            "set statement_timeout = 0; set lock_timeout = 0; set idle_in_transaction_session_timeout = 0;
             set default_transaction_isolation = 'read committed'; set timezone = 'UTC'",
        )
        .await?;
    Ok(connection)
}

/// Begins to read what is there now. Nothing is locked: whoever uses a table with
/// months waits for a lock on any one of them.
async fn begin_reading(connection: &mut PgConnection) -> Result<sqlx::Transaction<'_, sqlx::Postgres>, sqlx::Error> {
    connection.begin_with("begin isolation level repeatable read read only").await
}

fn code_of(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|error| error.code()).map(std::borrow::Cow::into_owned)
}

/// The file of a stretch without its ending.
fn stretch_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(".csv")
}
