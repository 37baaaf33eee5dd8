//! A policy in the words of the policy file: amounts as text, what the file may
//! leave out filled in. What is written here reads back as the same policy.

use serde_json::{Map, Value, json};

use crate::model::Policy;
use crate::model::policy::{Account, Budget, Operation, Plan, Pricing, Provider};

/// The whole policy, as a file would say it.
#[must_use]
pub fn policy(policy: &Policy) -> Value {
    json!({
        "providers": items(&policy.providers, provider),
        "operations": items(&policy.operations, operation),
        "plans": items(&policy.plans, |all| {
            let mut words = plan(all);
            words["budgets"] = items(&all.budgets, budget);
            words
        }),
        "accounts": items(&policy.accounts, account),
        "pools": items(&policy.pools, budget),
    })
}

/// One provider.
#[must_use]
pub fn provider(provider: &Provider) -> Value {
    json!({
        "unit": provider.unit,
        "enforcement": provider.enforcement.as_str(),
        "keys": provider.keys,
    })
}

/// One operation.
#[must_use]
pub fn operation(operation: &Operation) -> Value {
    let mut words = json!({
        "provider": operation.provider,
        "max_units": operation.max_units,
        "mode": operation.mode.as_str(),
    });
    match &operation.pricing {
        Pricing::Explicit => words["explicit"] = json!(true),
        Pricing::Map { quantities, cost } => {
            words["quantities"] = items(quantities, |quantity| {
                let mut words = json!({ "min": quantity.min, "max": quantity.max });
                if let Some(default) = quantity.default {
                    words["default"] = json!(default);
                }
                words
            });
            words["cost"] = json!(cost);
        }
    }
    words
}

/// What a plan says apart from its budgets.
#[must_use]
pub fn plan(plan: &Plan) -> Value {
    json!({ "unbounded": plan.unbounded })
}

/// One budget of a plan, or one pool.
#[must_use]
pub fn budget(budget: &Budget) -> Value {
    let mut words = json!({
        "unit": budget.unit,
        "limit": budget.limit,
        "period": budget.calendar.kind.as_str(),
        "timezone": budget.calendar.zone_name(),
        "rollover": budget.rollover.as_str(),
        "mode": budget.mode.as_str(),
    });
    if budget.per_member {
        words["per"] = json!("member");
    }
    let scope = &budget.scope;
    let narrowed =
        [("provider", &scope.provider), ("provider_key", &scope.provider_key), ("operation", &scope.operation)];
    for (field, name) in narrowed {
        if let Some(name) = name {
            words[field] = json!(name);
        }
    }
    words
}

/// One account.
#[must_use]
pub fn account(account: &Account) -> Value {
    json!({ "plan": account.plan, "limits": items(&account.limits, |limit| json!(limit)) })
}

/// Items by name.
fn items<'a, K, T, I>(items: I, words: impl Fn(&'a T) -> Value) -> Value
where
    K: ToString + 'a,
    T: 'a,
    I: IntoIterator<Item = (&'a K, &'a T)>,
{
    let items = items.into_iter().map(|(name, item)| (name.to_string(), words(item)));
    Value::Object(items.collect::<Map<_, _>>())
}
