//! The policy in force: who pays whom in which unit, what bounds it, and how an
//! estimate is made. Checked when it is built (`crate::policy`), so that
//! everything in here can be relied on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::cost::CostMap;
use super::period::{Calendar, PeriodKind};
use super::{Name, Units};

/// Every definition that is in force. What was retired is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The paid services.
    pub providers: BTreeMap<Name, Provider>,
    /// The kinds of work that spend at a provider.
    pub operations: BTreeMap<Name, Operation>,
    /// The budgets that classes of accounts get.
    pub plans: BTreeMap<Name, Plan>,
    /// The customers.
    pub accounts: BTreeMap<Name, Account>,
    /// The limits that all accounts share.
    pub pools: BTreeMap<Name, Budget>,
}

/// A paid third-party service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// What the provider bills in.
    pub unit: Name,
    /// Who can stop a worker from spending at this provider.
    pub enforcement: Enforcement,
    /// Our keys at the provider, by name.
    pub keys: BTreeSet<Name>,
}

/// Who enforces a fence (RULES.md, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Every paid request is admitted by the ledger first.
    Calls,
    /// Workers call the provider directly once they hold a reservation.
    Worker,
}

impl Enforcement {
    /// The word for it in the policy file and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Worker => "worker",
        }
    }
}

/// One kind of work, and how its units are estimated and bounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Where the work spends.
    pub provider: Name,
    /// How a request becomes units.
    pub pricing: Pricing,
    /// The most that one reservation may ask for, inclusive.
    pub max_units: Units,
    /// Whether the operation's bounds refuse or only record.
    pub mode: Mode,
}

/// How a request becomes units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pricing {
    /// The client states the units, above zero.
    Explicit,
    /// The server computes them from quantities.
    Map {
        /// What a request may state, and its bounds.
        quantities: BTreeMap<Name, Quantity>,
        /// What the quantities cost.
        cost: CostMap,
    },
}

/// The bounds of one quantity, both inclusive, in the quantity's own measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantity {
    /// The least that may be stated.
    pub min: Units,
    /// The most that may be stated.
    pub max: Units,
    /// What an omitted quantity means; without it an omission is an error.
    pub default: Option<Units>,
}

/// What a class of accounts gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The limits, by budget name.
    pub budgets: BTreeMap<Name, Budget>,
    /// The units in which an account of this plan may spend without a limit.
    pub unbounded: BTreeSet<Name>,
}

/// A limit on one unit over one scope and one kind of period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// What is bounded.
    pub unit: Name,
    /// How much a period admits. Zero admits nothing.
    pub limit: Units,
    /// The calendar that cuts time into periods.
    pub calendar: Calendar,
    /// What a new period does with what earlier ones still hold.
    pub rollover: Rollover,
    /// Whether the budget refuses or only records.
    pub mode: Mode,
    /// One budget for each member instead of one for the whole account.
    pub per_member: bool,
    /// Which work is bounded.
    pub scope: Scope,
}

/// Which work a limit applies to; what is absent does not narrow it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// Only work at this provider.
    pub provider: Option<Name>,
    /// Only work with this key of ours at the provider.
    pub provider_key: Option<Name>,
    /// Only this kind of work.
    pub operation: Option<Name>,
}

/// What a new period does with what earlier ones still hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rollover {
    /// Nothing: a reservation burdens only the period it was admitted in.
    #[default]
    OriginalPeriod,
    /// It opens with its limit reduced by what earlier periods still hold.
    CarryForward,
}

impl Rollover {
    /// The word for it in the policy file and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OriginalPeriod => "original_period",
            Self::CarryForward => "carry_forward",
        }
    }
}

/// Whether a limit refuses or only records what it would have refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It refuses.
    #[default]
    Enforce,
    /// It counts and journals like any other and never refuses.
    Observe,
}

impl Mode {
    /// The word for it in the policy file and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}

/// A customer or tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The plan whose budgets it gets.
    pub plan: Name,
    /// Its own limits for budgets of the plan.
    pub limits: BTreeMap<Name, Units>,
}

/// What a budget's name stands for as long as anyone remembers it: what cannot
/// change under the same name, because open periods would then give a second
/// allowance or lose one (RULES.md, section 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetIdentity {
    /// The unit of its balances.
    pub unit: Name,
    /// One for each member, or one for the whole account.
    pub per_member: bool,
    /// Whether its one period never ends.
    pub total: bool,
}

impl Budget {
    /// What the name of this budget stands for.
    #[must_use]
    pub fn identity(&self) -> BudgetIdentity {
        BudgetIdentity {
            unit: self.unit.clone(),
            per_member: self.per_member,
            total: self.calendar.kind == PeriodKind::Total,
        }
    }
}

impl Scope {
    /// Whether work of this operation, provider and key is bounded.
    #[must_use]
    pub fn covers(&self, provider: &Name, provider_key: Option<&Name>, operation: &Name) -> bool {
        let within = |bound: &Option<Name>, value: Option<&Name>| match bound {
            None => true,
            Some(bound) => Some(bound) == value,
        };
        within(&self.provider, Some(provider))
            && within(&self.provider_key, provider_key)
            && within(&self.operation, Some(operation))
    }
}
