//! What changes when one policy follows another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::words;
use crate::model::{Name, Policy};

/// What kind of definition it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// A paid service.
    Provider,
    /// A kind of work.
    Operation,
    /// A plan, apart from its budgets.
    Plan,
    /// A budget of a plan.
    Budget,
    /// A customer.
    Account,
    /// A limit shared by all accounts.
    Pool,
}

impl ItemKind {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Operation => "operation",
            Self::Plan => "plan",
            Self::Budget => "budget",
            Self::Account => "account",
            Self::Pool => "pool",
        }
    }
}

/// What happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It was not in force and is now.
    Added,
    /// It says something else than before.
    Changed,
    /// It is in force no more. History keeps its name.
    Retired,
}

impl Action {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Retired => "retired",
        }
    }
}

/// One definition that is not as it was.
///
/// Shown as one line: `changed budget standard/daily: limit 100 -> 250`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What it is.
    pub kind: ItemKind,
    /// Its name; of a plan's budget `plan/budget`.
    pub name: String,
    /// What happens to it.
    pub action: Action,
    /// What it said, in the words of the policy file; absent if it is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What it says now; absent if it is retired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// Everything that differs, by kind and then by name.
#[must_use]
pub fn compare(before: &Policy, after: &Policy) -> Vec<Change> {
    let (mut before, mut after) = (items(before), items(after));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    let mut changes = Vec::new();
    for key in keys {
        let (before, after) = (before.remove(&key), after.remove(&key));
        let action = match (&before, &after) {
            (None, _) => Action::Added,
            (_, None) => Action::Retired,
            (Some(before), Some(after)) if before == after => continue,
            _ => Action::Changed,
        };
        let name = match key.plan {
            Some(plan) => format!("{plan}/{}", key.name),
            None => key.name.to_string(),
        };
        changes.push(Change { kind: key.kind, name, action, before, after });
    }
    changes
}

/// Which definition it is. A budget's plan stands apart, because a name may
/// contain a slash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    kind: ItemKind,
    plan: Option<&'a Name>,
    name: &'a Name,
}

/// Every definition, in the words of the policy file.
fn items(policy: &Policy) -> BTreeMap<Key<'_>, Value> {
    let mut items = BTreeMap::new();
    let mut put = |kind, plan, name, words| items.insert(Key { kind, plan, name }, words);
    for (name, provider) in &policy.providers {
        put(ItemKind::Provider, None, name, words::provider(provider));
    }
    for (name, operation) in &policy.operations {
        put(ItemKind::Operation, None, name, words::operation(operation));
    }
    for (plan, definition) in &policy.plans {
        put(ItemKind::Plan, None, plan, words::plan(definition));
        for (name, budget) in &definition.budgets {
            put(ItemKind::Budget, Some(plan), name, words::budget(budget));
        }
    }
    for (name, account) in &policy.accounts {
        put(ItemKind::Account, None, name, words::account(account));
    }
    for (name, pool) in &policy.pools {
        put(ItemKind::Pool, None, name, words::budget(pool));
    }
    items
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.action.as_str(), self.kind.as_str(), self.name)?;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => {
                let fields = differences(before, after);
                write!(f, ": {}", fields.join(", "))
            }
            (None, Some(after)) => match summary(self.kind, after).as_slice() {
                [] => Ok(()),
                fields => write!(f, " ({})", fields.join(", ")),
            },
            _ => Ok(()),
        }
    }
}

/// What tells at a glance what was added.
fn summary(kind: ItemKind, words: &Value) -> Vec<String> {
    let told: &[&str] = match kind {
        ItemKind::Provider => &["unit", "enforcement"],
        ItemKind::Operation => &["provider", "max_units", "cost", "mode"],
        ItemKind::Plan => &["unbounded"],
        ItemKind::Budget | ItemKind::Pool => {
            &["unit", "limit", "period", "timezone", "per", "provider", "provider_key", "operation", "mode", "rollover"]
        }
        ItemKind::Account => &["plan", "limits"],
    };
    let mut lines = Vec::new();
    for field in told.iter().filter(|field| !is_the_usual(field, &words[**field])) {
        let mut fields = BTreeMap::new();
        flatten(field, &words[field], &mut fields);
        lines.extend(fields.iter().map(|(name, value)| format!("{name} {}", Shown(value))));
    }
    lines
}

/// Whether it goes without saying.
fn is_the_usual(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::String(word) => matches!((field, word.as_str()), ("mode", "enforce") | ("rollover", "original_period")),
        _ => false,
    }
}

/// The fields that differ, those of maps in maps with their path.
fn differences(before: &Value, after: &Value) -> Vec<String> {
    let [before, after] = [before, after].map(|value| {
        let mut fields = BTreeMap::new();
        flatten("", value, &mut fields);
        fields
    });
    let shown = |value: Option<&&Value>| value.map_or_else(|| "none".to_owned(), |value| Shown(value).to_string());
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let pairs = names.into_iter().map(|name| (name, before.get(name), after.get(name)));
    pairs
        .filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| format!("{name} {} -> {}", shown(before), shown(after)))
        .collect()
}

