//! Give back to the newest period of a `carry_forward` budget what earlier
//! periods no longer hold.

use serde::Deserialize;

use super::database::run;
use super::{Context, Error, Ledger};

/// The name of a budget of one account or member, or of a pool: empty for "all
/// accounts" and "the whole account".
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct BudgetOf {
    /// The account, or empty for a pool.
    pub account: String,
    /// The budget's or the pool's name.
    pub budget: String,
    /// The member, or empty.
    pub member: String,
}

impl Ledger {
    /// Brings the carried amount down. Answers whether anything was given back.
    pub(super) async fn give_back(&self, context: &Context, budget: &BudgetOf) -> Result<bool, Error> {
        Ok(run!(self.database, context, |connection| {
            sqlx::query_file_scalar!(
                "src/ledger/carry.sql",
                budget.account,
                budget.budget,
                budget.member,
                context.actor
            )
            .fetch_one(&mut *connection)
            .await
        })? > 0)
    }
}
