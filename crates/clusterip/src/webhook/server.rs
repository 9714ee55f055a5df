//! The HTTPS server of the webhook: routes, limits, readiness and graceful shutdown.

mod body;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum_server::accept::Accept;
use axum_server::tls_rustls::RustlsAcceptor;
use clusterip_cluster::background::Threads;
use clusterip_cluster::fair_queue::Places;
use clusterip_cluster::http::connection::{ConnectionLimiter, ConnectionLimits, host};
use clusterip_cluster::http::probes::{Scrapes, probe_response};
use clusterip_cluster::http::server::{ErrorResponse, Server, TimeLimits};
use clusterip_cluster::readable_json::replace_invalid;
use jiff::SignedDuration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use self::body::{Body, Memory};
use super::admission::{self, Reviewer};
use super::tls::Certificate;

/// What the server answers with: the policy, and what the rest of the program reports about itself.
#[derive(Clone)]
pub struct Backend {
    pub reviewer: Arc<dyn Reviewer>,
    /// The reasons why the program is not ready, one per line; empty if it is ready.
    pub not_ready: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    pub scrapes: Scrapes,
}

/// Answers requests until `shutdown`. Then `/readyz` reports `stopping`, and requests in flight are completed.
pub async fn serve(
    server: Server,
    limits: Limits,
    backend: Backend,
    certificate: &Certificate,
    shutdown: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let (connections, time) = (ConnectionLimiter::new(limits.connections), limits.time);
    let tls = RustlsAcceptor::new(certificate.config()).handshake_timeout(limits.handshake);
    let tls = Identifier(tls.acceptor(connections.clone()));
    // Peers and namespaces take turns.
    let large = limits.large_reviews;
    let large = Places { all: large, of_peer: large, of_namespace: large };
    let app = Arc::new(AppState {
        backend,
        connections: connections.clone(),
        clients_only: certificate.asks_for_clients(),
        reviews: Threads::start("reviews", 0, limits.places()),
        large_reviews: Threads::start("large-reviews", 0, large),
        bodies: Memory::new(limits.bodies),
        stopping: AtomicBool::new(false),
        limits,
    });
    let stopping = async {
        shutdown.await;
        app.stopping.store(true, Ordering::Release);
        sleep(app.limits.linger).await;
    };
    server.serve(router(Arc::clone(&app)), tls, connections, time, stopping).await
}

/// Accepts TLS connections and records whether their peers presented a client certificate.
#[derive(Clone, Debug)]
struct Identifier(RustlsAcceptor<ConnectionLimiter>);

impl<S: Send + 'static> Accept<TcpStream, S> for Identifier {
    type Stream = <RustlsAcceptor<ConnectionLimiter> as Accept<TcpStream, S>>::Stream;
    type Service = <RustlsAcceptor<ConnectionLimiter> as Accept<TcpStream, S>>::Service;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, Self::Service)>> + Send>>;

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
    clients_only: bool,
    reviews: Threads,
    /// The threads that review large bodies, so that small reviews don't wait for large ones.
    large_reviews: Threads,
    bodies: Arc<Memory>,
    stopping: AtomicBool,
}

fn router(app: Arc<AppState>) -> Router {
    Router::new()
        .route("/mutate", post(mutate))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(async |State(app): State<Arc<AppState>>| app.backend.scrapes.answer().await))
        .fallback(async |uri: Uri| ErrorResponse::unknown_path(&uri, "/mutate, /healthz, /readyz or /metrics"))
        .method_not_allowed_fallback(async |request: Request| {
            let accepted = if request.uri().path() == "/mutate" { "POST" } else { "GET and HEAD" };
            ErrorResponse::other_method(&request, accepted)
        })
        .with_state(app)
}

async fn readyz(State(app): State<Arc<AppState>>) -> Response {
    let mut reasons = (app.backend.not_ready)();
    if app.stopping.load(Ordering::Acquire) {
        reasons.insert(0, "stopping".to_owned());
    }
    probe_response("ready", reasons)
}

