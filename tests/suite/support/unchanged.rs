//! Requests that are refused and must change nothing.

use std::sync::LazyLock;

use reqwest::{Method, RequestBuilder};
use sqlx::{PgConnection, Row as _};
use tokio::sync::Mutex;

use super::document::Document;
use super::{Answer, Books, Client, Service};

/// The books as they must stay while requests are refused.
pub struct Unchanged<'a> {
    service: &'a Service,
    books: Books,
    rows: String,
    owner: Mutex<PgConnection>,
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(Document::read);

impl<'a> Unchanged<'a> {
    /// From now on. The books are verified, so that they hold for as long as no
    /// row changes.
    pub async fn from_now(service: &'a Service) -> Self {
        let mut owner = service.database.connect().await;
        let books = service.books().await;
        let rows = rows(&mut owner).await;
        Self { service, books, rows, owner: Mutex::new(owner) }
    }

    /// Asserts that not one row has changed of all that is accounted for, of the
    /// policy, the keys and the audit log.
    pub async fn check(&self, context: &str) {
        if rows(&mut *self.owner.lock().await).await != self.rows {
            assert_eq!(self.service.books().await, self.books, "{context}\nchanged the books");
            panic!("{context}\nchanged the database");
        }
    }

    /// Sends the request, and asserts that it is refused with this status and
    /// code as the document says, that the field is named, that nothing internal
    /// is told, and that nothing is changed.
    pub async fn refuses(
        &self,
        client: &Client,
        request: RequestBuilder,
        status: u16,
        code: &str,
        field: Option<&str>,
    ) -> Answer {
        let (http, built) = request.build_split();
        let built = built.unwrap();
        let asked = format!("{} {}", built.method(), built.url());
        let operation = DOCUMENT.operation(built.method().as_str(), built.url().path());
        let sent = built.body().and_then(|body| body.as_bytes()).map(|body| String::from_utf8_lossy(body).into_owned());
        let sent: String = sent.unwrap_or_default().chars().take(300).collect();
        let context = format!("{asked}\n{sent}");
        let answer = client.send(RequestBuilder::from_parts(http, built)).await;
        self.is_problem(&context, &answer, status, code, field);
        if let Some(operation) = operation.filter(|_| status != 405) {
            let described = &operation.described["responses"][status.to_string()]["description"];
            let documented = described.as_str().is_some_and(|text| text.contains(&format!("`{code}`")));
            assert!(documented, "{context}\nthe document does not list {status} {code} for {}", operation.id);
        }
        self.check(&context).await;
        answer
    }

    /// The same for a JSON body given as text.
    pub async fn refuses_body(
        &self,
        client: &Client,
        path: &str,
        body: impl Into<reqwest::Body>,
        field: Option<&str>,
    ) -> Answer {
        let request = post(client, path, body);
        self.refuses(client, request, 400, "invalid_request", field).await
    }

    fn is_problem(&self, context: &str, answer: &Answer, status: u16, code: &str, field: Option<&str>) {
        let got = (answer.status.as_u16(), answer.body["code"].as_str());
        assert_eq!(got, (status, Some(code)), "{context}\n{:#}", answer.body);
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{context}");
        assert_eq!(answer.body["request_id"].as_str(), answer.headers["x-request-id"].to_str().ok(), "{context}");
        assert_eq!(answer.body["type"], format!("urn:spend-ledger:{code}"), "{context}");
        DOCUMENT.describes("ProblemDetails", &answer.body);
        let mut told = answer.body.to_string();
        // A token is random letters, which may spell anything.
        if let Some(token) = answer.body["reservation"]["attempt"]["token"].as_str() {
            told = told.replace(token, "");
        }
        let told = told.to_lowercase();
        let internal =
            ["select ", "insert ", "update ", "src/", ".rs", "/tmp", "/home", "postgres", "sqlx", "panicked"];
        for text in internal.into_iter().chain(["budget_period", "numeric(", "struct ", "enum ", "sqlstate"]) {
            assert!(!told.contains(text), "{context}\nthe answer tells {text:?}: {:#}", answer.body);
        }
        for fault in answer.body["errors"].as_array().into_iter().flatten() {
            let named = fault["field"].as_str().unwrap();
            assert!(!named.contains('?') && !named.starts_with('['), "{context}\nnames {named:?}, which is no field");
        }
        if let Some(field) = field {
            let errors = answer.body["errors"].as_array().unwrap_or_else(|| panic!("{context}\nno errors"));
            let named: Vec<_> = errors.iter().map(|fault| fault["field"].as_str().unwrap()).collect();
            assert_eq!(named, [field], "{context}\n{:#}", answer.body);
        }
    }
}

/// A digest of every row of every table, but not of the refusals, which are
/// written down in their own time.
async fn rows(owner: &mut PgConnection) -> String {
    let tables = "policy_state policy_version provider operation operation_revision plan budget account pool api_key \
                  audit_entry budget_period reservation reservation_event journal_entry call late_usage archived_month \
                  journal_checkpoint reservation_checkpoint";
    let digests = tables
        .split(' ')
        .map(|table| format!("(select coalesce(md5(string_agg(t::text, '|' order by t::text)), '-') from {table} t)"));
    let query = format!("select {}", digests.collect::<Vec<_>>().join(" || "));
    sqlx::query(sqlx::AssertSqlSafe(query)).fetch_one(owner).await.unwrap().get(0)
}

/// A POST of a JSON body given as text; reservations with a key of their own.
pub fn post(client: &Client, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
    let request = client.request(Method::POST, path).header("content-type", "application/json").body(body);
    if path == "/v1/reservations" { request.header("idempotency-key", "refused") } else { request }
}
