//! Who asks: the API key, and what it may do.

use axum::extract::{FromRef, FromRequestParts};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use tokio::time::Instant;

use super::layers::Deadline;
use super::problem::Problem;
use crate::ledger::keys::Credential;
use crate::ledger::{Context, Error, Ledger};
use crate::model::Name;
use crate::model::role::{Accounts, Role};

/// An authenticated caller.
pub(super) struct Caller {
    /// What goes with everything that it asks for.
    pub context: Context,
    /// What its key may do.
    pub credential: Credential,
}

impl Caller {
    /// Refuses a caller of another role.
    pub(super) fn must_be(&self, roles: &[Role]) -> Result<(), Problem> {
        if roles.contains(&self.credential.role) {
            return Ok(());
        }
        let names: Vec<&str> = roles.iter().map(|role| role.as_str()).collect();
        Err(Problem::forbidden(format!("this is for {} keys", names.join(" and "))))
    }

    /// The account that a request is for: the one it names, or the only one that
    /// the key is bound to. Never one that the key may not act for.
    pub(super) fn account(&self, named: Option<Name>) -> Result<Name, Problem> {
        match named.or_else(|| self.credential.accounts.only().cloned()) {
            None => Err(Problem::invalid("account", "is missing, and this key may act for several accounts")),
            Some(account) if self.credential.accounts.include(&account) => Ok(account),
            Some(account) => Err(Problem::forbidden(format!("this key may not act for {account}"))),
        }
    }

    /// The accounts that a list is narrowed to.
    pub(super) fn accounts(&self, named: Option<Name>) -> Result<Accounts, Problem> {
        match named {
            None => Ok(self.credential.accounts.clone()),
            Some(account) => Ok(Accounts::These(vec![self.account(Some(account))?])),
        }
    }

    /// What an error means to this caller.
    pub(super) fn problem(&self, error: impl Into<Error>) -> Problem {
        Problem::from_error(error.into(), self.credential.accounts == Accounts::All)
    }
}

impl<S> FromRequestParts<S> for Caller
where
    S: Send + Sync,
    Ledger: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Self::from_key(parts, &Ledger::from_ref(state), false).await
    }
}

/// The same, for what ends in a statement that looks itself whether the key is still
/// valid: the database is not asked before.
pub(super) struct Recognised(pub Caller);

impl<S> FromRequestParts<S> for Recognised
where
    S: Send + Sync,
    Ledger: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Caller::from_key(parts, &Ledger::from_ref(state), true).await.map(Self)
    }
}

impl Caller {
    async fn from_key(parts: &Parts, ledger: &Ledger, decided: bool) -> Result<Self, Problem> {
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let secret = header
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, secret)| secret.trim())
            .ok_or_else(Problem::unauthenticated)?;
        let deadline = parts.extensions.get::<Deadline>().map_or_else(Instant::now, |deadline| deadline.0);
        let anonymous = Context { actor: "unauthenticated".to_owned(), key: None, deadline };
        let credential = match decided {
            true => ledger.recognise(&anonymous, secret).await,
            false => ledger.authenticate(&anonymous, secret).await,
        };
        match credential {
            Ok(Some(credential)) => {
                let actor = format!("key:{}", credential.id);
                let key = (decided && credential.role == Role::Worker).then_some(credential.id);
                Ok(Self { context: Context { actor, key, deadline }, credential })
            }
            Ok(None) => Err(Problem::unauthenticated()),
            Err(error) => Err(Problem::from_error(error, false)),
        }
    }
}
