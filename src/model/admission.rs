//! What a request comes to under a policy, and what it has to be charged to.
//! This decides everything about an admission that does not depend on balances;
//! those are decided by the database, under its locks.

use std::collections::BTreeMap;

use super::cost::Rounding;
use super::policy::{Account, Budget, Enforcement, Mode, Operation, Pricing, Quantity};
use super::refusal::FieldFault;
use super::request::ReservationRequest;
use super::{Name, Policy, Refusal, Units};

/// An estimate, and the budgets that must admit it.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// How much, in `unit`.
    pub units: Units,
    /// What is counted.
    pub unit: Name,
    /// Where the work spends.
    pub provider: Name,
    /// Who can stop its worker.
    pub enforcement: Enforcement,
    /// Every budget that matches: each of them is charged, and all that enforce
    /// must have room.
    pub charges: Vec<Charge>,
    /// What the operation's bounds would have refused if they did not only
    /// observe.
    pub observed: Option<Refusal>,
}

/// One budget that a request is charged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Whose budget it is; a pool belongs to all accounts.
    pub owner: Option<Name>,
    /// The budget's name in the plan, or the pool's name.
    pub budget: Name,
    /// Which member's, for a budget per member.
    pub member: Option<Name>,
    /// The definition in force, with the account's own limit.
    pub definition: Budget,
}

impl Charge {
    /// Whether it refuses or only records.
    #[must_use]
    pub fn enforces(&self) -> bool {
        self.definition.mode == Mode::Enforce
    }
}

impl Policy {
    /// What the request comes to for this account.
    ///
    /// # Errors
    ///
    /// Every refusal by policy: an account or operation that it does not have,
    /// quantities out of range, more than the operation allows, or nothing that
    /// bounds the unit.
    pub fn estimate(&self, account: &Name, request: &ReservationRequest) -> Result<Estimate, Refusal> {
        let customer = self.account(account)?;
        let (operation, provider) = self.operation(&request.operation)?;
        if let Some(key) = &request.provider_key
            && !provider.keys.contains(key)
        {
            return Err(Refusal::invalid("provider_key", format!("{} has no key {key}", operation.provider)));
        }
        let (units, observed) = operation.bounded_units(request)?;
        let unit = provider.unit.clone();
        let charges = self.charges(account, customer, &unit, operation, request)?;
        let unbounded = self.plans.get(&customer.plan).is_some_and(|plan| plan.unbounded.contains(&unit));
        if !unbounded && !charges.iter().any(Charge::enforces) {
            return Err(Refusal::NoBudget { unit });
        }
        Ok(Estimate {
            units,
            unit,
            provider: operation.provider.clone(),
            enforcement: provider.enforcement,
            charges,
            observed,
        })
    }

    fn account(&self, name: &Name) -> Result<&Account, Refusal> {
        self.accounts.get(name).ok_or_else(|| Refusal::UnknownAccount(name.to_string()))
    }

    fn operation(&self, name: &Name) -> Result<(&Operation, &super::policy::Provider), Refusal> {
        let unknown = || Refusal::UnknownOperation(name.to_string());
        let operation = self.operations.get(name).ok_or_else(unknown)?;
        let provider = self.providers.get(&operation.provider).ok_or_else(unknown)?;
        Ok((operation, provider))
    }

    /// Every budget that matches: the plan's, per account and per member, then
    /// the pools.
    fn charges(
        &self,
        account: &Name,
        customer: &Account,
        unit: &Name,
        operation: &Operation,
        request: &ReservationRequest,
    ) -> Result<Vec<Charge>, Refusal> {
        let covers = |budget: &Budget| {
            let scope = &budget.scope;
            // A limit kept per provider key matches whatever key is named; which
            // one it is decides below.
            budget.unit == *unit && scope.covers(&operation.provider, scope.provider_key.as_ref(), &request.operation)
        };
        let mut charges = Vec::new();
        let plan = self.plans.get(&customer.plan);
        for (name, budget) in plan.into_iter().flat_map(|plan| &plan.budgets).filter(|(_, b)| covers(b)) {
            let mut definition = budget.clone();
            if let Some(limit) = customer.limits.get(name) {
                definition.limit = *limit;
            }
            let member = match (&request.member, budget.per_member) {
                (_, false) => None,
                (Some(member), true) => Some(member.clone()),
                // What only observes never refuses; it cannot count what it cannot name.
                (None, true) if budget.mode == Mode::Observe => continue,
                (None, true) => {
                    return Err(Refusal::invalid("member", format!("budget {name} is kept per member: name one")));
                }
            };
            charges.push(Charge { owner: Some(account.clone()), budget: name.clone(), member, definition });
        }
        for (name, pool) in self.pools.iter().filter(|(_, pool)| covers(pool)) {
            if let Some(bound) = &pool.scope.provider_key {
                match &request.provider_key {
                    None if pool.mode == Mode::Observe => continue,
                    None => {
                        let message = format!("pool {name} is kept per provider key: name the key");
                        return Err(Refusal::invalid("provider_key", message));
                    }
                    Some(key) if key != bound => continue,
                    Some(_) => {}
                }
            }
            charges.push(Charge { owner: None, budget: name.clone(), member: None, definition: pool.clone() });
        }
        Ok(charges)
    }
}

