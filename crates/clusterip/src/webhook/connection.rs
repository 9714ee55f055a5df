//! TCP connections in front of TLS: so many at once, and none that has fallen silent.

use std::future::{Future, Ready, ready};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Lets connections in while there is room, and turns others away at once: one that waits would take
/// memory and a file descriptor all the same.
#[derive(Clone, Debug)]
pub struct Door {
    room: Arc<Semaphore>,
    silence: Duration,
}

impl Door {
    /// Room for `most` connections, each of which may be silent for `silence`.
    pub fn new(most: usize, silence: Duration) -> Self {
        Self { room: Arc::new(Semaphore::new(most)), silence }
    }
}

impl<S> Accept<TcpStream, S> for Door {
    type Stream = Connection;
    type Service = S;
    type Future = Ready<io::Result<(Connection, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::warn!("a connection was turned away: there are too many");
            return ready(Err(ErrorKind::ConnectionRefused.into()));
        };
        ready(stream.set_nodelay(true).map(|()| {
            let silent = Box::pin(sleep(self.silence));
            (Connection { stream, silence: self.silence, silent, _place: place }, service)
        }))
    }
}

/// A connection that fails once nothing was read or written for a while: its peer may be gone, or may
/// never begin to speak.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    silence: Duration,
    silent: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn watch<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            let end = Instant::now() + self.silence;
            self.silent.as_mut().reset(end);
            return progress;
        }
        self.silent.as_mut().poll(cx).map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.watch(cx, read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
