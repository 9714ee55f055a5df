//! Reads the bodies of requests within the memory that bodies may take.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use clusterip_cluster::http::error_response::ErrorResponse;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::super::peer_limits::Peer;
use super::AppState;

/// A body, with its permits for the memory that bodies may take.
#[derive(Default)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    /// Permits for the memory that is reserved for the peer.
    reserved: Option<OwnedSemaphorePermit>,
    /// Permits for the memory of all bodies, of the bodies of this peer, and of all large bodies.
    shared: [Option<OwnedSemaphorePermit>; 3],
}

/// The beginning of a body for which there is no more memory. It says what the request is about, if there was memory
/// for it.
pub(super) struct Beginning {
    /// At most [`KEPT`] bytes.
    pub(super) bytes: Vec<u8>,
    /// The permit for [`KEPT`] bytes of the memory that is reserved for the peer; without it `bytes` is empty.
    memory: Option<OwnedSemaphorePermit>,
}

/// Why the body of a request is not available.
pub(super) enum Unread {
    /// The client did not send a complete body.
    Broken(ErrorResponse),
    /// There is no memory for the body.
    NoRoom(ErrorResponse, Beginning),
}

/// How many bytes are kept of a body for which there is no more memory. The fields that say what a request is about
/// precede its objects.
const KEPT: usize = 4 << 10;
/// How many bytes of a body are read at most. API servers do not send more, and a client that still sends does not read
/// the answer.
const DRAINED: usize = 32 << 20;

pub(super) async fn read(
    app: &AppState,
    peer: &Peer,
    arrived: Instant,
    time: Duration,
    request: Request,
) -> Result<Held, Unread> {
    let slow = |_| {
        Unread::Broken(ErrorResponse(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {time:?}")))
    };
    timeout_at(arrived + time, collect(app, peer, request.into_body())).await.map_err(slow)?
}

/// Memory is accounted for the bytes that have arrived, not for the announced length: otherwise a few slow clients
/// could reserve all of it by announcing large bodies.
async fn collect(app: &AppState, peer: &Peer, body: Body) -> Result<Held, Unread> {
    let (mut held, mut refused, mut drained) = (Held::default(), None::<(ErrorResponse, Beginning)>, 0);
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let broken = |error| ErrorResponse(StatusCode::BAD_REQUEST, format!("reading the body failed: {error}"));
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
    fn add(&mut self, app: &AppState, peer: &Peer, part: &[u8]) -> Result<(), ErrorResponse> {
        let limits = &app.limits;
        let large =
            || ErrorResponse(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {} bytes", limits.body));
        let length = self.bytes.len() + part.len();
        if length > limits.body {
            return Err(large());
        }
        let size = u32::try_from(part.len()).map_err(|_| large())?;
        if let Ok(permit) = Arc::clone(&peer.reserved).try_acquire_many_owned(size) {
            merge(&mut self.reserved, permit);
        } else {
            let take = |from: &Arc<Semaphore>, reason: String| {
                let busy = |_| ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, format!("busy: {reason}"));
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
