//! Lists: `limit`, an opaque `cursor`, and query strings without surprises.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::body::field_of;
use super::problem::Problem;

/// How many items a page has unless the caller says.
const DEFAULT_LIMIT: i64 = 50;
/// How many items a page has at most.
const MAX_LIMIT: i64 = 500;

/// A query string of a known shape; unknown fields are an error.
pub(super) struct Params<T>(pub T);

impl<S, T> FromRequestParts<S> for Params<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => {
                use std::error::Error as _;
                let text = rejection.source().map_or_else(|| rejection.to_string(), ToString::to_string);
                let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                let named = text.split_once(": ").filter(|(name, _)| is_name(name));
                let (path, message) = named.unwrap_or(("", &text));
                Err(Problem::invalid(&field_of(path, message, "query"), message))
            }
        }
    }
}

/// The one variable segment of a path. What cannot be read names nothing.
pub(super) struct Segment(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(segment)) => Ok(Self(segment)),
            Err(_) => Err(Problem::not_found("path")),
        }
    }
}

/// The two variable segments of a path.
pub(super) struct Segments(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segments {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<(String, String)>::from_request_parts(parts, state).await {
            Ok(Path((first, second))) => Ok(Self(first, second)),
            Err(_) => Err(Problem::not_found("path")),
        }
    }
}

/// Where in a list something stands.
pub(super) trait Position: Sized {
    /// As bytes, for a cursor.
    fn bytes(&self) -> Vec<u8>;
    /// From the bytes of a cursor.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// In a list by id.
impl Position for Uuid {
    fn bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        Self::from_slice(bytes).ok()
    }
}

/// In a list by time, to the microsecond, and id.
impl Position for (DateTime<Utc>, Uuid) {
    fn bytes(&self) -> Vec<u8> {
        [self.0.timestamp_micros().to_be_bytes().as_slice(), self.1.as_bytes()].concat()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (time, id) = bytes.split_first_chunk::<8>()?;
        Some((DateTime::from_timestamp_micros(i64::from_be_bytes(*time))?, Uuid::from_slice(id).ok()?))
    }
}

/// Where a page begins and how long it is.
pub(super) struct Page<P = Uuid> {
    /// Where the page before this one ended.
    pub at: Option<P>,
    /// At most so many.
    pub limit: i64,
}

impl<P: Position> Page<P> {
    /// Reads the two parameters of every list.
    pub(super) fn new(limit: Option<i64>, cursor: Option<&str>) -> Result<Self, Problem> {
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::invalid("limit", format!("is out of range: 1 to {MAX_LIMIT}")));
        }
        let at = match cursor {
            None | Some("") => None,
            Some(cursor) => {
                let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
                let position = bytes.and_then(|bytes| P::read(&bytes));
                Some(position.ok_or_else(|| Problem::invalid("cursor", "is not a cursor of this list"))?)
            }
        };
        Ok(Self { at, limit })
    }

    /// One more than the page has, to know whether there is another.
    pub(super) fn probe(&self) -> i64 {
        self.limit + 1
    }

    /// The page, from `probe()` items.
    pub(super) fn of<T, V: From<T>>(&self, items: Vec<T>, position: impl Fn(&T) -> P) -> List<V> {
        let length = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = items.len() > length;
        let mut last = None;
        let mut views = Vec::new();
        for item in items.into_iter().take(length) {
            last = Some(position(&item));
            views.push(V::from(item));
        }
        let next_cursor = last.filter(|_| more).map(|last| URL_SAFE_NO_PAD.encode(last.bytes()));
        List { items: views, next_cursor }
    }
}

/// One page of a list.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct List<V> {
    /// The items, in the order of the list.
    pub items: Vec<V>,
    /// What to send as `cursor` for the next page; null on the last one.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// An empty parameter is an absent one.
pub(super) fn given(param: Option<String>) -> Option<String> {
    param.filter(|text| !text.is_empty())
}

/// Reads a parameter that is a name, a state or the like.
pub(super) fn read<T: std::str::FromStr>(field: &str, param: Option<String>) -> Result<Option<T>, Problem>
where
    T::Err: std::fmt::Display,
{
    given(param)
        .map(|text| text.parse().map_err(|error: T::Err| Problem::invalid(field, error.to_string())))
        .transpose()
}
