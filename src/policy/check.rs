//! From the file to the policy: every rule that a policy must keep, and every
//! fault of a file at once, not just the first.
//!
//! An item with a fault is left out and the rest is checked on. References are
//! looked up among the names of the file, so that one fault is reported once,
//! and not again wherever the faulty item is used.

mod faults;
mod limits;
mod operations;
mod plans;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use self::faults::{Faults, Place};
use super::file::{self, AccountFile, PolicyFile, ProviderFile, Section, item};
use super::{Fault, KnownBudgets, PolicyRefused};
use crate::model::policy::{Account, Enforcement, Provider};
use crate::model::{Name, Policy};

/// Reads and checks a policy file, YAML or JSON.
///
/// # Errors
///
/// All the faults of the file. Only what cannot be read at all ends the search.
pub fn parse(text: &str, known: &KnownBudgets) -> Result<Policy, PolicyRefused> {
    check(&read(text)?, known)
}

/// Reads a policy file, YAML or JSON: what cannot be read at all is its only
/// fault.
///
/// # Errors
///
/// The text is no policy file, or says nothing.
pub fn read(text: &str) -> Result<PolicyFile, PolicyRefused> {
    let says_nothing = text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'));
    let file = if says_nothing {
        Err(Fault::new("", "says nothing: a policy that retires everything is `{}`"))
    } else {
        file::read(text)
    };
    file.map_err(|fault| PolicyRefused { faults: vec![fault] })
}

/// Checks what a policy file says.
///
/// # Errors
///
/// All the faults of the file.
pub fn check(file: &PolicyFile, known: &KnownBudgets) -> Result<Policy, PolicyRefused> {
    let mut check = Check { file, known, faults: Faults::default() };
    let top = Place::file();
    check.faults.unknown_fields(&top, file);
    let policy = Policy {
        providers: check.section(&top.then("providers"), &file.providers, Check::provider),
        operations: check.section(&top.then("operations"), &file.operations, Check::operation),
        plans: check.plans(),
        accounts: check.section(&top.then("accounts"), &file.accounts, Check::account),
        pools: check.pools(),
    };
    check.faults.none_or(policy)
}

/// The file under examination, and what was found.
struct Check<'a> {
    file: &'a PolicyFile,
    known: &'a KnownBudgets,
    faults: Faults,
}

impl<'a> Check<'a> {
    /// The items of a section that have no fault. An omitted section is empty.
    fn section<F, T>(
        &mut self,
        place: &Place,
        section: &'a Option<Section<F>>,
        read: fn(&mut Self, &Place, &'a F) -> Option<T>,
    ) -> BTreeMap<Name, T> {
        let mut items = BTreeMap::new();
        for (key, value) in section.iter().flatten() {
            let place = place.then(key);
            let name = self.faults.name(&place, key);
            let checked = read(self, &place, value);
            items.extend(name.zip(checked));
        }
        items
    }

    fn provider(&mut self, place: &Place, file: &'a ProviderFile) -> Option<Provider> {
        self.faults.unknown_fields(place, file);
        let unit = self.faults.required_name(place, "unit", &file.unit);
        let enforcement = self.faults.required(place, "enforcement", &file.enforcement);
        let enforcement = enforcement.and_then(|text| {
            let words = [Enforcement::Calls, Enforcement::Worker].map(|e| (e.as_str(), e));
            self.faults.word(&place.then("enforcement"), text, &words)
        });
        let keys = self.distinct(&place.then("keys"), file.keys.as_deref().unwrap_or_default());
        Some(Provider { unit: unit?, enforcement: enforcement?, keys })
    }

    fn account(&mut self, place: &Place, file: &'a AccountFile) -> Option<Account> {
        self.faults.unknown_fields(place, file);
        let plan = self.faults.required_name(place, "plan", &file.plan)?;
        let Some(plan_file) = item(&self.file.plans, plan.as_str()) else {
            self.faults.add(&place.then("plan"), format!("there is no plan `{plan}`"));
            return None;
        };
        let mut limits = BTreeMap::new();
        for (key, limit) in file.limits.iter().flatten() {
            let place = place.then("limits").then(key);
            if item(&plan_file.budgets, key).is_none() {
                self.faults.add(&place, format!("plan `{plan}` has no budget of this name"));
                continue;
            }
            let name = key.parse().ok();
            limits.extend(name.zip(self.faults.amount(&place, limit)));
        }
        Some(Account { plan, limits })
    }

    /// A list of names, each given once.
    fn distinct(&mut self, place: &Place, texts: &[String]) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for (index, text) in texts.iter().enumerate() {
            let place = place.item(index);
            let Some(name) = self.faults.name(&place, text) else {
                continue;
            };
            if !names.insert(name) {
                self.faults.add(&place, format!("`{text}` is listed twice"));
            }
        }
        names
    }

    /// The provider of this name; that there is none is a fault.
    fn provider_named(&mut self, place: &Place, name: &Name) -> Option<&'a ProviderFile> {
        let found = item(&self.file.providers, name.as_str());
        if found.is_none() {
            self.faults.add(place, format!("there is no provider `{name}`"));
        }
        found
    }

    /// Whether some provider bills in the unit; that none does is a fault,
    /// because what is bounded in it would be nothing.
    fn billed(&mut self, place: &Place, unit: &Name) -> bool {
        let mut units = self.file.providers.iter().flatten().map(|(_, provider)| &provider.unit);
        let billed = units.any(|billed| billed.as_deref() == Some(unit.as_str()));
        if !billed {
            self.faults.add(place, format!("no provider bills in `{unit}`"));
        }
        billed
    }
}
