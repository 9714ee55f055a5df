//! What is to be held: the addresses of Services, and who may hold them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// All addresses that are to be held by some node.
pub type Assignments = BTreeMap<IpAddr, Assignment>;

/// An address that is to be held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Namespace and name of the Service that it is for.
    pub service: (String, String),
    /// The ports of the Service.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// The names of the Nodes that may hold it.
    pub nodes: BTreeSet<String>,
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// `TCP`
    Tcp,
    /// `UDP`
    Udp,
    /// `SCTP`
    Sctp,
}
