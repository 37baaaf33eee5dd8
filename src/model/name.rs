//! Names that people choose: accounts, providers, operations, plans, pools,
//! budgets, members, units.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The longest name, in characters (all of them ASCII).
pub const MAX_LENGTH: usize = 128;

/// A name of 1 to 128 characters of `[A-Za-z0-9._:@/-]`.
///
/// It cannot be empty: the empty string is how the database writes "shared by
/// all accounts" and "of the whole account", so no name collides with those.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

/// Why a text is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -")]
pub struct NameError;

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:@/-".contains(&b);
        if text.is_empty() || text.len() > MAX_LENGTH || !text.bytes().all(allowed) {
            return Err(NameError);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// So that maps keyed by names can be asked with a `&str`.
impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_128_characters_of_the_fixed_set() {
        for good in ["a", "northstar", "gpt-4o:2024/x@y.z_1", &"n".repeat(128)] {
            assert_eq!(good.parse::<Name>().map(|n| n.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", " ", "a b", "é", "a\n", "a\0", "<x>", &"n".repeat(129)] {
            assert_eq!(bad.parse::<Name>(), Err(NameError), "{bad:?}");
        }
    }
}
