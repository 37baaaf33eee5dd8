//! What several bodies say in the same way: which attempt, how much was used, and
//! what is known of it.

use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{Amount, Named, Object};
use super::problem::Problem;
use super::text::{MAX_TEXT, optional, plain};
use crate::ledger::settle::Usage;
use crate::model::evidence::{Evidence, EvidenceKind};
use crate::model::{Name, Units};

/// Why an attempt cannot spend more. Who gave it and when is recorded with it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EvidenceBody {
    /// Of which kind it is.
    kind: EvidenceKind,
    /// What there is to say about it.
    #[schema(max_length = 255)]
    detail: Option<String>,
}

/// The evidence, if there is any.
pub(super) fn evidence(body: Option<Object<EvidenceBody>>) -> Result<Option<Evidence>, Problem> {
    body.map(|Object(EvidenceBody { kind, detail })| {
        Ok(Evidence { kind, detail: optional("evidence.detail", detail)? })
    })
    .transpose()
}

/// The number of an attempt.
pub(super) fn number(field: &str, number: i32) -> Result<i32, Problem> {
    if number < 1 {
        return Err(Problem::invalid(field, "is out of range: attempts count from 1"));
    }
    Ok(number)
}

/// Refuses the fields that only somebody else sends.
pub(super) fn not_for<const N: usize>(given: [(&str, bool); N], whom: &str) -> Result<(), Problem> {
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Problem::invalid(field, format!("is for {whom} to send"))),
        None => Ok(()),
    }
}

/// What finance states.
pub(super) fn by_finance(units: Option<Amount>, reason: Option<String>) -> Result<(Units, String), Problem> {
    let units = units.ok_or_else(|| Problem::invalid("units", "is missing"))?;
    let reason = reason.ok_or_else(|| Problem::invalid("reason", "is missing: say why"))?;
    Ok((units.0, plain("reason", reason, 1, MAX_TEXT)?))
}

/// The token that a worker has to send.
pub(super) fn attempt(token: Option<String>) -> Result<String, Problem> {
    let token = token.ok_or_else(|| Problem::invalid("attempt", "is missing: the token of the attempt"))?;
    plain("attempt", token, 1, MAX_TEXT)
}

/// Usage in units or in quantities, if it is stated.
pub(super) fn usage(units: Option<Amount>, quantities: Option<Named<Name, Amount>>) -> Result<Option<Usage>, Problem> {
    match (units, quantities) {
        (Some(units), None) => Ok(Some(Usage::Units(units.0))),
        (None, Some(quantities)) => {
            let quantities = quantities.0.into_iter().map(|(name, amount)| (name, amount.0)).collect();
            Ok(Some(Usage::Quantities(quantities)))
        }
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Problem::invalid("units", "state units or quantities, not both")),
    }
}