async fn mutate(
    State(app): State<Arc<AppState>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<impl IntoResponse, ErrorResponse> {
    let answered = reviewed(&app, peer, request).await.inspect_err(|ErrorResponse(status, message)| {
        tracing::warn!(status = status.as_u16(), message, "an admission review was not answered");
    });
    answered.map(|answer| ([(CONTENT_TYPE, "application/json")], answer))
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
    // API servers count as one client: each of them carries the requests of all tenants.
    let peer = if app.clients_only { Ipv4Addr::UNSPECIFIED.into() } else { host(peer) };
    let (body, mut if_given_up) = app.bodies.begin(peer);
    let answered = tokio::select! {
        biased;
        Ok(beginning) = &mut if_given_up => Err((app.bodies.refusal(), beginning)),
        answered = answered(app, &body, arrived, time, request) => answered,
    };
    // Without an answer before the API server stops waiting, the `failurePolicy` of the webhook would decide. A tenant
    // whose reviews take long, or whose object is too large or nested too deeply to be read, could bypass the policy.
    answered.or_else(|(refusal, beginning)| {
        // The body may have been given up while it was read.
        let beginning = if beginning.is_empty() { if_given_up.try_recv().unwrap_or_default() } else { beginning };
        let code = match refusal.0 {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => admission::BUSY,
            status => status.as_u16(),
        };
        admission::answer_unread(app.backend.reviewer.as_ref(), &beginning, code, &refusal.1).ok_or(refusal)
    })
}

/// The answer; otherwise the reason why there is none, and the beginning of the body.
async fn answered(
    app: &AppState,
    body: &Body,
    arrived: Instant,
    time: Duration,
    request: Request,
) -> Result<Vec<u8>, (ErrorResponse, Vec<u8>)> {
    let limits = &app.limits;
    let body_time = time.min(limits.body_time);
    let read = timeout_at(arrived + body_time, body.read(limits.body, request.into_body())).await;
    let (length, beginning, requester) = body.about();
    let refusal = match read {
        Ok(Ok(())) => None,
        Ok(Err(refusal)) => Some(refusal),
        Err(_) => {
            let slow = format!("the body did not arrive within {body_time:?}");
            Some(ErrorResponse(StatusCode::REQUEST_TIMEOUT, slow))
        }
    };
    if let Some(refusal) = refusal {
        return Err((refusal, beginning));
    }
    let (reviewer, take) = (Arc::clone(&app.backend.reviewer), body.taker());
    let (begin, begun) = oneshot::channel();
    let threads = if length >= limits.large_body { &app.large_reviews } else { &app.reviews };
    let mut review = pin!(threads.run(requester, move || {
        let _ = begin.send(());
        let mut bytes = take()?;
        replace_invalid(&mut bytes);
        Some(admission::answer(reviewer.as_ref(), &bytes))
    }));
    let refusal = tokio::select! {
        biased;
        reviewed = &mut review => match reviewed {
            Ok(Some(Ok(answer))) => return Ok(answer),
            Ok(Some(Err(refusal))) => refusal,
            Ok(None) => app.bodies.refusal(),
            Err(error) => ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        Err(_) = timeout_at(arrived + time / 2, begun) => {
            let busy = format!("busy: the review did not begin within {:?}", time / 2);
            ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, busy)
        }
        () = sleep_until(arrived + time * 9 / 10) => {
            ErrorResponse(StatusCode::GATEWAY_TIMEOUT, format!("the review did not end within {:?}", time * 9 / 10))
        }
    };
    Err((refusal, beginning))
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

/// How much the server accepts, and for how long it waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// An API server needs a few connections, because it sends many requests on one, and closes an idle one after 90
    /// seconds. Several API servers may share one address behind a proxy.
    pub connections: ConnectionLimits,
    pub time: TimeLimits,
    /// Reviews at once; further ones wait. One IP address may have three quarters of them, and one namespace half.
    pub reviews: usize,
    /// Reviews of large bodies at once; further ones wait. Parsing JSON takes a multiple of its size in memory.
    pub large_reviews: usize,
    /// The size in bytes from which a body is large.
    pub large_body: usize,
    pub body: usize,
    /// The bytes of all requests whose review has not begun. If they are more, the server ends requests of the client
    /// whose requests take most of them.
    pub bodies: usize,
    pub handshake: Duration,
    pub body_time: Duration,
    /// The time for a review with its wait, if it names no shorter `timeout`.
    pub review: Duration,
    /// How long the server accepts requests after the shutdown signal, so that clients stop sending first.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let processors = available_parallelism().map_or(1, usize::from);
        Self {
            connections: ConnectionLimits { most: 256, per_peer: 64, silence: seconds(60), idle: seconds(180) },
            time: TimeLimits { head: seconds(10), drain: seconds(20) },
            // Reviews are bound by the CPU: more at once would only make each of them slower. The bound also limits
            // their memory. Of four, one namespace leaves the API server a place for others.
            reviews: (processors.max(2) + 2).min(16),
            large_reviews: 1,
            large_body: 512 << 10,
            body: 3 << 20,
            bodies: 32 << 20,
            handshake: seconds(10),
            body_time: seconds(10),
            // The longest time that an API server waits for a webhook.
            review: seconds(30),
            linger: seconds(3),
        }
    }
}

impl Limits {
    /// Often the API server is the only peer. It loses little, because reviews are bound by the CPU.
    fn places(&self) -> Places {
        let of_peer = (self.reviews - self.reviews / 4).min(self.reviews.saturating_sub(1)).max(1);
        Places { all: self.reviews, of_peer, of_namespace: self.reviews.div_ceil(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_can_not_take_all_reviews() {
        for (reviews, of_peer) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (16, 12), (128, 96)] {
            let places = Limits { reviews, ..Limits::default() }.places();
            assert_eq!(places.of_peer, of_peer, "{reviews}");
            assert!(reviews < 4 || places.of_namespace < of_peer, "{reviews}: one namespace leaves a place");
        }
    }
}
