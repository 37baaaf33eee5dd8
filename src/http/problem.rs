//! The one place where reasons become status codes: RFC 9457 problem details.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::views::ReservationView;
use crate::ledger::Error;
use crate::model::refusal::{Breach, Conflict};
use crate::model::reservation::Reservation;
use crate::model::{Refusal, Retry};

/// How long to wait before asking again when the service or its database was in
/// the way, in seconds.
const TRANSIENT_SECONDS: u64 = 1;

/// An answer that is not a success. It is rendered, with the request's id, by
/// the outermost layer.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry: Retry,
    retry_after_seconds: Option<u64>,
    members: Vec<(&'static str, Value)>,
}

/// The members that every problem has, as the contract describes them.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ProblemDetails {
    /// `urn:spend-ledger:` and the code.
    #[schema(example = "urn:spend-ledger:budget_exhausted")]
    r#type: String,
    /// The status in words.
    title: String,
    /// The status code.
    status: u16,
    /// What is wrong, for a person.
    detail: String,
    /// What is wrong, for a program. Stable.
    #[schema(example = "budget_exhausted")]
    code: String,
    /// The id of this request, also in the header `x-request-id`.
    request_id: String,
    /// Whether asking again can help.
    retry: Retry,
    /// When asking again may help, in seconds; equal to Retry-After.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
    /// The fields that are not valid (`invalid_request`).
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<crate::model::refusal::FieldFault>>,
    /// Every budget that refused (`budget_exhausted`); of a pool an
    /// account-bound key sees only the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    breaches: Option<Vec<BreachView>>,
    /// What the request came to (`too_expensive`).
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<String>,
    /// The most that is ever allowed (`too_expensive`).
    #[serde(skip_serializing_if = "Option::is_none")]
    max_units: Option<String>,
    /// What was recorded (`already_settled`, `call_already_settled`); null of a
    /// call whose outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<Option<String>>,
    /// The ceiling (`ceiling_reached`).
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<String>,
    /// What calls may still take within the ceiling (`ceiling_reached`).
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<String>,
    /// The reservation as it is, where the request was about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<ReservationView>,
}

/// One budget that refused.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct BreachView {
    /// The budget's or pool's name.
    budget: String,
    /// The member, for a budget per member.
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<String>,
    /// What was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<String>,
    /// What it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<String>,
    /// When its period ends; null if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_at: Option<Option<chrono::DateTime<chrono::Utc>>>,
}

