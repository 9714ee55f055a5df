//! The plan of an agent: the desired state of its network and the Leases to write, and the outcome of both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::assignments::Protocol;

/// The ports of an address that is held, and the time until which it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The ports that are open.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// When the address must be released at the latest.
    pub until: Instant,
}

/// The desired state of the network: these addresses are held, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The number of this desired state: it grows with each change.
    pub number: u64,
    /// The addresses to hold.
    pub held: BTreeMap<IpAddr, Hold>,
}

/// The observed state of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedState {
    /// The number of the last desired state that the reconciler has begun to apply. Each address that this state no
    /// longer contains is either released or still in `addresses`.
    pub number: u64,
    /// The addresses that may be on the network.
    pub addresses: BTreeSet<IpAddr>,
    /// The addresses that could not be held after several tries.
    pub failing: BTreeSet<IpAddr>,
}

/// The subject of a write. At most one write for each subject is in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The claim of this address.
    Address(IpAddr),
    /// The heartbeat of this Node.
    Node(String),
}

/// A Lease to write or delete.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseWrite {
    /// Which Lease is written.
    pub subject: Subject,
    /// How it is written.
    pub kind: WriteKind,
    /// The Lease to replace, if it has a resource version, or else to create. For [`WriteKind::Remove`], the Lease to
    /// delete.
    pub lease: Box<Lease>,
}

/// The purpose of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// This agent takes an address.
    Claim,
    /// This agent gives an address back.
    GiveBack,
    /// A claim or a heartbeat without a holder is deleted.
    Remove,
    /// A silent heartbeat is ended.
    End,
    /// A missing heartbeat is put back.
    PutBack,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome {
    /// The write succeeded. Contains the Lease as the API server returned it.
    Written(Box<Lease>),
    /// The Lease no longer exists.
    Gone,
    /// The Lease has changed since the agent observed it.
    Changed,
    /// It is unknown whether the write succeeded.
    Unclear,
}

/// The decision of an agent about its network and the Leases.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The state that the network of the node should have.
    pub desired: DesiredState,
    /// The Leases to write.
    pub writes: Vec<LeaseWrite>,
    /// The addresses that this agent stops holding because another program changed their claims since the last plan.
    pub lost: Vec<IpAddr>,
    /// The addresses that are left to other nodes from now on, because this node can't hold them.
    pub given_up: Vec<IpAddr>,
    /// When to plan again if no event arrives before.
    pub replan_at: Option<Instant>,
}
