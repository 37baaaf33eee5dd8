//! What Postgres and the service have counted, read before and after.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::BenchError;

/// What Postgres has counted so far. WAL and transaction ids are of the whole
/// server: nothing else may run on it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Postgres {
    /// Bytes of WAL.
    pub(super) wal_bytes: i64,
    /// Transactions that have ended in the database. Each session hands in its
    /// count about once a second.
    pub(super) transactions: i64,
    /// Transaction ids that were given out. A transaction gets one when it first
    /// writes: without one it has written nothing.
    pub(super) ids: i64,
}

/// Reads them.
pub(super) async fn postgres(connection: &mut PgConnection) -> Result<Postgres, BenchError> {
    let (wal_bytes, transactions, ids) = sqlx::query_as(
        "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
                (select xact_commit + xact_rollback from pg_stat_database where datname = current_database()),
                pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
    )
    .fetch_one(connection)
    .await?;
    Ok(Postgres { wal_bytes, transactions, ids })
}

/// What the service has counted so far: statements sent, and decisions made by them,
/// by verb. Empty where it counts neither.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) statements: BTreeMap<String, u64>,
    pub(super) decisions: BTreeMap<String, u64>,
}

impl Service {
    /// Reads the Prometheus text format.
    pub(super) fn parse(text: &str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            for (name, into) in [
                ("spend_ledger_statements_total{verb=\"", &mut read.statements),
                ("spend_ledger_decisions_total{verb=\"", &mut read.decisions),
            ] {
                if let Some(rest) = line.strip_prefix(name)
                    && let Some((verb, value)) = rest.split_once("\"} ")
                    && let Ok(value) = value.trim().parse()
                {
                    into.insert(verb.to_owned(), value);
                }
            }
        }
        read
    }

    /// What was counted since an earlier reading.
    pub(super) fn since(&self, before: &Self) -> Self {
        let since = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let grown = |(verb, value): (&String, &u64)| {
                (verb.clone(), value.saturating_sub(before.get(verb).copied().unwrap_or(0)))
            };
            now.iter().map(grown).collect()
        };
        Self {
            statements: since(&self.statements, &before.statements),
            decisions: since(&self.decisions, &before.decisions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counters_that_are_there() {
        let text = "# HELP x\nspend_ledger_statements_total{verb=\"reserve\"} 5\n\
                    spend_ledger_decisions_total{verb=\"reserve\"} 50\nspend_ledger_other_total 1\n";
        let before = Service::parse(text);
        assert_eq!(before.decisions["reserve"], 50);
        let after = Service::parse(&text.replace("} 5\n", "} 7\n"));
        assert_eq!(after.since(&before).statements["reserve"], 2);
        assert_eq!(Service::parse("").since(&before), Service::default());
    }
}
