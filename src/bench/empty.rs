//! A handler that does nothing: what the load generator can drive at most.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// An answer as long as the service's, with all that a client reads.
const ANSWER: &str = r#"{"id":"01900000-0000-7000-8000-000000000000","account":"bench-hot","member":null,"operation":"bench","provider":"bench","unit":"bench-unit","state":"active","estimate":"10","ceiling":"10","settled":"0","in_flight":"0","unknown":"0","stated_outstanding":"0","overrun":"0","charged":"10","version":1,"attempt":{"number":1,"holder":"bench","token":"1.AAAAAAAAAAAAAAAAAAAAAA","lease_expires_at":"2026-01-01T00:00:00.000000Z","overdue":false},"budgets":[{"budget":"account","period_starts_at":"2026-01-01T00:00:00Z","period_ends_at":null},{"budget":"bench-pool","period_starts_at":"2026-01-01T00:00:00Z","period_ends_at":null}],"reference":null,"labels":{},"created_at":"2026-01-01T00:00:00.000000Z","updated_at":"2026-01-01T00:00:00.000000Z","closed_at":null}"#;

/// Answers everything in the same way, until the process is ended.
///
/// # Errors
///
/// No address to listen on.
pub async fn serve_nothing() -> std::io::Result<()> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    // The line that a service says when it is ready.
    eprintln!("listening on http://{}", listener.local_addr()?);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            _ = terminate.recv() => return Ok(()),
        };
        stream.set_nodelay(true)?;
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(async move {
            // A client that goes away is no failure.
            let _ = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // Read to its end, as a service does.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
