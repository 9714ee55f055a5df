//! An HTTP server with limits, and the errors of one.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use axum::Router;
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::http::StatusCode;
use axum::middleware::{AddExtension, Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum_server::accept::Accept;
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::connection::{ConnectionLimiter, track};
use super::error_response::ErrorResponse;
use super::unread_answers::{self, UnreadAnswers};
use crate::panics::catch_polls;

/// The time limits of a server.
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
        A: Accept<TcpStream, Tracked, Service = Tracked> + Clone + Send + Sync + 'static,
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
            .layer(from_fn_with_state(UnreadAnswers::default(), unread_answers::limit))
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
