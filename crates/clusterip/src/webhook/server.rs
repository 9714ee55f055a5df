//! The HTTPS server of the webhook: routes, limits, readiness and graceful shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum_server::accept::Accept;
use axum_server::tls_rustls::RustlsAcceptor;
use clusterip_cluster::http::connection::{ConnectionLimiter, ConnectionLimits, host};
use clusterip_cluster::http::error_response::ErrorResponse;
use clusterip_cluster::http::server::{Purpose, Server, ServerError, TimeLimits};
use clusterip_cluster::http::status::probe_response;
use clusterip_cluster::metrics::CONTENT_TYPE as METRICS_TYPE;
use jiff::SignedDuration;
use tokio::net::TcpStream;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

mod body;
mod limits;

use self::body::{Unread, read};
pub use self::limits::Limits;
use super::peer_limits::{Peer, PeerLimits};
use super::review::{self, Reviewer};
use super::tls::Certificate;

/// What the server answers with: the policy, and what the rest of the program reports about itself.
#[derive(Clone)]
pub struct Backend {
    /// Answers admission requests.
    pub reviewer: Arc<dyn Reviewer>,
    /// The reasons why the program is not ready, one per line; empty if it is ready.
    pub not_ready: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The metrics in the OpenMetrics text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

const PURPOSE: Purpose = Purpose { serves: "the webhook", flag: "--listen" };

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct WebhookServer {
    server: Server,
    limits: Limits,
}

impl WebhookServer {
    /// Listens on the address.
    ///
    /// # Errors
    /// If the address can't be used.
    pub async fn bind(address: SocketAddr, limits: Limits) -> Result<Self, ServerError> {
        Ok(Self { server: Server::bind(address, PURPOSE).await?, limits })
    }

    /// The address that the server listens on, with the actual port if port 0 was requested.
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Answers requests until `shutdown`. Then `/readyz` reports `stopping`, and requests in flight are completed.
    ///
    /// # Errors
    /// If serving fails.
    pub async fn run(
        self,
        backend: Backend,
        certificate: &Certificate,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServerError> {
        let Self { server, limits } = self;
        let connections = ConnectionLimiter::new(ConnectionLimits {
            most: limits.connections,
            per_peer: limits.connections_per_peer,
            silence: limits.silence,
            idle: limits.idle,
        });
        let tls = RustlsAcceptor::new(certificate.config()).handshake_timeout(limits.handshake);
        let tls = Identifier(tls.acceptor(connections.clone()));
        let time = TimeLimits { head: limits.head, drain: limits.drain };
        let app = Arc::new(AppState::new(backend, limits, connections.clone(), certificate.asks_for_clients()));
        let stopping = async {
            shutdown.await;
            app.stopping.store(true, Ordering::Release);
            sleep(app.limits.linger).await;
        };
        server.serve(router(Arc::clone(&app)), tls, connections, time, stopping).await
    }
}

/// Accepts TLS connections and records whether their peers presented a client certificate.
#[derive(Clone, Debug)]
struct Identifier(RustlsAcceptor<ConnectionLimiter>);

impl<S: Send + 'static> Accept<TcpStream, S> for Identifier {
    type Stream = <RustlsAcceptor<ConnectionLimiter> as Accept<TcpStream, S>>::Stream;
    type Service = S;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, S)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = self.0.accept(stream, service);
        Box::pin(async move {
            let (stream, service) = accepted.await?;
            let (connection, tls) = stream.get_ref();
            // A certificate that could not be verified has already failed the handshake.
            connection.set_has_certificate(tls.peer_certificates().is_some_and(|chain| !chain.is_empty()));
            Ok((stream, service))
        })
    }
}

struct AppState {
    backend: Backend,
    limits: Limits,
    connections: ConnectionLimiter,
    /// Whether only clients with a certificate may send reviews.
    clients_only: bool,
    peers: PeerLimits,
    reviews: Arc<Semaphore>,
    /// The bytes that large bodies may take.
    large_bodies: Arc<Semaphore>,
    large_reviews: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    stopping: AtomicBool,
}

impl AppState {
    fn new(backend: Backend, limits: Limits, connections: ConnectionLimiter, clients_only: bool) -> Self {
        Self {
            backend,
            connections,
            clients_only,
            peers: PeerLimits::new(limits.reviews, limits.bodies),
            reviews: Arc::new(Semaphore::new(limits.reviews)),
            large_reviews: Arc::new(Semaphore::new(limits.large_reviews)),
            // One large body always fits, however small the limits are.
            large_bodies: Arc::new(Semaphore::new((limits.bodies / 5).max(limits.body))),
            bodies: Arc::new(Semaphore::new(limits.bodies)),
            stopping: AtomicBool::new(false),
            limits,
        }
    }
}

fn router(app: Arc<AppState>) -> Router {
    Router::new()
        .route("/mutate", post(mutate))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(async |uri: Uri| ErrorResponse::unknown_path(&uri, "/mutate, /healthz, /readyz or /metrics"))
        .method_not_allowed_fallback(other_method)
        .with_state(app)
}

