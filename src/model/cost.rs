//! Cost maps: how many units a request comes to.
//!
//! A cost map is a sum of terms, each a rate times some of the request's
//! quantities. Prices per token have more decimals than an amount, so the sum
//! is computed exactly, in a type without a limit on digits, and rounded once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bigdecimal::num_bigint::BigInt;
use bigdecimal::{BigDecimal, RoundingMode, ToPrimitive, Zero};
use serde::de::{Deserialize, Deserializer};
use serde::{Serialize, Serializer};

use super::amount::{AmountError, DECIMALS, DecimalText, Units, deserialize_text};

/// Decimals that a rate may have.
const RATE_DECIMALS: i32 = 60;
/// Digits that a rate may have, zeros in front not counted.
const RATE_DIGITS: i32 = 40;
/// Terms that a cost map may have.
const MAX_TERMS: usize = 32;
/// Quantities that one term may multiply.
const MAX_FACTORS: usize = 8;

/// Why a text is not a rate. Each message continues a sentence that names the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The text is not a decimal number, or is negative.
    #[error(transparent)]
    Text(#[from] AmountError),
    /// The rate has more than 60 decimals. Trailing zeros are not decimals.
    #[error("has more than 60 decimals")]
    Decimals,
    /// The rate has more than 40 digits.
    #[error("has more than 40 digits")]
    Digits,
}

/// An exact price in units per quantity, zero or more. It may have up to 60
/// decimals and 40 digits, more than an amount: only what it comes to is rounded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(BigDecimal);

impl Rate {
    /// Reads decimal text exactly, plain or scientific, like [`Units::parse`].
    ///
    /// # Errors
    ///
    /// The reason why the text is not a rate. Nothing is ever rounded to fit.
    pub fn parse(text: &str) -> Result<Rate, RateError> {
        let number = DecimalText::parse(text)?;
        if number.negative {
            return Err(AmountError::Negative.into());
        }
        if number.scale > RATE_DECIMALS {
            return Err(RateError::Decimals);
        }
        // 1e39 has 40 digits when it is written out, 1e-39 has one.
        if number.integer_digits().max(number.digits.len() as i32) > RATE_DIGITS {
            return Err(RateError::Digits);
        }
        if number.digits.is_empty() {
            return Ok(Rate(BigDecimal::zero()));
        }
        let digits: BigInt = number.digits.parse().map_err(|_| AmountError::NotDecimal)?;
        Ok(Rate(BigDecimal::new(digits, i64::from(number.scale))))
    }

    /// The rate as an exact number.
    #[must_use]
    pub fn get(&self) -> &BigDecimal {
        &self.0
    }
}

/// Plain notation without trailing zeros, the form that [`Rate::parse`] reads back.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_plain_string())
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        deserialize_text(deserializer, "a rate as decimal text", Rate::parse)
    }
}

/// Why a cost map is not accepted, or does not come to an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CostError {
    /// The cost map has no term. What has no price is not free.
    #[error("the cost map has no terms")]
    NoTerms,
    /// The cost map has more than 32 terms.
    #[error("the cost map has more than 32 terms")]
    TooManyTerms,
    /// A term multiplies more than 8 quantities.
    #[error("a term of the cost map multiplies more than 8 quantities")]
    TooManyFactors,
    /// The request lacks a quantity that the cost map multiplies.
    #[error("the quantity `{0}` is missing")]
    MissingQuantity(String),
    /// A quantity is below zero, which would lower the cost.
    #[error("the quantity `{0}` is negative")]
    NegativeQuantity(String),
    /// The cost has more than 16 digits before the decimal point.
    #[error("the cost is out of range: it has more than 16 digits before the decimal point")]
    OutOfRange,
}

/// How an exact cost becomes an amount of 12 decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Up, so that an estimate never authorises less than what may be spent.
    Estimate,
    /// Half to even, so that actuals do not drift in either direction.
    Actual,
}

/// One term of a cost map: a rate times some quantities.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTerm {
    /// Units per product of the quantities.
    pub rate: Rate,
    /// Names of the quantities that are multiplied. Empty: the rate is a
    /// constant. A name that stands twice is squared.
    #[serde(default)]
    pub times: Vec<String>,
}

/// A sum of rate × quantity × quantity …, in the unit of the operation's provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct CostMap {
    /// The terms that are added.
    pub terms: Vec<CostTerm>,
}

