//! The policy file: read it, check it, compare it with what is in force.
//!
//! [`mod@file`] knows which fields exist, [`mod@check`] which values make sense together
//! and [`mod@compare`] what changes. [`words`] is the way back, from a policy to the
//! words of the file. None of it knows where a policy is kept.

pub mod check;
pub mod compare;
pub mod file;
pub mod words;

use std::collections::BTreeMap;
use std::fmt;

pub use check::{check, parse, read};
pub use compare::{Action, Change, ItemKind, compare};

use crate::model::Name;
use crate::model::policy::BudgetIdentity;

/// What the names of budgets and pools stand for, also of those that were
/// retired: a name keeps its meaning for as long as anyone remembers it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownBudgets {
    /// The budgets of all plans, past and present, by budget name.
    pub budgets: BTreeMap<Name, BudgetIdentity>,
    /// The pools, past and present, by pool name.
    pub pools: BTreeMap<Name, BudgetIdentity>,
}

/// One thing that is wrong with a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The path to it, as in `plans.standard.budgets.daily.limit`; empty where
    /// the file as a whole is meant.
    pub place: String,
    /// What is wrong there; reads on from the place.
    pub message: String,
}

impl Fault {
    /// A fault on one line, whatever the texts repeat from the file.
    pub(crate) fn new(place: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        let one_line = |text: &str| text.replace(char::is_control, " ");
        Self { place: one_line(place.as_ref()), message: one_line(message.as_ref()) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// A policy file that is refused whole, with everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.faults))]
pub struct PolicyRefused {
    /// What is wrong, in the order of the file's sections; never empty.
    pub faults: Vec<Fault>,
}

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}
