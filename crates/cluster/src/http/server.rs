//! An HTTP server with limits, also for the memory of answers that clients request and do not read, and the errors of one.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::{AddExtension, Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum_server::accept::Accept;
use axum_server::service::SendService;
use hyper::body::Incoming;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::connection::{ConnectionLimiter, host, track};
use crate::panics::catch_polls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// The time for the head of an HTTP/1.1 request.
    pub head: Duration,
    /// How long requests in progress may take after the shutdown began.
    pub drain: Duration,
}

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    /// What the server serves, such as `the map`.
    purpose: &'static str,
}

impl Server {
    /// Listens on `address`, which the command-line `flag` sets.
    pub async fn bind(address: SocketAddr, purpose: &'static str, flag: &'static str) -> anyhow::Result<Self> {
        let failed = |reason: std::io::Error| {
            anyhow!("listening on {address} for {purpose} failed: {reason}; choose another address with {flag}")
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, purpose })
    }

    /// The address that the server listens on, with the actual port if port 0 was requested.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests with `router` until `shutdown` completes. `acceptor` accepts the connections, through
    /// `connections` or a clone of it.
    pub async fn serve<A>(
        self,
        router: Router,
        acceptor: A,
        connections: ConnectionLimiter,
        limits: TimeLimits,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()>
    where
        A: Accept<TcpStream, Tracked> + Clone + Send + Sync + 'static,
        A::Service: SendService<Request<Incoming>> + Send,
        A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
        A::Future: Send,
    {
        let Self { listener, address, purpose } = self;
        let keep_alive = connections.limits.silence / 3;
        let handle: axum_server::Handle<SocketAddr> = axum_server::Handle::new();
        let mut server = axum_server::Server::from_listener(listener).acceptor(acceptor).handle(handle.clone());
        // Without a timer the time limits have no effect. The buffer and the windows bound what a peer may send before it is
        // read.
        server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(64 << 10);
        server
            .http_builder()
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(keep_alive)
            .keep_alive_timeout(keep_alive)
            .initial_stream_window_size(64 << 10)
            .initial_connection_window_size(256 << 10)
            .max_concurrent_streams(100);
        let router = router
            .layer(from_fn(catch_panics))
            .layer(from_fn_with_state(UnreadAnswers::default(), limit_unread))
            .layer(from_fn_with_state(connections, track));
        let serving = server.serve(router.into_make_service_with_connect_info::<SocketAddr>());
        let stopping = async {
            shutdown.await;
            handle.graceful_shutdown(Some(limits.drain));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = serving => served.map_err(|reason| anyhow!("serving {purpose} on {address} failed: {reason}")),
            () = stopping => Ok(()),
        }
    }
}

/// Middleware that answers a request whose handling panics, and keeps the process.
async fn catch_panics(request: Request, next: Next) -> Response {
    let answered = catch_polls(next.run(request)).await;
    answered.unwrap_or_else(|cause| {
        let message = format!("the request failed: {cause}; see the log of clusterip");
        ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
    })
}

pub type Tracked = AddExtension<Router, ConnectInfo<SocketAddr>>;

#[derive(Debug, PartialEq, Eq)]
pub struct ErrorResponse(pub StatusCode, pub String);

impl ErrorResponse {
    pub fn unknown_path(uri: &Uri, paths: &str) -> Self {
        Self(StatusCode::NOT_FOUND, format!("not found: {:.100} (try {paths})", uri.path()))
    }

    pub fn other_method(request: &Request, accepted: &str) -> Self {
        let (path, method) = (request.uri().path(), request.method().as_str());
        Self(StatusCode::METHOD_NOT_ALLOWED, format!("{path:.100} accepts only {accepted}, not {method:.20}"))
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (status, format!("{message}\n")).into_response()
    }
}

/// Shorter answers do not count. The answers to most reviews are shorter.
const SHORT: usize = 2 << 10;
/// How many bytes one IP address may leave unread.
const OF_PEER: usize = 4 << 20;
/// Beyond this many bytes of all addresses, each may leave an equal part of it unread. So all together are at most twice
/// as many, except for a first answer to each address: other clients can't keep the API server from getting an answer to
/// a review, however long that answer is.
const ALL: usize = 16 << 20;

/// The lengths of the answers that clients have not read, by IP address.
#[derive(Clone, Debug, Default)]
struct UnreadAnswers(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// An answer. It counts until it is dropped: the HTTP server keeps it until the client has read it, or is gone.
struct Unread {
    bytes: Bytes,
    peer: IpAddr,
    answers: UnreadAnswers,
}

impl UnreadAnswers {
    fn count(&self, peer: IpAddr, bytes: Bytes) -> Result<Unread, ErrorResponse> {
        let mut lengths = self.0.lock();
        let (all, of_peer) = (lengths.values().sum::<usize>(), lengths.get(&peer).copied().unwrap_or_default());
        let most = if all + bytes.len() > ALL { OF_PEER.min(ALL / lengths.len().max(1)) } else { OF_PEER };
        if of_peer > 0 && of_peer + bytes.len() > most {
            let message =
                format!("busy: this client has not read answers of {of_peer} bytes, and all clients {all}; try again");
            return Err(ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        *lengths.entry(peer).or_default() += bytes.len();
        Ok(Unread { bytes, peer, answers: self.clone() })
    }
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let mut lengths = self.answers.0.lock();
        if let Some(length) = lengths.get_mut(&self.peer) {
            *length -= self.bytes.len();
            if *length == 0 {
                lengths.remove(&self.peer);
            }
        }
    }
}

/// Middleware that answers 503 if a long answer would exceed the limits of unread answers. It needs a server with
/// `into_make_service_with_connect_info`.
async fn limit_unread(
    State(answers): State<UnreadAnswers>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = next.run(request).await.into_parts();
    if body.size_hint().upper().is_some_and(|length| length <= SHORT as u64) {
        return Response::from_parts(head, body);
    }
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        let message = "the answer can't be sent".to_owned();
        return ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, message).into_response();
    };
    match answers.count(host(peer), bytes) {
        Ok(unread) => Response::from_parts(head, Body::from(Bytes::from_owner(unread))),
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_until_they_are_dropped() {
        let answers = UnreadAnswers::default();
        let count = |last: u8, length: usize| answers.count(IpAddr::from([10, 0, 0, last]), vec![0; length].into());
        let of = |last: u8, length: usize| count(last, length).ok().map(Bytes::from_owner);
        let long = of(1, 2 * OF_PEER);
        assert!(long.is_some(), "the first answer to a client may have any length");
        assert!(of(1, 1).is_none());
        let others: Vec<_> = (2..34).map(|last| of(last, OF_PEER / 8)).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(of(2, 1).is_none(), "a client that has more than an equal part");
        let (first, second) = (of(99, 10_000), of(99, 10_000));
        assert!(first.is_some() && second.is_some(), "a client that has less");
        drop((first, second, others));
        let part = long.map(|long| long.slice(..10));
        assert!(of(1, 1).is_none(), "a part keeps all of it");
        drop(part);
        assert!(of(1, 1).is_some());
        assert!(answers.0.lock().is_empty());
    }
}