impl CostMap {
    /// Checks what does not depend on quantities: 1 to 32 terms, each with at
    /// most 8 quantities. It bounds the work that evaluating can be.
    ///
    /// # Errors
    ///
    /// [`CostError::NoTerms`], [`CostError::TooManyTerms`] or [`CostError::TooManyFactors`].
    pub fn check(&self) -> Result<(), CostError> {
        if self.terms.is_empty() {
            return Err(CostError::NoTerms);
        }
        if self.terms.len() > MAX_TERMS {
            return Err(CostError::TooManyTerms);
        }
        if self.terms.iter().any(|term| term.times.len() > MAX_FACTORS) {
            return Err(CostError::TooManyFactors);
        }
        Ok(())
    }

    /// The names of all quantities that the cost map multiplies.
    #[must_use]
    pub fn quantity_names(&self) -> BTreeSet<&str> {
        let names = self.terms.iter().flat_map(|term| &term.times);
        names.map(String::as_str).collect()
    }

    /// What a request with these quantities comes to: computed exactly and
    /// rounded once, at the end. Quantities that no term names do not count.
    ///
    /// # Errors
    ///
    /// As [`CostMap::check`]; a named quantity that is missing (also where its
    /// rate is zero) or negative; a cost that is out of an amount's range.
    pub fn evaluate(&self, quantities: &BTreeMap<String, Units>, rounding: Rounding) -> Result<Units, CostError> {
        self.check()?;
        let mut cost = BigDecimal::zero();
        for term in &self.terms {
            let mut product = term.rate.0.clone();
            for name in &term.times {
                product *= quantity(quantities, name)?;
            }
            cost += product;
        }
        // Rounding to 12 decimals leaves a whole number of an amount's steps.
        let mode = match rounding {
            Rounding::Estimate => RoundingMode::Ceiling,
            Rounding::Actual => RoundingMode::HalfEven,
        };
        let rounded = cost.with_scale_round(i64::from(DECIMALS), mode);
        let steps = rounded.into_bigint_and_scale().0.to_i128();
        let units = steps.map(Units::from_steps);
        units.and_then(Result::ok).ok_or(CostError::OutOfRange)
    }
}

