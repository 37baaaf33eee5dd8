//! The plans: what their budgets must be together, and over time.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::faults::Place;
use super::limits::Limit;
use crate::model::Name;
use crate::model::policy::{Budget, BudgetIdentity, Mode, Plan, Scope};
use crate::policy::file::{BudgetFile, PlanFile, item};

impl<'a> Check<'a> {
    /// All plans. A budget's name means the same in each of them and what it
    /// has always meant.
    pub(super) fn plans(&mut self) -> BTreeMap<Name, Plan> {
        let place = Place::file().then("plans");
        let plans = self.section(&place, &self.file.plans, Check::plan);
        let mut first: BTreeMap<&Name, (&Name, BudgetIdentity)> = BTreeMap::new();
        for (plan, definition) in &plans {
            let place = place.then(plan.as_str()).then("budgets");
            for (name, budget) in &definition.budgets {
                let place = place.then(name.as_str());
                let identity = budget.identity();
                self.same_as_known(&place, &identity, self.known.budgets.get(name));
                let (other, meaning) = first.entry(name).or_insert((plan, identity.clone()));
                self.same_in_all_plans(&place, &identity, other, meaning);
            }
        }
        plans
    }

    fn plan(&mut self, place: &Place, file: &'a PlanFile) -> Option<Plan> {
        self.faults.unknown_fields(place, file);
        self.faults.unsupported(place, &[("concurrency", file.concurrency)]);
        let budgets = self.section(&place.then("budgets"), &file.budgets, Check::budget);
        let unbounded_place = place.then("unbounded");
        let listed = file.unbounded.as_deref().unwrap_or_default();
        let unbounded = self.distinct(&unbounded_place, listed);
        for (index, text) in listed.iter().enumerate() {
            if let Some(unit) = unbounded.get(text.as_str()) {
                self.billed(&unbounded_place.item(index), unit);
            }
        }
        let plan = Plan { budgets, unbounded };
        let units = units_to_judge(file, &plan);
        self.members_beside_accounts(place, &plan, &units);
        self.observed_only(place, &plan, &units);
        Some(plan)
    }

    fn budget(&mut self, place: &Place, file: &'a BudgetFile) -> Option<Budget> {
        self.faults.unknown_fields(place, file);
        let per_member = match &file.per {
            None => Some(false),
            Some(per) => self.faults.word(&place.then("per"), per, &[("member", true)]),
        };
        let budget = self.limit(place, &Limit::from(file))?;
        Some(Budget { per_member: per_member?, ..budget })
    }

    /// A member is a name that the client claims, so a budget for each bounds
    /// nothing by itself.
    fn members_beside_accounts(&mut self, place: &Place, plan: &Plan, units: &BTreeSet<&Name>) {
        for (name, budget) in &plan.budgets {
            let whole = |other: &&Budget| {
                !other.per_member
                    && other.mode == Mode::Enforce
                    && other.unit == budget.unit
                    && self.contains(&other.scope, &budget.scope)
            };
            if !budget.per_member || !units.contains(&budget.unit) {
                continue;
            }
            if plan.budgets.values().find(whole).is_none() {
                let message = format!(
                    "`per: member` needs an enforcing budget of the whole account beside it, \
                     in `{}` and over at least the same work",
                    budget.unit
                );
                self.faults.add(&place.then("budgets").then(name.as_str()).then("per"), message);
            }
        }
    }

    /// Whether all work in the inner scope is in the outer one too.
    fn contains(&self, outer: &Scope, inner: &Scope) -> bool {
        let operation = inner.operation.as_ref();
        let spends_at = operation
            .and_then(|operation| item(&self.file.operations, operation.as_str()))
            .and_then(|operation| operation.provider.as_deref());
        let provider = match (&outer.provider, &inner.provider) {
            (None, _) => true,
            (Some(outer), Some(inner)) => outer == inner,
            (Some(outer), None) => Some(outer.as_str()) == spends_at,
        };
        provider && (outer.operation.is_none() || outer.operation == inner.operation)
    }

    /// A unit whose budgets all only observe is not bounded, and that has to be
    /// said in so many words.
    fn observed_only(&mut self, place: &Place, plan: &Plan, units: &BTreeSet<&Name>) {
        for unit in units {
            let mut budgets = plan.budgets.values().filter(|budget| budget.unit == **unit);
            if budgets.all(|budget| budget.mode == Mode::Observe) && !plan.unbounded.contains(*unit) {
                let message = format!(
                    "every budget in `{unit}` only observes: bound it with one that enforces, \
                     or list `{unit}` in `unbounded`"
                );
                self.faults.add(&place.then("budgets"), message);
            }
        }
    }

    /// A name that was known keeps its unit and its `per`, and does not leave
    /// `total`: open periods would give a second allowance or lose one.
    pub(super) fn same_as_known(&mut self, place: &Place, now: &BudgetIdentity, known: Option<&BudgetIdentity>) {
        let Some(known) = known else { return };
        if now.unit != known.unit {
            let message = format!("this name has counted `{}` until now; another unit needs another name", known.unit);
            self.faults.add(&place.then("unit"), message);
        }
        if now.per_member != known.per_member {
            let message = format!("this name has been {} until now; another `per` needs another name", per(known));
            self.faults.add(&place.then("per"), message);
        }
        if known.total && !now.total {
            let message = "this name has been a `total` until now; leaving `total` needs another name";
            self.faults.add(&place.then("period"), message);
        }
    }

    /// An account that changes plan keeps the open periods of the names that
    /// the new plan also has, so both have to mean the same.
    fn same_in_all_plans(&mut self, place: &Place, here: &BudgetIdentity, other: &Name, there: &BudgetIdentity) {
        if here.unit != there.unit {
            let message = format!(
                "counts `{}` here and `{}` in plan `{other}`; another unit needs another name",
                here.unit, there.unit
            );
            self.faults.add(&place.then("unit"), message);
        }
        if here.per_member != there.per_member {
            let message =
                format!("is {} here and {} in plan `{other}`; another `per` needs another name", per(here), per(there));
            self.faults.add(&place.then("per"), message);
        }
        if here.total != there.total {
            let message = match here.total {
                true => format!("is a `total` here and not in plan {other}; a `total` needs a name of its own"),
                false => format!("is a `total` in plan {other} and not here; a `total` needs a name of its own"),
            };
            self.faults.add(&place.then("period"), message);
        }
    }
}

/// The units of the plan's budgets about which enough is known: without those in
/// which a faulty budget may be the one that is asked for.
fn units_to_judge<'p>(file: &PlanFile, plan: &'p Plan) -> BTreeSet<&'p Name> {
    let all = file.budgets.iter().flatten();
    let faulty: Vec<_> = all.filter(|(name, _)| !plan.budgets.contains_key(name.as_str())).collect();
    let clear = |unit: &&Name| {
        let mut units = faulty.iter().map(|(_, budget)| budget.unit.as_deref());
        !units.any(|other| other.is_none_or(|other| other == unit.as_str()))
    };
    plan.budgets.values().map(|budget| &budget.unit).filter(clear).collect()
}

fn per(identity: &BudgetIdentity) -> &'static str {
    if identity.per_member { "one for each member" } else { "one for the whole account" }
}
