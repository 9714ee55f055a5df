//! The limits of the server, and their defaults.

use std::thread::available_parallelism;
use std::time::Duration;

use clusterip_cluster::fair_queue::Places;

/// How much the server accepts, and for how long it waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; further ones are closed.
    pub connections: usize,
    /// Connections at once from one IP address; further ones are closed. An API server needs a few, because it sends
    /// many requests on one connection. Several API servers may share one address behind a proxy.
    pub connections_per_peer: usize,
    /// Reviews at once; further ones wait. One IP address may have three quarters of them, and one namespace half.
    pub reviews: usize,
    /// Reviews of large bodies at once; further ones wait. Parsing JSON takes a multiple of its size in memory.
    pub large_reviews: usize,
    /// The size in bytes from which a body is large.
    pub large_body: usize,
    /// The largest body in bytes.
    pub body: usize,
    /// The bytes that all requests whose review has not begun may take together. Beyond that, requests of the client
    /// that takes most are given up.
    pub bodies: usize,
    /// The time for a TLS handshake.
    pub handshake: Duration,
    /// The time for the head of an HTTP/1.1 request.
    pub head: Duration,
    /// The time for a whole body.
    pub body_time: Duration,
    /// How long a connection may go without a byte read or written.
    pub silence: Duration,
    /// How long a connection may go without a request, whatever else its peer sends. API servers close an idle
    /// connection after 90 seconds.
    pub idle: Duration,
    /// The time for a review that names no `timeout`, and the longest `timeout` that is accepted. It includes the wait
    /// for a turn.
    pub review: Duration,
    /// How long the server keeps accepting requests after the shutdown signal, so that clients stop sending to it
    /// first.
    pub linger: Duration,
    /// How long requests in flight may take after that.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self {
            connections: 256,
            connections_per_peer: 64,
            // Reviews are bound by the CPU: more at once would only make each of them slower. The bound also limits
            // their memory.
            reviews: (processors.max(2) + 1).min(16),
            large_reviews: 1,
            large_body: 512 << 10,
            body: 3 << 20,
            bodies: 32 << 20,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body_time: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            idle: Duration::from_secs(180),
            // The longest time that an API server waits for a webhook.
            review: Duration::from_secs(30),
            linger: Duration::from_secs(3),
            drain: Duration::from_secs(20),
        }
    }
}

impl Limits {
    /// Who may have how many reviews. Often the API server is the only peer; it loses little, because reviews are bound
    /// by the CPU.
    pub(super) fn places(&self) -> Places {
        let of_peer = (self.reviews - self.reviews / 4).min(self.reviews.saturating_sub(1)).max(1);
        Places { all: self.reviews, of_peer, of_namespace: self.reviews.div_ceil(2) }
    }

    /// The same for large reviews. Peers and namespaces take turns.
    pub(super) fn large_places(&self) -> Places {
        let all = self.large_reviews;
        Places { all, of_peer: all, of_namespace: all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_can_not_take_all_reviews() {
        for (reviews, of_peer) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (16, 12), (128, 96)] {
            assert_eq!(Limits { reviews, ..Limits::default() }.places().of_peer, of_peer, "{reviews}");
        }
    }
}
