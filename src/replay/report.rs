//! The summary as text: tables whose columns line up.

use std::collections::BTreeMap;
use std::fmt;

use super::summary::{Latency, Stopped, Summary};
use crate::model::Units;

type Line = Vec<String>;

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = match self.stopped {
            None => "",
            Some(Stopped::Interrupted) => ", interrupted",
            Some(Stopped::TooManyFailures) => ", stopped: too many rows in a row failed",
        };
        let seconds = self.elapsed_ms / 1000;
        let tenths = self.elapsed_ms % 1000 / 100;
        writeln!(f, "run {} took {seconds}.{tenths} s{stopped}\n", self.run)?;
        table(f, &self.row_lines())?;
        if let Some(error) = &self.first_error {
            writeln!(f, "  first error: {error}")?;
        }
        writeln!(f)?;
        table(f, &self.token_lines())?;
        writeln!(f)?;
        table(f, &self.request_lines())?;
        writeln!(f)?;
        if self.latency.reserve.is_some() {
            table(f, &self.latency_lines())?;
            writeln!(f)?;
        }
        match &self.books_error {
            Some(error) => writeln!(f, "books of {}: unknown ({error})", self.account),
            None => table(f, &self.book_lines()),
        }
    }
}

impl Summary {
    fn row_lines(&self) -> Vec<Line> {
        let mut lines = vec![
            pair("rows", self.rows),
            pair("  admitted", self.admitted),
            pair("    replayed answers", self.replayed),
            pair("  settled", self.settled),
            pair("    before this run", self.settled_before),
        ];
        tallied(&mut lines, "  refused", &self.refused);
        tallied(&mut lines, "  conflicts", &self.conflicts);
        lines.push(pair("  failed", self.failed));
        if self.left_in_flight > 0 {
            lines.push(pair("  left in flight", self.left_in_flight));
        }
        lines.push(pair("extended", self.extended));
        tallied(&mut lines, "extensions refused", &self.extensions_refused);
        lines
    }

    fn token_lines(&self) -> Vec<Line> {
        let tokens = &self.tokens;
        let mut lines = vec![
            pair("tokens in the trace", tokens.in_trace),
            pair("  estimated", tokens.estimated),
            pair("  settled", tokens.settled),
            pair("  overrun", tokens.overrun),
        ];
        if let Some(ratio) = tokens.settled_to_estimated {
            lines.push(pair("  settled / estimated", ratio));
        }
        lines
    }

    fn request_lines(&self) -> Vec<Line> {
        vec![
            pair("requests", self.requests),
            pair("  repeated on trouble", self.repeated),
            pair("  answers lost", self.answers_lost),
            pair("  per second", self.requests_per_second),
        ]
    }

    fn latency_lines(&self) -> Vec<Line> {
        let mut lines = vec![words(&["latency in ms", "p50", "p95", "p99", "max", "count"])];
        let kinds =
            [("  reserve", self.latency.reserve), ("  extend", self.latency.extend), ("  settle", self.latency.settle)];
        for (name, latency) in kinds {
            if let Some(Latency { count, p50_us, p95_us, p99_us, max_us }) = latency {
                let mut line = vec![name.to_owned()];
                line.extend([p50_us, p95_us, p99_us, max_us].map(millis));
                line.push(count.to_string());
                lines.push(line);
            }
        }
        lines
    }

    fn book_lines(&self) -> Vec<Line> {
        let title = format!("books of {}", self.account);
        let mut lines = vec![words(&[&title, "limit", "available", "reserved", "liability", "settled", "unit"])];
        for book in &self.books {
            let member = book.member.as_ref().map(|member| format!(" of {member}"));
            let mut line = vec![format!("  {}{}", book.budget, member.unwrap_or_default())];
            let amounts: [Units; 5] = [book.limit, book.available, book.reserved, book.liability, book.settled];
            line.extend(amounts.map(|amount| amount.to_string()));
            line.push(book.unit.clone());
            lines.push(line);
        }
        lines
    }
}

fn words(texts: &[&str]) -> Line {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn pair(name: &str, value: impl ToString) -> Line {
    vec![name.to_owned(), value.to_string()]
}

/// A sum, and under it what it is the sum of.
fn tallied(lines: &mut Vec<Line>, name: &str, counts: &BTreeMap<String, u64>) {
    lines.push(pair(name, counts.values().sum::<u64>()));
    let indent = " ".repeat(name.len() - name.trim_start().len() + 2);
    lines.extend(counts.iter().map(|(code, count)| pair(&format!("{indent}{code}"), count)));
}

fn millis(micros: u64) -> String {
    format!("{}.{}", micros / 1000, micros % 1000 / 100)
}

/// The first column to the left, the others to the right, each as wide as it needs.
fn table(f: &mut fmt::Formatter<'_>, lines: &[Line]) -> fmt::Result {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    // One width of the first column for every table, so that they line up with each other.
    let first = width(0).max(26);
    for line in lines {
        for (column, cell) in line.iter().enumerate() {
            match column {
                0 => write!(f, "{cell:<first$}")?,
                _ => write!(f, "  {cell:>size$}", size = width(column).max(8))?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::summary::{Book, Latency};
    use super::*;

    #[test]
    fn columns_line_up() {
        let units = |text: &str| Units::parse(text).unwrap();
        let mut summary = Summary {
            run: "monday".to_owned(),
            account: "northstar".to_owned(),
            rows: 12,
            elapsed_ms: 1_940,
            ..Summary::default()
        };
        summary.refused.insert("budget_exhausted".to_owned(), 3);
        summary.latency.reserve =
            Some(Latency { count: 12, p50_us: 1_250, p95_us: 9_999, p99_us: 20_000, max_us: 45_678 });
        summary.books.push(Book {
            budget: "tokens".to_owned(),
            member: None,
            unit: "token".to_owned(),
            limit: units("1000000000"),
            available: units("999"),
            reserved: units("0"),
            liability: units("0.5"),
            settled: units("1"),
        });
        let text = summary.to_string();
        let lines = |from: &str, count: usize| {
            let rest = text.split_once(from).map(|(_, rest)| format!("{from}{rest}")).unwrap();
            rest.lines().take(count).map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(text.starts_with("run monday took 1.9 s\n"));
        assert_eq!(
            lines("  refused", 2),
            ["  refused                          3", "    budget_exhausted               3"]
        );
        assert_eq!(
            lines("latency", 2),
            [
                "latency in ms                    p50       p95       p99       max     count",
                "  reserve                        1.2       9.9      20.0      45.6        12",
            ]
        );
        assert_eq!(
            lines("books", 2),
            [
                "books of northstar               limit  available  reserved  liability   settled      unit",
                "  tokens                    1000000000        999         0        0.5         1     token",
            ]
        );
    }
}
