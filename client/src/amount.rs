//! What work costs or may cost, in units or in what they are computed from.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde_json::{Map, Value};

/// The longest name of a request at a provider, in characters.
const LONGEST_ID: usize = 255;

/// An amount as a worker states it. Exact decimals, sent as text, never floats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amount {
    /// Units of the operation's provider.
    Units(Decimal),
    /// Quantities, which the operation's cost map turns into units.
    Quantities(BTreeMap<String, Decimal>),
}

impl Amount {
    /// Quantities by name.
    ///
    /// ```
    /// use spend_ledger_client::Amount;
    /// let amount = Amount::quantities([("formats", 3), ("weight", 12)]);
    /// ```
    pub fn quantities<N: Into<String>, Q: Into<Decimal>>(stated: impl IntoIterator<Item = (N, Q)>) -> Self {
        Self::Quantities(stated.into_iter().map(|(name, quantity)| (name.into(), quantity.into())).collect())
    }

    /// Adds the amount to a request's body, under the names that the service knows.
    pub(crate) fn state(&self, body: &mut Map<String, Value>) {
        match self {
            Self::Units(units) => {
                body.insert("units".to_owned(), units.to_string().into());
            }
            Self::Quantities(quantities) => {
                let quantities = quantities.iter().map(|(name, quantity)| (name.clone(), quantity.to_string().into()));
                body.insert("quantities".to_owned(), Value::Object(quantities.collect()));
            }
        }
    }
}

/// Whole units and exact decimals are units.
macro_rules! units_from {
    ($($number:ty),*) => {
        $(impl From<$number> for Amount {
            fn from(units: $number) -> Self {
                Self::Units(units.into())
            }
        })*
    };
}

units_from!(Decimal, i32, u32, i64, u64);

/// What work has cost, and what the provider calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    amount: Amount,
    provider_request_id: Option<String>,
}

impl Usage {
    /// What it has cost. Zero is a valid amount.
    pub fn new(amount: impl Into<Amount>) -> Self {
        Self { amount: amount.into(), provider_request_id: None }
    }

    /// With the provider's own name for the request, by which finance finds it on
    /// the provider's bill. What the ledger would not take is left out of it
    /// (control characters, and all after the 255th): a name must not keep a cost
    /// from being recorded.
    #[must_use]
    pub fn provider_request_id(self, id: impl AsRef<str>) -> Self {
        let id: String = id.as_ref().chars().filter(|c| !c.is_control()).take(LONGEST_ID).collect();
        Self { provider_request_id: Some(id).filter(|id| !id.is_empty()), ..self }
    }

    pub(crate) fn state(&self, body: &mut Map<String, Value>) {
        self.amount.state(body);
        if let Some(id) = &self.provider_request_id {
            body.insert("provider_request_id".to_owned(), id.as_str().into());
        }
    }
}

impl<A: Into<Amount>> From<A> for Usage {
    fn from(amount: A) -> Self {
        Self::new(amount)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_sent_as_exact_text() {
        let mut body = Map::new();
        Usage::new(Decimal::new(1_000_000_000_001, 12)).provider_request_id("r-1").state(&mut body);
        assert_eq!(Value::Object(body), json!({ "units": "1.000000000001", "provider_request_id": "r-1" }));
        for (id, sent) in [("", None), ("r\n\t2", Some("r2".to_owned())), (&"ü".repeat(300), Some("ü".repeat(255)))] {
            assert_eq!(Usage::new(1).provider_request_id(id).provider_request_id, sent);
        }
        let mut body = Map::new();
        Usage::from(Amount::quantities([("weight", 12), ("formats", 3)])).state(&mut body);
        assert_eq!(Value::Object(body), json!({ "quantities": { "formats": "3", "weight": "12" } }));
    }
}
