//! Reads the bodies of requests within the memory that bodies may take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use clusterip_cluster::fair_queue::Requester;
use clusterip_cluster::http::error_response::ErrorResponse;
use futures::StreamExt;
use tokio::time::{Instant, timeout_at};

use super::super::review::namespace_of;

/// The memory for bodies. A client may take as much of it as it leaves, so at most half, and each namespace half of what
/// its client may still take afterwards, so at most a quarter: however much one takes, the next one gets a share.
#[derive(Debug)]
pub(super) struct Memory {
    all: usize,
    used: Mutex<BTreeMap<Requester, usize>>,
}

impl Memory {
    pub(super) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, used: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Requester, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether this requester may take so many more bytes.
    fn has_room(&self, used: &BTreeMap<Requester, usize>, requester: &Requester, bytes: usize) -> Result<(), String> {
        let of_peer = used.iter().filter(|(other, _)| other.peer == requester.peer).map(|(_, bytes)| bytes);
        let (all, of_peer) = (used.values().sum::<usize>() + bytes, of_peer.sum::<usize>() + bytes);
        let of_namespace = used.get(requester).copied().unwrap_or_default() + bytes;
        if all > self.all {
            Err(format!("waiting bodies may take {} bytes together", self.all))
        } else if of_peer > self.all - all {
            Err("waiting bodies of this client take as much memory as is left".to_owned())
        } else if of_namespace > (self.all - all - of_peer) / 2 {
            Err(format!("too many bodies of namespace {} wait", requester.namespace))
        } else {
            Ok(())
        }
    }
}

/// A part of the memory, which is given back when this is dropped.
struct Share {
    memory: Arc<Memory>,
    requester: Requester,
    bytes: usize,
}

impl Share {
    /// Takes this many bytes for this requester instead of what was taken before. Takes nothing if there is no room.
    fn take_for(&mut self, requester: Requester, bytes: usize) -> Result<(), String> {
        self.give_back();
        let mut used = self.memory.lock();
        self.memory.has_room(&used, &requester, bytes)?;
        *used.entry(requester.clone()).or_default() += bytes;
        (self.requester, self.bytes) = (requester, bytes);
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.take_for(self.requester.clone(), bytes)
    }

