//! Limits the TCP connections of a server, from one peer and in total, and chooses which connections are closed to make
//! room for others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::future::{Future, Ready, ready};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State as Shared};
use axum::middleware::Next;
use axum::response::Response;
use axum_server::accept::Accept;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::repeated_failures::{self, Line};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at once. When all are open, a new connection replaces one of the peer that has the most.
    pub most: usize,
    pub per_peer: usize,
    /// How long a connection may go without a byte read or written.
    pub silence: Duration,
    /// How long a connection may go without a request, whatever else its peer sends.
    pub idle: Duration,
}

impl ConnectionLimits {
    /// For a server with a few clients.
    pub const FEW: Self =
        Self { most: 32, per_peer: 16, silence: Duration::from_secs(60), idle: Duration::from_secs(180) };
}

/// Accepts connections within limits and closes all others at once: a connection that waits would take memory and a
/// file descriptor all the same. Clones share the limits.
///
/// When all connections are open, the peer that has the most of them loses one, so that a few peers with many connections
/// can't keep the API server out. Many peers with one connection each can't do so either while the API server keeps the
/// connection that it had before: of equals, the newest goes.
#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    pub(super) limits: ConnectionLimits,
    connections: Arc<Mutex<Connections>>,
}

#[derive(Debug, Default)]
struct Connections {
    /// The open connections by the address and port of the peer. A connection that is replaced is removed at once.
    open: HashMap<SocketAddr, Arc<State>>,
    /// How many connections exist, including those that are replaced but not closed yet.
    alive: usize,
}

#[derive(Debug)]
struct State {
    opened: Instant,
    activity: Mutex<Activity>,
    task: AtomicWaker,
}

#[derive(Debug)]
struct Activity {
    /// Whether the peer has presented a client certificate that was verified.
    has_certificate: bool,
    is_replaced: bool,
    /// How many requests have no response yet.
    requests: usize,
    answered: bool,
    /// When the last request ended; before the first request, when the connection was opened.
    since: Instant,
}

/// A request that has no response yet. Its connection is not idle.
struct OpenRequest(Option<Arc<State>>);

impl ConnectionLimiter {
    pub fn new(limits: ConnectionLimits) -> Self {
        Self { limits, connections: Arc::default() }
    }

    /// Whether the peer of this connection has presented a client certificate that was verified.
    pub fn has_certificate(&self, peer: SocketAddr) -> bool {
        self.connections.lock().open.get(&peer).is_some_and(|state| state.activity.lock().has_certificate)
    }

    fn enter(&self, stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        let now = Instant::now();
        let mut connections = self.connections.lock();
        let of_peer = connections.open.keys().filter(|other| host(**other) == host(peer)).count();
        let is_full = connections.open.len() >= self.limits.most;
        // A replaced connection is closed the next time it is polled. Twice the limit at once is an attack.
        let too_many = connections.alive >= 2 * self.limits.most;
        let replaced = if is_full { connections.replaceable(of_peer) } else { None };
        if of_peer >= self.limits.per_peer || too_many || (is_full && replaced.is_none()) {
            connections.log_closed(peer.ip(), of_peer);
            return Err(ErrorKind::ConnectionRefused.into());
        }
        if let Some((address, of_other)) = replaced {
            connections.log_closed(address.ip(), of_other);
            if let Some(state) = connections.open.remove(&address) {
                state.activity.lock().is_replaced = true;
                state.task.wake();
            }
        }
        let activity =
            Activity { has_certificate: false, is_replaced: false, requests: 0, answered: false, since: now };
        let state = Arc::new(State { opened: now, activity: Mutex::new(activity), task: AtomicWaker::new() });
        connections.open.insert(peer, Arc::clone(&state));
        connections.alive += 1;
        drop(connections);
        let (silent, idle) = (Box::pin(sleep(self.limits.silence)), Box::pin(sleep(self.limits.idle)));
        Ok(Connection { stream, peer, state, limiter: self.clone(), silent, idle })
    }
}

