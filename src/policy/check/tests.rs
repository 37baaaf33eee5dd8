//! Each rule with a file that breaks it, and the place that is named.

mod limits;
mod operations;
mod plans;

use proptest::prelude::*;

use super::parse;
use crate::model::policy::{Enforcement, Mode, Pricing, Rollover};
use crate::model::{Name, Policy, Units};
use crate::policy::{Fault, KnownBudgets, words};

const EXAMPLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/policy.example.yaml"));

/// Two providers and an operation of each, for files that are about the rest.
const BASE: &str = "
providers:
  transformer: { unit: transformation, enforcement: calls, keys: [a, b] }
  llm: { unit: token, enforcement: worker, keys: [a] }
operations:
  export: { provider: transformer, explicit: true, max_units: 60 }
  chat: { provider: llm, explicit: true, max_units: 60 }
";

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn accepted(text: &str) -> Policy {
    parse(text, &KnownBudgets::default()).unwrap_or_else(|refused| panic!("{refused}"))
}

fn faults(text: &str) -> Vec<Fault> {
    faults_beside(text, &KnownBudgets::default())
}

fn faults_beside(text: &str, known: &KnownBudgets) -> Vec<Fault> {
    parse(text, known).map_or_else(|refused| refused.faults, |policy| panic!("{policy:#?}"))
}

/// Exactly these faults, in this order; of each message the given part.
#[track_caller]
fn assert_faults(text: &str, expected: &[(&str, &str)]) {
    assert_those(&faults(text), expected, text);
}

#[track_caller]
fn assert_those(found: &[Fault], expected: &[(&str, &str)], text: &str) {
    let same = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(fault, (place, message))| fault.place == *place && fault.message.contains(message));
    assert!(same, "{text}\nfound {found:#?}\nexpected {expected:#?}");
}

/// The base, with the budgets of one plan.
fn budgets(budgets: &str) -> String {
    format!("{BASE}plans: {{ p: {{ budgets: {{ {budgets} }} }} }}")
}

/// A budget with whatever else it says.
fn daily(extra: &str) -> String {
    budgets(&format!("d: {{ unit: token, limit: 1, period: day, {extra} }}"))
}

/// The base, with one pool.
fn pool(fields: &str) -> String {
    format!("{BASE}pools: {{ x: {{ {fields} }} }}")
}

/// One operation at one provider.
fn operation(fields: &str) -> String {
    format!(
        "providers: {{ t: {{ unit: u, enforcement: calls }} }}
operations: {{ o: {{ {fields} }} }}"
    )
}

#[test]
fn the_example_is_accepted() {
    let policy = accepted(EXAMPLE);
    assert_eq!(policy.providers["transformer"].enforcement, Enforcement::Calls);
    assert_eq!(policy.providers["transformer"].keys, [name("a"), name("b")].into());
    assert_eq!(policy.operations["bulk"].pricing, Pricing::Explicit);
    let Pricing::Map { quantities, cost } = &policy.operations["export"].pricing else { panic!("not a map") };
    assert_eq!(quantities["weight"].default, Some(Units::from(5)));
    assert_eq!(cost.terms[0].times, ["formats", "weight"]);
    let daily = &policy.plans["standard"].budgets["daily"];
    assert_eq!((daily.limit, daily.mode), (Units::from(100), Mode::Enforce));
    assert_eq!(daily.rollover, Rollover::OriginalPeriod);
    assert_eq!(policy.accounts["northstar"].plan, name("standard"));
    assert_eq!(policy.pools["transformer-month"].scope.provider, Some(name("transformer")));
}

#[test]
fn json_and_a_policy_in_words_read_as_the_same_policy() {
    let text = format!(
        "{BASE}
plans:
  pro:
    unbounded: [transformation]
    budgets:
      all: {{ unit: token, limit: 0.5, period: week, rollover: carry_forward, provider: llm }}
      each: {{ unit: token, limit: 7, period: total, per: member, mode: observe, operation: chat }}
accounts: {{ n: {{ plan: pro, limits: {{ all: 9 }} }} }}
pools: {{ k: {{ unit: token, limit: 0, period: year, provider: llm, provider_key: a }} }}"
    );
    for text in [EXAMPLE, &text] {
        let policy = accepted(text);
        let json = words::policy(&policy);
        assert_eq!(accepted(&json.to_string()), policy);
        assert_eq!(accepted(&format!("{json:#}")), policy);
    }
}

#[test]
fn what_is_left_out_is_empty() {
    for text in ["{}", "plans:\naccounts: {}\n"] {
        assert_eq!(accepted(text), Policy::default(), "{text:?}");
    }
    // What says nothing at all is a mistake, not an order to retire everything.
    for text in ["", " \n", "# nothing\n"] {
        assert_eq!(faults(text)[0].place, "", "{text:?}");
    }
}

