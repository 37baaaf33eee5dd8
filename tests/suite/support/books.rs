//! The books as the database has them, read past the service.

use spend_ledger::ledger::verify::verify;
use sqlx::Row as _;

use super::server::TestDatabase;

/// Everything that accounts for units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Books {
    /// One line for each period: `account budget member: limit available
    /// reserved liability settled`, in the order of opening.
    pub periods: Vec<String>,
    /// One line for each journal entry: `budget entry_no event source>target
    /// amount`, in the order of periods and entry numbers.
    pub journal: Vec<String>,
    /// One line for each reservation: `key state version ceiling settled
    /// reserved liability`, by key.
    pub reservations: Vec<String>,
}

impl Books {
    /// Reads them, after verifying that they hold.
    pub async fn read(database: &TestDatabase) -> Self {
        let mut differences = Vec::new();
        verify(&database.owner_url, |difference| differences.push(difference.to_owned())).await.unwrap();
        assert!(differences.is_empty(), "the books do not hold:\n{}", differences.join("\n"));
        Self {
            periods: lines(
                database,
                "select format('%s %s %s: %s %s %s %s %s', account, budget, member, trim_scale(limit_units),
                               trim_scale(available), trim_scale(reserved), trim_scale(liability),
                               trim_scale(settled))
                 from budget_period order by account = '', account, budget, member, ordinal",
            )
            .await,
            journal: lines(
                database,
                "select format('%s %s %s %s>%s %s', p.budget, e.entry_no, e.event, e.source, e.target,
                               trim_scale(e.amount))
                 from journal_entry e join budget_period p on p.account = e.account and p.id = e.period_id
                 order by p.account = '', p.account, p.budget, p.member, p.ordinal, e.entry_no",
            )
            .await,
            reservations: lines(
                database,
                "select format('%s %s %s %s %s %s %s', idempotency_key, state, version, trim_scale(ceiling),
                               trim_scale(settled), trim_scale(reserved), trim_scale(liability))
                 from reservation order by account, idempotency_key",
            )
            .await,
        }
    }

    /// `event source>target amount` of each journal line after the opening of the
    /// periods.
    pub fn moves(&self) -> Vec<&str> {
        let moves = self.journal.iter().filter_map(|line| line.splitn(3, ' ').nth(2));
        moves.filter(|line| !line.starts_with("period_opened ")).collect()
    }

    /// Journal lines of one event.
    pub fn entries_of(&self, event: &str) -> Vec<&str> {
        let wanted = format!(" {event} ");
        self.journal.iter().map(String::as_str).filter(|line| line.contains(&wanted)).collect()
    }
}

async fn lines(database: &TestDatabase, query: &'static str) -> Vec<String> {
    let rows = sqlx::query(query).fetch_all(&mut database.connect().await).await.unwrap();
    rows.into_iter().map(|row| row.get(0)).collect()
}
