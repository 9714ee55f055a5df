//! The assignments: the external addresses to hold, and the Nodes that may hold each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::service_key::ServiceKey;

/// The assignments of all external addresses, by address.
pub type Assignments = BTreeMap<IpAddr, Assignment>;

/// The Service, the ports and the allowed nodes of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The Service that has the address.
    pub service: ServiceKey,
    /// The open ports of the address: those of the Service.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// Names of the Nodes that may hold the address.
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
