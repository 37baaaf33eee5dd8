//! Text in requests: bounded, and without what does not belong in it.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::problem::Problem;

/// The longest reference, label key, label value, reason and the like.
pub(super) const MAX_TEXT: usize = 255;
/// The longest name of a process.
const MAX_HOLDER: usize = 128;
/// The most labels.
const MAX_LABELS: usize = 32;
const LEASE_SECONDS: std::ops::RangeInclusive<i32> = 5..=3600;
const DEFAULT_LEASE_SECONDS: i32 = 60;

/// Text without control characters, of a bounded number of characters.
pub(super) fn plain(field: &str, text: String, min: usize, max: usize) -> Result<String, Problem> {
    let length = text.chars().count();
    if length < min || length > max {
        return Err(Problem::invalid(field, format!("must be {min} to {max} characters long")));
    }
    if text.chars().any(char::is_control) {
        return Err(Problem::invalid(field, "must not contain control characters"));
    }
    Ok(text)
}

/// The same of text that may be left out.
pub(super) fn optional(field: &str, text: Option<String>) -> Result<Option<String>, Problem> {
    text.map(|text| plain(field, text, 1, MAX_TEXT)).transpose()
}

/// A key of the client's own: 1 to 255 visible ASCII characters.
pub(super) fn visible(field: &str, text: &[u8]) -> Result<String, Problem> {
    if text.is_empty() || text.len() > MAX_TEXT || !text.iter().all(u8::is_ascii_graphic) {
        return Err(Problem::invalid(field, "must be 1 to 255 visible ASCII characters"));
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// The client's own name for its process. Who gives none gets one, and cannot be
/// told from somebody else later.
pub(super) fn holder(holder: Option<String>) -> Result<String, Problem> {
    match holder {
        Some(holder) => plain("holder", holder, 1, MAX_HOLDER),
        None => Ok(format!("unnamed-{}", Uuid::now_v7())),
    }
}

/// How long a lease is, in seconds.
pub(super) fn lease(seconds: Option<i32>) -> Result<i32, Problem> {
    let seconds = seconds.unwrap_or(DEFAULT_LEASE_SECONDS);
    if LEASE_SECONDS.contains(&seconds) {
        Ok(seconds)
    } else {
        Err(Problem::invalid("lease_seconds", "is out of range: 5 to 3600"))
    }
}

/// The client's own labels.
pub(super) fn labels(labels: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
    if labels.len() > MAX_LABELS {
        return Err(Problem::invalid("labels", format!("are too many: at most {MAX_LABELS}")));
    }
    labels
        .into_iter()
        .map(|(key, value)| {
            let field = format!("labels.{key}");
            Ok((plain(&field, key, 1, MAX_TEXT)?, plain(&field, value, 0, MAX_TEXT)?))
        })
        .collect()
}
