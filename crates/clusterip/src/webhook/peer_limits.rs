//! Limits the reviews and the memory for bodies that one peer may take. No peer can take all of it, so the others are
//! served whatever one peer sends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// The peers that have requests in progress.
#[derive(Debug)]
pub(super) struct PeerLimits {
    reviews: usize,
    bodies: usize,
    reserved: usize,
    known: Mutex<HashMap<IpAddr, Weak<Peer>>>,
}

/// The share of one peer. It exists as long as a request of the peer refers to it.
#[derive(Debug)]
pub(super) struct Peer {
    /// The reviews that the peer may have in progress at once.
    pub reviews: Arc<Semaphore>,
    /// The bytes that are reserved for the peer's bodies: its small reviews are read whatever other peers send.
    pub reserved: Arc<Semaphore>,
    /// The bytes that the peer's bodies may take beyond `reserved`, from the memory that all peers share.
    pub bodies: Arc<Semaphore>,
}

/// The most memory that is reserved for the bodies of one peer. There are at most as many peers as connections.
const RESERVED: usize = 256 << 10;

impl PeerLimits {
    /// Each peer may have three quarters of the reviews, and half of the memory for bodies in addition to what is
    /// reserved for it. Often the API server is the only peer; it loses little, because reviews are bound by the CPU.
    pub fn new(reviews: usize, bodies: usize) -> Self {
        let reviews = (reviews - reviews / 4).min(reviews.saturating_sub(1)).max(1);
        Self { reviews, bodies: bodies.div_ceil(2), reserved: RESERVED.min(bodies / 8), known: Mutex::default() }
    }

    /// The share of the peer with this address.
    pub fn of(&self, address: IpAddr) -> Arc<Peer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known.get(&address).and_then(Weak::upgrade) {
            return peer;
        }
        known.retain(|_, peer| peer.strong_count() > 0);
        let [reviews, reserved, bodies] =
            [self.reviews, self.reserved, self.bodies].map(|most| Arc::new(Semaphore::new(most)));
        let peer = Arc::new(Peer { reviews, reserved, bodies });
        known.insert(address, Arc::downgrade(&peer));
        peer
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_can_not_take_all_reviews_or_memory() {
        for (reviews, of_peer) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (16, 12), (128, 96)] {
            let peers = PeerLimits::new(reviews, 100);
            let peer = peers.of(IpAddr::from([10, 0, 0, 1]));
            assert_eq!((peer.reviews.available_permits(), peer.bodies.available_permits()), (of_peer, 50), "{reviews}");
        }
    }

    #[test]
    fn peer_without_requests_is_forgotten() {
        let peers = PeerLimits::new(4, 100);
        let [first, second] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let turn = peers.of(first);
        let permit = Arc::clone(&turn.reviews).try_acquire_owned().unwrap();
        assert_eq!(peers.of(first).reviews.available_permits(), 2);
        assert_eq!(peers.of(second).reviews.available_permits(), 3);
        drop((turn, permit));
        assert_eq!(peers.of(first).reviews.available_permits(), 3);
        assert_eq!(peers.known.lock().unwrap().len(), 1, "those that have nothing under way are forgotten");
    }
}
