//! The audit log: who changed what outside the journal.

use chrono::{DateTime, Utc};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::database::run;
use super::{Context, Error, Ledger};

/// One line of the audit log.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// Its id.
    pub id: Uuid,
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// Who did it.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// What changed.
    pub detail: serde_json::Value,
}

/// What is to be written down, in the transaction that does it.
pub(super) struct Said<'a> {
    pub action: &'a str,
    pub subject: &'a str,
    pub detail: &'a serde_json::Value,
}

impl Said<'_> {
    pub(super) async fn write(
        &self,
        transaction: &mut Transaction<'_, Postgres>,
        actor: &str,
    ) -> Result<(), sqlx::Error> {
        sqlx::query!(
            "insert into audit_entry (id, at, actor, action, subject, detail)
             values ($1, ledger_clock(), $2, $3, $4, $5)",
            Uuid::now_v7(),
            actor,
            self.action,
            self.subject,
            self.detail
        )
        .execute(&mut **transaction)
        .await?;
        Ok(())
    }
}

impl Ledger {
    /// The audit log, newest first, from before this entry.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn audit(&self, context: &Context, before: Option<Uuid>, limit: i64) -> Result<Vec<AuditEntry>, Error> {
        run!(self.database, context, |connection| {
            sqlx::query_as!(
                AuditEntry,
                "select id, at, actor, action, subject, detail
                 from audit_entry
                 where $1::uuid is null or id < $1
                 order by id desc
                 limit $2",
                before,
                limit
            )
            .fetch_all(&mut *connection)
            .await
        })
    }
}
