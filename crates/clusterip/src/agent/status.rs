//! What an agent tells of itself over plain HTTP: whether it lives, whether it does its work, and what is
//! measured. Nothing that anybody asks changes anything.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::TokioTimer;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::metrics;
use crate::webhook::connection::{ConnectionLimiter, ConnectionLimits, track};

/// The connections that are kept; more are closed.
const CONNECTIONS: ConnectionLimits =
    ConnectionLimits { most: 32, per_peer: 16, silence: Duration::from_secs(60), idle: Duration::from_secs(180) };
/// The head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Answers to what is asked.
#[derive(Clone)]
pub struct Status {
    /// Why the agent can't be alive, a line each; none where it is.
    pub dead: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Why it does not do its work, a line each; none where it does.
    pub not_ready: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The metrics, as text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// A server that can't begin, or breaks off.
#[derive(Debug, Error)]
pub enum StatusError {
    /// It can't listen.
    #[error("listening on {address} for probes and metrics failed: {reason}; choose another address with --listen")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        reason: std::io::Error,
    },
    /// It can't go on.
    #[error("serving probes and metrics on {address} broke off: {reason}")]
    Serve {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: std::io::Error,
    },
}

/// A server that listens, and does not answer yet.
#[derive(Debug)]
pub struct StatusServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl StatusServer {
    /// Listens.
    ///
    /// # Errors
    /// Where the address can't be had.
    pub async fn bind(address: SocketAddr) -> Result<Self, StatusError> {
        let failed = |reason| StatusError::Listen { address, reason };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens: the port that it got, where it asked for any.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers `/healthz`, `/readyz` and `/metrics` until `shutdown`.
    ///
    /// # Errors
    /// Where it can't go on.
    pub async fn run(self, status: Status, shutdown: impl Future<Output = ()> + Send) -> Result<(), StatusError> {
        let Self { listener, address } = self;
        let server: axum_server::Server<SocketAddr> = axum_server::Server::from_listener(listener);
        let connections = ConnectionLimiter::new(CONNECTIONS);
        let mut server = server.acceptor(connections.clone());
        // Without a timer the time limit has no effect.
        server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
        let router = router(status).layer(middleware::from_fn_with_state(connections, track));
        tokio::select! {
            served = server.serve(router.into_make_service_with_connect_info::<SocketAddr>()) => {
                served.map_err(|reason| StatusError::Serve { address, reason })
            }
            () = shutdown => Ok(()),
        }
    }
}

fn router(status: Status) -> Router {
    Router::new()
        .route("/healthz", get(async |State(status): State<Status>| told("ok", (status.dead)())))
        .route("/readyz", get(async |State(status): State<Status>| told("ready", (status.not_ready)())))
        .route("/metrics", get(exposed))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .with_state(status)
}

fn told(well: &str, reasons: Vec<String>) -> Response {
    if reasons.is_empty() {
        return format!("{well}\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", reasons.join("\n"))).into_response()
}

async fn exposed(State(status): State<Status>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], (status.metrics)()).into_response()
}

async fn unknown(uri: Uri) -> Response {
    let message = format!("{:.100} is not here; /healthz, /readyz and /metrics are\n", uri.path());
    (StatusCode::NOT_FOUND, message).into_response()
}

async fn other_method(request: Request) -> Response {
    let message = format!("{:.100} takes GET, and no {:.20}\n", request.uri().path(), request.method().as_str());
    (StatusCode::METHOD_NOT_ALLOWED, message).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn what_is_answered() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = StatusServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", server.local_addr());
        let nothing = || Arc::new(Vec::new) as Arc<dyn Fn() -> Vec<String> + Send + Sync>;
        let reasons = Arc::new(|| vec!["this".to_owned(), "and that".to_owned()]);
        let status = Status { dead: nothing(), not_ready: reasons, metrics: Arc::new(|| "measured\n".to_owned()) };
        let running = tokio::spawn(server.run(status, pending()));
        let client = reqwest::Client::builder().build().unwrap();
        let rows = [
            ("GET", "/healthz", 200, "ok\n"),
            ("GET", "/readyz", 503, "this\nand that\n"),
            ("GET", "/metrics", 200, "measured\n"),
            ("GET", "/mutate", 404, "/mutate is not here; /healthz, /readyz and /metrics are\n"),
            ("POST", "/metrics", 405, "/metrics takes GET, and no POST\n"),
        ];
        for (method, path, code, body) in rows {
            let request = client.request(method.parse().unwrap(), format!("{url}{path}"));
            let answer = request.send().await.unwrap();
            let found = (answer.status().as_u16(), answer.text().await.unwrap());
            assert_eq!(found, (code, body.to_owned()), "{method} {path}");
        }
        running.abort();
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let first = StatusServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = StatusServer::bind(first.local_addr()).await.unwrap_err().to_string();
        let expected = format!("listening on {} for probes and metrics failed: ", first.local_addr());
        assert!(error.starts_with(&expected) && error.ends_with("choose another address with --listen"), "{error}");
    }
}