    fn give_back(&mut self) {
        let (bytes, mut used) = (std::mem::take(&mut self.bytes), self.memory.lock());
        if let Some(taken) = used.get_mut(&self.requester) {
            *taken -= bytes;
        }
        used.retain(|_, bytes| *bytes > 0);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A body, or the beginning of one for which there is no more memory.
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    share: Share,
}

/// Why the body of a request is not available.
pub(super) enum Unread {
    /// The client did not send a complete body.
    Broken(ErrorResponse),
    /// There is no memory for the body. Its beginning says what the request is about, if there was memory for it.
    NoRoom(ErrorResponse, Held),
}

/// How many bytes are kept of a body for which there is no more memory. The fields that say what a request is about
/// precede its objects.
const KEPT: usize = 4 << 10;
/// How many bytes of a body are read at most. API servers do not send more, and a client that still sends does not read
/// the answer.
const DRAINED: usize = 32 << 20;

/// Reads a body of at most `most` bytes.
pub(super) async fn read(
    memory: &Arc<Memory>,
    peer: IpAddr,
    most: usize,
    arrived: Instant,
    time: Duration,
    request: Request,
) -> Result<Held, Unread> {
    let requester = Requester { peer: Some(peer), namespace: String::new() };
    let held = Held { bytes: Vec::new(), share: Share { memory: Arc::clone(memory), requester, bytes: 0 } };
    let slow = |_| {
        Unread::Broken(ErrorResponse(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {time:?}")))
    };
    timeout_at(arrived + time, held.collect(most, request.into_body())).await.map_err(slow)?
}

impl Held {
    /// Memory is counted for the bytes that have arrived, not for the announced length: otherwise a few slow clients
    /// could take all of it by announcing large bodies.
    async fn collect(mut self, most: usize, body: Body) -> Result<Self, Unread> {
        let (mut refusal, mut drained) = (None, 0);
        let mut parts = body.into_data_stream();
        while let Some(part) = parts.next().await {
            let broken = |error| ErrorResponse(StatusCode::BAD_REQUEST, format!("reading the body failed: {error}"));
            let part = part.map_err(|error| Unread::Broken(broken(error)))?;
            drained += part.len();
            if refusal.is_none() {
                refusal = self.add(&part, most).err();
            }
            if refusal.is_some() {
                self.keep_beginning(&part);
                if drained > DRAINED {
                    break;
                }
            }
        }
        if refusal.is_none() && self.bytes.len() < KEPT {
            refusal = self.count(self.bytes.len()).err();
            if refusal.is_some() {
                self.keep_beginning(&[]);
            }
        }
        match refusal {
            None => Ok(self),
            Some(refusal) => Err(Unread::NoRoom(refusal, self)),
        }
    }

    /// Adds a part of the body, if there is memory for it. The namespace is known as soon as the beginning is there.
    fn add(&mut self, part: &[u8], most: usize) -> Result<(), ErrorResponse> {
        let (before, length) = (self.bytes.len(), self.bytes.len() + part.len());
        if length > most {
            return Err(ErrorResponse(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {most} bytes")));
        }
        self.share.take(length).map_err(busy)?;
        self.bytes.extend_from_slice(part);
        if before < KEPT && length >= KEPT { self.count(length) } else { Ok(()) }
    }

    /// Counts the bytes as those of the namespace that the request is about.
    fn count(&mut self, length: usize) -> Result<(), ErrorResponse> {
        let requester = Requester { namespace: namespace_of(self.beginning()), ..self.share.requester.clone() };
        self.share.take_for(requester, length).map_err(busy)
    }

    /// Keeps the beginning of a refused body, and gives the memory of the rest back. The beginning counts as no
    /// namespace's, so that a namespace without memory gets an answer, too. Keeps nothing if there is no memory for it.
    fn keep_beginning(&mut self, part: &[u8]) {
        let room = KEPT.saturating_sub(self.bytes.len()).min(part.len());
        self.bytes.extend_from_slice(&part[..room]);
        self.bytes.truncate(KEPT);
        self.bytes.shrink_to_fit();
        let requester = Requester { namespace: String::new(), ..self.share.requester.clone() };
        if self.share.bytes != self.bytes.len() && self.share.take_for(requester, self.bytes.len()).is_err() {
            self.bytes = Vec::new();
        }
    }

    /// The beginning of the body.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.bytes[..self.bytes.len().min(KEPT)]
    }

    /// The client that sent the body, and the namespace that the request is about.
    pub(super) fn requester(&self) -> Requester {
        self.share.requester.clone()
    }
}

fn busy(reason: String) -> ErrorResponse {
    ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, format!("busy: {reason}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn share(memory: &Arc<Memory>, last: u8, namespace: &str) -> Share {
        let requester = Requester { peer: Some(IpAddr::from([10, 0, 0, last])), namespace: namespace.to_owned() };
        Share { memory: Arc::clone(memory), requester, bytes: 0 }
    }

    #[test]
    fn namespaces_leave_memory_for_others() {
        let memory = Memory::new(8000);
        let most = |share: &mut Share| {
            let most = (0..8000).take_while(|bytes| share.take(*bytes).is_ok()).last().unwrap();
            share.take(most).unwrap();
            most
        };
        let mut shares: Vec<Share> = ["a", "b", "c", "d"].iter().map(|name| share(&memory, 1, name)).collect();
        assert_eq!(shares.iter_mut().map(most).collect::<Vec<_>>(), [2000, 1000, 500, 250]);
        assert_eq!(share(&memory, 2, "shop").take(900), Ok(()), "another client");
        shares.clear();
        assert!(memory.lock().is_empty());
    }

    #[test]
    fn client_takes_at_most_half() {
        let memory = Memory::new(2000);
        let refused = share(&memory, 1, "").take(1500).unwrap_err();
        assert_eq!(refused, "waiting bodies of this client take as much memory as is left");
        let mut shares: Vec<Share> = (0..2000).map(|nth| share(&memory, 1, &nth.to_string())).collect();
        let taken = shares.iter_mut().filter_map(|share| share.take(1).ok()).count();
        assert!((990..=1000).contains(&taken), "{taken}");
        assert_eq!(share(&memory, 2, "shop").take(200), Ok(()));
    }
}
