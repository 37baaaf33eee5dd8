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
mod file;
mod journal;
mod record;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use super::months;
use super::schema::MIGRATION_LOCK;

pub use check::{Checked, check};
pub use file::FileError;

/// For how long a month must have passed: no statement of the service that has read
/// the clock before its end is under way any more.
const MARGIN: TimeDelta = TimeDelta::hours(1);
/// After how long it is said that others are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// Why it does not go on. What was done before stays done.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database said no, or cannot be reached.
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    /// A file cannot be written or read, or is another one.
    #[error(transparent)]
    File(#[from] FileError),
    /// The months that were asked for have not all passed.
    #[error(
        "the months before {asked} have not all passed, and for an hour, by the database's clock ({now}): \
         only what has wholly passed can be archived"
    )]
    NotPassed {
        /// The first month that is to stay.
        asked: String,
        /// The database's clock.
        now: String,
    },
    /// Only who owns the tables can take months out of them.
    #[error("the user {user} does not own the ledger's tables: archive as the owner of the schema")]
    NotOwner {
        /// Who is connected.
        user: String,
    },
    /// Another one is at work.
    #[error("another archive or migration of this database is under way")]
    UnderWay,
    /// The journal of a month is not as it must be.
    #[error("{0} differences in {1}: nothing of it was archived; see `spend-ledger verify`")]
    Differences(u64, String),
    /// A stretch is being detached that was never archived.
    #[error("{0} is being detached, and not by this program: finalize that first")]
    NotOurs(String),
    /// A table is not what was archived.
    #[error("{stretch} has {found} rows, and {recorded} were archived: {left}")]
    NotAsArchived {
        /// The table.
        stretch: String,
        /// How many it has.
        found: i64,
        /// How many its file has.
        recorded: i64,
        /// Where that leaves it.
        left: Left,
    },
    /// The file has a name that no archived month has.
    #[error("{0}: no month was archived under this name")]
    NotArchived(String),
}

/// Where a table is left that is not what was archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Among the others, as if it had not been archived.
    InPlace,
    /// By itself, since its time has another place by now.
    Apart,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => {
                "rows have come since, by a clock that is wrong. It stays in use: set the clock right, forget that \
                 month's record as the README says under Archiving, and archive it again"
            }
            Self::Apart => "it was left as it is, a table of its own: see what is not in its file before it is dropped",
        })
    }
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

/// A month that has been recorded, and is a table of its own.
#[derive(Debug, sqlx::FromRow)]
struct Recorded {
    stretch: String,
    file: String,
    sha256: Vec<u8>,
    /// Whether its time has another place by now.
    covered: bool,
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

    /// Ends what an interrupted run began: what it was detaching, and what came of
    /// that. Its time has a place again after that, not before.
    async fn finish_what_was_begun(
        &mut self,
        table: &'static str,
        watcher: &mut impl Watcher,
    ) -> Result<(), ArchiveError> {
        for stretch in self.stretches(table).await?.into_iter().filter(|stretch| stretch.detaching) {
            let name = stretch.name;
            if self.recorded_rows(&name).await?.is_none() {
                return Err(ArchiveError::NotOurs(name));
            }
            self.detach(table, &name, "finalize", watcher).await?;
        }
        for recorded in self.detached(table).await?.into_iter().filter(|recorded| !recorded.covered) {
            self.must_have_gone_whole(&recorded.stretch, false).await?;
        }
        self.cover_what_is_earlier(table, watcher).await
    }

    /// Detaches a stretch, as soon as nobody is left who has begun to read the table
    /// with it. Meanwhile nobody waits for this.
    async fn detach(
        &mut self,
        table: &str,
        stretch: &str,
        how: &str,
        watcher: &mut impl Watcher,
    ) -> Result<(), ArchiveError> {
        let statement = format!("alter table {table} detach partition {stretch} {how}");
        let mut detaching = self.connection.execute(AssertSqlSafe(statement));
        match tokio::time::timeout(PATIENCE, &mut detaching).await {
            Ok(done) => done?,
            Err(_) => {
                watcher
                    .say(&format!("{stretch}: waits for transactions that use {table}, such as a backup or a verify"));
                detaching.await?
            }
        };
        watcher.say(&format!("{stretch}: detached"));
        Ok(())
    }

    /// Refuses a detached stretch that has other rows than its file, and makes it a
    /// part of its table again, unless its time has another place by now.
    async fn must_have_gone_whole(&mut self, stretch: &str, covered: bool) -> Result<(), ArchiveError> {
        let Some((found, recorded)) = self.differs(stretch).await? else { return Ok(()) };
        let mut left = Left::Apart;
        if !covered {
            let query = "select attach_stretch(of_table, stretch, coalesce(starts_at, '-infinity'), ends_at)
                         from archived_month
                         where stretch = $1";
            sqlx::query(query).bind(stretch).execute(&mut self.connection).await?;
            left = Left::InPlace;
        }
        Err(ArchiveError::NotAsArchived { stretch: stretch.to_owned(), found, recorded, left })
    }

    /// Gives the time of what was taken out a place. Nobody waits for that, but it may
    /// have to wait for others; and nothing but a clock that is months behind needs
    /// the place, so the next run can do it as well.
    async fn cover_what_is_earlier(
        &mut self,
        table: &'static str,
        watcher: &mut impl Watcher,
    ) -> Result<(), ArchiveError> {
        let mut transaction = self.connection.begin().await?;
        transaction.execute("set local lock_timeout = '10s'").await?;
        let covered = sqlx::query("select cover_what_is_earlier($1)").bind(table).execute(&mut *transaction).await;
        match covered {
            Ok(_) => transaction.commit().await?,
            Err(error) if code_of(&error).as_deref() == Some("55P03") => {
                transaction.rollback().await?;
                watcher.say(&format!(
                    "{table}: the time of what was taken out has no place yet, since {table} is being maintained; the \
                     next run makes it"
                ));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Drops what has been detached, or says how. What is dropped has just been seen
    /// in its file.
    async fn after_detaching(
        &mut self,
        table: &str,
        ask: &Ask,
        watcher: &mut impl Watcher,
    ) -> Result<(), ArchiveError> {
        for Recorded { stretch, file, sha256, covered } in self.detached(table).await? {
            self.must_have_gone_whole(&stretch, covered).await?;
            if ask.drop {
                file::must_be(&ask.to.join(file), &sha256)?;
                self.connection.execute(AssertSqlSafe(format!("drop table {stretch}"))).await?;
                watcher.say(&format!("{stretch}: dropped"));
            } else {
                watcher.say(&format!(
                    "{stretch}: is a table of its own now. When its file is safe: drop table {stretch};"
                ));
            }
        }
        Ok(())
    }

    /// What has been detached and is still there.
    async fn detached(&mut self, table: &str) -> Result<Vec<Recorded>, ArchiveError> {
        let query = "select m.stretch, m.file, m.sha256,
                            exists (select
                                    from stretches(m.of_table) s
                                    where s.starts_at < m.ends_at
                                      and s.ends_at > coalesce(m.starts_at, '-infinity')) as covered
                     from archived_month m
                     join pg_class c on c.oid = to_regclass(m.stretch) and not c.relispartition
                     where m.of_table = $1
                     order by m.month";
        Ok(sqlx::query_as(query).bind(table).fetch_all(&mut self.connection).await?)
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
