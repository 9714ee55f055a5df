//! The interface between an agent and the network of its node.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_failover::assignments::Port;
use tokio::time::Instant;

/// The network of a node. A failed call is retried. A call that takes too long is cancelled.
pub trait Network: Send + Sync + 'static {
    /// Holds the address with these ports open until `until`, or until another call extends the time or replaces the ports.
    /// Returns whether the address was added, so that neighbours do not know yet that it is at this node.
    fn hold(
        &self,
        address: IpAddr,
        ports: &Arc<[Port]>,
        until: Instant,
    ) -> impl Future<Output = anyhow::Result<bool>> + Send;

    /// Removes the address from this node, if it is there.
    fn release(&self, address: IpAddr) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Waits for what releases have left to be done later.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Tells the neighbours that the address is at this node.
    fn announce(&self, address: IpAddr) -> impl Future<Output = anyhow::Result<()>> + Send;
}
