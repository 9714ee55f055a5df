//! The HTTPS server of the webhook: routes, limits, readiness and graceful shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum_server::accept::Accept;
use axum_server::tls_rustls::RustlsAcceptor;
use futures::StreamExt;
use hyper_util::rt::TokioTimer;
use jiff::SignedDuration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::{ConnectionLimiter, ConnectionLimits, host, track};
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

/// How much the server accepts, and for how long it waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; further ones are closed.
    pub connections: usize,
    /// Connections at once from one IP address; further ones are closed. An API server needs a few, because it sends
    /// many requests on one connection. Several API servers may share one address behind a proxy.
    pub connections_per_peer: usize,
    /// Reviews at once; further ones wait. One IP address may have three quarters of them.
    pub reviews: usize,
    /// Reviews of large bodies at once; further ones wait. Parsing JSON takes a multiple of its size in memory.
    pub large_reviews: usize,
    /// The size in bytes from which a body is large.
    pub large_body: usize,
    /// The largest body in bytes.
    pub body: usize,
    /// The bytes of all bodies together. One IP address may have half of them.
    pub bodies: usize,
    /// The time for a TLS handshake.
    pub handshake: Duration,
    /// The time for the head of an HTTP/1.1 request.
    pub head: Duration,
    /// The time for a whole body.
    pub body_time: Duration,
    /// How long a connection may go without a byte read or written.
    pub silence: Duration,
    /// How long a connection may go without a request, whatever else its peer sends. API servers close an idle
    /// connection after 90 seconds.
    pub idle: Duration,
    /// The time for a review that names no `timeout`, and the longest `timeout` that is accepted. It includes the wait
    /// for a turn.
    pub review: Duration,
    /// How long the server keeps accepting requests after the shutdown signal, so that clients stop sending to it
    /// first.
    pub linger: Duration,
    /// How long requests in flight may take after that.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_per_peer: 64,
            // Reviews are bound by the CPU: more at once would only make each of them slower. The bound also limits
            // their memory.
            reviews: (2 * available_parallelism().map_or(1, usize::from)).min(16),
            large_reviews: 1,
            large_body: 512 << 10,
            body: 3 << 20,
            bodies: 32 << 20,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body_time: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            idle: Duration::from_secs(180),
            // The longest time that an API server waits for a webhook.
            review: Duration::from_secs(30),
            linger: Duration::from_secs(3),
            drain: Duration::from_secs(20),
        }
    }
}

/// A server that can't start, or stops with an error.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Listening on the address failed.
    #[error("listening on {address} failed: {reason}; choose another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// Serving failed.
    #[error("serving on {address} failed: {reason}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        reason: std::io::Error,
    },
}

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

impl Server {
    /// Listens on the address.
    ///
    /// # Errors
    /// If the address can't be used.
    pub async fn bind(address: SocketAddr, limits: Limits) -> Result<Self, ServerError> {
        let failed = |reason| ServerError::Listen { address, reason };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, limits })
    }

    /// The address that the server listens on, with the actual port if port 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
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
        let Self { listener, address, limits } = self;
        let connections = ConnectionLimiter::new(ConnectionLimits {
            most: limits.connections,
            per_peer: limits.connections_per_peer,
            silence: limits.silence,
            idle: limits.idle,
        });
        let tls = RustlsAcceptor::new(certificate.config()).handshake_timeout(limits.handshake);
        let tls = Identifier(tls.acceptor(connections.clone()));
        let app = AppState::new(backend, limits.clone(), connections, certificate.asks_for_clients());
        let app = Arc::new(app);
        let router = router(Arc::clone(&app));
        let handle: axum_server::Handle<SocketAddr> = axum_server::Handle::new();
        let mut server = axum_server::Server::from_listener(listener).acceptor(tls).handle(handle.clone());
        // Without a timer the time limits have no effect. The windows bound what a peer may send before it is read.
        server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.head);
        server
            .http_builder()
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.silence / 3)
            .keep_alive_timeout(limits.silence / 3)
            .initial_stream_window_size(64 << 10)
            .initial_connection_window_size(256 << 10)
            .max_concurrent_streams(250);
        let serving = server.serve(router.into_make_service_with_connect_info::<SocketAddr>());
        let stopping = async {
            shutdown.await;
            app.stopping.store(true, Ordering::Release);
            sleep(limits.linger).await;
            handle.graceful_shutdown(Some(limits.drain));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = serving => served.map_err(|reason| ServerError::Serve { address, reason }),
            () = stopping => Ok(()),
        }
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
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(app.connections.clone(), track))
        .with_state(app)
}

