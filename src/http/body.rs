//! Request bodies: bounded, of the right type, and exact about amounts.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use chrono::{DateTime, Utc};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::layers::Deadline;
use super::problem::Problem;
use crate::model::Units;

/// The largest body of a request, in bytes; policies apart.
pub(super) const MAX_BODY: usize = 16 * 1024;
/// The largest policy, in bytes.
pub(super) const MAX_POLICY: usize = 4 * 1024 * 1024;

/// A JSON body of a known shape.
pub(super) struct Json<T>(pub T);

impl<S, T> FromRequest<S> for Json<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let bytes = read(request, MAX_BODY, &["application/json"]).await?;
        parse(&bytes).map(Self)
    }
}

/// A policy, in YAML or JSON, as text.
pub(super) struct PolicyText(pub String);

impl<S: Send + Sync> FromRequest<S> for PolicyText {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let types = ["application/yaml", "application/json", "application/x-yaml", "text/yaml"];
        let bytes = read(request, MAX_POLICY, &types).await?;
        match String::from_utf8(bytes) {
            Ok(text) if text.trim().is_empty() => {
                Err(Problem::invalid("body", "is empty: a policy that retires everything is `{}`"))
            }
            Ok(text) => Ok(Self(text)),
            Err(_) => Err(Problem::invalid("body", "is not UTF-8")),
        }
    }
}

/// Reads a body of one of these types. What is too large is refused before it is
/// read, if it says so, and before it is parsed in any case.
async fn read(request: Request, limit: usize, types: &[&str]) -> Result<Vec<u8>, Problem> {
    let (parts, body) = request.into_parts();
    let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let declared = header(CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(Problem::body_too_large(limit));
    }
    let essence =
        header(CONTENT_TYPE).and_then(|value| value.split(';').next()).map(|value| value.trim().to_lowercase());
    if !essence.is_some_and(|essence| types.contains(&essence.as_str())) {
        return Err(Problem::unsupported_media_type(types[0]));
    }
    let until = parts.extensions.get::<Deadline>().map_or_else(tokio::time::Instant::now, |deadline| deadline.0);
    let read = tokio::time::timeout_at(until, to_bytes(body, limit)).await;
    match read.map_err(|_| Problem::deadline_exceeded())? {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) if is_length_limit(&error) => Err(Problem::body_too_large(limit)),
        Err(_) => Err(Problem::invalid("body", "could not be read to its end")),
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    use std::error::Error as _;
    error.source().is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if std::str::from_utf8(bytes).is_err() {
        return Err(Problem::invalid("body", "is not UTF-8"));
    }
    // A derived shape would also take its fields from an array, by position.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::invalid("body", "must be a JSON object"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        Problem::invalid(&field_of(&path, &message, "body"), message)
    })?;
    deserializer.end().map_err(|error| Problem::invalid("body", error.to_string()))?;
    Ok(parsed)
}

/// The field that an error is about. Of a field that is unknown, missing or
/// there twice only the message names it; `?` is a place without a name.
pub(super) fn field_of(path: &str, message: &str, whole: &str) -> String {
    let path = path.trim_end_matches('?').trim_end_matches('.');
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix)?.split('`').next());
    match (path, named) {
        ("", None) => whole.to_owned(),
        ("", Some(name)) => name.to_owned(),
        (path, Some(name)) if path != name && !path.ends_with(&format!(".{name}")) => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    }
}

/// A JSON object with names of the caller's choice. A name that is there twice is
/// an error: the last one would silently win.
#[derive(Debug)]
pub(super) struct Named<K: Ord, V>(pub BTreeMap<K, V>);

