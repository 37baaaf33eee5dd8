//! Where the service is, and who asks.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;
use reqwest::header::HeaderValue;

/// Why an address or a key is not accepted. Each message continues a sentence
/// that names which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL at all.
    #[error("is not a URL such as http://127.0.0.1:8080")]
    NotUrl,
    /// A URL of another scheme, or with a query or a fragment.
    #[error("must be a plain http:// address without query and fragment (TLS is not spoken here)")]
    NotPlainHttp,
    /// A key with characters that no header can carry.
    #[error("must be visible ASCII characters, as the key was printed")]
    Key,
}

/// Where the service answers. Always an `http` address that paths can be put behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl(Url);

impl ServiceUrl {
    /// The address of a resource. Each segment is escaped as a whole: an
    /// account's name may contain `/`. (Segments that are `.` or `..` cannot be
    /// put into a path at all; they are left out.)
    #[must_use]
    pub fn path(&self, segments: &[&str]) -> Url {
        let mut url = self.0.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// The address of something about reservations.
    pub(crate) fn reservation(&self, rest: &[&str]) -> Url {
        let path: Vec<&str> = ["v1", "reservations"].iter().chain(rest).copied().collect();
        self.path(&path)
    }
}

impl FromStr for ServiceUrl {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let url = Url::parse(text).map_err(|_| EndpointError::NotUrl)?;
        let plain = url.scheme() == "http" && url.query().is_none() && url.fragment().is_none();
        if plain { Ok(Self(url)) } else { Err(EndpointError::NotPlainHttp) }
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// The API key, kept as the header it is sent in. Shown as `Sensitive`.
#[derive(Debug, Clone)]
pub struct Key(pub(crate) HeaderValue);

impl FromStr for Key {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(EndpointError::Key);
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| EndpointError::Key)?;
        header.set_sensitive(true);
        Ok(Self(header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_slashes_stay_one_segment() {
        let url = ServiceUrl::from_str("http://127.0.0.1:8080/ledger/").unwrap();
        let budgets = url.path(&["v1", "accounts", "eu/north star", "budgets"]);
        assert_eq!(budgets.as_str(), "http://127.0.0.1:8080/ledger/v1/accounts/eu%2Fnorth%20star/budgets");
        assert!(ServiceUrl::from_str("https://ledger.example").is_err());
        assert!(ServiceUrl::from_str("ledger").is_err());
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = Key::from_str("sl_secret").unwrap();
        assert!(!format!("{key:?}").contains("secret"));
        assert!(Key::from_str("sl secret").is_err());
    }
}