fn quantity(quantities: &BTreeMap<String, Units>, name: &str) -> Result<BigDecimal, CostError> {
    match quantities.get(name) {
        None => Err(CostError::MissingQuantity(name.to_owned())),
        Some(units) if units.is_negative() => Err(CostError::NegativeQuantity(name.to_owned())),
        Some(units) => Ok(BigDecimal::new(units.steps().into(), i64::from(DECIMALS))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(terms: &[(&str, &[&str])]) -> CostMap {
        let term = |(rate, times): &(&str, &[&str])| CostTerm {
            rate: Rate::parse(rate).unwrap(),
            times: times.iter().map(|name| (*name).to_owned()).collect(),
        };
        CostMap { terms: terms.iter().map(term).collect() }
    }

    fn quantities(given: &[(&str, &str)]) -> BTreeMap<String, Units> {
        let pair = |(name, text): &(&str, &str)| ((*name).to_owned(), Units::parse(text).unwrap());
        given.iter().map(pair).collect()
    }

    fn cost(terms: &[(&str, &[&str])], given: &[(&str, &str)], rounding: Rounding) -> Result<String, CostError> {
        let units = map(terms).evaluate(&quantities(given), rounding)?;
        Ok(units.to_string())
    }

    #[test]
    fn a_cost_is_a_sum_of_products() {
        use Rounding::*;
        let export: &[(&str, &[&str])] = &[("1", &["formats", "weight"])];
        let given = [("formats", "4"), ("weight", "9"), ("unused", "-1")];
        assert_eq!(cost(export, &given, Estimate).as_deref(), Ok("36"));
        let tokens: &[(&str, &[&str])] = &[("1.5e-07", &["in"]), ("6e-07", &["out"]), ("0.01", &[])];
        let given = [("in", "1234"), ("out", "567")];
        assert_eq!(cost(tokens, &given, Actual).as_deref(), Ok("0.0105253"));
        assert_eq!(cost(&[("0", &[])], &[], Estimate).as_deref(), Ok("0"));
        let square: &[(&str, &[&str])] = &[("2", &["n", "n"])];
        assert_eq!(cost(square, &[("n", "1e7")], Actual).as_deref(), Ok("200000000000000"));
    }

    #[test]
    fn a_cost_is_rounded_once() {
        use Rounding::*;
        let step = "0.000000000001";
        // Three thirds of a step: rounding each would give three steps, or none.
        let thirds: &[(&str, &[&str])] = &[("3e-13", &[]), ("3e-13", &[]), ("4e-13", &[])];
        assert_eq!(cost(thirds, &[], Estimate).as_deref(), Ok(step));
        assert_eq!(cost(thirds, &[], Actual).as_deref(), Ok(step));
        for (rate, estimate, actual) in [
            ("1e-60", step, "0"),
            ("5e-13", step, "0"),
            ("5.0000000000001e-13", step, step),
            ("15e-13", "0.000000000002", "0.000000000002"),
            ("25e-13", "0.000000000003", "0.000000000002"),
        ] {
            let terms: &[(&str, &[&str])] = &[(rate, &[])];
            assert_eq!(cost(terms, &[], Estimate).as_deref(), Ok(estimate), "{rate}");
            assert_eq!(cost(terms, &[], Actual).as_deref(), Ok(actual), "{rate}");
        }
    }

    #[test]
    fn what_has_no_cost_is_an_error() {
        use Rounding::*;
        let lacks = CostError::MissingQuantity("n".into());
        assert_eq!(cost(&[("0", &["n"])], &[], Estimate), Err(lacks));
        let negative = CostError::NegativeQuantity("n".into());
        assert_eq!(cost(&[("1", &["n"])], &[("n", "-1")], Actual), Err(negative));
        assert_eq!(cost(&[("1e16", &[])], &[], Actual), Err(CostError::OutOfRange));
        let largest: &[(&str, &[&str])] = &[("9999999999999999.9999999999990001", &[])];
        assert_eq!(cost(largest, &[], Estimate), Err(CostError::OutOfRange));
        assert_eq!(cost(largest, &[], Actual), Ok(Units::MAX.to_string()));
        let huge: &[(&str, &[&str])] = &[("1e39", &["n"; 8])];
        assert_eq!(cost(huge, &[("n", "9e15")], Actual), Err(CostError::OutOfRange));
        assert_eq!(map(&[]).check(), Err(CostError::NoTerms));
        assert_eq!(map(&[("1", &[] as _); 33]).check(), Err(CostError::TooManyTerms));
        assert_eq!(map(&[("1", &["n"; 9])]).check(), Err(CostError::TooManyFactors));
        assert_eq!(map(&[("1", &["n"; 8] as _); 32]).check(), Ok(()));
    }

    #[test]
    fn rates_are_read_within_their_bounds() {
        let read = |text: &str| Rate::parse(text).map(|rate| rate.to_string());
        assert_eq!(read("2.5e-15").as_deref(), Ok("0.0000000000000025"));
        assert_eq!(read("1E3").as_deref(), Ok("1000"));
        assert_eq!(read("-0.00").as_deref(), Ok("0"));
        assert_eq!(read("1e39").map(|text| text.len()), Ok(40));
        assert_eq!(read("1e40"), Err(RateError::Digits));
        assert_eq!(read(&format!("0.{}", "1".repeat(41))), Err(RateError::Digits));
        assert_eq!(read("1e-61"), Err(RateError::Decimals));
        assert_eq!(read("-1e-60"), Err(RateError::Text(AmountError::Negative)));
        assert_eq!(read("nan"), Err(RateError::Text(AmountError::NotANumber)));
    }

    #[test]
    fn json_has_rates_as_strings() {
        let json = r#"[{"rate":"1.50e-7","times":["in"]},{"rate":"2"}]"#;
        let read: CostMap = serde_json::from_str(json).unwrap();
        let written = serde_json::to_string(&read).unwrap();
        let plain = r#"[{"rate":"0.00000015","times":["in"]},{"rate":"2","times":[]}]"#;
        assert_eq!(written, plain);
        assert_eq!(read.quantity_names().into_iter().collect::<Vec<_>>(), ["in"]);
        assert!(serde_json::from_str::<CostMap>(r#"[{"rate":"1","time":[]}]"#).is_err());
    }

    proptest! {
        /// Against plain integers: a rate of r × 10^-16, so 10,000 make one step.
        #[test]
        fn rounding_agrees_with_integers(r in 0..1u64 << 40, q in 0..1u64 << 20, ties: bool) {
            let r = if ties { r - r % 500 } else { r };
            let terms: &[(&str, &[&str])] = &[(&format!("{r}e-16"), &["q"])];
            let (whole, rest) = (r * q / 10_000, r * q % 10_000);
            let up = whole + u64::from(rest > 0);
            let even = whole + u64::from(rest > 5_000 || (rest == 5_000 && whole % 2 == 1));
            let shown = |steps: u64| Ok(Units::from_steps(steps.into()).unwrap().to_string());
            let given = [("q", &*q.to_string())];
            prop_assert_eq!(cost(terms, &given, Rounding::Estimate), shown(up));
            prop_assert_eq!(cost(terms, &given, Rounding::Actual), shown(even));
        }

        #[test]
        fn rates_are_read_back(digits in "[0-9]{1,40}", exponent in -60..=0_i32) {
            let rate = Rate::parse(&format!("{digits}e{exponent}")).unwrap();
            prop_assert_eq!(Rate::parse(&rate.to_string()), Ok(rate));
        }
    }
}