#[test]
fn numbers_are_read_as_decimal_text() {
    for number in ["0.000000000001", "9999999999999999.999999999999", "1e-12", "\"0.1\"", "1E3"] {
        let yaml = daily("").replace("limit: 1,", &format!("limit: {number},"));
        let limit = accepted(&yaml).plans["p"].budgets["d"].limit;
        assert_eq!(Ok(limit), Units::parse(number.trim_matches('"')), "{number}");
    }
    for rate in ["1.5e-07", "0.1234567890123456789012345678901234567"] {
        let json = format!(
            r#"{{"providers": {{"t": {{"unit": "u", "enforcement": "calls"}}}},
                "operations": {{"o": {{"provider": "t", "quantities": {{}},
                                       "cost": [{{"rate": {rate}}}], "max_units": 1}}}}}}"#
        );
        let policy = accepted(&json);
        let Pricing::Map { cost, .. } = &policy.operations["o"].pricing else { panic!("{json}") };
        assert_eq!(Ok(cost.terms[0].rate.clone()), crate::model::cost::Rate::parse(rate));
    }
    for (number, message) in [
        ("1e-13", "more than 12 decimals"),
        ("10000000000000000", "out of range"),
        (".inf", "infinite"),
        (".nan", "NaN"),
        ("1_000", "digits"),
        ("0x10", "base 10"),
        ("-1", "negative"),
        ("\" 1\"", "blanks"),
        ("true", "decimal"),
    ] {
        let yaml = daily("").replace("limit: 1,", &format!("limit: {number},"));
        assert_faults(&yaml, &[("plans.p.budgets.d.limit", message)]);
    }
}

#[test]
fn all_faults_are_collected() {
    let text = "
provider: {}
providers: { t: { unit: 'a b', enforcement: nobody, keyz: 1 } }
operations: { o: { provider: x } }
plans: { p: { budgets: { 'b d': {} }, concurrency: { running: 1 } } }
accounts: { n: {} }
pools: { s: {} }";
    let expected = [
        ("provider", "unknown field; the fields here are providers, operations"),
        ("providers.t.keyz", "unknown field"),
        ("providers.t.unit", "must be 1 to 128 characters"),
        ("providers.t.enforcement", "must be one of calls, worker, not \"nobody\""),
        ("operations.o.provider", "there is no provider `x`"),
        ("operations.o", "needs either `quantities` and `cost`, or `explicit: true`"),
        ("operations.o.max_units", "is required"),
        ("plans.p.concurrency", "is not supported"),
        ("plans.p.budgets.\"b d\"", "must be 1 to 128 characters"),
        ("plans.p.budgets.\"b d\".unit", "is required"),
        ("plans.p.budgets.\"b d\".limit", "is required"),
        ("plans.p.budgets.\"b d\".period", "is required"),
        ("accounts.n.plan", "is required"),
        ("pools.s.unit", "is required"),
        ("pools.s.limit", "is required"),
        ("pools.s.period", "is required"),
    ];
    assert_faults(text, &expected);
    let refused = parse(text, &KnownBudgets::default()).unwrap_err().to_string();
    assert_eq!(refused.lines().count(), expected.len());
    assert!(refused.contains("\noperations.o.max_units: is required\n"), "{refused}");
}

#[test]
fn each_provider() {
    assert_faults(
        "providers: { t: {} }",
        &[("providers.t.unit", "is required"), ("providers.t.enforcement", "is required")],
    );
    let twice = "providers: { t: { unit: u, enforcement: calls, keys: [a, b, a, ''] } }";
    assert_faults(
        twice,
        &[("providers.t.keys[2]", "`a` is listed twice"), ("providers.t.keys[3]", "must be 1 to 128")],
    );
    let long = format!("providers: {{ '{} x': {{ unit: u, enforcement: calls }} }}", "n".repeat(90));
    let place = format!("providers.\"{}\"…", "n".repeat(64));
    assert_faults(&long, &[(&place, "must be 1 to 128")]);
}

#[test]
fn what_cannot_be_done_yet_is_refused_by_name() {
    let asked = "provider: t, explicit: true, max_units: 1, max_duration: 2h, selection: {}";
    assert_faults(
        &operation(asked),
        &[("operations.o.max_duration", "is not supported"), ("operations.o.selection", "is not supported")],
    );
    let text = format!("{BASE}plans: {{ p: {{ concurrency: {{ running: 2, waiting: 4 }} }} }}");
    assert_faults(&text, &[("plans.p.concurrency", "is not supported")]);
    for (fields, names) in [
        ("provider: llm, calls: 10, per: 60s", ["calls", "per"]),
        ("provider: llm, units: 10, per: 60s", ["units", "per"]),
        ("running: 20, waiting: 200", ["running", "waiting"]),
    ] {
        let places = names.map(|name| format!("pools.x.{name}"));
        let expected = places.each_ref().map(|place| (place.as_str(), "is not supported"));
        assert_faults(&pool(fields), &expected);
    }
    let key = "a.b: { provider: llm, provider_key: zz, calls: 10 }";
    let text = format!("{BASE}pools: {{ {key} }}");
    assert_eq!(faults(&text).first().map(|fault| fault.place.as_str()), Some("pools.a.b.calls"));
}

proptest! {
    /// Whatever is cut out of a good file, and whatever is put in its place.
    #[test]
    fn no_text_panics(from in 0..EXAMPLE.len(), length in 0..80_usize, with in "[-{}\\[\\]:,&*!| a1\n]{0,6}") {
        let tail = EXAMPLE.get(from + length..).unwrap_or_default();
        let text = format!("{}{with}{tail}", &EXAMPLE[..from]);
        if let Err(refused) = parse(&text, &KnownBudgets::default()) {
            prop_assert!(!refused.faults.is_empty());
            prop_assert_eq!(refused.to_string().lines().count(), refused.faults.len());
        }
    }
}
