//! A call: one paid provider request, admitted before it is sent.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Units;

/// Where a call is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Admitted, counted in full, and not ended.
    InFlight,
    /// Ended with its actual usage.
    Settled,
    /// Nobody knows what it cost: it stays counted in full.
    Unknown,
    /// Never sent: it counts for nothing.
    NotSent,
}

impl CallState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::InFlight, Self::Settled, Self::Unknown, Self::NotSent];

    /// The word for it in the API and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Settled => "settled",
            Self::Unknown => "unknown",
            Self::NotSent => "not_sent",
        }
    }
}

impl std::str::FromStr for CallState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("is not a state of a call: one of {all}")
        })
    }
}

/// What is stored of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The client's own key for it.
    pub call: String,
    /// Its id; ids rise with time.
    pub id: Uuid,
    /// The attempt that admitted it.
    pub attempt: i32,
    /// Where it is in its life.
    pub state: CallState,
    /// The most that it may cost, as admitted.
    pub units: Units,
    /// What it cost; none until it is settled.
    pub actual: Option<Units>,
    /// The provider's own name for it.
    pub provider_request_id: Option<String>,
    /// When it was admitted.
    pub admitted_at: DateTime<Utc>,
    /// When it ended; none while it is in flight.
    pub ended_at: Option<DateTime<Utc>>,
}
