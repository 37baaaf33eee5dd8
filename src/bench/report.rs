//! What a run has found, in words: ratios first, absolute figures second.

#![expect(clippy::float_arithmetic, reason = "figures for people; no amount is among them")]

use std::fmt::Write as _;

use super::figures::{Measured, Series, median, to_f64};
use super::findings::Findings;
use super::ratios::{Ratio, Target};

/// The whole report.
pub(super) fn text(findings: &Findings) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = write!(text, "{}{}{}{}", ratios(findings), figures(findings), ground(findings), books(findings));
    text
}

fn ratios(findings: &Findings) -> String {
    let mut text = String::new();
    if findings.ratios.is_empty() {
        return text;
    }
    let judged = findings.ratios.iter().filter(|ratio| ratio.target.is_some());
    let count = |met| judged.clone().filter(|ratio| ratio.met == met).count();
    let (met, missed, unknown) = (count(Some(true)), count(Some(false)), count(None));
    let _ = writeln!(text, "Ratios: {met} met, {missed} missed, {unknown} not measured\n");
    if findings.options.quick {
        text.push_str("A quick run: it shows that everything works, and little else. The targets are not for it.\n\n");
    }
    let _ = writeln!(text, "{:<8} {:>12} {:>12}  {:<20} what", "", "measured", "target", "rounds");
    for ratio in &findings.ratios {
        let _ = writeln!(
            text,
            "{:<8} {:>12} {:>12}  {:<20} {}",
            verdict(ratio),
            ratio.measured.map_or_else(|| "-".to_owned(), |measured| number(measured, ratio.unit)),
            ratio.target.map_or_else(|| "-".to_owned(), |target| wanted(target, ratio.unit)),
            ratio.spread.map_or_else(String::new, |(low, high)| format!("{} to {}", figure(low), figure(high))),
            ratio.what
        );
        if let Some(note) = &ratio.note {
            let _ = writeln!(text, "{:<57}({note})", "");
        }
    }
    text.push('\n');
    text
}

fn verdict(ratio: &Ratio) -> &'static str {
    match (ratio.target, ratio.measured, ratio.met) {
        (_, _, Some(true)) => "met",
        (_, _, Some(false)) => "MISSED",
        (Some(_), None, None) => "unknown",
        _ => "",
    }
}

/// What a ratio should be, as it is written.
pub(super) fn wanted(target: Target, unit: Option<&str>) -> String {
    match target {
        Target::AtLeast(least) => format!(">= {}", number(least, unit)),
        Target::AtMost(most) => format!("<= {}", number(most, unit)),
    }
}

/// A figure with its unit; a ratio has none.
pub(super) fn number(value: f64, unit: Option<&str>) -> String {
    match unit {
        Some("bytes") => format!("{} B", figure(value)),
        Some(unit) => format!("{} {unit}", figure(value)),
        None => format!("{}x", figure(value)),
    }
}

/// As many digits as mean something.
fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn figures(findings: &Findings) -> String {
    let mut text = String::new();
    let options = &findings.options;
    let _ = writeln!(
        text,
        "Absolute figures: the middle of {} rounds of {} s. A request is one reservation, call or settlement.\n",
        options.rounds, options.seconds
    );
    let width = findings.series.iter().map(|series| series.name.len()).max().unwrap_or(0).max(17);
    let _ = writeln!(
        text,
        "{:<width$} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6} {:>6}",
        "",
        "requests",
        "cycles",
        "p50",
        "p95",
        "p99",
        "p99.9",
        "group",
        "statem.",
        "WAL B",
        "service",
        "resid.",
        "load",
        ""
    );
    let _ = writeln!(
        text,
        "{:<width$} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6} {:>6}",
        "workload",
        "/s",
        "/s",
        "ms",
        "ms",
        "ms",
        "ms",
        "size",
        "/request",
        "/request",
        "cores",
        "MB",
        "cores",
        "failed"
    );
    for series in &findings.series {
        let _ = writeln!(text, "{}", line(series, width));
    }
    if let Some(empty) = &findings.generator {
        let _ = writeln!(
            text,
            "\nThe load generator drives an empty handler at {:.0} requests per second (p50 {} ms) and takes {} of a \
             core for it.",
            empty.requests_per_second,
            millis(to_f64(empty.latency_us.p50)),
            empty.cost.generator_cores.map_or_else(|| "an unknown part".to_owned(), figure)
        );
    }
    for series in findings.series.iter().filter(|series| series.failed() > 0) {
        let error = series.rounds.iter().find_map(|round| round.first_error.as_deref()).unwrap_or("?");
        let _ = writeln!(text, "{}: {} requests failed, the first with: {error}", series.name, series.failed());
    }
    text
}

