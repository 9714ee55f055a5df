//! Liveness, readiness and metrics of an agent over plain HTTP. No request changes any state.

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

/// Limits on connections; connections above them are closed.
const CONNECTIONS: ConnectionLimits =
    ConnectionLimits { most: 32, per_peer: 16, silence: Duration::from_secs(60), idle: Duration::from_secs(180) };
/// The time limit for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// The answers of the endpoints.
#[derive(Clone)]
pub struct Status {
    /// Why the liveness probe fails, one reason per line; empty if the agent is alive.
    pub liveness_errors: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Why the readiness probe fails, one reason per line; empty if the agent is ready.
    pub readiness_errors: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The metrics in the Prometheus text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// Why the server could not start or stopped.
#[derive(Debug, Error)]
pub enum StatusError {
    /// The server can't listen on its address.
    #[error("listening on {address} for probes and metrics failed: {reason}; choose another address with --listen")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the operating system.
        reason: std::io::Error,
    },
    /// The server stopped with an error.
    #[error("serving probes and metrics on {address} failed: {reason}")]
    Serve {
        /// The address that it listened on.
        address: SocketAddr,
        /// The error of the operating system.
        reason: std::io::Error,
    },
}

/// The server for probes and metrics. It listens, but answers only in [`Self::run`].
#[derive(Debug)]
pub struct StatusServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl StatusServer {
    /// Listens on `address`.
    ///
    /// # Errors
    /// If the address can't be bound.
    pub async fn bind(address: SocketAddr) -> Result<Self, StatusError> {
        let failed = |reason| StatusError::Listen { address, reason };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address that the server listens on, with the actual port if port 0 was requested.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers `/healthz`, `/readyz` and `/metrics` until `shutdown` completes.
    ///
    /// # Errors
    /// If serving fails.
    pub async fn run(self, status: Status, shutdown: impl Future<Output = ()> + Send) -> Result<(), StatusError> {
        let Self { listener, address } = self;
        let server: axum_server::Server<SocketAddr> = axum_server::Server::from_listener(listener);
        let connections = ConnectionLimiter::new(CONNECTIONS);
        let mut server = server.acceptor(connections.clone());
        // Without a timer the time limit for the head has no effect.
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
        .route("/healthz", get(async |State(status): State<Status>| probe_response("ok", (status.liveness_errors)())))
        .route(
            "/readyz",
            get(async |State(status): State<Status>| probe_response("ready", (status.readiness_errors)())),
        )
        .route("/metrics", get(metrics_response))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .with_state(status)
}

fn probe_response(well: &str, reasons: Vec<String>) -> Response {
    if reasons.is_empty() {
        return format!("{well}\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", reasons.join("\n"))).into_response()
}

async fn metrics_response(State(status): State<Status>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], (status.metrics)()).into_response()
}

async fn unknown(uri: Uri) -> Response {
    let message = format!("not found: {:.100} (try /healthz, /readyz or /metrics)\n", uri.path());
    (StatusCode::NOT_FOUND, message).into_response()
}

async fn other_method(request: Request) -> Response {
    let message = format!("{:.100} accepts only GET, not {:.20}\n", request.uri().path(), request.method().as_str());
    (StatusCode::METHOD_NOT_ALLOWED, message).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn probes_and_metrics_are_answered_and_other_paths_and_methods_refused() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = StatusServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", server.local_addr());
        let nothing = || Arc::new(Vec::new) as Arc<dyn Fn() -> Vec<String> + Send + Sync>;
        let reasons = Arc::new(|| vec!["this".to_owned(), "and that".to_owned()]);
        let status = Status {
            liveness_errors: nothing(),
            readiness_errors: reasons,
            metrics: Arc::new(|| "measured\n".to_owned()),
        };
        let running = tokio::spawn(server.run(status, pending()));
        let client = reqwest::Client::builder().build().unwrap();
        struct Case {
            method: &'static str,
            path: &'static str,
            code: u16,
            body: &'static str,
        }
        let cases = [
            Case { method: "GET", path: "/healthz", code: 200, body: "ok\n" },
            Case { method: "GET", path: "/readyz", code: 503, body: "this\nand that\n" },
            Case { method: "GET", path: "/metrics", code: 200, body: "measured\n" },
            Case {
                method: "GET",
                path: "/mutate",
                code: 404,
                body: "not found: /mutate (try /healthz, /readyz or /metrics)\n",
            },
            Case { method: "POST", path: "/metrics", code: 405, body: "/metrics accepts only GET, not POST\n" },
        ];
        for Case { method, path, code, body } in cases {
            let request = client.request(method.parse().unwrap(), format!("{url}{path}"));
            let answer = request.send().await.unwrap();
            let found = (answer.status().as_u16(), answer.text().await.unwrap());
            assert_eq!(found, (code, body.to_owned()), "{method} {path}");
        }
        running.abort();
    }

    #[tokio::test]
    async fn an_occupied_listen_address_is_named_in_the_error() {
        let first = StatusServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = StatusServer::bind(first.local_addr()).await.unwrap_err().to_string();
        let expected = format!("listening on {} for probes and metrics failed: ", first.local_addr());
        assert!(error.starts_with(&expected) && error.ends_with("choose another address with --listen"), "{error}");
    }
}
