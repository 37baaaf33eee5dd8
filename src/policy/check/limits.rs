//! What a plan's budget and a pool have in common, and the pools.

use std::collections::BTreeMap;

use super::Check;
use super::faults::Place;
use crate::model::Name;
use crate::model::period::{Calendar, PeriodKind};
use crate::model::policy::{Budget, Mode, Rollover, Scope};
use crate::policy::file::{BudgetFile, PoolFile, ProviderFile, item};

/// The zone of a budget that names none.
const DEFAULT_TIMEZONE: &str = "UTC";

/// The fields of a limit, wherever it stands.
pub(super) struct Limit<'a> {
    unit: &'a Option<String>,
    limit: &'a Option<String>,
    period: &'a Option<String>,
    timezone: &'a Option<String>,
    rollover: &'a Option<String>,
    mode: &'a Option<String>,
    provider: &'a Option<String>,
    provider_key: &'a Option<String>,
    operation: &'a Option<String>,
}

impl<'a> From<&'a BudgetFile> for Limit<'a> {
    fn from(file: &'a BudgetFile) -> Self {
        Self {
            unit: &file.unit,
            limit: &file.limit,
            period: &file.period,
            timezone: &file.timezone,
            rollover: &file.rollover,
            mode: &file.mode,
            provider: &file.provider,
            provider_key: &None,
            operation: &file.operation,
        }
    }
}

impl<'a> From<&'a PoolFile> for Limit<'a> {
    fn from(file: &'a PoolFile) -> Self {
        Self {
            unit: &file.unit,
            limit: &file.limit,
            period: &file.period,
            timezone: &file.timezone,
            rollover: &file.rollover,
            mode: &file.mode,
            provider: &file.provider,
            provider_key: &file.provider_key,
            operation: &file.operation,
        }
    }
}

impl<'a> Check<'a> {
    /// All pools. A pool's name means what it has always meant.
    pub(super) fn pools(&mut self) -> BTreeMap<Name, Budget> {
        let place = Place::file().then("pools");
        let pools = self.section(&place, &self.file.pools, Check::pool);
        for (name, pool) in &pools {
            let known = self.known.pools.get(name);
            self.same_as_known(&place.then(name.as_str()), &pool.identity(), known);
        }
        pools
    }

    fn pool(&mut self, place: &Place, file: &'a PoolFile) -> Option<Budget> {
        self.faults.unknown_fields(place, file);
        let pace = [("calls", file.calls), ("units", file.units), ("per", file.per)];
        let jobs = [("running", file.running), ("waiting", file.waiting)];
        self.faults.unsupported(place, &pace);
        self.faults.unsupported(place, &jobs);
        let budget = [&file.unit, &file.limit, &file.period, &file.timezone, &file.rollover];
        let bounds = [
            budget.iter().any(|field| field.is_some()),
            pace.iter().any(|(_, asked)| asked.is_some()),
            jobs.iter().any(|(_, asked)| asked.is_some()),
        ];
        if bounds.iter().filter(|bound| **bound).count() > 1 {
            self.faults.add(place, "bounds more than one thing; each needs a pool of its own");
        }
        if let [false, true, _] | [false, _, true] = bounds {
            return None;
        }
        self.limit(place, &Limit::from(file))
    }

    /// A limit of the whole account or of everybody; every field is checked.
    pub(super) fn limit(&mut self, place: &Place, file: &Limit<'_>) -> Option<Budget> {
        let unit = self.faults.required_name(place, "unit", file.unit);
        let unit = unit.filter(|unit| self.billed(&place.then("unit"), unit));
        let limit = self.faults.required_amount(place, "limit", file.limit);
        let calendar = self.calendar(place, file);
        let rollover = self.rollover(place, file);
        let mode = self.mode(place, file.mode);
        let scope = self.scope(place, file, unit.as_ref());
        Some(Budget {
            unit: unit?,
            limit: limit?,
            calendar: calendar?,
            rollover: rollover?,
            mode: mode?,
            per_member: false,
            scope: scope?,
        })
    }

    /// `enforce` where nothing is said.
    pub(super) fn mode(&mut self, place: &Place, file: &Option<String>) -> Option<Mode> {
        let modes = [Mode::Enforce, Mode::Observe].map(|mode| (mode.as_str(), mode));
        self.faults.word_or_default(place, "mode", file, &modes)
    }

