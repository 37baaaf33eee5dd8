//! What somebody knows about an attempt that the ledger cannot stop by itself.

use serde::{Deserialize, Serialize};

/// Why an attempt cannot spend more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub enum EvidenceKind {
    /// Its process is known to have ended.
    ProcessStopped,
    /// Something between it and the provider lets nothing through.
    FencedElsewhere,
}

/// A kind is a word; nothing else is read as one.
impl TryFrom<String> for EvidenceKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "process_stopped" => Ok(Self::ProcessStopped),
            "fenced_elsewhere" => Ok(Self::FencedElsewhere),
            _ => Err(format!("{text:?} is no kind of evidence: process_stopped or fenced_elsewhere")),
        }
    }
}

/// Evidence that an attempt has stopped. Who gave it and when is recorded with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Of which kind it is.
    pub kind: EvidenceKind,
    /// What there is to say about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
