//! Why the ledger said no. The only place where reasons are named; the status
//! code that goes with one is HTTP's business.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Name, Units};

/// Whether asking again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same request can never succeed as things stand.
    Never,
    /// Live work may give units back.
    AfterRelease,
    /// A period must end first.
    AfterReset,
    /// The service or the database was in the way, not a rule.
    Transient,
}

impl Retry {
    /// The stable word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::AfterRelease => "after_release",
            Self::AfterReset => "after_reset",
            Self::Transient => "transient",
        }
    }
}

/// One budget that had no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breach {
    /// The budget's or the pool's name.
    pub budget: String,
    /// Whether it is a pool, of which an account's key sees only the name.
    pub pool: bool,
    /// The member, for a budget per member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// What was asked for.
    pub requested: Units,
    /// What it had.
    pub available: Units,
    /// When its period ends, if it does.
    pub resets_at: Option<DateTime<Utc>>,
}

/// A field of a request that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FieldFault {
    /// Where in the request, with dots.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl FieldFault {
    /// A fault of one field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// A decision that said no, with its reason. A refusal changes no balance.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The request is malformed or out of range.
    #[error("the request is not valid")]
    Invalid(Vec<FieldFault>),
    /// Over the operation's bound on the total, or over what a whole period
    /// allows.
    #[error("{units} units are more than the {max_units} that {bound} ever allows")]
    TooExpensive {
        /// What the request comes to.
        units: Units,
        /// The most that is allowed.
        max_units: Units,
        /// What allows no more.
        bound: String,
        /// Whether that is a pool, of which an account's key sees only the name.
        pool: bool,
    },
    /// The policy has no such operation.
    #[error("the policy has no operation {0}")]
    UnknownOperation(String),
    /// The policy has no such account.
    #[error("the policy has no account {0}")]
    UnknownAccount(String),
    /// No enforcing budget bounds the operation's unit for this account.
    #[error("no enforcing budget, of the plan or of a pool, bounds {unit} here")]
    NoBudget {
        /// The unit that is not bounded.
        unit: Name,
    },
    /// At least one budget has no room.
    #[error("not enough is available in {}", names(breaches))]
    BudgetExhausted {
        /// Every budget that refused.
        breaches: Vec<Breach>,
        /// Whether asking again can help.
        retry: Retry,
        /// Seconds until the last of the refusing periods ends, if all do.
        retry_after_seconds: Option<u64>,
    },
    /// The idempotency key, or the key of a call, belongs to a different request.
    #[error("this key was used with a different request")]
    KeyReused,
    /// There is no such thing, or it is not the caller's.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The state of the reservation, or of its call, does not allow it.
    #[error("{}", .0.explain())]
    Conflict(Conflict),
}

/// In which way the state of a reservation does not allow a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The attempt is not the current one, or not the one that admitted the call.
    StaleAttempt,
    /// The reservation is not active.
    NotActive,
    /// It was settled at another amount.
    AlreadySettled,
    /// Usage was reported below what was reported before.
    UsageDecreases,
    /// Finance has closed a period that it is charged to.
    PeriodClosed,
    /// The lease of the attempt has not run out.
    LeaseCurrent {
        /// Seconds until it does, unless it is renewed.
        retry_after_seconds: u64,
    },
    /// The ledger cannot stop the attempt, and nobody has said what did.
    EvidenceRequired,
    /// The call does not fit under the ceiling.
    CeilingReached,
    /// The call's key belongs to another attempt.
    CallKeyTaken,
    /// The call has ended in another way.
    CallAlreadySettled {
        /// What was recorded as its usage; none if its outcome is unknown.
        settled: Option<Units>,
    },
    /// Calls of the attempt have not ended.
    CallsInFlight,
}

impl Conflict {
    /// Those that only say what they are.
    const PLAIN: [Self; 9] = [
        Self::StaleAttempt,
        Self::NotActive,
        Self::AlreadySettled,
        Self::UsageDecreases,
        Self::PeriodClosed,
        Self::EvidenceRequired,
        Self::CeilingReached,
        Self::CallKeyTaken,
        Self::CallsInFlight,
    ];

    /// The conflict with this stable code, if it needs no more than that.
    #[must_use]
    pub fn plain(code: &str) -> Option<Self> {
        Self::PLAIN.into_iter().find(|conflict| conflict.code() == code)
    }

    /// The stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::StaleAttempt => "stale_attempt",
            Self::NotActive => "not_active",
            Self::AlreadySettled => "already_settled",
            Self::UsageDecreases => "usage_decreases",
            Self::PeriodClosed => "period_closed",
            Self::LeaseCurrent { .. } => "lease_current",
            Self::EvidenceRequired => "evidence_required",
            Self::CeilingReached => "ceiling_reached",
            Self::CallKeyTaken => "call_key_taken",
            Self::CallAlreadySettled { .. } => "call_already_settled",
            Self::CallsInFlight => "calls_in_flight",
        }
    }

    fn explain(self) -> &'static str {
        match self {
            Self::StaleAttempt => {
                "this is about another attempt than the one that may do this; a worker that is told so sends nothing more"
            }
            Self::NotActive => "the reservation is not active",
            Self::AlreadySettled => "the reservation has been settled otherwise",
            Self::UsageDecreases => "less usage than was reported before",
            Self::PeriodClosed => "a budget period of the reservation has been closed",
            Self::LeaseCurrent { .. } => "the lease of the current attempt has not run out",
            Self::EvidenceRequired => {
                "the ledger cannot stop this attempt: give evidence that it has stopped, and what it may have spent"
            }
            Self::CeilingReached => "the call would pass the ceiling: extend it first, or ask with `extend`",
            Self::CallKeyTaken => "another attempt has admitted a call with this key: send nothing",
            Self::CallAlreadySettled { settled: Some(_) } => "the call has ended otherwise",
            Self::CallAlreadySettled { settled: None } => {
                "the outcome of the call is unknown: settle it, at 0 if it was never sent"
            }
            Self::CallsInFlight => {
                "calls of this attempt have not ended: settle them first, or say that they are unknown"
            }
        }
    }
}

impl Refusal {
    /// One field is wrong.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldFault::new(field, message)])
    }

    /// The stable code of `openapi.yaml`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_request",
            Self::TooExpensive { .. } => "too_expensive",
            Self::UnknownOperation(_) => "unknown_operation",
            Self::UnknownAccount(_) => "unknown_account",
            Self::NoBudget { .. } => "no_budget",
            Self::BudgetExhausted { .. } => "budget_exhausted",
            Self::KeyReused => "idempotency_key_reused",
            Self::NotFound(_) => "not_found",
            Self::Conflict(conflict) => conflict.code(),
        }
    }

    /// Whether asking again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::BudgetExhausted { retry, .. } => *retry,
            Self::Conflict(Conflict::LeaseCurrent { .. }) => Retry::AfterRelease,
            _ => Retry::Never,
        }
    }
}

fn names(breaches: &[Breach]) -> String {
    let names: Vec<&str> = breaches.iter().map(|b| b.budget.as_str()).collect();
    names.join(", ")
}