/// The values that are not maps, by their path.
fn flatten<'a>(path: &str, value: &'a Value, fields: &mut BTreeMap<String, &'a Value>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let dot = if path.is_empty() { "" } else { "." };
                flatten(&format!("{path}{dot}{name}"), value, fields);
            }
        }
        _ => {
            fields.insert(path.to_owned(), value);
        }
    }
}

/// A value as people write it: `250`, `[a, b]`, and a cost as `1 x formats x weight`.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => f.write_str(text),
            Value::Array(list) => {
                let list: Vec<_> = list.iter().map(|value| Shown(value).to_string()).collect();
                write!(f, "[{}]", list.join(", "))
            }
            Value::Object(term) => {
                let times = term.get("times").and_then(Value::as_array);
                let factors = term.get("rate").into_iter().chain(times.into_iter().flatten());
                let factors: Vec<_> = factors.map(|value| Shown(value).to_string()).collect();
                f.write_str(&factors.join(" x "))
            }
            other => other.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{KnownBudgets, parse};

    const BEFORE: &str = "
providers: { t: { unit: u, enforcement: calls, keys: [a] } }
operations:
  export: { provider: t, explicit: true, max_units: 60 }
  render:
    provider: t
    quantities: { n: { min: 1, max: 10 } }
    cost: [{ rate: 1, times: [n, n] }]
    max_units: 60
plans:
  free: { budgets: { once: { unit: u, limit: 3, period: total } } }
  standard: { budgets: { daily: { unit: u, limit: 100, period: day } } }
accounts: { a: { plan: free }, b: { plan: standard } }
pools: { all: { unit: u, limit: 9, period: month } }";

    const AFTER: &str = "
providers: { t: { unit: u, enforcement: calls, keys: [a, b] } }
operations:
  render:
    provider: t
    quantities: { n: { min: 1, max: 20, default: 2 } }
    cost: [{ rate: 1e-3, times: [n] }, { rate: 5 }]
    max_units: 60
plans:
  standard: { budgets: { daily: { unit: u, limit: 250, period: day, timezone: Asia/Tokyo } }, unbounded: [u] }
accounts: { b: { plan: standard, limits: { daily: 7 } }, northstar: { plan: standard } }
pools: { all: { unit: u, limit: 9.0, period: month, timezone: UTC, mode: enforce } }";

    fn policy(text: &str) -> Policy {
        parse(text, &KnownBudgets::default()).unwrap()
    }

    fn lines(before: &Policy, after: &Policy) -> Vec<String> {
        compare(before, after).iter().map(Change::to_string).collect()
    }

    #[test]
    fn every_difference_is_one_line() {
        let lines = lines(&policy(BEFORE), &policy(AFTER));
        assert_eq!(
            lines,
            [
                "changed provider t: keys [a] -> [a, b]",
                "retired operation export",
                "changed operation render: cost [1 x n x n] -> [0.001 x n, 5], \
             quantities.n.default none -> 2, quantities.n.max 10 -> 20",
                "retired plan free",
                "changed plan standard: unbounded [] -> [u]",
                "retired budget free/once",
                "changed budget standard/daily: limit 100 -> 250, timezone UTC -> Asia/Tokyo",
                "retired account a",
                "changed account b: limits.daily none -> 7",
                "added account northstar (plan standard)",
            ]
        );
    }

    #[test]
    fn what_is_new_is_summarised() {
        assert_eq!(
            lines(&Policy::default(), &policy(AFTER)),
            [
                "added provider t (unit u, enforcement calls)",
                "added operation render (provider t, max_units 60, cost [0.001 x n, 5])",
                "added plan standard (unbounded [u])",
                "added budget standard/daily (unit u, limit 250, period day, timezone Asia/Tokyo)",
                "added account b (plan standard, limits.daily 7)",
                "added account northstar (plan standard)",
                "added pool all (unit u, limit 9, period month, timezone UTC)",
            ]
        );
    }

    #[test]
    fn the_same_policy_has_no_changes() {
        for text in [BEFORE, AFTER, "{}"] {
            assert_eq!(compare(&policy(text), &policy(text)), []);
        }
    }

    #[test]
    fn a_change_as_json_has_both_sides_in_the_words_of_the_file() {
        let changes = compare(&policy(BEFORE), &policy(AFTER));
        let json = serde_json::to_value(&changes).unwrap();
        let budget = |limit: &str, timezone: &str| {
            serde_json::json!({
                "unit": "u", "limit": limit, "period": "day", "timezone": timezone,
                "rollover": "original_period", "mode": "enforce",
            })
        };
        assert_eq!(
            json[6],
            serde_json::json!({
                "kind": "budget", "name": "standard/daily", "action": "changed",
                "before": budget("100", "UTC"), "after": budget("250", "Asia/Tokyo"),
            })
        );
        assert_eq!(
            json[7],
            serde_json::json!({
                "kind": "account", "name": "a", "action": "retired",
                "before": { "plan": "free", "limits": {} },
            })
        );
    }
}
