//! What budgets are together, and over time.

use std::collections::BTreeMap;

use super::{BASE, accepted, assert_faults, assert_those, budgets, daily, faults_beside, name};
use crate::model::policy::BudgetIdentity;
use crate::policy::{KnownBudgets, parse};

#[test]
fn a_member_is_bounded_beside_the_account_only() {
    let each = "e: { unit: token, limit: 1, period: day, per: member, operation: chat }";
    let lonely = [("plans.p.budgets.e.per", "needs an enforcing budget of the whole account")];
    for beside in [
        "",
        "a: { unit: transformation, limit: 1, period: day }",
        "a: { unit: token, limit: 1, period: day, operation: talk }",
    ] {
        let text = format!("{BASE}  talk: {{ provider: llm, explicit: true, max_units: 1 }}\n");
        let text = format!("{text}plans: {{ p: {{ budgets: {{ {each}, {beside} }} }} }}");
        assert_faults(&text, &lonely);
    }
    let observed = "a: { unit: token, limit: 1, period: day, mode: observe }";
    assert_faults(&budgets(&format!("{each}, {observed}")), &lonely);
    let narrow = "a: { unit: token, limit: 1, period: day, operation: chat }";
    let wide = "e: { unit: token, limit: 1, period: day, per: member }";
    assert_faults(&budgets(&format!("{narrow}, {wide}")), &lonely);
    for beside in [
        "a: { unit: token, limit: 1, period: total }",
        "a: { unit: token, limit: 1, period: day, provider: llm }",
        "a: { unit: token, limit: 1, period: day, operation: chat }",
    ] {
        accepted(&budgets(&format!("{each}, {beside}")));
    }
    // A fault of the budget beside it is one fault, not two.
    let faulty = budgets(&format!("{each}, a: {{ unit: token, period: day }}"));
    assert_faults(&faulty, &[("plans.p.budgets.a.limit", "is required")]);
}

#[test]
fn a_unit_that_is_only_observed_is_declared_unbounded() {
    let observed = daily("mode: observe");
    assert_faults(&observed, &[("plans.p.budgets", "every budget in `token` only observes")]);
    let plan = |unbounded: &str| {
        let unbounded = format!("plans: {{ p: {{ unbounded: {unbounded}, budgets");
        observed.replace("plans: { p: { budgets", &unbounded)
    };
    assert_eq!(accepted(&plan("[token]")).plans["p"].unbounded, [name("token")].into());
    assert_faults(
        &plan("[token, tokens, token]"),
        &[
            ("plans.p.unbounded[2]", "`token` is listed twice"),
            ("plans.p.unbounded[1]", "no provider bills in `tokens`"),
        ],
    );
    let one_enforces = "d: { unit: token, limit: 1, period: day, mode: observe },
        e: { unit: token, limit: 1, period: day, operation: chat }";
    accepted(&budgets(one_enforces));
}

#[test]
fn a_name_means_what_it_has_always_meant() {
    let identity = |unit: &str, per_member: bool, total: bool| {
        let identity = BudgetIdentity { unit: name(unit), per_member, total };
        let known = BTreeMap::from([(name("d"), identity)]);
        KnownBudgets { pools: known.clone(), budgets: known }
    };
    let pools = format!("{BASE}pools: {{ d: {{ unit: token, limit: 1, period: day }} }}");
    for (text, place) in [(daily(""), "plans.p.budgets.d"), (pools, "pools.d")] {
        for (known, field, message) in [
            (identity("usd", false, false), "unit", "has counted `usd` until now; another unit"),
            (identity("token", true, false), "per", "one for each member until now; another `per`"),
            (identity("token", false, true), "period", "leaving `total` needs another name"),
        ] {
            let found = faults_beside(&text, &known);
            assert_those(&found, &[(&format!("{place}.{field}"), message)], &text);
        }
        let entering = text.replace("day", "total");
        for known in [identity("token", false, false), identity("token", false, true)] {
            assert!(parse(&entering, &known).is_ok());
        }
        assert!(parse(&text, &identity("token", false, false)).is_ok());
    }
}

#[test]
fn a_name_means_the_same_in_all_plans() {
    let plans = |fields: &str| {
        let plan = |fields: &str| {
            let whole = "w: { unit: token, limit: 1, period: day }";
            format!("{{ budgets: {{ {whole}, d: {{ limit: 1, {fields} }} }} }}")
        };
        let first = plan("unit: token, period: day");
        format!("{BASE}plans: {{ a: {first}, b: {} }}", plan(fields))
    };
    for (fields, place, message) in [
        ("unit: transformation, period: day", "unit", "and `token` in plan `a`"),
        ("unit: token, period: day, per: member", "per", "whole account in plan `a`"),
        ("unit: token, period: total", "period", "a `total` needs a name of its own"),
    ] {
        assert_faults(&plans(fields), &[(&format!("plans.b.budgets.d.{place}"), message)]);
    }
    accepted(&plans("unit: token, period: week, timezone: Asia/Tokyo, mode: observe"));
}
