//! Attempt tokens: what a holder sends with everything it does.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Error;

/// A new token for the attempt of this number: the number, so that a person can
/// see how old it is, and 128 random bits, so that nobody can guess it.
pub(super) fn new_token(number: i32) -> Result<String, Error> {
    Ok(format!("{number}.{}", URL_SAFE_NO_PAD.encode(random::<16>()?)))
}

/// Random bytes from the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Unexpected(format!("no random numbers from the system: {error}")))?;
    Ok(bytes)
}
