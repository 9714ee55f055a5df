//! The HTTPS server.

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
use super::peers::{Peer, Peers};
use super::review::{self, Reviewer};
use super::tls::Certificate;

/// What answers: the policy, and what the rest of the program says about itself.
#[derive(Clone)]
pub struct Backend {
    /// Answers admission requests.
    pub reviewer: Arc<dyn Reviewer>,
    /// Why the program can't do its work yet, a line each; none where it can.
    pub not_ready: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The metrics, as text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// How much the server takes on.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; more are closed.
    pub connections: usize,
    /// Connections at once from one IP address; more are closed. An API server needs a few: it sends many requests
    /// on one. Several API servers may have one address, behind a proxy.
    pub connections_per_peer: usize,
    /// Reviews at once; others wait. One IP address may have three quarters of them.
    pub reviews: usize,
    /// Reviews of large bodies at once; others wait. Reading JSON takes a multiple of its size.
    pub large_reviews: usize,
    /// The bytes from which on a body is large.
    pub large_body: usize,
    /// The bytes of a body.
    pub body: usize,
    /// The bytes of all bodies at once. One IP address may have half of them.
    pub bodies: usize,
    /// A TLS handshake.
    pub handshake: Duration,
    /// The head of an HTTP/1.1 request.
    pub head: Duration,
    /// A whole body.
    pub body_time: Duration,
    /// A connection on which nothing moves.
    pub silence: Duration,
    /// A connection without a request, whatever else its peer sends. API servers close one after 90 seconds.
    pub idle: Duration,
    /// A review that names no `timeout`, and the longest that one may name: the wait for its turn too.
    pub review: Duration,
    /// How long the server goes on after it was told to stop, so that nobody is sent to it any more.
    pub linger: Duration,
    /// How long what is in flight may take then.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_per_peer: 64,
            // A review computes; more at once would only make each slower. But each takes memory.
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
            // The longest that an API server waits.
            review: Duration::from_secs(30),
            linger: Duration::from_secs(3),
            drain: Duration::from_secs(20),
        }
    }
}

/// A server that can't begin, or breaks off.
#[derive(Debug, Error)]
pub enum ServerError {
    /// It can't listen.
    #[error("listening on {address} failed: {reason}; choose another address with --listen")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        reason: std::io::Error,
    },
    /// It can't go on.
    #[error("serving on {address} broke off: {reason}")]
    Serve {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: std::io::Error,
    },
}

/// A server that listens, and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// Where the address can't be had.
    pub async fn bind(address: SocketAddr, limits: Limits) -> Result<Self, ServerError> {
        let failed = |reason| ServerError::Listen { address, reason };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, limits })
    }

    /// Where it listens: the port that it got, where it asked for any.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown`; then `/readyz` says so, and what is in flight is finished.
    ///
    /// # Errors
    /// Where it can't go on.
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
        let front = Front::new(backend, limits.clone(), connections, certificate.asks_for_clients());
        let front = Arc::new(front);
        let router = router(Arc::clone(&front));
        let handle: axum_server::Handle<SocketAddr> = axum_server::Handle::new();
        let mut server = axum_server::Server::from_listener(listener).acceptor(tls).handle(handle.clone());
        // Without a timer the time limits have no effect. The windows are what a peer may send unread.
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
            front.stopping.store(true, Ordering::Release);
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

/// Accepts TLS connections, and notes whether their peers have shown a client certificate.
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
            // The handshake has failed where the certificate could not be verified.
            connection.set_has_certificate(tls.peer_certificates().is_some_and(|chain| !chain.is_empty()));
            Ok((stream, service))
        })
    }
}

struct Front {
    backend: Backend,
    limits: Limits,
    connections: ConnectionLimiter,
    /// Whether reviews are for clients with a certificate only.
    clients_only: bool,
    peers: Peers,
    reviews: Arc<Semaphore>,
    /// The bytes of bodies that are large.
    large_bodies: Arc<Semaphore>,
    large_reviews: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    stopping: AtomicBool,
}