impl<K: Ord, V> Default for Named<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, K, V> Deserialize<'de> for Named<K, V>
where
    K: Deserialize<'de> + Ord + std::fmt::Display,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<K, V>(PhantomData<(K, V)>);
        impl<'de, K, V> serde::de::Visitor<'de> for Reader<K, V>
        where
            K: Deserialize<'de> + Ord + std::fmt::Display,
            V: Deserialize<'de>,
        {
            type Value = BTreeMap<K, V>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(name) = access.next_key::<K>()? {
                    let value = access.next_value()?;
                    match map.entry(name) {
                        Entry::Occupied(there) => {
                            return Err(A::Error::custom(format_args!("duplicate field `{}`", there.key())));
                        }
                        Entry::Vacant(free) => free.insert(value),
                    };
                }
                Ok(map)
            }
        }
        deserializer.deserialize_map(Reader(PhantomData)).map(Self)
    }
}

/// A JSON object inside another. (A derived shape would also take its fields from an
/// array, by position.)
#[derive(Debug)]
pub(super) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Reader<T> {
            type Value = T;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, access: A) -> Result<T, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(access))
            }
        }
        deserializer.deserialize_map(Reader(PhantomData)).map(Self)
    }
}

/// A time in RFC 3339. (The type's own reading also takes years that the database
/// does not have.)
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub DateTime<Utc>);

impl std::str::FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        DateTime::parse_from_rfc3339(text)
            .map(|time| Self(time.with_timezone(&Utc)))
            .map_err(|error| format!("is not an RFC 3339 time such as 2026-12-31T00:00:00Z: {error}"))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// An amount in a request: a string or a number, read as decimal text and never
/// through a float; never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount(pub Units);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = match raw.get().as_bytes().first() {
            Some(b'"') => serde_json::from_str::<String>(raw.get()).map_err(D::Error::custom)?,
            Some(b'0'..=b'9' | b'-') => raw.get().to_owned(),
            _ => return Err(D::Error::custom("is not an amount: a decimal number, as a string or as a number")),
        };
        Units::parse_non_negative(&text).map(Self).map_err(D::Error::custom)
    }
}

impl utoipa::PartialSchema for Amount {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let text = ObjectBuilder::new().schema_type(Type::String).examples([serde_json::json!("12.5")]);
        let number = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0));
        OneOfBuilder::new()
            .item(text)
            .item(number)
            .description(Some("An exact decimal, at most 16 digits before the point and 12 after it, not negative."))
            .into()
    }
}

impl utoipa::ToSchema for Amount {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Shape {
        units: Amount,
        #[allow(dead_code, reason = "only read by the parser")]
        inner: Option<Named<String, Amount>>,
    }

    fn field(json: &str) -> String {
        let problem = parse::<Shape>(json.as_bytes()).unwrap_err();
        format!("{problem:?}")
    }

    #[test]
    fn amounts_are_read_as_text() {
        for (json, expected) in [
            ("\"5.0\"", "5"),
            ("5", "5"),
            ("1.5e-07", "0.00000015"),
            ("0.000000000001", "0.000000000001"),
            ("9999999999999999.999999999999", "9999999999999999.999999999999"),
        ] {
            let shape: Shape = parse(format!("{{\"units\": {json}}}").as_bytes()).unwrap();
            assert_eq!(shape.units.0.to_string(), expected);
        }
    }

    #[test]
    fn the_field_is_named() {
        for (json, expected) in [
            (r#"{"units": "-1"}"#, r#""field": String("units")"#),
            (r#"{"units": true}"#, r#""field": String("units")"#),
            (r#"{"units": NaN}"#, r#""field": String("units")"#),
            (r#"{"units": 1, "typo": 1}"#, r#""field": String("typo")"#),
            (r#"{}"#, r#""field": String("units")"#),
            (r#"{"units": 1, "units": 2}"#, r#""field": String("units")"#),
            (r#"{"units": 1, "inner": {"a": "x"}}"#, r#""field": String("inner.a")"#),
            (r#"{"units": 1, "inner": {"a": 1, "a": 2}}"#, r#""field": String("inner.a")"#),
            (r#"{"units": 0x10}"#, r#""field": String("body")"#),
            (r#"["5"]"#, r#""field": String("body")"#),
            (r#"[]"#, r#""field": String("body")"#),
            (r#"{"units": 1} x"#, r#""field": String("body")"#),
        ] {
            assert!(field(json).contains(expected), "{json}: {}", field(json));
        }
    }
}
