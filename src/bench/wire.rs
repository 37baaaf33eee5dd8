//! One client's connection: HTTP/1.1 that is kept alive, one request at a time, and
//! no more of HTTP than that.

use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The job's identity.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Where requests go.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    host: HeaderValue,
    /// What comes before every path; empty, or `/…` without a slash at the end.
    prefix: String,
}

impl Target {
    /// A service at an address of this machine.
    pub(super) fn at(address: SocketAddr) -> Self {
        Self::named(address, &address.to_string(), "")
    }

    /// A service that has a name, and paths of its own.
    pub(super) fn named(address: SocketAddr, host: &str, prefix: &str) -> Self {
        let host = HeaderValue::from_str(host).unwrap_or_else(|_| HeaderValue::from_static("localhost"));
        Self { address, host, prefix: prefix.trim_end_matches('/').to_owned() }
    }
}

/// The header that a key is sent in; `None` for a key that no header can carry.
pub(super) fn authorization(key: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What is sent.
pub(super) struct Asked<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) authorization: Option<&'a HeaderValue>,
    pub(super) key: Option<HeaderValue>,
    pub(super) body: Bytes,
}

/// What came back.
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// A connection that is made when it is needed and made again when it is lost.
pub(super) struct Wire {
    target: Target,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Wire {
    pub(super) fn new(target: Target) -> Self {
        Self { target, sender: None }
    }

    /// Connects, if there is no connection.
    pub(super) async fn connect(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, String> {
        let open = self.sender.take().filter(|sender| !sender.is_closed());
        let sender = match open {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(self.target.address).await.map_err(|error| error.to_string())?;
                stream.set_nodelay(true).map_err(|error| error.to_string())?;
                let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
                // Its errors are those of the requests that were under way.
                tokio::spawn(async move {
                    let _ = connection.await;
                });
                sender
            }
        };
        Ok(self.sender.insert(sender))
    }

    /// Sends one request and waits for the whole answer.
    pub(super) async fn send(&mut self, asked: Asked<'_>) -> Result<Answered, String> {
        let uri = format!("{}{}", self.target.prefix, asked.path);
        let mut request = Request::builder().method(asked.method).uri(uri).header(HOST, &self.target.host);
        if let Some(authorization) = asked.authorization {
            request = request.header(AUTHORIZATION, authorization).header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = asked.key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        let request = request.body(Full::new(asked.body)).map_err(|error| error.to_string())?;
        let sender = self.connect().await?;
        sender.ready().await.map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(Answered { status, body })
    }

    /// The text of a resource that needs no key.
    pub(super) async fn get(&mut self, path: &str) -> Result<String, String> {
        let asked = Asked { method: Method::GET, path, authorization: None, key: None, body: Bytes::new() };
        let answered = self.send(asked).await?;
        if answered.status != 200 {
            return Err(format!("{path} answered {}", answered.status));
        }
        Ok(String::from_utf8_lossy(&answered.body).into_owned())
    }
}
