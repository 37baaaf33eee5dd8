//! What is of the shape of a policy file, and what is not.

use super::*;

#[track_caller]
fn refused(text: &str, place: &str, message: &str) {
    let fault = read(text).unwrap_err();
    let text = text.get(..200).unwrap_or(text);
    let right = fault.place == place && fault.message.contains(message);
    assert!(right, "{text:?}\nfound {fault:?}\nexpected {place:?} {message:?}");
}

#[test]
fn what_is_not_of_the_shape_is_refused_with_its_line() {
    refused("plans: {a: {\n", "plans.a", "unclosed bracket '{' at line 1, column 12");
    refused("[]", "", "expected mapping start at line 1, column 1");
    refused("{} {}", "", "line 1");
    refused("a: 1\n---\nb: 2\n", "", "only single YAML document expected");
    refused("plans: 3", "plans", "line 1, column 8");
    refused("accounts:\n  a:\n", "accounts.a", "line 2");
    refused("operations: {a: {explicit: yes}}", "operations.a.explicit", "true or false");
    refused("operations: {a: {cost: [1.5]}}", "operations.a.cost[0]", "column 25");
    refused("accounts: {a: {limits: {x: null}}}", "accounts.a.limits.x", "null is not allowed");
    refused("plans:\n\ta: {}\n", "", "line 2");
    refused("accounts: {a: {plan: !secret p}}", "accounts.a", "unsupported tag");
}

#[test]
fn a_key_given_twice_is_refused() {
    let message = "duplicate mapping key `a` is not allowed here at line 2, column 12";
    refused("accounts: {a: {plan: p},\n           a: {plan: q}}", "accounts", message);
    refused(r#"{"plans": {}, "plans": {}}"#, "", "duplicate mapping key `plans`");
    let field = "plans: {p: {budgets: {d: {limit: 1, 'limit': 2}}}}";
    refused(field, "plans.p.budgets.d", "duplicate mapping key `limit`");
    refused("nonsense: {a: 1, a: 2}", "nonsense", "duplicate mapping key `a`");
}

#[test]
fn aliases_are_followed_and_bounded() {
    let shared = "accounts: {a: {plan: p, limits: &l {x: 1}}";
    let many: String = (0..1000).map(|n| format!(", b{n}: {{plan: p, limits: *l}}")).collect();
    let file = read(&format!("{shared}{many}}}")).unwrap();
    let accounts = file.accounts.unwrap_or_default();
    assert!(accounts.values().all(|account| account.limits.as_ref().unwrap()["x"] == "1"));
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (inner, outer) in ["ab", "bc", "cd", "de", "ef", "fg"].map(|pair| pair.split_at(1)) {
        let list = vec![format!("*{inner}"); 10].join(", ");
        bomb.push_str(&format!("{outer}: &{outer} [{list}]\n"));
    }
    let fault = read(&bomb).unwrap_err();
    assert!(fault.message.contains("large"), "{fault:?}");
    refused("accounts: {a: &a {limits: *a}}", "accounts.a", "Recursive");
    refused("accounts: {a: &a {plan: p}, b: {<<: *a}}", "accounts.b", "merge key");
    let deep = format!("nonsense: {}", "[".repeat(10_000));
    refused(&deep, "nonsense", "recursion limit exceeded");
    refused(&"#".repeat(MAX_BYTES + 1), "", "longer than");
}

#[test]
fn scalars_stay_as_they_were_written() {
    let limits = "a: 1.5e-07, b: 0.000000000001, c: 9999999999999999.999999999999, d: 007, e: '1'";
    let file = read(&format!("accounts: {{n: {{limits: {{{limits}}}}}}}")).unwrap();
    let limits = file.accounts.unwrap()["n"].limits.clone().unwrap();
    let texts: Vec<_> = limits.values().map(String::as_str).collect();
    let written = ["1.5e-07", "0.000000000001", "9999999999999999.999999999999", "007", "1"];
    assert_eq!(texts, written);
}

#[test]
fn unknown_fields_are_kept_by_name() {
    let file = read("plan: {a: [1, {b: 2}]}\nplans: {p: {budget: {}}}\nversion: 1.5").unwrap();
    assert_eq!(file.unknown, ["plan", "version"]);
    assert_eq!(file.plans.unwrap()["p"].unknown, ["budget"]);
}