impl Front {
    fn new(backend: Backend, limits: Limits, connections: ConnectionLimiter, clients_only: bool) -> Self {
        Self {
            backend,
            connections,
            clients_only,
            peers: Peers::new(limits.reviews, limits.bodies),
            reviews: Arc::new(Semaphore::new(limits.reviews)),
            large_reviews: Arc::new(Semaphore::new(limits.large_reviews)),
            // A large body fits, however small the limits are.
            large_bodies: Arc::new(Semaphore::new((limits.bodies / 5).max(limits.body))),
            bodies: Arc::new(Semaphore::new(limits.bodies)),
            stopping: AtomicBool::new(false),
            limits,
        }
    }
}

fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/mutate", post(mutate))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(front.connections.clone(), track))
        .with_state(front)
}

/// A request that is answered with words instead of a review.
#[derive(Debug, PartialEq, Eq)]
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (status, format!("{message}\n")).into_response()
    }
}

async fn unknown(uri: Uri) -> Refusal {
    let message = format!("{:.100} is not here; /mutate, /healthz, /readyz and /metrics are", uri.path());
    Refusal(StatusCode::NOT_FOUND, message)
}

async fn other_method(request: Request) -> Refusal {
    let path = request.uri().path();
    let taken = if path == "/mutate" { "POST" } else { "GET and HEAD" };
    Refusal(StatusCode::METHOD_NOT_ALLOWED, format!("{path} takes {taken}, and no {:.20}", request.method().as_str()))
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(front): State<Arc<Front>>) -> Response {
    let mut reasons = (front.backend.not_ready)();
    if front.stopping.load(Ordering::Acquire) {
        reasons.insert(0, "stopping".to_owned());
    }
    if reasons.is_empty() {
        return "ready\n".into_response();
    }
    Refusal(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n")).into_response()
}

async fn metrics(State(front): State<Arc<Front>>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, content_type)], (front.backend.metrics)()).into_response()
}

