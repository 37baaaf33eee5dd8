//! Exact amounts, as whole steps of 10^-12: nothing here can round.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

const ONE: i128 = 1_000_000_000_000;

/// An exact amount.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Units(i128);

impl Units {
    pub const ZERO: Self = Self(0);
    /// The smallest amount above zero.
    pub const STEP: Self = Self(1);

    pub const fn whole(units: i64) -> Self {
        Self(units as i128 * ONE)
    }

    /// Reads what `Display` writes, and what the service writes.
    pub fn parse(text: &str) -> Self {
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        assert!(decimals.len() <= 12, "{text} has more than 12 decimals");
        let decimals: i128 = format!("{decimals:0<12}").parse().unwrap();
        Self(sign * (whole.parse::<i128>().unwrap() * ONE + decimals))
    }

    /// The amount, or zero if it is below.
    pub fn or_zero(self) -> Self {
        self.max(Self::ZERO)
    }
}

impl Add for Units {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Units {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl AddAssign for Units {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Units {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Units {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, decimals) = (self.0.abs() / ONE, self.0.abs() % ONE);
        let text = format!("{whole}.{decimals:012}");
        write!(f, "{sign}{}", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
