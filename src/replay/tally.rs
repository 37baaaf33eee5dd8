//! Counts while a run goes.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use serde::Deserialize;
use spend_ledger_client::wire::Exchange;

use super::ReplayError;
use super::summary::{Book, Latencies, Latency, Summary};
use super::worker::{End, Kind, RowReport, told};
use crate::model::Units;

/// The slowest answer that is told apart: ten minutes, in microseconds.
const SLOWEST_US: u64 = 600_000_000;

/// A summary in the making.
pub(super) struct Tally {
    pub(super) summary: Summary,
    /// Rows that were given up on since the service last decided one.
    pub(super) failed_in_a_row: u64,
    reserve: Histogram<u64>,
    extend: Histogram<u64>,
    settle: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(run: &str, account: &str) -> Result<Self, CreationError> {
        let histogram = || Histogram::new_with_bounds(1, SLOWEST_US, 3);
        Ok(Self {
            summary: Summary { run: run.to_owned(), account: account.to_owned(), ..Summary::default() },
            failed_in_a_row: 0,
            reserve: histogram()?,
            extend: histogram()?,
            settle: histogram()?,
        })
    }

    /// A row begins.
    pub(super) fn begin(&mut self, actual: u64) -> Result<(), ReplayError> {
        self.summary.rows += 1;
        let actual = Units::parse(&actual.to_string()).map_err(ReplayError::Sum)?;
        add(&mut self.summary.tokens.in_trace, actual)
    }

    /// A row has ended.
    pub(super) fn record(&mut self, report: RowReport) -> Result<(), ReplayError> {
        self.requests(&report);
        let summary = &mut self.summary;
        if let Some(admission) = &report.admission {
            summary.admitted += 1;
            summary.replayed += u64::from(admission.replayed);
            add(&mut summary.tokens.estimated, admission.estimate)?;
        }
        match report.extension {
            None => {}
            Some(Ok(())) => summary.extended += 1,
            Some(Err(code)) => count(&mut summary.extensions_refused, code),
        }
        if !matches!(report.end, End::Failed(_)) {
            self.failed_in_a_row = 0;
        }
        match report.end {
            End::Settled { settled, overrun, before } => {
                summary.settled += 1;
                summary.settled_before += u64::from(before);
                add(&mut summary.tokens.settled, settled)?;
                add(&mut summary.tokens.overrun, overrun)?;
            }
            End::Refused(code) => count(&mut summary.refused, code),
            End::Conflict(code) => count(&mut summary.conflicts, code),
            End::NotTokens { .. } => {}
            End::Failed(error) => self.fail(&format!("row {}: {error}", report.row)),
        }
        Ok(())
    }

    /// A row was given up on.
    pub(super) fn fail(&mut self, error: &str) {
        self.failed_in_a_row += 1;
        self.summary.failed += 1;
        self.summary.first_error.get_or_insert_with(|| error.to_owned());
    }

    fn requests(&mut self, report: &RowReport) {
        for exchange in &report.exchanges {
            self.summary.requests += exchange.tries;
            self.summary.answers_lost += exchange.lost;
            self.summary.repeated += exchange.tries.saturating_sub(exchange.lost + 1);
            let histogram = match exchange.kind {
                Kind::Reserve => &mut self.reserve,
                Kind::Extend => &mut self.extend,
                Kind::Settle => &mut self.settle,
                Kind::Books => continue,
            };
            if let Some(micros) = exchange.micros {
                histogram.saturating_record(micros);
            }
        }
    }

    /// The summary of all that was counted in this time.
    pub(super) fn finish(self, elapsed: Duration, books: Option<Exchange>) -> Summary {
        let mut summary = self.summary;
        summary.elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let per_second = summary.requests.saturating_mul(1000).checked_div(summary.elapsed_ms);
        summary.requests_per_second = per_second.unwrap_or(summary.requests);
        summary.latency = Latencies {
            reserve: percentiles(&self.reserve),
            extend: percentiles(&self.extend),
            settle: percentiles(&self.settle),
        };
        let tokens = &mut summary.tokens;
        let ratio = tokens.settled.get().checked_div(tokens.estimated.get());
        tokens.settled_to_estimated = ratio.and_then(|ratio| Units::from_decimal(ratio.round_dp(4)).ok());
        match read_books(books) {
            Ok(books) => summary.books = books,
            Err(error) => summary.books_error = Some(error),
        }
        summary
    }
}

fn read_books(exchange: Option<Exchange>) -> Result<Vec<Book>, String> {
    #[derive(Deserialize)]
    struct Page {
        items: Vec<Book>,
    }
    let answer = exchange.ok_or("interrupted")?.outcome?;
    if !answer.is_success() {
        return Err(told(Kind::Books, &answer));
    }
    let page: Result<Page, _> = serde_json::from_slice(&answer.body);
    page.map(|page| page.items).map_err(|error| format!("the answer is no list of budgets: {error}"))
}

fn percentiles(histogram: &Histogram<u64>) -> Option<Latency> {
    (!histogram.is_empty()).then(|| Latency {
        count: histogram.len(),
        p50_us: histogram.value_at_quantile(0.50),
        p95_us: histogram.value_at_quantile(0.95),
        p99_us: histogram.value_at_quantile(0.99),
        max_us: histogram.max(),
    })
}

fn add(total: &mut Units, more: Units) -> Result<(), ReplayError> {
    *total = total.checked_add(more).map_err(ReplayError::Sum)?;
    Ok(())
}

fn count(counts: &mut BTreeMap<String, u64>, code: String) {
    *counts.entry(code).or_default() += 1;
}
