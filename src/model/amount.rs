//! Amounts: exact decimals, never floats.
//!
//! An amount counts units (transformations, tokens, dollars) with at most 16
//! digits before the decimal point and 12 after it: what the database's
//! `numeric(28, 12)` can hold. Text becomes an amount here or is refused here;
//! nothing later rounds.

use std::fmt;

use rust_decimal::Decimal;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// Decimals that an amount may have.
pub(crate) const DECIMALS: u32 = 12;
/// Digits that an amount may have before the decimal point.
const INTEGER_DIGITS: i32 = 16;
/// 10^28: the first number of steps that an amount cannot have.
const STEPS_END: u128 = 10_u128.pow(28);
/// Longest text that is read as a number, in bytes.
const TEXT_BYTES: usize = 64;
/// Largest exponent, either way. Text of 64 bytes needs no larger one, and a
/// bound here means that no later code can be made to write out a billion zeros.
const EXPONENT: i32 = 99;

/// Why a text or a number is not an amount. Each message continues a sentence
/// that names the field, as in "`ceiling` has more than 12 decimals".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// The text is longer than 64 bytes.
    #[error("is longer than 64 bytes")]
    TooLong,
    /// The text has blanks, tabs or line breaks before, in or after the number.
    #[error("contains blanks")]
    Blank,
    /// The text begins with `+`.
    #[error("begins with a plus sign")]
    PlusSign,
    /// The text says NaN.
    #[error("is NaN, which is not an amount")]
    NotANumber,
    /// The text says infinity.
    #[error("is infinite")]
    Infinite,
    /// The text is written in hexadecimal, octal or binary.
    #[error("is not written in base 10")]
    NotBaseTen,
    /// The text groups its digits with underscores or commas.
    #[error("groups its digits: write them without separators")]
    Separator,
    /// The text is no decimal number for another reason.
    #[error("is not a decimal number")]
    NotDecimal,
    /// The exponent is beyond ±99.
    #[error("has an exponent beyond 99")]
    Exponent,
    /// The number has more than 12 decimals. Trailing zeros are not decimals.
    #[error("has more than 12 decimals")]
    Decimals,
    /// The number, or a sum, has more than 16 digits before the decimal point.
    #[error("is out of range: it has more than 16 digits before the decimal point")]
    OutOfRange,
    /// The number is below zero where it must not be.
    #[error("is negative")]
    Negative,
}

/// An exact amount in some unit: at most 16 digits before the decimal point and
/// 12 after it. It may be negative, as a balance may be; it is never NaN, never
/// infinite and never minus zero.
///
/// Equality, order and hash go by value: `5.0` is `5`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Units(Decimal);

impl Units {
    /// No units.
    pub const ZERO: Units = Units(Decimal::ZERO);

    /// The largest amount, 9999999999999999.999999999999. The smallest is its negative.
    pub const MAX: Units = Units(Decimal::from_parts(0x0fff_ffff, 0x3e25_0261, 0x204f_ce5e, false, DECIMALS));

    /// Reads decimal text exactly: plain (`-3`, `0.25`, `007`) or scientific as
    /// JSON writes numbers (`1.5e-07`, `1E3`). Trailing zeros are not decimals.
    ///
    /// # Errors
    ///
    /// The reason why the text is not an amount. Nothing is ever rounded to fit.
    pub fn parse(text: &str) -> Result<Units, AmountError> {
        let number = DecimalText::parse(text)?;
        if number.scale > DECIMALS as i32 {
            return Err(AmountError::Decimals);
        }
        if number.integer_digits() > INTEGER_DIGITS {
            return Err(AmountError::OutOfRange);
        }
        if number.digits.is_empty() {
            return Ok(Units::ZERO);
        }
        // At most 28 digits with the zeros that follow: an i128 has room for them.
        let digits: i128 = number.digits.parse().map_err(|_| AmountError::OutOfRange)?;
        let shift = 10_i128.saturating_pow((DECIMALS as i32 - number.scale).unsigned_abs());
        let steps = digits.saturating_mul(shift);
        let sign = if number.negative { -1 } else { 1 };
        Units::from_steps(steps.saturating_mul(sign))
    }

    /// Reads decimal text like [`Units::parse`] and refuses what is below zero.
    ///
    /// # Errors
    ///
    /// As [`Units::parse`], and [`AmountError::Negative`].
    pub fn parse_non_negative(text: &str) -> Result<Units, AmountError> {
        let units = Units::parse(text)?;
        if units.is_negative() { Err(AmountError::Negative) } else { Ok(units) }
    }

    /// Takes over a decimal, for example one read from the database.
    ///
    /// # Errors
    ///
    /// [`AmountError::Decimals`] or [`AmountError::OutOfRange`] if it does not fit.
    pub fn from_decimal(decimal: Decimal) -> Result<Units, AmountError> {
        let decimal = decimal.normalize();
        let shift = DECIMALS.checked_sub(decimal.scale()).ok_or(AmountError::Decimals)?;
        let steps = 10_i128
            .checked_pow(shift)
            .and_then(|shift| decimal.mantissa().checked_mul(shift))
            .ok_or(AmountError::OutOfRange)?;
        Units::from_steps(steps)
    }

    /// The amount as a decimal without trailing zeros.
    #[must_use]
    pub fn get(self) -> Decimal {
        self.0
    }