fn line(series: &Series, width: usize) -> String {
    let middle = |of: &dyn Fn(&Measured) -> Option<f64>| series.middle(of);
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    let latency =
        |of: fn(&Measured) -> u64| middle(&|round| Some(to_f64(of(round)))).map_or_else(|| "-".to_owned(), millis);
    let resident = middle(&|round| round.cost.service_resident_kib.map(to_f64)).map(|kib| kib * 1024.0 / 1_000_000.0);
    format!(
        "{:<width$} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6} {:>6}",
        series.name,
        shown(middle(&|round| Some(round.requests_per_second))),
        shown(middle(&|round| Some(round.cycles_per_second))),
        latency(|round| round.latency_us.p50),
        latency(|round| round.latency_us.p95),
        latency(|round| round.latency_us.p99),
        latency(|round| round.latency_us.p999),
        shown(middle(&|round| median(round.cost.decisions_per_statement.values().copied()))),
        shown(middle(&|round| round.cost.statements_per_operation)),
        shown(middle(&|round| round.cost.wal_bytes_per_operation)),
        shown(middle(&|round| round.cost.service_cores)),
        shown(resident),
        shown(middle(&|round| round.cost.generator_cores)),
        series.failed()
    )
}

fn millis(micros: f64) -> String {
    figure(micros / 1000.0)
}

fn ground(findings: &Findings) -> String {
    let mut text = String::new();
    let facts = &findings.facts;
    let _ = writeln!(
        text,
        "\nspend-ledger {} on {} cores{}{}",
        facts.program,
        facts.cores,
        facts.processor.as_ref().map(|name| format!(" ({name})")).unwrap_or_default(),
        facts.system.as_ref().map(|name| format!(", {name}")).unwrap_or_default()
    );
    if let Some(postgres) = &facts.postgres {
        let settings: Vec<String> = postgres.settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let _ = writeln!(text, "Postgres {}: {}", postgres.version, settings.join(", "));
        if let Some(commit) = postgres.commit_us {
            let (p50, p99) = (millis(to_f64(commit.p50)), millis(to_f64(commit.p99)));
            let _ = writeln!(text, "one small commit on one connection: p50 {p50} ms, p99 {p99} ms");
        }
    }
    for warning in &facts.warnings {
        let _ = writeln!(text, "Note: {warning}");
    }
    text
}

fn books(findings: &Findings) -> String {
    let total = |of: fn(&super::arena::Books) -> u64| findings.books.iter().map(of).sum::<u64>();
    match findings.books.len() {
        0 => String::new(),
        databases => format!(
            "The books of {databases} databases hold: {} reservations, {} journal entries.\n",
            total(|books| books.reservations),
            total(|books| books.entries)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_says_whether_it_is_met() {
        let ratio = |rounds| Ratio::new("x", "x", Some(Target::AtLeast(6.0)), rounds);
        assert_eq!(verdict(&ratio(vec![6.5])), "met");
        assert_eq!(verdict(&ratio(vec![5.5])), "MISSED");
        assert_eq!(verdict(&ratio(vec![])), "unknown");
        assert_eq!(verdict(&Ratio::new("x", "x", None, vec![1.0])), "");
    }

    #[test]
    fn figures_have_as_many_digits_as_mean_something() {
        assert_eq!(
            (figure(1234.5), figure(12.34), figure(0.456)),
            ("1234".to_owned(), "12.3".to_owned(), "0.46".to_owned())
        );
        assert_eq!(wanted(Target::AtMost(120.0), Some("MB")), "<= 120 MB");
        assert_eq!(number(6.0, None), "6.00x");
    }
}
