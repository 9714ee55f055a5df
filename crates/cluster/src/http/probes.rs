//! Liveness, readiness and metrics of an agent over plain HTTP. No request changes any state.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::connection::{ConnectionLimiter, ConnectionLimits};
use super::server::{ErrorResponse, Server, TimeLimits};
use crate::metrics;
use crate::panics::catch_blocking;

#[derive(Clone)]
pub struct Status {
    /// Why the liveness probe fails, one reason per line; empty if the agent is alive.
    pub liveness_errors: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Why the readiness probe fails, one reason per line; empty if the agent is ready.
    pub readiness_errors: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    pub scrapes: Scrapes,
}

const REUSED: Duration = Duration::from_secs(1);

/// Answers requests for the metrics, which need no permission. The text takes as long as the cluster is large: it is
/// computed once at a time and once a second, and no other request waits for it.
#[derive(Clone)]
pub struct Scrapes {
    encode: Arc<dyn Fn() -> String + Send + Sync>,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl Scrapes {
    /// `encode` returns the metrics in the OpenMetrics text format. It may block.
    pub fn new(encode: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { encode: Arc::new(encode), last: Arc::default() }
    }

    pub async fn answer(&self) -> Response {
        let (encode, mut last) = (Arc::clone(&self.encode), Arc::clone(&self.last).lock_owned().await);
        let text = match last.as_ref().filter(|(computed, _)| computed.elapsed() < REUSED) {
            Some((_, text)) => Ok(text.clone()),
            // A request that is given up has its turn until the text is computed.
            None => {
                catch_blocking(move || {
                    let text = Bytes::from(encode());
                    *last = Some((Instant::now(), text.clone()));
                    text
                })
                .await
            }
        };
        match text {
            Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
            Err(cause) => {
                let message = format!("the metrics can't be computed: {cause}");
                ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
            }
        }
    }
}

/// The server for probes and metrics. It listens on `address`, but answers only in [`run`].
pub async fn bind(address: SocketAddr) -> anyhow::Result<Server> {
    Server::bind(address, "probes and metrics", "--listen").await
}

/// Answers `/healthz`, `/readyz` and `/metrics` until `shutdown` completes.
pub async fn run(server: Server, status: Status, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    let connections = ConnectionLimiter::new(ConnectionLimits::FEW);
    let limits = TimeLimits { head: Duration::from_secs(10), drain: Duration::ZERO };
    server.serve(router(status), connections.clone(), connections, limits, shutdown).await
}

fn router(status: Status) -> Router {
    Router::new()
        .route("/healthz", get(async |State(status): State<Status>| probe_response("ok", (status.liveness_errors)())))
        .route(
            "/readyz",
            get(async |State(status): State<Status>| probe_response("ready", (status.readiness_errors)())),
        )
        .route("/metrics", get(async |State(status): State<Status>| status.scrapes.answer().await))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use tokio::task::{JoinSet, yield_now};
    use tokio::time::advance;

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
            scrapes: Scrapes::new(|| "measured\n".to_owned()),
        };
        let running = tokio::spawn(run(server, status, pending()));
        let client = reqwest::Client::builder().build().unwrap();
        const NOT_FOUND: &str = "not found: /mutate (try /healthz, /readyz or /metrics)\n";
        for (method, path, code, body) in [
            ("GET", "/healthz", 200, "ok\n"),
            ("GET", "/readyz", 503, "this\nand that\n"),
            ("GET", "/metrics", 200, "measured\n"),
            ("GET", "/mutate", 404, NOT_FOUND),
            ("POST", "/metrics", 405, "/metrics accepts only GET and HEAD, not POST\n"),
        ] {
            let request = client.request(method.parse().unwrap(), format!("{url}{path}"));
            let answer = request.send().await.unwrap();
            let found = (answer.status().as_u16(), answer.text().await.unwrap());
            assert_eq!(found, (code, body.to_owned()), "{method} {path}");
        }
        running.abort();
    }

    /// Metrics that are computed each time that they are released, and how many times that has begun.
    fn slow() -> (Scrapes, Sender<()>, Arc<AtomicUsize>) {
        let begun = Arc::new(AtomicUsize::new(0));
        let ((release, released), count) = (channel(), Arc::clone(&begun));
        let released = std::sync::Mutex::new(released);
        let encode = move || {
            let nth = count.fetch_add(1, Ordering::SeqCst) + 1;
            released.lock().unwrap().recv().unwrap();
            format!("{nth}")
        };
        (Scrapes::new(encode), release, begun)
    }

    // All tasks have one thread, which no computation may block.
    #[tokio::test(start_paused = true)]
    async fn metrics_are_computed_once_at_a_time_and_once_a_second_however_many_requests_there_are() {
        let (scrapes, release, begun) = slow();
        for expected in 1..3 {
            let mut requests = JoinSet::new();
            for _ in 0..100 {
                let scrapes = scrapes.clone();
                requests
                    .spawn(async move { axum::body::to_bytes(scrapes.answer().await.into_body(), 9).await.unwrap() });
            }
            while begun.load(Ordering::SeqCst) < expected {
                yield_now().await;
            }
            // These are given up during the computation, also the one that began it.
            requests.abort_all();
            while requests.join_next().await.is_some() {}
            let again = scrapes.clone();
            let again = tokio::spawn(async move { again.answer().await });
            yield_now().await;
            assert_eq!(begun.load(Ordering::SeqCst), expected);
            release.send(()).unwrap();
            for answer in [again.await.unwrap(), scrapes.answer().await] {
                let text = axum::body::to_bytes(answer.into_body(), 9).await.unwrap();
                assert_eq!(text, expected.to_string());
            }
            advance(REUSED).await;
        }
    }

    #[tokio::test]
    async fn an_occupied_listen_address_is_named_in_the_error() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = bind(first.local_addr()).await.unwrap_err().to_string();
        let expected = format!("listening on {} for probes and metrics failed: ", first.local_addr());
        assert!(error.starts_with(&expected) && error.ends_with("choose another address with --listen"), "{error}");
    }
}