impl Connections {
    /// A peer must not fill the log.
    fn log_closed(&self, peer: IpAddr, of_peer: usize) {
        if let Some(Line { not_logged }) = repeated_failures::line("too many connections") {
            let all = self.open.len();
            tracing::warn!(%peer, of_peer, all, not_logged, "too many connections, closing one of this peer");
        }
    }

    /// The connection that is closed for a new one whose peer has `of_peer` connections already, and how many connections
    /// the peer of the closed one has. Only a peer with more than `of_peer` loses one. Connections without a client
    /// certificate go first, then those of the peer that has the most, then those that never had a response, then the
    /// newest.
    fn replaceable(&self, of_peer: usize) -> Option<(SocketAddr, usize)> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for peer in self.open.keys() {
            *counts.entry(host(*peer)).or_default() += 1;
        }
        let of_larger = self.open.iter().filter_map(|(peer, state)| {
            let count = counts.get(&host(*peer)).copied().filter(|count| *count > of_peer)?;
            let Activity { has_certificate, answered, .. } = *state.activity.lock();
            Some((has_certificate, Reverse(count), answered, Reverse(state.opened), *peer))
        });
        of_larger.min().map(|(_, Reverse(count), .., peer)| (peer, count))
    }
}

/// Middleware that records the requests in progress, for a server with `into_make_service_with_connect_info`.
pub async fn track(
    Shared(connections): Shared<ConnectionLimiter>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let state = connections.connections.lock().open.get(&peer).cloned();
    state.iter().for_each(|state| state.activity.lock().requests += 1);
    let _request = OpenRequest(state);
    next.run(request).await
}

/// The IP address of a peer. An IPv4 address is the same on an IPv4 and on an IPv6 socket.
pub fn host(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

impl<S> Accept<TcpStream, S> for ConnectionLimiter {
    type Stream = Connection;
    type Service = S;
    type Future = Ready<io::Result<(Connection, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(self.enter(stream).map(|connection| (connection, service)))
    }
}

impl State {
    /// When the connection will have been idle for this long, if no request comes; `None` if that moment has passed.
    fn idle_at(&self, idle: Duration) -> Option<Instant> {
        let now = Instant::now();
        let activity = self.activity.lock();
        let end = if activity.requests > 0 { now + idle } else { activity.since + idle };
        (end > now).then_some(end)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            let mut activity = state.activity.lock();
            activity.requests = activity.requests.saturating_sub(1);
            activity.answered = true;
            activity.since = Instant::now();
        }
    }
}

/// A connection that fails when nothing has been read or written for a while, or when no request has come: its peer may
/// be gone, may never begin to speak, or may only answer pings.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    state: Arc<State>,
    limiter: ConnectionLimiter,
    silent: Pin<Box<Sleep>>,
    idle: Pin<Box<Sleep>>,
}

impl Connection {
    pub fn set_has_certificate(&self, has: bool) {
        self.state.activity.lock().has_certificate = has;
    }

    /// Fails if the connection has been replaced, or has been idle for too long.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        // The waker is registered before the flag is read: otherwise a connection that is replaced in between would
        // wait for its peer.
        self.state.task.register(cx.waker());
        if self.state.activity.lock().is_replaced {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            match self.state.idle_at(self.limiter.limits.idle) {
                Some(end) => self.idle.as_mut().reset(end),
                None => {
                    tracing::debug!(peer = %self.peer, "closing an idle connection");
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
        Ok(())
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            let end = Instant::now() + self.limiter.limits.silence;
            self.silent.as_mut().reset(end);
            return progress;
        }
        self.silent.as_mut().poll(cx).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut connections = self.limiter.connections.lock();
        connections.alive -= 1;
        // A new connection may use the same port already.
        if connections.open.get(&self.peer).is_some_and(|state| Arc::ptr_eq(state, &self.state)) {
            connections.open.remove(&self.peer);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.watch(cx, read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        // A connection may not be read from while its peer reads responses slowly, so the check is made here too.
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
