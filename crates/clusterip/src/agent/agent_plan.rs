//! The plan of an agent: the desired state of its network and the Leases to write, and the outcome of both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::assignments::Protocol;

/// The ports of an address that is held, and the time until which it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) ports: BTreeSet<(Protocol, u16)>,
    pub(super) until: Instant,
}

/// The desired state of the network: these addresses are held, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredState {
    /// The number of this desired state: it grows with each change.
    pub(super) number: u64,
    pub(super) held: BTreeMap<IpAddr, Hold>,
}

/// The observed state of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedState {
    /// The number of the last desired state that the reconciler has begun to apply. Each address that this state no
    /// longer contains is either released or still in `addresses`.
    pub(super) number: u64,
    /// The addresses that may be on the network.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The addresses that could not be held after several tries.
    pub(super) failing: BTreeSet<IpAddr>,
}

/// The subject of a write. At most one write for each subject is in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Address(IpAddr),
    Node(String),
}

/// A Lease to write or delete.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseWrite {
    pub(super) subject: Subject,
    pub(super) kind: WriteKind,
    /// The Lease to replace, if it has a resource version, or else to create. For [`WriteKind::Remove`], the Lease to
    /// delete.
    pub(super) lease: Box<Lease>,
}

/// The purpose of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteKind {
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
pub(super) enum WriteOutcome {
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
pub(super) struct Plan {
    pub(super) desired: DesiredState,
    pub(super) writes: Vec<LeaseWrite>,
    /// The addresses that are left to other nodes from now on, because this node can't hold them.
    pub(super) given_up: Vec<IpAddr>,
    /// When to plan again if no event arrives before.
    pub(super) replan_at: Option<Instant>,
}
