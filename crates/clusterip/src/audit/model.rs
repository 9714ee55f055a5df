//! The result of an audit. `-o json` prints this, and the map is drawn from it.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

pub use self::finding::{Finding, Kind};
use crate::nodes::block_usage;

mod finding;

/// The audit of a cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// The pools of Services, in the order of the settings.
    pub pools: Vec<Pool>,
    /// The addresses that pools keep for single Services, in the order of the settings; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// The node pools; absent if the settings have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    /// The pools of external addresses; absent if the settings have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// The problems: by kind, then those of pools in the order of the settings, then those of Services by namespace
    /// and name, or of Nodes by name.
    pub findings: Vec<Finding>,
    /// The number of Services that have an address.
    pub services: usize,
    /// What could not be determined, as sentences.
    pub notes: Vec<String>,
}

/// A pool of Services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Name of the pool.
    pub name: String,
    /// The ranges of the pool, in the order of the settings.
    pub ranges: Vec<Range>,
}

/// A range of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Range {
    /// The range in CIDR notation.
    pub cidr: IpNet,
    /// How many of the range's addresses are in each state.
    pub counts: Counts,
    /// The addresses that are not assigned to every Service, in order, as few spans as possible.
    pub withheld: Vec<Span>,
    /// Every address that is used or in flight, in order.
    pub addresses: Vec<Address>,
}

/// The number of addresses of a range in each state. `usable` is the sum of `used`, `inFlight` and `free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// May be assigned.
    pub usable: u128,
    /// Usable, and used.
    pub used: u128,
    /// Usable, and in flight: claimed by a server, or kept by a move in progress.
    pub in_flight: u128,
    /// Usable, and free now.
    pub free: u128,
    /// Kept for addresses set by hand, or reserved for one Service.
    pub reserved: u128,
    /// Used, but not usable: set by hand, reserved for the Service, or older than the pool.
    pub used_anyway: u128,
}

/// Consecutive addresses that are not assigned to every Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// First address.
    pub first: IpAddr,
    /// Last address.
    pub last: IpAddr,
    /// Why they are not assigned.
    pub why: WithheldReason,
}

/// Why an address is not assigned to every Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WithheldReason {
    /// `reserved` of the pool.
    Reserved,
    /// `exclude` of the pool, the network and broadcast address, or the address of `default/kubernetes`.
    Excluded,
    /// `reservations` of the pool: only one Service gets it.
    ForService,
}

/// An address that is used or in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The IP address.
    pub address: IpAddr,
    /// How the address is used.
    pub state: State,
    /// Namespace of the Service that has the address; empty if unknown.
    pub namespace: String,
    /// Name of the Service that has the address; empty if unknown.
    pub name: String,
    /// The pool that the Service belongs to; `null` if no pool matches it.
    pub pool: Option<String>,
    /// The evidence about the Service's nodes, in words.
    pub evidence: Option<String>,
    /// Whether a person chose the address; `null` if unknown, because the Service has no `metadata.managedFields`.
    pub by_hand: Option<bool>,
}

/// An address that a pool keeps for one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The IP address.
    pub address: IpAddr,
    /// Name of the pool.
    pub pool: String,
    /// Namespace of the Service that the address is kept for.
    pub namespace: String,
    /// Name of the Service that the address is kept for.
    pub name: String,
    /// Who has the address.
    pub state: ReservationState,
    /// The other Service that has the address, as `NAMESPACE/NAME`; absent if no other Service has it, or if only an
    /// `IPAddress` object shows that the address is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    /// Since when the state has been observed; absent without a ServicePool object whose status says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Who has an address that a pool keeps for one Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ReservationState {
    /// The Service that it is kept for.
    Held,
    /// Nobody: the Service does not exist, or has another address.
    Free,
    /// Another Service.
    Taken,
}

/// How an address or a block is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// By a Service or Node that belongs there.
    Used,
    /// By a Service or Node that belongs elsewhere, or that may not have it.
    Misplaced,
    /// By a Service that is being created or moved.
    InFlight,
}

/// The node pools and how they are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// The node pools, in the order of the settings.
    pub pools: Vec<NodePool>,
    /// The number of Nodes.
    pub count: usize,
    /// The number of Nodes that have blocks.
    pub with_blocks: usize,
}

/// A node pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePool {
    /// Name of the pool.
    pub name: String,
    /// The ranges of the pool, in the order of the settings.
    pub ranges: Vec<BlockRange>,
}

/// A range of a node pool, divided into blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRange {
    /// The range in CIDR notation.
    pub cidr: IpNet,
    /// Prefix length of a block.
    pub block_length: u8,
    /// How many of the range's blocks are in each state.
    pub counts: block_usage::Counts,
    /// The blocks that are never assigned, in order, as few spans as possible.
    pub withheld: Vec<block_usage::Span>,
    /// Every block of a Node that has addresses of the range, in order, whatever its size. A block that several
    /// Nodes have is listed once for each Node.
    pub blocks: Vec<Block>,
}

/// A block that a Node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// The block in CIDR notation.
    pub block: IpNet,
    /// `used` if the block is in place, otherwise `misplaced`.
    pub state: State,
    /// Name of the Node that has the block.
    pub node: String,
    /// The pool that the Node belongs to; `null` if no pool matches it.
    pub pool: Option<String>,
    /// The labels that decide the pool, in words; without a pool, the reason why there is none.
    pub evidence: Option<String>,
}

/// The pools of external addresses and how they are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct External {
    /// The pools, in the order of the settings.
    pub pools: Vec<ExternalPool>,
    /// The number of Services with recorded external addresses.
    pub count: usize,
}

/// A pool of external addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPool {
    /// Name of the pool.
    pub name: String,
    /// The ranges of the pool, in the order of the settings.
    pub ranges: Vec<ExternalRange>,
}

/// A range of a pool of external addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalRange {
    /// The range as the settings write it: a CIDR, or its first and last address.
    pub range: String,
    /// First address of the range.
    pub first: IpAddr,
    /// Last address of the range.
    pub last: IpAddr,
    /// The smallest CIDR that contains the range.
    pub around: IpNet,
    /// How many of the range's addresses are in each state.
    pub counts: ExternalCounts,
    /// The addresses that are never assigned, in order, as few spans as possible.
    pub withheld: Vec<Span>,
    /// Every address that is used or in flight, in order.
    pub addresses: Vec<ExternalAddress>,
}

/// The number of addresses of a range in each state. `usable` is the sum of `used`, `inFlight` and `free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalCounts {
    /// May be assigned.
    pub usable: u128,
    /// Usable, and a Service has it.
    pub used: u128,
    /// Usable, and in flight.
    pub in_flight: u128,
    /// Usable, and free now.
    pub free: u128,
    /// Never assigned.
    pub excluded: u128,
    /// Not usable, but a Service or a claim in flight has it.
    pub used_anyway: u128,
    /// Held by a node whose agent renews its heartbeat; `null` if no Leases were read.
    pub held: Option<u128>,
}

/// An external address that is used or in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalAddress {
    /// The IP address.
    pub address: IpAddr,
    /// How the address is used.
    pub state: State,
    /// The Services that have the address; more than one is a problem.
    pub services: Vec<ExternalUse>,
    /// The node that holds the address according to its claim.
    pub holder: Option<Holder>,
}

/// A Service that has an external address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalUse {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Where the Service has the address: `record`, the path of a field, or an annotation of another program.
    pub by: String,
}

/// A node that holds an external address according to its claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Name of the Node.
    pub node: String,
    /// Whether the node's agent renews its heartbeat, as far as one look can tell.
    pub renewed: bool,
}
