//! The answers that many operations have in common, as the contract describes
//! them. What is an operation's own stands with it.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::{Ref, RefOr, Response, ResponseBuilder};

type Responses = BTreeMap<String, RefOr<Response>>;

fn problems(described: &[(&str, &str)]) -> Responses {
    let problem = |description: &str| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemDetails"))).build();
        ResponseBuilder::new().description(description).content("application/problem+json", content).build()
    };
    described.iter().map(|(status, description)| ((*status).to_owned(), RefOr::T(problem(description)))).collect()
}

/// Of every operation that needs a key.
pub(super) struct Keyed;

impl IntoResponses for Keyed {
    fn responses() -> Responses {
        problems(&[
            ("400", "`invalid_request`"),
            ("401", "`unauthenticated`"),
            ("403", "`forbidden`"),
            ("503", "`ledger_unavailable`, `overloaded`, `deadline_exceeded`"),
        ])
    }
}

/// Of every operation that has a body, too.
pub(super) struct WithBody;

impl IntoResponses for WithBody {
    fn responses() -> Responses {
        let mut responses = Keyed::responses();
        responses.extend(problems(&[("413", "`body_too_large`"), ("415", "`unsupported_media_type`")]));
        responses
    }
}

/// Of every verb on a reservation that exists.
pub(super) struct OnReservation;

impl IntoResponses for OnReservation {
    fn responses() -> Responses {
        let mut responses = WithBody::responses();
        responses.extend(problems(&[("404", "`not_found`, also for another account's")]));
        responses
    }
}
