//! Who may ask for what.

use serde::{Deserialize, Serialize};

use super::Name;

/// What an API key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum Role {
    /// Works for the accounts that it is bound to: reserves, admits calls, extends,
    /// settles, takes over, cancels, fences.
    Worker,
    /// Sets policy and keys; may look at everything, and cancel, fence and take over.
    Operator,
    /// Reads everything, and closes what is open.
    Finance,
}

impl Role {
    /// The word for it in the API and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Finance => "finance",
        }
    }
}

/// A role is a word; nothing else is read as one.
impl TryFrom<String> for Role {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "worker" => Ok(Self::Worker),
            "operator" => Ok(Self::Operator),
            "finance" => Ok(Self::Finance),
            _ => Err(format!("{text:?} is not a role: worker, operator or finance")),
        }
    }
}

/// The accounts that a credential may act for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accounts {
    /// Every account, also those that do not exist yet.
    All,
    /// These and no others; at least one.
    These(Vec<Name>),
}

impl Accounts {
    /// Whether this account is one of them.
    #[must_use]
    pub fn include(&self, account: &Name) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.contains(account),
        }
    }

    /// The account that is meant when a request names none: the only one, if
    /// there is only one.
    #[must_use]
    pub fn only(&self) -> Option<&Name> {
        match self {
            Self::These(names) if names.len() == 1 => names.first(),
            _ => None,
        }
    }
}