async fn mutate(
    State(front): State<Arc<Front>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    match reviewed(&front, peer, request).await {
        Ok(answer) => ([(CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(refusal) => {
            tracing::warn!(status = refusal.0.as_u16(), message = refusal.1, "an admission review was not answered");
            refusal.into_response()
        }
    }
}

async fn reviewed(front: &Front, peer: SocketAddr, request: Request) -> Result<Vec<u8>, Refusal> {
    let limits = &front.limits;
    let arrived = Instant::now();
    if front.clients_only && !front.connections.has_certificate(peer) {
        let message = "/mutate needs a client certificate of the authority in --client-ca";
        return Err(Refusal(StatusCode::FORBIDDEN, message.to_owned()));
    }
    let time = asked_time(request.uri()).map_or(limits.review, |asked| asked.min(limits.review));
    check_type(request.headers())?;
    if let Some(reason) = front.backend.reviewer.not_begun() {
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, reason));
    }
    let peer = front.peers.of(host(peer));
    let body = match read(front, &peer, arrived, time.min(limits.body_time), request).await {
        Ok(body) => body,
        Err(Unread::Broken(refusal)) => return Err(refusal),
        Err(Unread::NoRoom(refusal, part)) => {
            let (code, reason) = (refusal.0.as_u16(), refusal.1.as_str());
            let answer = review::answer_unread(front.backend.reviewer.as_ref(), &part.bytes, code, reason);
            return answer.ok_or(refusal);
        }
    };
    let turn = timeout_at(arrived + time, turn(front, peer, body.bytes.len()));
    let busy = |_| {
        let message = format!("busy: {} reviews are under way, and none ended within {time:?}", limits.reviews);
        Refusal(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let turn = turn.await.map_err(busy)?.map_err(|error| broken(&error))?;
    let reviewer = Arc::clone(&front.backend.reviewer);
    // The turn ends with the review, even where nobody waits for it any more.
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

/// The turn of a review.
struct Turn {
    _permits: Vec<OwnedSemaphorePermit>,
    /// The peer is known as long as it has a turn.
    _peer: Arc<Peer>,
}

/// Waits for the turn of a review. Large reviews wait for each other first, and hold nothing that small ones need
/// meanwhile. The peer's own turn comes next: the reviews that wait for the turns that all share are then of several
/// peers, and those turns are given in order.
async fn turn(front: &Front, peer: Arc<Peer>, length: usize) -> Result<Turn, AcquireError> {
    let mut permits = Vec::new();
    if length >= front.limits.large_body {
        permits.push(Arc::clone(&front.large_reviews).acquire_owned().await?);
    }
    permits.push(Arc::clone(&peer.reviews).acquire_owned().await?);
    permits.push(Arc::clone(&front.reviews).acquire_owned().await?);
    Ok(Turn { _permits: permits, _peer: peer })
}

fn broken(error: &dyn std::error::Error) -> Refusal {
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// How long the API server waits: it says so in the query.
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
    let found = found.map_or_else(|| "not there".to_owned(), |found| format!("{found:.100?}"));
    let message = format!("the content type is {found}, where application/json must be");
    Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// A body, and its part of the memory that bodies may take.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    /// Of the memory that is reserved for its peer.
    reserved: Option<OwnedSemaphorePermit>,
    /// Of all bodies, of those of its peer, and of all large ones.
    shared: [Option<OwnedSemaphorePermit>; 3],
}

/// A request whose body is not there.
enum Unread {
    /// The client sent no whole body.
    Broken(Refusal),
    /// There is no room for it. What was kept of the body says what the request is about, if there was room for that.
    NoRoom(Refusal, Held),
}

/// So much of a body is kept of which there is no room for more. What a request is about stands before its objects.
const KEPT: usize = 4 << 10;
/// So many bytes of a body are read at most. API servers send no more: a client that still sends reads no answer.
const DRAINED: usize = 32 << 20;

async fn read(front: &Front, peer: &Peer, arrived: Instant, time: Duration, request: Request) -> Result<Held, Unread> {
    let slow =
        |_| Unread::Broken(Refusal(StatusCode::REQUEST_TIMEOUT, format!("the body was not there within {time:?}")));
    timeout_at(arrived + time, collect(front, peer, request.into_body())).await.map_err(slow)?
}

/// Memory is taken for what has arrived, not for what was announced: else a few slow clients could
/// announce it all away.
async fn collect(front: &Front, peer: &Peer, body: Body) -> Result<Held, Unread> {
    let (mut held, mut refusal, mut drained) = (Held::default(), None, 0);
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let broken = |error| Refusal(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"));
        let part = part.map_err(|error| Unread::Broken(broken(error)))?;
        drained += part.len();
        if refusal.is_none() {
            refusal = held.add(front, peer, &part).err();
        }
        if refusal.is_some() {
            held = held.cut(peer, &part);
            if drained > DRAINED {
                break;
            }
        }
    }
    match refusal {
        None => Ok(held),
        Some(refusal) => Err(Unread::NoRoom(refusal, held)),
    }
}

impl Held {
    /// Adds a part of the body, if there is room for it.
    fn add(&mut self, front: &Front, peer: &Peer, part: &[u8]) -> Result<(), Refusal> {
        let limits = &front.limits;
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
            let of_all = take(&front.bodies, format!("the bodies that wait have {all} bytes already"))?;
            let of_peer = take(&peer.bodies, format!("the bodies of this client that wait have {most} bytes already"))?;
            // An API server is one peer for all its users: the large requests of one leave room for the small ones
            // of all.
            let of_large = match length >= limits.large_body {
                true => Some(take(&front.large_bodies, "large bodies wait already".to_owned())?),
                false => None,
            };
            for (held, permit) in self.shared.iter_mut().zip([Some(of_all), Some(of_peer), of_large]) {
                permit.into_iter().for_each(|permit| merge(held, permit));
            }
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    /// Keeps the begin of the body alone, with `part` behind what is there.
    fn cut(mut self, peer: &Peer, part: &[u8]) -> Self {
        let room = KEPT.saturating_sub(self.bytes.len()).min(part.len());
        self.bytes.extend_from_slice(&part[..room]);
        self.bytes.truncate(KEPT);
        self.bytes.shrink_to_fit();
        if self.reserved.as_ref().is_none_or(|reserved| reserved.num_permits() != KEPT) {
            // Given back first, so that a body that has more gets its part of it in any case.
            self.reserved = None;
            self.reserved = Arc::clone(&peer.reserved).try_acquire_many_owned(KEPT as u32).ok();
        }
        if self.reserved.is_none() {
            self.bytes = Vec::new();
        }
        self.shared = Default::default();
        self
    }
}

fn merge(held: &mut Option<OwnedSemaphorePermit>, permit: OwnedSemaphorePermit) {
    match held {
        Some(held) => held.merge(permit),
        none => *none = Some(permit),
    }
}