    /// Whether this is exactly zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Whether this is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self < Units::ZERO
    }

    /// The exact sum.
    ///
    /// # Errors
    ///
    /// [`AmountError::OutOfRange`] if the sum is beyond [`Units::MAX`] or its negative.
    pub fn checked_add(self, other: Units) -> Result<Units, AmountError> {
        // In whole steps, because `Decimal::checked_add` rounds what does not fit.
        // Neither operand is beyond 10^28, so an i128 has room for the result.
        Units::from_steps(self.steps().saturating_add(other.steps()))
    }

    /// The exact difference.
    ///
    /// # Errors
    ///
    /// [`AmountError::OutOfRange`] if it is beyond [`Units::MAX`] or its negative.
    pub fn checked_sub(self, other: Units) -> Result<Units, AmountError> {
        Units::from_steps(self.steps().saturating_sub(other.steps()))
    }

    /// The amount in steps of 10^-12, the finest that an amount can tell apart.
    pub(crate) fn steps(self) -> i128 {
        // Below 10^28 by construction, so neither operation can saturate.
        let shift = 10_i128.saturating_pow(DECIMALS.saturating_sub(self.0.scale()));
        self.0.mantissa().saturating_mul(shift)
    }

    /// The amount of so many steps of 10^-12; out of range is an error.
    pub(crate) fn from_steps(steps: i128) -> Result<Units, AmountError> {
        if steps.unsigned_abs() >= STEPS_END {
            return Err(AmountError::OutOfRange);
        }
        Decimal::try_from_i128_with_scale(steps, DECIMALS)
            .map(|decimal| Units(decimal.normalize()))
            .map_err(|_| AmountError::OutOfRange)
    }
}

impl From<u32> for Units {
    fn from(whole: u32) -> Units {
        Units(Decimal::from(whole))
    }
}

/// Plain notation without trailing zeros, the form that [`Units::parse`] reads back.
impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Units({})", self.0)
    }
}

impl Serialize for Units {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Units, D::Error> {
        deserialize_text(deserializer, "an amount as decimal text", Units::parse)
    }
}

/// Asks for text, so that a YAML scalar such as `0.1` arrives as it was
/// written and not as a float, and parses it.
pub(crate) fn deserialize_text<'de, D, T, E>(
    deserializer: D,
    expecting: &'static str,
    parse: fn(&str) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: fmt::Display,
{
    struct Text<T, E>(&'static str, fn(&str) -> Result<T, E>);

    impl<T, E: fmt::Display> Visitor<'_> for Text<T, E> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<X: de::Error>(self, text: &str) -> Result<T, X> {
            (self.1)(text).map_err(|error| X::custom(format_args!("the value {error}")))
        }
    }

    deserializer.deserialize_str(Text(expecting, parse))
}

/// A number as it was written: `digits` × 10^-`scale`. The digits have no zeros
/// at either end, so zero has none, and neither minus nor scale.
pub(crate) struct DecimalText {
    pub(crate) negative: bool,
    pub(crate) digits: String,
    pub(crate) scale: i32,
}

impl DecimalText {
    /// Reads `-? digits (. digits)? (e [+-]? digits)?`, in time and memory
    /// bounded by the length of the text, whatever the exponent says.
    pub(crate) fn parse(text: &str) -> Result<DecimalText, AmountError> {
        if text.is_empty() {
            return Err(AmountError::Empty);
        }
        if text.len() > TEXT_BYTES {
            return Err(AmountError::TooLong);
        }
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        if !is_digits(whole) || !fraction.is_none_or(is_digits) {
            return Err(complaint(text));
        }
        let exponent = match exponent {
            Some(exponent) => parse_exponent(exponent).map_err(|e| e.unwrap_or(complaint(text)))?,
            None => 0,
        };
        let fraction = fraction.unwrap_or_default();
        let digits = [whole, fraction].concat();
        let kept = digits.trim_end_matches('0');
        if kept.is_empty() {
            return Ok(DecimalText { negative: false, digits: String::new(), scale: 0 });
        }
        // Lengths are at most 64 and the exponent at most 99: no overflow.
        let dropped = digits.len() - kept.len();
        let scale = fraction.len() as i32 - dropped as i32 - exponent;
        Ok(DecimalText { negative, digits: kept.trim_start_matches('0').to_owned(), scale })
    }

    /// Digits before the decimal point, leading zeros not counted.
    pub(crate) fn integer_digits(&self) -> i32 {
        (self.digits.len() as i32 - self.scale).max(0)
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The exponent, or an error; an error without a reason is for [`complaint`] to name.
fn parse_exponent(text: &str) -> Result<i32, Option<AmountError>> {
    let (negative, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    if !is_digits(digits) {
        return Err(None);
    }
    match digits.parse::<i32>() {
        Ok(value) if value <= EXPONENT => Ok(if negative { -value } else { value }),
        _ => Err(Some(AmountError::Exponent)),
    }
}

/// What to tell a user whose text is no decimal number.
fn complaint(text: &str) -> AmountError {
    if text.contains(char::is_whitespace) {
        return AmountError::Blank;
    }
    if text.starts_with('+') {
        return AmountError::PlusSign;
    }
    let word = text.trim_start_matches(['-', '.']).to_ascii_lowercase();
    match word.as_str() {
        "nan" => AmountError::NotANumber,
        "inf" | "infinity" => AmountError::Infinite,
        _ if ["0x", "0o", "0b"].iter().any(|base| word.starts_with(base)) => AmountError::NotBaseTen,
        _ if word.contains(['_', ',']) => AmountError::Separator,
        _ => AmountError::NotDecimal,
    }
}

#[cfg(test)]
mod tests;