/// An error response with a text instead of a review.
#[derive(Debug, PartialEq, Eq)]
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (status, format!("{message}\n")).into_response()
    }
}

async fn unknown(uri: Uri) -> Refusal {
    let message = format!("not found: {:.100} (try /mutate, /healthz, /readyz or /metrics)", uri.path());
    Refusal(StatusCode::NOT_FOUND, message)
}

async fn other_method(request: Request) -> Refusal {
    let path = request.uri().path();
    let supported = if path == "/mutate" { "POST" } else { "GET and HEAD" };
    let message = format!("{path} does not support {:.20}, only {supported}", request.method().as_str());
    Refusal(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(app): State<Arc<AppState>>) -> Response {
    let mut reasons = (app.backend.not_ready)();
    if app.stopping.load(Ordering::Acquire) {
        reasons.insert(0, "stopping".to_owned());
    }
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    Refusal(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n")).into_response()
}

async fn metrics(State(app): State<Arc<AppState>>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content_type)], (app.backend.metrics)()).into_response()
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

async fn reviewed(app: &AppState, peer: SocketAddr, request: Request) -> Result<Vec<u8>, Refusal> {
    let limits = &app.limits;
    let arrived = Instant::now();
    if app.clients_only && !app.connections.has_certificate(peer) {
        let message = "/mutate needs a client certificate of the authority in --client-ca";
        return Err(Refusal(StatusCode::FORBIDDEN, message.to_owned()));
    }
    let time = asked_time(request.uri()).map_or(limits.review, |asked| asked.min(limits.review));
    check_type(request.headers())?;
    if let Some(reason) = app.backend.reviewer.not_begun() {
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, reason));
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
        Refusal(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let turn = turn.await.map_err(busy)?.map_err(|error| broken(&error))?;
    let reviewer = Arc::clone(&app.backend.reviewer);
    // The turn lasts until the review ends, even if the client has given up.
    let review = tokio::task::spawn_blocking(move || {
        let answer = review::answer(reviewer.as_ref(), &body.bytes);
        drop((turn, body));
        answer
    });
    let late = |_| Refusal(StatusCode::GATEWAY_TIMEOUT, format!("the review did not end within {time:?}"));
    let answer = timeout_at(arrived + time, review).await.map_err(late)?.map_err(|error| broken(&error))?;
    answer.map_err(|error| match error {
        review::ReviewError::Answer(_) => broken(&error),
        _ => Refusal(StatusCode::BAD_REQUEST, error.to_string()),
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

fn broken(error: &dyn std::error::Error) -> Refusal {
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// How long the API server waits for the answer: the `timeout` in the query.
fn asked_time(uri: &Uri) -> Option<Duration> {
    let value = uri.query()?.split('&').find_map(|pair| pair.strip_prefix("timeout="))?;
    let time: SignedDuration = value.parse().ok()?;
    time.is_positive().then(|| time.unsigned_abs())
}

fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let found = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let essence = found.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let found =
        found.map_or_else(|| "no content type".to_owned(), |found| format!("unsupported content type {found:.100?}"));
    let message = format!("{found}, expected application/json");
    Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// A body, with its permits for the memory that bodies may take.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    /// Permits for the memory that is reserved for the peer.
    reserved: Option<OwnedSemaphorePermit>,
    /// Permits for the memory of all bodies, of the bodies of this peer, and of all large bodies.
    shared: [Option<OwnedSemaphorePermit>; 3],
}

/// The beginning of a body for which there is no more memory. It says what the request is about, if there was memory
/// for it.
struct Beginning {
    /// At most [`KEPT`] bytes.
    bytes: Vec<u8>,
    /// The permit for [`KEPT`] bytes of the memory that is reserved for the peer; without it `bytes` is empty.
    memory: Option<OwnedSemaphorePermit>,
}

/// Why the body of a request is not available.
enum Unread {
    /// The client did not send a complete body.
    Broken(Refusal),
    /// There is no memory for the body.
    NoRoom(Refusal, Beginning),
}

/// How many bytes are kept of a body for which there is no more memory. The fields that say what a request is about
/// precede its objects.
const KEPT: usize = 4 << 10;
/// How many bytes of a body are read at most. API servers do not send more, and a client that still sends does not read
/// the answer.
const DRAINED: usize = 32 << 20;

async fn read(app: &AppState, peer: &Peer, arrived: Instant, time: Duration, request: Request) -> Result<Held, Unread> {
    let slow =
        |_| Unread::Broken(Refusal(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {time:?}")));
    timeout_at(arrived + time, collect(app, peer, request.into_body())).await.map_err(slow)?
}

/// Memory is accounted for the bytes that have arrived, not for the announced length: otherwise a few slow clients
/// could reserve all of it by announcing large bodies.
async fn collect(app: &AppState, peer: &Peer, body: Body) -> Result<Held, Unread> {
    let (mut held, mut refused, mut drained) = (Held::default(), None::<(Refusal, Beginning)>, 0);
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let broken = |error| Refusal(StatusCode::BAD_REQUEST, format!("reading the body failed: {error}"));
        let part = part.map_err(|error| Unread::Broken(broken(error)))?;
        drained += part.len();
        if refused.is_none()
            && let Err(refusal) = held.add(app, peer, &part)
        {
            refused = Some((refusal, Beginning::of(std::mem::take(&mut held))));
        }
        if let Some((_, beginning)) = &mut refused {
            beginning.add(peer, &part);
            if drained > DRAINED {
                break;
            }
        }
    }
    match refused {
        None => Ok(held),
        Some((refusal, beginning)) => Err(Unread::NoRoom(refusal, beginning)),
    }
}

impl Held {
    /// Adds a part of the body, if there is memory for it.
    fn add(&mut self, app: &AppState, peer: &Peer, part: &[u8]) -> Result<(), Refusal> {
        let limits = &app.limits;
        let large = || Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {} bytes", limits.body));
        let length = self.bytes.len() + part.len();
        if length > limits.body {
            return Err(large());
        }
        let size = u32::try_from(part.len()).map_err(|_| large())?;
        if let Ok(permit) = Arc::clone(&peer.reserved).try_acquire_many_owned(size) {
            merge(&mut self.reserved, permit);
        } else {
            let take = |from: &Arc<Semaphore>, reason: String| {
                let busy = |_| Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("busy: {reason}"));
                Arc::clone(from).try_acquire_many_owned(size).map_err(busy)
            };
            let (all, most) = (limits.bodies, limits.bodies.div_ceil(2));
            let of_all = take(&app.bodies, format!("waiting bodies already use {all} bytes"))?;
            let of_peer = take(&peer.bodies, format!("waiting bodies of this client already use {most} bytes"))?;
            // An API server is one peer for all its users: the large requests of one user must leave memory for the
            // small requests of all.
            let of_large = match length >= limits.large_body {
                true => Some(take(&app.large_bodies, "large bodies wait already".to_owned())?),
                false => None,
            };
            for (held, permit) in self.shared.iter_mut().zip([Some(of_all), Some(of_peer), of_large]) {
                permit.into_iter().for_each(|permit| merge(held, permit));
            }
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

impl Beginning {
    /// Keeps the beginning of a refused body, and releases the memory of the rest. A permit for exactly [`KEPT`] bytes
    /// is kept. Any other is released, so that a body that had more than `KEPT` always gets its part of it back.
    fn of(held: Held) -> Self {
        let Held { mut bytes, reserved, shared: _ } = held;
        bytes.truncate(KEPT);
        Self { bytes, memory: reserved.filter(|reserved| reserved.num_permits() == KEPT) }
    }

    /// Adds a part of the body, as far as it belongs to the beginning. Keeps nothing if the peer has no memory for it.
    fn add(&mut self, peer: &Peer, part: &[u8]) {
        let room = (KEPT - self.bytes.len()).min(part.len());
        self.bytes.extend_from_slice(&part[..room]);
        self.bytes.shrink_to_fit();
        if self.memory.is_none() {
            self.memory = Arc::clone(&peer.reserved).try_acquire_many_owned(KEPT as u32).ok();
        }
        if self.memory.is_none() {
            self.bytes = Vec::new();
        }
    }
}

fn merge(held: &mut Option<OwnedSemaphorePermit>, permit: OwnedSemaphorePermit) {
    match held {
        Some(held) => held.merge(permit),
        none => *none = Some(permit),
    }
}
