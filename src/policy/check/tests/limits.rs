//! Budgets and pools by themselves, and the limits of accounts.

use std::collections::BTreeMap;

use super::{accepted, assert_faults, daily, name, pool};
use crate::model::Units;

#[test]
fn each_budget() {
    for (extra, place, message) in [
        ("timezone: Mars/Olympus", "timezone", "`Mars/Olympus` is not a known IANA time zone"),
        ("timezone: ''", "timezone", ""),
        ("mode: off", "mode", "must be one of enforce, observe"),
        ("rollover: keep", "rollover", "must be one of original_period, carry_forward"),
        ("per: account", "per", "must be one of member"),
        ("provider: x", "provider", "there is no provider `x`"),
        ("operation: x", "operation", "there is no operation `x`"),
        ("provider: transformer", "provider", "bills in `transformation`, not in `token`"),
        ("operation: export", "operation", "is billed in `transformation`, not in `token`"),
        ("provider: llm, operation: export", "operation", "spends at `transformer`, not at `llm`"),
        ("provider_key: a", "provider_key", "unknown field"),
        ("limits: 3", "limits", "unknown field"),
    ] {
        assert_faults(&daily(extra), &[(&format!("plans.p.budgets.d.{place}"), message)]);
    }
    assert_faults(
        &daily("").replace("day", "fortnight"),
        &[(
            "plans.p.budgets.d.period",
            "must be one of hour, day, week, month, quarter, year, total, not \"fortnight\"",
        )],
    );
    assert_faults(
        &daily("").replace("d: { unit: token,", "d: { unit: tokens,"),
        &[("plans.p.budgets.d.unit", "no provider bills in `tokens`")],
    );
    let total = daily("rollover: carry_forward").replace("day", "total");
    assert_faults(&total, &[("plans.p.budgets.d.rollover", "no next period")]);
    accepted(&daily("provider: llm, operation: chat, rollover: carry_forward"));
}

#[test]
fn each_account() {
    let text = |account: &str| format!("{}\naccounts: {{ n: {{ {account} }} }}", daily(""));
    assert_faults(&text("plan: gold"), &[("accounts.n.plan", "there is no plan `gold`")]);
    assert_faults(
        &text("plan: p, limits: { d: -1, m: 2 }"),
        &[("accounts.n.limits.d", "is negative"), ("accounts.n.limits.m", "plan `p` has no budget of this name")],
    );
    let frozen = accepted(&text("plan: p, limits: { d: 0 }"));
    assert_eq!(frozen.accounts["n"].limits, BTreeMap::from([(name("d"), Units::ZERO)]));
}

#[test]
fn each_pool() {
    let limit = "unit: token, limit: 5, period: month";
    for (extra, place, message) in [
        ("provider_key: a", ".provider_key", "needs `provider` beside it"),
        ("provider: llm, provider_key: b", ".provider_key", "declares no key `b`"),
        ("provider: x, provider_key: b", ".provider", "there is no provider `x`"),
        ("provider: transformer", ".provider", "bills in `transformation`"),
        ("operation: export", ".operation", "is billed in `transformation`"),
        ("operation: nothing", ".operation", "there is no operation"),
        ("mode: maybe", ".mode", "must be one of"),
        ("per_member: true", ".per_member", "unknown field"),
    ] {
        let text = pool(&format!("{limit}, {extra}"));
        assert_faults(&text, &[(&format!("pools.x{place}"), message)]);
    }
    assert_faults(
        &pool(&format!("{limit}, running: 3")),
        &[("pools.x.running", "is not supported"), ("pools.x", "bounds more than one thing")],
    );
    assert_faults(&pool("unit: token, limit: 5"), &[("pools.x.period", "is required")]);
    let key = accepted(&pool(&format!("{limit}, provider: llm, provider_key: a, mode: observe")));
    assert_eq!(key.pools["x"].scope.provider_key, Some(name("a")));
}