impl BreachView {
    fn new(breach: Breach, sees_pools: bool) -> Self {
        let whole = sees_pools || !breach.pool;
        Self {
            budget: breach.budget,
            member: breach.member,
            requested: whole.then(|| breach.requested.to_string()),
            available: whole.then(|| breach.available.to_string()),
            resets_at: whole.then_some(breach.resets_at),
        }
    }
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retry: Retry::Never,
            retry_after_seconds: None,
            members: Vec::new(),
        }
    }

    fn transient(code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            retry: Retry::Transient,
            retry_after_seconds: Some(TRANSIENT_SECONDS),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
        }
    }

    fn with(mut self, member: &'static str, value: Value) -> Self {
        self.members.push((member, value));
        self
    }

    pub(super) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no such {what}"))
    }

    pub(super) fn method_not_allowed(method: &str) -> Self {
        let detail = format!("this path does not answer {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
    }

    pub(super) fn unauthenticated() -> Self {
        let detail = "no valid API key: send `Authorization: Bearer sl_…`";
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        let detail = format!("the body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    }

    pub(super) fn unsupported_media_type(expected: &str) -> Self {
        let detail = format!("the body must be {expected}, and Content-Type must say so");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
    }

    pub(super) fn overloaded() -> Self {
        Self::transient("overloaded", "the service is busy; nothing was done")
    }

    pub(super) fn deadline_exceeded() -> Self {
        Self::transient(
            "deadline_exceeded",
            "the request took too long and its outcome is not known: repeat it with the same key and holder",
        )
    }

    /// The request's panic is a defect of the program; what it did is in the
    /// database, wholly or not at all.
    pub(super) fn internal() -> Self {
        Self {
            retry: Retry::Transient,
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "the service has failed; its log says how")
        }
    }

    pub(super) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::from_refusal(Refusal::invalid(field, message), false)
    }

    /// What an error of a verb means to the caller. Internal text stays in the
    /// log. `sees_pools`: whether the caller may see the balances of pools.
    pub(super) fn from_error(error: Error, sees_pools: bool) -> Self {
        match error {
            Error::Refused(refusal) => Self::from_refusal(refusal, sees_pools),
            Error::RefusedOn { refusal, reservation } => Self::on(refusal, *reservation, sees_pools),
            Error::Unavailable(reason) => {
                tracing::warn!(reason, "the database is not available");
                Self::transient(
                    "ledger_unavailable",
                    "the ledger's database is not available; the outcome may be unknown: repeat with the same key \
                     and holder",
                )
            }
            Error::Unauthenticated => Self::unauthenticated(),
            Error::Overloaded => Self::overloaded(),
            Error::DeadlineExceeded(_) => Self::deadline_exceeded(),
            Error::Unexpected(reason) => {
                tracing::error!(reason, "unexpected");
                Self::internal()
            }
        }
    }

    /// A refusal with the reservation as it is, and what it says of that.
    fn on(refusal: Refusal, reservation: Reservation, sees_pools: bool) -> Self {
        let record = &reservation.record;
        let told = match refusal {
            Refusal::Conflict(Conflict::AlreadySettled) => vec![("settled", json!(record.settled))],
            Refusal::Conflict(Conflict::CeilingReached) => {
                vec![("ceiling", json!(record.ceiling)), ("remaining", json!(record.remaining()))]
            }
            _ => Vec::new(),
        };
        let mut problem = Self::from_refusal(refusal, sees_pools);
        problem.members.extend(told);
        problem.with("reservation", json!(ReservationView::from(reservation)))
    }

    fn from_refusal(refusal: Refusal, sees_pools: bool) -> Self {
        let problem =
            Self { retry: refusal.retry(), ..Self::new(status(&refusal), refusal.code(), refusal.to_string()) };
        match refusal {
            Refusal::Invalid(faults) => problem.with("errors", json!(faults)),
            Refusal::TooExpensive { units, pool: true, .. } if !sees_pools => {
                let detail = format!("{units} units are more than a pool ever allows");
                Self { detail, ..problem }.with("units", json!(units))
            }
            Refusal::TooExpensive { units, max_units, .. } => {
                problem.with("units", json!(units)).with("max_units", json!(max_units))
            }
            Refusal::BudgetExhausted { breaches, retry_after_seconds, .. } => {
                let breaches: Vec<_> = breaches.into_iter().map(|breach| BreachView::new(breach, sees_pools)).collect();
                Self { retry_after_seconds, ..problem }.with("breaches", json!(breaches))
            }
            Refusal::Conflict(Conflict::LeaseCurrent { retry_after_seconds }) => {
                Self { retry_after_seconds: Some(retry_after_seconds), ..problem }
            }
            Refusal::Conflict(Conflict::CallAlreadySettled { settled }) => problem.with("settled", json!(settled)),
            _ => problem,
        }
    }

    /// The answer, now that the request's id is known.
    pub(super) fn render(self, request_id: &str) -> Response {
        let mut body = Map::new();
        body.insert("type".to_owned(), json!(format!("urn:spend-ledger:{}", self.code)));
        body.insert("title".to_owned(), json!(self.status.canonical_reason().unwrap_or("Error")));
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail));
        body.insert("code".to_owned(), json!(self.code));
        body.insert("request_id".to_owned(), json!(request_id));
        body.insert("retry".to_owned(), json!(self.retry));
        if let Some(seconds) = self.retry_after_seconds {
            body.insert("retry_after_seconds".to_owned(), json!(seconds));
        }
        body.extend(self.members.into_iter().map(|(member, value)| (member.to_owned(), value)));
        let mut response = (self.status, Value::Object(body).to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::Invalid(_) | Refusal::TooExpensive { .. } => StatusCode::BAD_REQUEST,
        Refusal::UnknownOperation(_) | Refusal::UnknownAccount(_) | Refusal::NoBudget { .. } | Refusal::KeyReused => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        Refusal::BudgetExhausted { .. } => StatusCode::TOO_MANY_REQUESTS,
        Refusal::NotFound(_) => StatusCode::NOT_FOUND,
        Refusal::Conflict(_) => StatusCode::CONFLICT,
    }
}

/// Handed on to the outermost layer, which knows the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
