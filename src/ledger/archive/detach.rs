//! Taking an archived month out of its table, and making sure that it went whole.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use super::{ArchiveError, Ask, Left, Session, Watcher, code_of, file};

/// After how long it is said that others are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A month that has been recorded, and is a table of its own.
#[derive(Debug, sqlx::FromRow)]
struct Recorded {
    stretch: String,
    file: String,
    sha256: Vec<u8>,
    /// Whether its time has another place by now.
    covered: bool,
}

impl Session {
    /// Ends what an interrupted run began: what it was detaching, and what came of
    /// that. Its time has a place again after that, not before.
    pub(super) async fn finish_what_was_begun(
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
    pub(super) async fn detach(
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
    pub(super) async fn must_have_gone_whole(&mut self, stretch: &str, covered: bool) -> Result<(), ArchiveError> {
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
    pub(super) async fn cover_what_is_earlier(
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
    pub(super) async fn after_detaching(
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
}
