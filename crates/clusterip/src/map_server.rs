//! The HTTP server of the map. It is read-only, and by default listens on this machine only.

use std::error::Error;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clusterip_cluster::background;
use clusterip_cluster::http::connection::{ConnectionLimiter, ConnectionLimits};
use clusterip_cluster::http::server::{ErrorResponse, Server, TimeLimits};
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::audit::model::Audit;
use crate::report::map::{self, About};

pub type Source = Arc<dyn Fn() -> Result<Audit, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// The usual time limit of an audit, including the wait for its turn.
pub const AUDIT_TIME: Duration = Duration::from_secs(30);
/// The server is for a few people, and must not slow down the rest of the program.
const TIME: TimeLimits = TimeLimits { head: Duration::from_secs(10), drain: Duration::from_secs(5) };

#[derive(Debug)]
pub struct MapServer {
    server: Server,
    audit_time: Duration,
    pub about: Option<About>,
}

impl MapServer {
    pub async fn bind(address: SocketAddr, audit_time: Duration) -> anyhow::Result<Self> {
        Ok(Self { server: Server::bind(address, "the map", "--ui").await?, audit_time, about: None })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Serves the map at `/` and the audit at `/audit.json` until `shutdown`. Each request makes a new audit.
    pub async fn run(self, source: Source, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
        let Self { server, audit_time, about } = self;
        let (connections, turn) = (ConnectionLimiter::new(ConnectionLimits::FEW), Mutex::default());
        let app = Arc::new(AppState { source, address: server.local_addr(), turn, audit_time, about });
        server.serve(router(app), connections.clone(), connections, TIME, shutdown).await
    }
}

struct AppState {
    source: Source,
    address: SocketAddr,
    /// Only one audit is made at a time.
    turn: Mutex<()>,
    audit_time: Duration,
    about: Option<About>,
}

fn router(app: Arc<AppState>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/audit.json", get(json))
        .route("/favicon.ico", get(async || StatusCode::NO_CONTENT))
        .fallback(async |uri: Uri| ErrorResponse::unknown_path(&uri, "/ or /audit.json"))
        .method_not_allowed_fallback(async |request: Request| ErrorResponse::other_method(&request, "GET and HEAD"))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guarded))
        .with_state(app)
}

async fn guarded(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let mut response = if is_ours(app.address, &request) {
        next.run(request).await
    } else {
        let message = format!("the map is served to this machine only, as localhost or {}", app.address);
        ErrorResponse(StatusCode::MISDIRECTED_REQUEST, message).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(policy);
    response
}

async fn page(State(app): State<Arc<AppState>>) -> Result<Response, ErrorResponse> {
    let about = app.about.clone().map(|about| About { made: Some(Timestamp::now()), ..about }).unwrap_or_default();
    let text = render_audit(app, move |audit| Ok(map::page(audit, &about)?)).await?;
    let policy = format!("{}; frame-ancestors 'none'", map::content_security_policy());
    Ok(([(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, &policy)], text).into_response())
}

async fn json(State(app): State<Arc<AppState>>) -> Result<Response, ErrorResponse> {
    let text = render_audit(app, |audit| Ok(serde_json::to_string(audit)? + "\n")).await?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

async fn render_audit(
    app: Arc<AppState>,
    write: impl Fn(&Audit) -> Result<String, Box<dyn Error + Send + Sync>> + Send + 'static,
) -> Result<String, ErrorResponse> {
    let time = app.audit_time;
    let unavailable = |message: String| {
        tracing::warn!(message, "the map was not shown");
        ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    let making = async {
        let _turn = app.turn.lock().await;
        let source = Arc::clone(&app.source);
        let text = background::run_long(move || source().and_then(|audit| write(&audit)));
        text.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    };
    let text = timeout(time, making).await;
    text.map_err(|_| unavailable(format!("no audit was made within {time:?}")))?.map_err(unavailable)
}

/// Whether the request addresses this server. Any web site can let its name resolve to 127.0.0.1, and the browser then
/// lets its pages read what a server on loopback answers. Such a request carries the name of the site.
fn is_ours(listens: SocketAddr, request: &Request) -> bool {
    !listens.ip().is_loopback() || asked(request).is_some_and(|authority| is_local(authority.host()))
}

fn asked(request: &Request) -> Option<Authority> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let mut only_host = || hosts.next().filter(|_| hosts.next().is_none());
    let in_uri = request.uri().authority().cloned();
    in_uri.or_else(|| Authority::try_from(only_host()?.as_bytes()).ok())
}

/// A loopback address or `localhost`: both always mean this machine.
fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
