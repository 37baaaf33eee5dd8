//! What a worker asks for, and when two requests mean the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::policy::Pricing;
use super::{Name, Units};

/// The part of a reservation request that is the job's identity together with
/// its key: as it was sent, amounts in their one exact form. `account`,
/// `holder`, `lease_seconds` and `wait` are not in it (RULES.md, section 3,
/// "Retry identity").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRequest {
    /// The kind of work.
    pub operation: Name,
    /// The quantities that were stated, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quantities: BTreeMap<Name, Units>,
    /// The units that were stated, for an explicit operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<Units>,
    /// The member that the work is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Name>,
    /// Our key at the provider that the work will use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_key: Option<Name>,
    /// The client's own name for the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The client's own labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl ReservationRequest {
    /// Whether two requests with the same key mean the same, when the first of
    /// them was estimated by `pricing`: a default equals its absence, by the
    /// defaults of that time, whatever the policy has become since.
    #[must_use]
    pub fn means_the_same(&self, other: &Self, pricing: &Pricing) -> bool {
        let filled = |request: &Self| {
            let mut whole = request.clone();
            if let Pricing::Map { quantities, .. } = pricing {
                for (name, quantity) in quantities {
                    if let Some(default) = quantity.default {
                        whole.quantities.entry(name.clone()).or_insert(default);
                    }
                }
            }
            whole
        };
        filled(self) == filled(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cost::CostMap;
    use crate::model::policy::Quantity;

    fn request(json: &str) -> ReservationRequest {
        serde_json::from_str(json).unwrap()
    }

    fn pricing() -> Pricing {
        let units = |text: &str| Units::parse(text).unwrap();
        let quantity = |default| Quantity { min: units("1"), max: units("10"), default };
        Pricing::Map {
            quantities: BTreeMap::from([
                ("formats".parse().unwrap(), quantity(Some(units("1")))),
                ("weight".parse().unwrap(), quantity(None)),
            ]),
            cost: CostMap { terms: Vec::new() },
        }
    }

    #[test]
    fn the_meaning_is_compared_not_the_bytes() {
        let first = request(r#"{"operation":"export","quantities":{"formats":"1","weight":"5"}}"#);
        for same in [
            r#"{"quantities":{"weight":"5.0","formats":"1.000"},"operation":"export"}"#,
            r#"{"operation":"export","quantities":{"weight":"5"}}"#,
            r#"{"operation":"export","quantities":{"weight":"5"},"labels":{}}"#,
        ] {
            assert!(first.means_the_same(&request(same), &pricing()), "{same}");
            assert!(request(same).means_the_same(&first, &pricing()), "{same}");
        }
        for other in [
            r#"{"operation":"export","quantities":{"formats":"2","weight":"5"}}"#,
            r#"{"operation":"export","quantities":{"formats":"1"}}"#,
            r#"{"operation":"export","quantities":{"weight":"5"},"member":"ann"}"#,
            r#"{"operation":"export","quantities":{"weight":"5"},"reference":"job-1"}"#,
            r#"{"operation":"bulk","quantities":{"weight":"5"}}"#,
            r#"{"operation":"export","units":"5"}"#,
        ] {
            assert!(!first.means_the_same(&request(other), &pricing()), "{other}");
        }
    }
}