impl Operation {
    /// The units of the request, within the operation's bounds; with `mode:
    /// observe` what those would have refused is returned beside the units.
    fn bounded_units(&self, request: &ReservationRequest) -> Result<(Units, Option<Refusal>), Refusal> {
        let (units, out_of_range) = self.pricing.units(request)?;
        let mut breach = (!out_of_range.is_empty()).then_some(Refusal::Invalid(out_of_range));
        if breach.is_none() && units > self.max_units {
            breach = Some(Refusal::TooExpensive {
                units,
                max_units: self.max_units,
                bound: format!("one {}", request.operation),
                pool: false,
            });
        }
        match (breach, self.mode) {
            (Some(refusal), Mode::Enforce) => Err(refusal),
            (breach, _) => Ok((units, breach)),
        }
    }
}

impl Pricing {
    /// The units of an estimate, and the quantities that are out of their
    /// bounds.
    fn units(&self, request: &ReservationRequest) -> Result<(Units, Vec<FieldFault>), Refusal> {
        match self {
            Self::Explicit => {
                if !request.quantities.is_empty() {
                    let message = format!("{} is stated in units", request.operation);
                    return Err(Refusal::invalid("quantities", message));
                }
                match request.units {
                    None => Err(Refusal::invalid("units", "is missing: this operation is stated in units")),
                    Some(units) if units.is_zero() => Err(Refusal::invalid("units", "must be above zero")),
                    Some(units) => Ok((units, Vec::new())),
                }
            }
            Self::Map { quantities, .. } => {
                if request.units.is_some() {
                    let message = format!("the units of {} are computed from its quantities", request.operation);
                    return Err(Refusal::invalid("units", message));
                }
                let stated = fill(quantities, &request.quantities, |quantity| quantity.default)?;
                let units = self.evaluate(&stated, Rounding::Estimate)?;
                Ok((units, out_of_range(quantities, &stated)))
            }
        }
    }

    /// The most that one call of these quantities may cost. Priced as an estimate
    /// is; the bounds are those of the whole job, not of its calls.
    ///
    /// # Errors
    ///
    /// A quantity that the cost map does not have, one that is missing and has no
    /// default, or a cost beyond the range of amounts.
    pub fn of_call(&self, quantities: &BTreeMap<Name, Units>) -> Result<Units, Refusal> {
        match self {
            Self::Explicit => Err(Refusal::invalid("quantities", "the calls of this operation are stated in units")),
            Self::Map { quantities: defined, .. } => {
                self.evaluate(&fill(defined, quantities, |quantity| quantity.default)?, Rounding::Estimate)
            }
        }
    }

    /// What actual quantities cost: the bounds and defaults of an estimate do not
    /// apply to what has happened. Every quantity is stated, so that a forgotten
    /// one does not settle at less than was used.
    ///
    /// # Errors
    ///
    /// A quantity that the cost map does not have, one that is missing, or a cost
    /// beyond the range of amounts.
    pub fn actual(&self, quantities: &BTreeMap<Name, Units>) -> Result<Units, Refusal> {
        match self {
            Self::Explicit => Err(Refusal::invalid("quantities", "this operation is settled in units")),
            Self::Map { quantities: defined, .. } => {
                self.evaluate(&fill(defined, quantities, |_| None)?, Rounding::Actual)
            }
        }
    }

    fn evaluate(&self, stated: &BTreeMap<String, Units>, rounding: Rounding) -> Result<Units, Refusal> {
        match self {
            Self::Explicit => Ok(Units::ZERO),
            Self::Map { cost, .. } => {
                cost.evaluate(stated, rounding).map_err(|error| Refusal::invalid("quantities", error.to_string()))
            }
        }
    }
}

/// The stated quantities, with what those omitted stand for.
fn fill(
    defined: &BTreeMap<Name, Quantity>,
    stated: &BTreeMap<Name, Units>,
    omitted: impl Fn(&Quantity) -> Option<Units>,
) -> Result<BTreeMap<String, Units>, Refusal> {
    let mut faults: Vec<FieldFault> = stated
        .keys()
        .filter(|name| !defined.contains_key(*name))
        .map(|name| FieldFault::new(format!("quantities.{name}"), "the operation has no such quantity"))
        .collect();
    let mut filled = BTreeMap::new();
    for (name, quantity) in defined {
        match stated.get(name).copied().or_else(|| omitted(quantity)) {
            Some(value) => {
                filled.insert(name.to_string(), value);
            }
            None => faults.push(FieldFault::new(format!("quantities.{name}"), "is missing")),
        }
    }
    if faults.is_empty() { Ok(filled) } else { Err(Refusal::Invalid(faults)) }
}

fn out_of_range(defined: &BTreeMap<Name, Quantity>, stated: &BTreeMap<String, Units>) -> Vec<FieldFault> {
    let outside = |(name, quantity): (&Name, &Quantity)| {
        let value = stated.get(name.as_str())?;
        (*value < quantity.min || *value > quantity.max).then(|| {
            let message = format!("{value} is out of range: {} to {}", quantity.min, quantity.max);
            FieldFault::new(format!("quantities.{name}"), message)
        })
    };
    defined.iter().filter_map(outside).collect()
}
