//! What a run did, in the shape that `--json` prints. Its text is in `report`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::model::Units;

/// What a run did. Its text is [`std::fmt::Display`], its JSON is this shape.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// The name of the run: given again, it repeats the same jobs.
    pub run: String,
    /// The account that was charged.
    pub account: String,
    /// Why it ended before the trace did.
    pub stopped: Option<Stopped>,
    /// Rows that were begun.
    pub rows: u64,
    /// Rows that were admitted, now or by an earlier run of the same name.
    pub admitted: u64,
    /// Admitted rows whose answer was that of an earlier copy of the request.
    pub replayed: u64,
    /// Rows that ended settled.
    pub settled: u64,
    /// Settled rows that an earlier run of the same name had settled.
    pub settled_before: u64,
    /// Rows that were not admitted, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Rows whose reservation's state did not allow them to go on, by reason.
    pub conflicts: BTreeMap<String, u64>,
    /// Rows that were given up on.
    pub failed: u64,
    /// What went wrong with the first of them.
    pub first_error: Option<String>,
    /// Rows that a second Ctrl-C left in flight.
    pub left_in_flight: u64,
    /// Rows that asked for more and got it.
    pub extended: u64,
    /// Rows that asked for more and did not, by reason.
    pub extensions_refused: BTreeMap<String, u64>,
    /// Tokens.
    pub tokens: Tokens,
    /// Requests, repeats included.
    pub requests: u64,
    /// Requests sent again because the service did not answer or had trouble.
    pub repeated: u64,
    /// Answers that were lost on purpose.
    pub answers_lost: u64,
    /// From the first row to the last answer.
    pub elapsed_ms: u64,
    /// Over all of that time.
    pub requests_per_second: u64,
    /// Of the tries that were answered, by kind of request.
    pub latency: Latencies,
    /// The account's budgets at the end.
    pub books: Vec<Book>,
    /// Why there are none.
    pub books_error: Option<String>,
}

/// Sums of tokens.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tokens {
    /// Prompt and generated, of the rows that were begun, as the file has them.
    pub in_trace: Units,
    /// Estimates of the rows that were admitted.
    pub estimated: Units,
    /// What the service acknowledged as settled.
    pub settled: Units,
    /// The part of it that was above a ceiling.
    pub overrun: Units,
    /// Settled divided by estimated, to 4 decimals.
    pub settled_to_estimated: Option<Units>,
}

/// Why a run ended before its trace did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// So many rows in a row failed that the next ones would as well.
    TooManyFailures,
}

/// Latencies by kind of request; none where there was no such request.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Latencies {
    /// Of reservations, admitted or refused.
    pub reserve: Option<Latency>,
    /// Of extensions.
    pub extend: Option<Latency>,
    /// Of settlements.
    pub settle: Option<Latency>,
}

/// Percentiles, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Half were no slower.
    pub p50_us: u64,
    /// 95 of 100 were no slower.
    pub p95_us: u64,
    /// 99 of 100 were no slower.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
}

/// One budget of the account, as the service tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Book {
    /// The budget.
    pub budget: String,
    /// The member it is for, if it is one member's.
    pub member: Option<String>,
    /// What it counts.
    pub unit: String,
    /// What is granted for the period.
    pub limit: Units,
    /// What may still be reserved.
    pub available: Units,
    /// Held by jobs that run.
    pub reserved: Units,
    /// Held although it is not known.
    pub liability: Units,
    /// Used.
    pub settled: Units,
}

impl Summary {
    /// Whether no row was given up on. Refusals are no failures.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.left_in_flight == 0
    }

    /// Writes the summary as text or as one line of JSON.
    ///
    /// # Errors
    ///
    /// What writing says.
    pub fn print(&self, json: bool, to: &mut impl Write) -> io::Result<()> {
        if json {
            serde_json::to_writer(&mut *to, self)?;
            writeln!(to)
        } else {
            write!(to, "{self}")
        }
    }
}
