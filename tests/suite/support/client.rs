//! A client that says what it sends and gets.

use std::net::SocketAddr;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// A client with one API key. Its holder is `w-1` unless a test says otherwise.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    pub key: String,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    /// The answer, if its status is this one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{:#}", self.body);
        self
    }

    /// A problem of this status and code: also asserts that it is one.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status.as_u16(), self.text("code")), (status, code), "{:#}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["request_id"].as_str(), self.headers["x-request-id"].to_str().ok());
        let retry_after = self.headers.get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(self.body.get("retry_after_seconds").map(Value::to_string), retry_after, "{:#}", self.body);
        self
    }

    /// A field that is text.
    #[track_caller]
    pub fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_else(|| panic!("no text {field} in {:#}", self.body))
    }

    /// The reservation's id.
    #[track_caller]
    pub fn id(&self) -> String {
        self.text("id").to_owned()
    }

    /// The token of its attempt.
    #[track_caller]
    pub fn token(&self) -> String {
        self.body["attempt"]["token"].as_str().unwrap_or_else(|| panic!("no token in {:#}", self.body)).to_owned()
    }
}

impl Client {
    pub fn new(address: SocketAddr, key: &str) -> Self {
        Self { http: reqwest::Client::new(), base: format!("http://{address}"), key: key.to_owned() }
    }

    /// The same client at another process of the service.
    pub fn at(&self, address: SocketAddr) -> Self {
        Self { base: format!("http://{address}"), ..self.clone() }
    }

    /// A request that a test shapes itself, with the key.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.key)
    }

    /// Sends a request as a test has shaped it.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        self.try_send(request).await.unwrap()
    }

    /// The same, when the connection may fail.
    pub async fn try_send(&self, request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
        let response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer { status, headers, body })
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    /// Reserves with this key and body.
    pub async fn reserve(&self, key: &str, body: Value) -> Answer {
        self.send(self.reserve_request(key, body)).await
    }

    pub fn reserve_request(&self, key: &str, body: Value) -> reqwest::RequestBuilder {
        self.request(Method::POST, "/v1/reservations").header("idempotency-key", key).json(&body)
    }

    /// Reserves units of the explicit operation `bulk` for the holder `w-1`.
    pub async fn reserve_bulk(&self, key: &str, units: &str) -> Answer {
        self.reserve(key, json!({"operation": "bulk", "units": units, "holder": "w-1"})).await
    }

    /// Raises the ceiling of a reservation.
    pub async fn extend(&self, reservation: &Answer, ceiling: &str) -> Answer {
        let path = format!("/v1/reservations/{}/extend", reservation.id());
        self.post(&path, json!({"attempt": reservation.token(), "ceiling": ceiling})).await
    }

    /// Settles a reservation.
    pub async fn settle(&self, reservation: &Answer, units: &str) -> Answer {
        let path = format!("/v1/reservations/{}/settle", reservation.id());
        self.post(&path, json!({"attempt": reservation.token(), "units": units})).await
    }

    /// Reports progress on a reservation.
    pub async fn progress(&self, reservation: &Answer, units: &str) -> Answer {
        let path = format!("/v1/reservations/{}/settle", reservation.id());
        self.post(&path, json!({"attempt": reservation.token(), "units": units, "final": false})).await
    }

    /// The account's balance of one budget at an instant (now, if none is
    /// given), as (settled, reserved, liability, available).
    pub async fn balance(&self, account: &str, budget: &str, at: Option<&str>) -> [String; 4] {
        let query = at.map_or(String::new(), |at| format!("?at={at}"));
        let answer = self.get(&format!("/v1/accounts/{account}/budgets{query}")).await.expect(200);
        let items = answer.body["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["budget"] == budget).unwrap_or_else(|| panic!("no {budget}"));
        ["settled", "reserved", "liability", "available"].map(|bucket| item[bucket].as_str().unwrap().to_owned())
    }

    /// One budget of the account as its answer shows it, at an instant (now, if
    /// none is given).
    pub async fn budget(&self, account: &str, budget: &str, at: Option<&str>) -> Value {
        let query = at.map_or(String::new(), |at| format!("?at={at}"));
        let answer = self.get(&format!("/v1/accounts/{account}/budgets{query}")).await.expect(200);
        let items = answer.body["items"].as_array().unwrap();
        items.iter().find(|item| item["budget"] == budget).unwrap_or_else(|| panic!("no {budget}")).clone()
    }

    /// Applies a policy, with a query string such as `?dry_run=true`.
    pub async fn apply_policy(&self, policy: &str, query: &str) -> Answer {
        let request = self.request(Method::POST, &format!("/v1/policy{query}"));
        self.send(request.header("content-type", "application/yaml").body(policy.to_owned())).await
    }
}
