//! What a run has found, as a picture: throughput as bars on a logarithmic scale, and
//! latencies as lines over their percentiles.

#![expect(clippy::float_arithmetic, reason = "coordinates")]

use std::fmt::Write as _;

use super::figures::{Series, to_f64};
use super::findings::Findings;
use super::report::{number, wanted};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
/// Where bars and lines begin: left of it are the names.
const LEFT: f64 = 300.0;
const RIGHT: f64 = WIDTH - 90.0;
const ROW: f64 = 18.0;
const LINES: f64 = 280.0;
/// Colours that also people tell apart who see few.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#444444"];
/// As many lines as can be told apart.
const MOST_LINES: usize = COLOURS.len();

/// Where a value is between two others on a logarithmic scale, from 0 to 1.
fn log_place(value: f64, low: f64, high: f64) -> f64 {
    let (value, low) = (value.max(low).ln(), low.ln());
    let span = high.ln() - low;
    if span > 0.0 { ((value - low) / span).clamp(0.0, 1.0) } else { 0.0 }
}

/// The powers of ten around some values: at least one decade.
fn decades(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let sane = values.filter(|value| value.is_finite() && *value > 0.0);
    let low = sane.clone().fold(f64::INFINITY, f64::min);
    let high = sane.fold(0.0, f64::max);
    if low > high {
        return (1.0, 10.0);
    }
    let low = 10_f64.powf(low.log10().floor());
    let high = 10_f64.powf(high.log10().ceil());
    (low, if high > low { high } else { low * 10.0 })
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// A picture that grows downwards.
struct Drawing {
    body: String,
    y: f64,
}

impl Drawing {
    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" class="{class}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    fn bar(&mut self, y: f64, width: f64, colour: &str) {
        let height = ROW - 5.0;
        let _ = writeln!(
            self.body,
            r#"<rect x="{LEFT:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        );
    }

    fn heading(&mut self, text: &str) {
        self.y += 36.0;
        self.text(MARGIN, self.y, "heading", "start", text);
        self.y += 14.0;
    }
}

/// The whole picture.
pub(super) fn svg(findings: &Findings) -> String {
    let mut drawing = Drawing { body: String::new(), y: 0.0 };
    ratios(&mut drawing, findings);
    throughput(&mut drawing, findings);
    latencies(&mut drawing, findings);
    let height = drawing.y + MARGIN;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0} {height:.0}" font-family="sans-serif" font-size="11">
<style>.heading{{font-size:15px;font-weight:bold}}.axis{{stroke:#ddd}}.small{{fill:#555}}.missed{{fill:#b00020;font-weight:bold}}.met{{fill:#00693e;font-weight:bold}}</style>
<rect width="100%" height="100%" fill="#fff"/>
{}</svg>
"##,
        drawing.body
    )
}

fn ratios(drawing: &mut Drawing, findings: &Findings) {
    if findings.ratios.is_empty() {
        return;
    }
    drawing.heading("Ratios");
    for ratio in &findings.ratios {
        drawing.y += ROW;
        let measured = ratio.measured.map_or_else(|| "-".to_owned(), |measured| number(measured, ratio.unit));
        let target = ratio.target.map_or_else(String::new, |target| wanted(target, ratio.unit));
        let class = match ratio.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "small",
        };
        drawing.text(MARGIN + 60.0, drawing.y, class, "end", &measured);
        drawing.text(MARGIN + 70.0, drawing.y, "small", "start", &target);
        drawing.text(MARGIN + 150.0, drawing.y, "small", "start", &ratio.what);
    }
}

fn throughput(drawing: &mut Drawing, findings: &Findings) {
    let rate = |series: &Series| series.middle(|round| Some(round.requests_per_second)).unwrap_or(0.0);
    let shown: Vec<(&Series, f64)> =
        findings.series.iter().map(|series| (series, rate(series))).filter(|(_, rate)| *rate > 0.0).collect();
    drawing.heading("Requests per second (logarithmic)");
    let (low, high) = decades(shown.iter().map(|(_, rate)| *rate));
    let top = drawing.y;
    let bottom = top + ROW * to_f64(u64::try_from(shown.len()).unwrap_or(0)) + 6.0;
    let mut decade = low;
    while decade <= high {
        let x = LEFT + (RIGHT - LEFT) * log_place(decade, low, high);
        drawing.line((x, top), (x, bottom), "axis");
        drawing.text(x, bottom + 12.0, "small", "middle", &format!("{decade}"));
        decade *= 10.0;
    }
    for (series, rate) in shown {
        let width = (RIGHT - LEFT) * log_place(rate, low, high);
        let colour = match series.grouping.map(super::service::Grouping::as_str) {
            Some("on") => "#0072b2",
            Some(_) => "#d55e00",
            None => "#777777",
        };
        drawing.bar(drawing.y + 3.0, width, colour);
        let baseline = drawing.y + ROW - 5.0;
        drawing.text(LEFT - 8.0, baseline, "", "end", &series.name);
        drawing.text(LEFT + width + 5.0, baseline, "small", "start", &format!("{rate:.0}"));
        drawing.y += ROW;
    }
    drawing.y = bottom + 14.0;
}

/// The latencies of the series with the most clients that most others are about: of
/// everything, no line could be told from the next.
fn latencies(drawing: &mut Drawing, findings: &Findings) {
    let judged = findings.options.clients.iter().copied().find(|clients| *clients == 64);
    let judged = judged.or_else(|| findings.options.clients.last().copied()).unwrap_or(1);
    let shown: Vec<&Series> =
        findings.series.iter().filter(|series| series.clients == judged).take(MOST_LINES).collect();
    drawing.heading(&format!("Latency in milliseconds, {judged} clients (logarithmic)"));
    let lines: Vec<[f64; 4]> = shown.iter().map(|series| quantiles(series)).collect();
    let (low, high) = decades(lines.iter().flatten().copied());
    let (top, bottom) = (drawing.y + 6.0, drawing.y + 6.0 + LINES);
    let across = |at: usize| 70.0 + (WIDTH - 430.0) * to_f64(u64::try_from(at).unwrap_or(0)) / 3.0;
    let down = |value: f64| bottom - LINES * log_place(value, low, high);
    let mut decade = low;
    while decade <= high {
        drawing.line((across(0), down(decade)), (across(3), down(decade)), "axis");
        drawing.text(across(0) - 8.0, down(decade) + 4.0, "small", "end", &format!("{decade}"));
        decade *= 10.0;
    }
    for (at, name) in ["p50", "p95", "p99", "p99.9"].into_iter().enumerate() {
        drawing.text(across(at), bottom + 16.0, "small", "middle", name);
    }
    let mut label = top + 8.0;
    for ((series, line), colour) in shown.iter().zip(&lines).zip(COLOURS) {
        let points: Vec<String> =
            line.iter().enumerate().map(|(at, value)| format!("{:.1},{:.1}", across(at), down(*value))).collect();
        let _ = writeln!(
            drawing.body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            points.join(" ")
        );
        let x = across(3) + 20.0;
        let _ = writeln!(
            drawing.body,
            r#"<rect x="{x:.1}" y="{:.1}" width="10" height="10" fill="{colour}"/>"#,
            label - 9.0
        );
        drawing.text(x + 16.0, label, "", "start", &series.name);
        label += ROW;
    }
    drawing.y = bottom + 24.0;
}

/// The middle of the rounds, in milliseconds.
fn quantiles(series: &Series) -> [f64; 4] {
    let of = |figure: fn(&super::figures::Latency) -> u64| {
        series.middle(|round| Some(to_f64(figure(&round.latency_us)) / 1000.0)).unwrap_or(0.0)
    };
    [of(|latency| latency.p50), of(|latency| latency.p95), of(|latency| latency.p99), of(|latency| latency.p999)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of a document whose every tag is closed in order and whose text and
    /// attributes hold no mark that is not escaped.
    fn elements(svg: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        for part in svg.trim().split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("a tag ends");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            for entity in text.split('&').chain(tag.split('&')).skip(1).filter(|rest| *rest != tag) {
                let known = ["amp;", "lt;", "gt;", "quot;"].iter().any(|name| entity.starts_with(name));
                assert!(known, "&{entity}");
            }
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
                continue;
            }
            let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            seen.push(name);
        }
        assert!(open.is_empty(), "{open:?} are never closed");
        seen
    }

    #[test]
    fn the_picture_is_well_formed() {
        let findings = Findings::example();
        let picture = elements(&svg(&findings));
        let count = |name: &str| picture.iter().filter(|element| *element == name).count();
        assert_eq!(picture[0], "svg");
        // A ground, a bar and a legend for each series; a line of latencies for each.
        assert_eq!((count("rect"), count("polyline")), (5, 2));
        let nothing = Findings { ratios: Vec::new(), series: Vec::new(), ..findings };
        assert_eq!(elements(&svg(&nothing))[0], "svg");
    }

    #[test]
    fn scales_are_whole_decades() {
        assert_eq!(decades([3.0, 250.0].into_iter()), (1.0, 1000.0));
        assert_eq!(decades([10.0].into_iter()), (10.0, 100.0));
        assert_eq!(decades([0.0, f64::NAN].into_iter()), (1.0, 10.0));
        assert!((log_place(10.0, 1.0, 100.0) - 0.5).abs() < 1e-9);
        assert_eq!((log_place(0.0, 1.0, 100.0), log_place(1e9, 1.0, 100.0)), (0.0, 1.0));
    }
}
