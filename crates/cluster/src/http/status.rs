//! Liveness, readiness and metrics of an agent over plain HTTP. No request changes any state.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::connection::{ConnectionLimiter, ConnectionLimits};
use super::error_response::ErrorResponse;
use super::server::{Purpose, Server, TimeLimits};
use crate::metrics;

/// Limits on connections; connections above them are closed.
const CONNECTIONS: ConnectionLimits =
    ConnectionLimits { most: 32, per_peer: 16, silence: Duration::from_secs(60), idle: Duration::from_secs(180) };
const TIME: TimeLimits = TimeLimits { head: Duration::from_secs(10), drain: Duration::ZERO };

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

/// The server for probes and metrics. It listens on `address`, but answers only in [`run`].
pub async fn bind(address: SocketAddr) -> anyhow::Result<Server> {
    Server::bind(address, Purpose { serves: "probes and metrics", flag: "--listen" }).await
}

/// Answers `/healthz`, `/readyz` and `/metrics` until `shutdown` completes.
pub async fn run(server: Server, status: Status, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    let connections = ConnectionLimiter::new(CONNECTIONS);
    server.serve(router(status), connections.clone(), connections, TIME, shutdown).await
}

fn router(status: Status) -> Router {
    Router::new()
        .route("/healthz", get(async |State(status): State<Status>| probe_response("ok", (status.liveness_errors)())))
        .route(
            "/readyz",
            get(async |State(status): State<Status>| probe_response("ready", (status.readiness_errors)())),
        )
        .route("/metrics", get(metrics_response))
        .fallback(async |uri: Uri| ErrorResponse::unknown_path(&uri, "/healthz, /readyz or /metrics"))
        .method_not_allowed_fallback(async |request: Request| ErrorResponse::other_method(&request, "GET and HEAD"))
        .with_state(status)
}

/// The response to a probe: `well` without reasons against it, otherwise the reasons.
pub fn probe_response(well: &str, reasons: Vec<String>) -> Response {
    if reasons.is_empty() {
        return format!("{well}\n").into_response();
    }
    ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n")).into_response()
}

async fn metrics_response(State(status): State<Status>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], (status.metrics)()).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn probes_and_metrics_are_answered_and_other_paths_and_methods_refused() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let url = format!("http://{}", server.local_addr());
        let nothing = || Arc::new(Vec::new) as Arc<dyn Fn() -> Vec<String> + Send + Sync>;
        let reasons = Arc::new(|| vec!["this".to_owned(), "and that".to_owned()]);
        let status = Status {
            liveness_errors: nothing(),
            readiness_errors: reasons,
            metrics: Arc::new(|| "measured\n".to_owned()),
        };
        let running = tokio::spawn(run(server, status, pending()));
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
            Case {
                method: "POST",
                path: "/metrics",
                code: 405,
                body: "/metrics accepts only GET and HEAD, not POST\n",
            },
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
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = bind(first.local_addr()).await.unwrap_err().to_string();
        let expected = format!("listening on {} for probes and metrics failed: ", first.local_addr());
        assert!(error.starts_with(&expected) && error.ends_with("choose another address with --listen"), "{error}");
    }
}
