//! What is counted and how it is shown: Prometheus metrics and logs.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::model::Name;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOperation {
    operation: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCode {
    code: &'static str,
    observed: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByVerb {
    verb: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRoute {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: String,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpenAt {
    account: String,
    budget: String,
    unit: String,
    why: &'static str,
}

/// What one budget holds for one reason.
pub(crate) struct Open {
    /// Empty for a pool.
    pub account: String,
    pub budget: String,
    pub unit: String,
    pub why: &'static str,
    /// Metrics are floats; the exact amount is in the list of liabilities.
    pub units: f64,
}

/// Everything that the service counts. Labels are bounded: accounts, budgets,
/// operations and codes come from the policy and from the program, routes are
/// patterns.
pub struct Metrics {
    registry: Registry,
    admissions: Family<ByOperation, Counter>,
    refusals: Family<ByCode, Counter>,
    refusals_not_recorded: Counter,
    statements_retried: Family<ByReason, Counter>,
    statements: Family<ByVerb, Counter>,
    decisions: Family<ByVerb, Counter>,
    requests: Family<ByRoute, Counter>,
    durations: Family<Route, Histogram>,
    open_units: Family<OpenAt, Gauge<f64, AtomicU64>>,
    late_usage: Gauge,
    /// Held while the gauges are set anew or read.
    shown: Mutex<()>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("spend_ledger");
        let admissions = Family::default();
        registry.register("admissions", "Reservations admitted, by operation", admissions.clone());
        let refusals = Family::default();
        registry.register(
            "refusals",
            "Requests refused, by reason; observed=true: only would have been",
            refusals.clone(),
        );
        let refusals_not_recorded = Counter::default();
        registry.register(
            "refusals_not_recorded",
            "Refusals that were counted but could not be written down",
            refusals_not_recorded.clone(),
        );
        let statements_retried = Family::default();
        registry.register("statements_retried", "Statements sent again, by reason", statements_retried.clone());
        let statements = Family::default();
        registry.register("statements", "Deciding statements that were answered, by verb", statements.clone());
        let decisions = Family::default();
        registry.register(
            "decisions",
            "Requests that those statements have decided, by verb: many in one statement under load",
            decisions.clone(),
        );
        let requests = Family::default();
        registry.register("http_requests", "HTTP requests answered", requests.clone());
        let durations: Family<Route, Histogram> = Family::new_with_constructor(|| {
            Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0])
        });
        registry.register("http_request_duration_seconds", "Time to the answer", durations.clone());
        let open_units = Family::default();
        registry.register(
            "open_units",
            "Units that stay charged and need somebody, by budget (account empty: a pool) and reason",
            open_units.clone(),
        );
        let late_usage = Gauge::default();
        registry.register(
            "late_usage_reports",
            "Reports of usage that came too late to be charged",
            late_usage.clone(),
        );
        Self {
            registry,
            admissions,
            refusals,
            refusals_not_recorded,
            statements_retried,
            statements,
            decisions,
            requests,
            durations,
            open_units,
            late_usage,
            shown: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Counters at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn admitted(&self, operation: &Name) {
        self.admissions.get_or_create(&ByOperation { operation: operation.to_string() }).inc();
    }

    pub(crate) fn refused(&self, code: &'static str, observed: bool) {
        let observed = if observed { "true" } else { "false" };
        self.refusals.get_or_create(&ByCode { code, observed }).inc();
    }

    pub(crate) fn refusal_not_recorded(&self, how_many: usize) {
        self.refusals_not_recorded.inc_by(u64::try_from(how_many).unwrap_or(u64::MAX));
    }

    pub(crate) fn statement_retried(&self, reason: &'static str) {
        self.statements_retried.get_or_create(&ByReason { reason }).inc();
    }

    pub(crate) fn decided(&self, verb: &'static str, items: usize) {
        self.statements.get_or_create(&ByVerb { verb }).inc();
        self.decisions.get_or_create(&ByVerb { verb }).inc_by(u64::try_from(items).unwrap_or(u64::MAX));
    }

    pub(crate) fn answered(&self, method: &str, route: &str, status: u16, elapsed: Duration) {
        let (method, route) = (method.to_owned(), route.to_owned());
        self.requests.get_or_create(&ByRoute { method: method.clone(), route: route.clone(), status }).inc();
        self.durations.get_or_create(&Route { method, route }).observe(elapsed.as_secs_f64());
    }

    /// Shows what is open as it is now.
    pub(crate) fn show_open(&self, open: Vec<Open>, late_usage: i64) {
        let _shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.open_units.clear();
        for Open { account, budget, unit, why, units } in open {
            self.open_units.get_or_create(&OpenAt { account, budget, unit, why }).set(units);
        }
        self.late_usage.set(late_usage);
    }

    /// All of it in the Prometheus text format.
    #[must_use]
    pub fn text(&self) -> String {
        let _shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends log lines to stderr. `RUST_LOG` narrows or widens what is logged.
pub fn log_to_stderr(format: LogFormat) {
    use std::io::IsTerminal as _;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,sqlx::query=error,refinery_core=warn"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
}