async fn other_method(request: Request) -> ErrorResponse {
    let accepted = if request.uri().path() == "/mutate" { "POST" } else { "GET and HEAD" };
    ErrorResponse::other_method(&request, accepted)
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(app): State<Arc<AppState>>) -> Response {
    let mut reasons = (app.backend.not_ready)();
    if app.stopping.load(Ordering::Acquire) {
        reasons.insert(0, "stopping".to_owned());
    }
    probe_response("ready", reasons)
}

async fn metrics(State(app): State<Arc<AppState>>) -> Response {
    ([(CONTENT_TYPE, METRICS_TYPE)], (app.backend.metrics)()).into_response()
}

async fn mutate(
    State(app): State<Arc<AppState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    match reviewed(&app, peer, request).await {
        Ok(answer) => ([(CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(refusal) => {
            tracing::warn!(status = refusal.0.as_u16(), message = refusal.1, "an admission review was not answered");
            refusal.into_response()
        }
    }
}

async fn reviewed(app: &AppState, peer: SocketAddr, request: Request) -> Result<Vec<u8>, ErrorResponse> {
    let limits = &app.limits;
    let arrived = Instant::now();
    if app.clients_only && !app.connections.has_certificate(peer) {
        let message = "/mutate needs a client certificate of the authority in --client-ca";
        return Err(ErrorResponse(StatusCode::FORBIDDEN, message.to_owned()));
    }
    let time = asked_time(request.uri()).map_or(limits.review, |asked| asked.min(limits.review));
    check_type(request.headers())?;
    if let Some(reason) = app.backend.reviewer.not_begun() {
        return Err(ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, reason));
    }
    let peer = app.peers.of(host(peer));
    let body = match read(app, &peer, arrived, time.min(limits.body_time), request).await {
        Ok(body) => body,
        Err(Unread::Broken(refusal)) => return Err(refusal),
        Err(Unread::NoRoom(refusal, beginning)) => {
            let (code, reason) = (refusal.0.as_u16(), refusal.1.as_str());
            let answer = review::answer_unread(app.backend.reviewer.as_ref(), &beginning.bytes, code, reason);
            return answer.ok_or(refusal);
        }
    };
    let turn = timeout_at(arrived + time, turn(app, peer, body.bytes.len()));
    let busy = |_| {
        let message = format!("busy: {} reviews are in progress, and none finished within {time:?}", limits.reviews);
        ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let turn = turn.await.map_err(busy)?.map_err(|error| broken(&error))?;
    let reviewer = Arc::clone(&app.backend.reviewer);
    // The turn lasts until the review ends, even if the client has given up.
    let review = tokio::task::spawn_blocking(move || {
        let answer = review::answer(reviewer.as_ref(), &body.bytes);
        drop((turn, body));
        answer
    });
    let late = |_| ErrorResponse(StatusCode::GATEWAY_TIMEOUT, format!("the review did not end within {time:?}"));
    let answer = timeout_at(arrived + time, review).await.map_err(late)?.map_err(|error| broken(&error))?;
    answer.map_err(|error| match error {
        review::ReviewError::Answer(_) => broken(&error),
        _ => ErrorResponse(StatusCode::BAD_REQUEST, error.to_string()),
    })
}

/// The permits of one review; dropping them lets the next review begin.
struct Turn {
    _permits: Vec<OwnedSemaphorePermit>,
    /// Keeps the peer's share alive while a review of the peer is in progress.
    _peer: Arc<Peer>,
}

/// Waits until a review may begin. A large review first waits for other large reviews, and takes no permit that small
/// reviews need meanwhile. It then waits for a permit of its peer, and last for one that all peers share: only reviews
/// that their peer's limit admits wait there, and they are served in order.
async fn turn(app: &AppState, peer: Arc<Peer>, length: usize) -> Result<Turn, AcquireError> {
    let mut permits = Vec::new();
    if length >= app.limits.large_body {
        permits.push(Arc::clone(&app.large_reviews).acquire_owned().await?);
    }
    permits.push(Arc::clone(&peer.reviews).acquire_owned().await?);
    permits.push(Arc::clone(&app.reviews).acquire_owned().await?);
    Ok(Turn { _permits: permits, _peer: peer })
}

fn broken(error: &dyn std::error::Error) -> ErrorResponse {
    ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// How long the API server waits for the answer: the `timeout` in the query.
fn asked_time(uri: &Uri) -> Option<Duration> {
    let value = uri.query()?.split('&').find_map(|pair| pair.strip_prefix("timeout="))?;
    let time: SignedDuration = value.parse().ok()?;
    time.is_positive().then(|| time.unsigned_abs())
}

fn check_type(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let found = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let essence = found.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let found =
        found.map_or_else(|| "no content type".to_owned(), |found| format!("unsupported content type {found:.100?}"));
    let message = format!("{found}, expected application/json");
    Err(ErrorResponse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}
