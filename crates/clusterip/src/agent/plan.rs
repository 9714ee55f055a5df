//! What an agent is to do: what its network is to be like, and what is to be written; and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::assignments::Protocol;

/// An address that is held: the ports, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) ports: BTreeSet<(Protocol, u16)>,
    pub(super) until: Instant,
}

/// What the network is to be like. Nothing else is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Which of the plans it is of.
    pub(super) number: u64,
    pub(super) held: BTreeMap<IpAddr, Hold>,
}

/// What the network is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    /// The last plan that it knows of.
    pub(super) number: u64,
    /// The addresses that may be there.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Those that can't be held, as was tried often enough.
    pub(super) failing: BTreeSet<IpAddr>,
}

/// What an order is about. There is one at a time about each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Address(IpAddr),
    Node(String),
}

/// Something to be written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Order {
    pub(super) subject: Subject,
    pub(super) what: What,
    /// The Lease to be written: with a version in its place, without one created. Or to be removed.
    pub(super) lease: Box<Lease>,
}

/// Why something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// This agent takes an address.
    Claim,
    /// It gives one back.
    GiveBack,
    /// A claim, or a heartbeat, that is nobody's is deleted.
    Remove,
    /// A heartbeat that is silent is ended.
    End,
    /// One that is missing is put back.
    PutBack,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It was carried out.
    Written(Box<Lease>),
    /// The Lease is not there any more.
    Gone,
    /// It is another than it was seen as.
    Changed,
    /// It may not have been carried out.
    Unclear,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) wanted: Wanted,
    pub(super) orders: Vec<Order>,
    /// The addresses that are left to other nodes from now on, because this one can't hold them.
    pub(super) given_up: Vec<IpAddr>,
    /// When there will be more, if nothing happens before.
    pub(super) wake: Option<Instant>,
}
