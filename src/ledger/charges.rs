//! What a deciding statement saw of the budgets it charged, and the refusal that
//! follows from it.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use uuid::Uuid;

use crate::model::refusal::Breach;
use crate::model::{Refusal, Retry, Units};

/// One budget of one item, as the statement saw it before its own change.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ChargeSeen {
    /// Whether all accounts share it.
    pub pool: bool,
    /// The budget's or pool's name.
    pub budget: String,
    /// The member, or empty.
    pub member: String,
    /// Whether it refuses or only records.
    pub enforcing: bool,
    /// The period, if one is open.
    pub period_id: Option<Uuid>,
    /// Its bounds.
    pub starts_at: Option<DateTime<Utc>>,
    /// Its bounds; never ends, or is not open, if absent.
    pub ends_at: Option<DateTime<Utc>>,
    /// The limit in force.
    pub limit: Option<Units>,
    /// What was available.
    pub available: Option<Units>,
    /// What was reserved or in liability.
    pub held: Option<Units>,
    /// What earlier periods still take from it.
    #[serde(default)]
    pub carried: Option<Units>,
}

impl ChargeSeen {
    /// What it breaches by, if it has no room for so much.
    fn breach(&self, units: Units) -> Option<Breach> {
        let available = self.available?;
        (!units.is_zero() && units > available).then(|| self.as_breach(units, available))
    }

    fn as_breach(&self, units: Units, available: Units) -> Breach {
        Breach {
            budget: self.budget.clone(),
            pool: self.pool,
            member: (!self.member.is_empty()).then(|| self.member.clone()),
            requested: units,
            available,
            resets_at: self.ends_at,
        }
    }

    /// Whether live work, of this period or of an earlier one that it carries,
    /// could give back enough.
    fn could_be_released(&self, units: Units) -> bool {
        let parts = [self.available, self.held, self.carried];
        let most = parts.into_iter().flatten().try_fold(Units::ZERO, Units::checked_add);
        most.is_ok_and(|most| most >= units)
    }

    /// Whether earlier periods still take from it.
    pub fn carries(&self) -> bool {
        self.carried.is_some_and(|carried| !carried.is_zero())
    }

    fn frozen(&self) -> bool {
        self.limit.is_some_and(Units::is_zero)
    }
}

/// The breaches of the budgets that only observe: what they would have refused.
pub(super) fn observed(charges: &[ChargeSeen], units: Units) -> Vec<Breach> {
    charges.iter().filter(|charge| !charge.enforcing).filter_map(|charge| charge.breach(units)).collect()
}

/// The refusal by the enforcing budgets that have no room, as seen at `at`. When
/// a retry can help is the worst of what each of them says: a frozen budget
/// never, one that live work can free after a release, else the end of its
/// period. The time is when the last of the refusing periods ends; a period that
/// never ends names none.
pub(super) fn exhausted(charges: &[ChargeSeen], units: Units, at: DateTime<Utc>) -> Refusal {
    let enforcing = || charges.iter().filter(|charge| charge.enforcing);
    let mut refusing: Vec<&ChargeSeen> = enforcing().filter(|charge| charge.breach(units).is_some()).collect();
    if refusing.is_empty() {
        // Not to be expected. Then it is told of all that it asked.
        refusing = enforcing().collect();
    }
    let retry = refusing
        .iter()
        .map(|charge| match charge {
            charge if charge.frozen() => Retry::Never,
            charge if charge.could_be_released(units) => Retry::AfterRelease,
            charge if charge.ends_at.is_some() => Retry::AfterReset,
            _ => Retry::Never,
        })
        .max_by_key(|retry| match retry {
            Retry::Never => 2,
            Retry::AfterReset => 1,
            Retry::AfterRelease | Retry::Transient => 0,
        })
        .unwrap_or(Retry::Never);
    let last_end = refusing.iter().map(|charge| charge.ends_at).collect::<Option<Vec<_>>>();
    let retry_after_seconds = match (retry, last_end.and_then(|ends| ends.into_iter().max())) {
        (Retry::Never, _) | (_, None) => None,
        (_, Some(end)) => Some(seconds_until(end, at)),
    };
    let breaches =
        refusing.into_iter().map(|charge| charge.as_breach(units, charge.available.unwrap_or_default())).collect();
    Refusal::BudgetExhausted { breaches, retry, retry_after_seconds }
}

/// The refusal of what no period of a budget could ever admit.
pub(super) fn over_a_whole_period(charges: &[ChargeSeen], units: Units) -> Refusal {
    let smallest = charges
        .iter()
        .filter(|charge| charge.enforcing && !charge.frozen())
        .filter_map(|charge| charge.limit.map(|limit| (limit, charge)))
        .min_by_key(|(limit, _)| *limit);
    match smallest {
        Some((max_units, charge)) => Refusal::TooExpensive {
            units,
            max_units,
            bound: format!("a whole period of {}", charge.budget),
            pool: charge.pool,
        },
        None => {
            Refusal::TooExpensive { units, max_units: Units::ZERO, bound: "a whole period".to_owned(), pool: false }
        }
    }
}

/// Whole seconds, rounded up, so that a caller who waits as told is not early.
pub(super) fn seconds_until(end: DateTime<Utc>, at: DateTime<Utc>) -> u64 {
    let milliseconds = (end - at).num_milliseconds().max(0);
    u64::try_from(milliseconds).unwrap_or(0).div_ceil(1000).max(1)
}
