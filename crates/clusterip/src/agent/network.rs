//! What an agent needs of the network of its node.

use std::collections::BTreeSet;
use std::error::Error;
use std::future::Future;
use std::net::IpAddr;

use tokio::time::Instant;

use super::assignments::Protocol;

/// What was found of an address that was to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It was not there, and is now: the neighbours do not know yet.
    Came,
    /// It was there, and stays.
    Stayed,
}

/// The network of a node. What fails is tried again; none of these may take long, and one that does is given up.
pub trait Network: Send + Sync + 'static {
    /// Why it could not be done.
    type Error: Error + Send + Sync + 'static;

    /// Has the address on this node with these ports open until then, or until it is released: also when
    /// nobody asks again. Asked of one that is there already, it prolongs it and changes the ports; of one that
    /// somebody else has removed meanwhile, it puts it back.
    fn hold(
        &self,
        address: IpAddr,
        ports: &BTreeSet<(Protocol, u16)>,
        until: Instant,
    ) -> impl Future<Output = Result<Held, Self::Error>> + Send;

    /// Has the address on this node no more. Asked of one that is not there, it does nothing.
    fn release(&self, address: IpAddr) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Tells the neighbours where the address is: after it came to this node, and some more times, as a neighbour
    /// may miss one.
    fn announce(&self, address: IpAddr) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