    fn calendar(&mut self, place: &Place, file: &Limit<'_>) -> Option<Calendar> {
        let period = self.faults.required(place, "period", file.period);
        let kinds = PeriodKind::ALL.map(|kind| (kind.as_str(), kind));
        let kind = period.and_then(|text| self.faults.word(&place.then("period"), text, &kinds));
        let zone = file.timezone.as_deref().unwrap_or(DEFAULT_TIMEZONE);
        // The zone is looked at even if the kind is wrong.
        let calendar = Calendar::new(kind.unwrap_or(PeriodKind::Total), zone);
        let calendar = self.faults.read(&place.then("timezone"), calendar);
        kind.and(calendar)
    }

    fn rollover(&mut self, place: &Place, file: &Limit<'_>) -> Option<Rollover> {
        let words = [Rollover::OriginalPeriod, Rollover::CarryForward].map(|r| (r.as_str(), r));
        let rollover = self.faults.word_or_default(place, "rollover", file.rollover, &words)?;
        let total = file.period.as_deref() == Some(PeriodKind::Total.as_str());
        if total && rollover == Rollover::CarryForward {
            let message = "a `total` has no next period to carry anything into";
            self.faults.add(&place.then("rollover"), message);
            return None;
        }
        Some(rollover)
    }

    /// The work that is bounded: all of it exists, is billed in the unit of the
    /// limit, and the parts agree with each other.
    fn scope(&mut self, place: &Place, file: &Limit<'_>, unit: Option<&Name>) -> Option<Scope> {
        let provider = self.faults.optional_name(place, "provider", file.provider);
        let key = self.faults.optional_name(place, "provider_key", file.provider_key);
        let operation = self.faults.optional_name(place, "operation", file.operation);
        let scope = Scope { provider: provider?, provider_key: key?, operation: operation? };
        let before = self.faults.count();
        if let Some(provider) = &scope.provider {
            self.bills_in(&place.then("provider"), provider, unit);
        }
        if let Some(key) = &scope.provider_key {
            self.key_of(&place.then("provider_key"), key, scope.provider.as_ref());
        }
        if let Some(operation) = &scope.operation {
            let place = place.then("operation");
            self.operation_in_scope(&place, operation, scope.provider.as_ref(), unit);
        }
        (self.faults.count() == before).then_some(scope)
    }

    /// That the provider exists and bills in the unit, where that is known.
    fn bills_in(&mut self, place: &Place, provider: &Name, unit: Option<&Name>) {
        let Some(file) = self.provider_named(place, provider) else {
            return;
        };
        if let Some((billed, unit)) = another_unit(file, unit) {
            let message = format!("provider `{provider}` bills in `{billed}`, not in `{unit}`");
            self.faults.add(place, message);
        }
    }

    fn key_of(&mut self, place: &Place, key: &Name, provider: Option<&Name>) {
        let Some(provider) = provider else {
            self.faults.add(place, "needs `provider` beside it: a key belongs to a provider");
            return;
        };
        // A provider that does not exist was reported as such.
        let declared = item(&self.file.providers, provider.as_str()).map(|file| &file.keys);
        if declared.is_some_and(|keys| !keys.iter().flatten().any(|other| other == key.as_str())) {
            let message = format!("provider `{provider}` declares no key `{key}`");
            self.faults.add(place, message);
        }
    }

    fn operation_in_scope(&mut self, place: &Place, name: &Name, provider: Option<&Name>, unit: Option<&Name>) {
        let Some(file) = item(&self.file.operations, name.as_str()) else {
            self.faults.add(place, format!("there is no operation `{name}`"));
            return;
        };
        // An operation without a good provider was reported as such.
        let spends_at = file.provider.as_deref().unwrap_or_default();
        let Some(at) = item(&self.file.providers, spends_at) else {
            return;
        };
        if let Some(provider) = provider {
            if provider.as_str() != spends_at {
                let message = format!("operation `{name}` spends at `{spends_at}`, not at `{provider}`");
                self.faults.add(place, message);
            }
        } else if let Some((billed, unit)) = another_unit(at, unit) {
            let message = format!("operation `{name}` is billed in `{billed}`, not in `{unit}`");
            self.faults.add(place, message);
        }
    }
}

/// The provider's unit and the wanted one, if both are names and differ.
fn another_unit<'n>(provider: &ProviderFile, wanted: Option<&'n Name>) -> Option<(Name, &'n Name)> {
    let billed = provider.unit.as_ref()?.parse().ok()?;
    wanted.filter(|unit| **unit != billed).map(|unit| (billed, unit))
}
