//! The interface between an agent and the network of its node.

use std::error::Error;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_failover::assignments::Port;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOutcome {
    /// The address was added: neighbours do not know yet that it is at this node.
    Added,
    Kept,
}

/// The network of a node. A failed call is retried. A call that takes too long is cancelled.
pub trait Network: Send + Sync + 'static {
    type Error: Error + Send + Sync + 'static;

    /// Holds the address on this node with these ports open until `until`, or until it is released, even if it is
    /// not called again. For an address that is there already, the call extends the time and replaces the ports; if
    /// another program has removed the address meanwhile, the call adds it again.
    fn hold(
        &self,
        address: IpAddr,
        ports: &Arc<[Port]>,
        until: Instant,
    ) -> impl Future<Output = Result<HoldOutcome, Self::Error>> + Send;

    /// Removes the address from this node. If the address is not there, the call does nothing.
    fn release(&self, address: IpAddr) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Tells the neighbours that the address is at this node. The agent announces an address after it was added,
    /// and again some more times, because a neighbour may miss an announcement.
    fn announce(&self, address: IpAddr) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
