//! Why units stay charged although nobody is known to be spending them.

use serde::{Deserialize, Serialize};

/// Why an open reservation needs somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Active, and its lease has run out: somebody takes over or fences it.
    Overdue,
    /// Cancelled and not fenced: it may still be spending.
    Cancelled,
    /// Calls whose outcome is not known.
    UnknownCalls,
    /// What attempts before the current one may have spent.
    EarlierAttempts,
    /// Fenced, with calls or a stated amount outstanding.
    Fenced,
}

impl Why {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::Overdue, Self::Cancelled, Self::UnknownCalls, Self::EarlierAttempts, Self::Fenced];

    /// The word for it in the API and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overdue => "overdue",
            Self::Cancelled => "cancelled",
            Self::UnknownCalls => "unknown_calls",
            Self::EarlierAttempts => "earlier_attempts",
            Self::Fenced => "fenced",
        }
    }
}

impl std::str::FromStr for Why {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|why| why.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("is not a reason: one of {all}")
        })
    }
}

/// What is held for each reason, as exact text: sums over many periods can be larger
/// than any amount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// Reserved by active work whose lease has run out.
    pub overdue: String,
    /// In liability since a cancel, but for the next two.
    pub cancelled: String,
    /// Calls with unknown outcome.
    pub unknown_calls: String,
    /// Stated as possibly spent by earlier attempts.
    pub earlier_attempts: String,
    /// Outstanding after a fence, but for unknown calls.
    pub fenced: String,
}

impl Parts {
    /// Each reason with its amount.
    #[must_use]
    pub fn each(&self) -> [(Why, &str); 5] {
        Why::ALL.map(|why| (why, self.of(why)))
    }

    fn of(&self, why: Why) -> &str {
        match why {
            Why::Overdue => &self.overdue,
            Why::Cancelled => &self.cancelled,
            Why::UnknownCalls => &self.unknown_calls,
            Why::EarlierAttempts => &self.earlier_attempts,
            Why::Fenced => &self.fenced,
        }
    }
}
