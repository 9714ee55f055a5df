//! What an audit tells. `-o json` is this, and the map is drawn from it.

use std::net::IpAddr;

use clap::ValueEnum;
use ipnet::IpNet;
use serde::Serialize;

use crate::nodes::fill;

/// An audit of a cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// The pools, in the order of the settings.
    pub pools: Vec<Pool>,
    /// The pools of Nodes; nothing where the settings have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    /// The pools of external addresses; nothing where the settings have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// What is not as it should be: by kind, then about pools in their order, then about Services by
    /// namespace and name, or about Nodes by name.
    pub findings: Vec<Finding>,
    /// How many Services have an address.
    pub services: usize,
    /// What could not be found out, in sentences.
    pub notes: Vec<String>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its ranges, in the order of the settings.
    pub ranges: Vec<Range>,
}

/// A range of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Range {
    /// The range.
    pub cidr: IpNet,
    /// How its addresses are used.
    pub counts: Counts,
    /// Addresses that are never handed out, in order, as few spans as there can be.
    pub kept: Vec<Span>,
    /// Every address that is used or in flight, in order.
    pub addresses: Vec<Address>,
}

/// How many addresses of a range are what. `usable` is `used`, `claimed` and `free` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// May be handed out.
    pub usable: u128,
    /// Of the usable ones: are used.
    pub used: u128,
    /// Of the usable ones: are in flight, claimed by a server or kept by a move under way.
    pub claimed: u128,
    /// Of the usable ones: may be handed out now.
    pub free: u128,
    /// Are kept for addresses set by hand.
    pub reserved: u128,
    /// Are used, but may not be handed out: set by hand, or there before the pool was.
    pub beside: u128,
}

/// Addresses that are never handed out, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The first.
    pub first: IpAddr,
    /// The last.
    pub last: IpAddr,
    /// Why.
    pub why: Kept,
}

/// Why an address is never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kept {
    /// `reserved` of the pool.
    Reserved,
    /// `exclude` of the pool, the network and broadcast address, and that of `default/kubernetes`.
    Excluded,
}

/// An address that is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// It.
    pub address: IpAddr,
    /// How.
    pub state: State,
    /// The namespace of the Service that has it.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pool that the Service belongs to; none where no pool is for it.
    pub pool: Option<String>,
    /// What is known of its nodes, in words.
    pub evidence: Option<String>,
    /// Whether somebody chose it; not known where the Service comes without `metadata.managedFields`.
    pub by_hand: Option<bool>,
}

/// How an address is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// By a Service that belongs here.
    Used,
    /// By a Service that belongs elsewhere, or nowhere.
    Misplaced,
    /// By one that is being created or moved.
    InFlight,
}

/// What there is to tell of Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// Their pools, in the order of the settings.
    pub pools: Vec<NodePool>,
    /// How many Nodes have blocks.
    pub count: usize,
}

/// A pool of Nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePool {
    /// Its name.
    pub name: String,
    /// Its ranges, in the order of the settings.
    pub ranges: Vec<BlockRange>,
}

/// A range of a pool of Nodes, cut into blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRange {
    /// The range.
    pub cidr: IpNet,
    /// The prefix length of a block.
    pub block_length: u8,
    /// How its blocks are used.
    pub counts: fill::Counts,
    /// Blocks that are never handed out, in order, as few spans as there can be.
    pub withheld: Vec<fill::Span>,
    /// Every block that a Node has and that has addresses of the range, in order: whatever its size, and as
    /// often as Nodes have it.
    pub blocks: Vec<Block>,
}

/// A block that a Node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// It.
    pub block: IpNet,
    /// Whether it is where it should be: `used` or `misplaced`.
    pub state: State,
    /// The Node that has it.
    pub node: String,
    /// The pool that the Node belongs to; none where no pool is for it.
    pub pool: Option<String>,
    /// The labels that tell so, in words; without a pool, why there is none.
    pub evidence: Option<String>,
}

/// What there is to tell of external addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct External {
    /// Their pools, in the order of the settings.
    pub pools: Vec<ExternalPool>,
    /// How many Services have recorded some.
    pub count: usize,
}

/// A pool of external addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPool {
    /// Its name.
    pub name: String,
    /// Its ranges, in the order of the settings.
    pub ranges: Vec<ExternalRange>,
}

/// A range of a pool of external addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalRange {
    /// The range, as the settings write it: a CIDR, or its first and last address.
    pub range: String,
    /// Its first address.
    pub first: IpAddr,
    /// Its last address.
    pub last: IpAddr,
    /// The smallest CIDR around it.
    pub around: IpNet,
    /// How its addresses are used.
    pub counts: ExternalCounts,
    /// Addresses that are never handed out, in order, as few spans as there can be.
    pub kept: Vec<Span>,
    /// Every address that is used or in flight, in order.
    pub addresses: Vec<ExternalAddress>,
}

/// How many addresses of a range are what. `usable` is `used`, `claimed` and `free` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalCounts {
    /// May be handed out.
    pub usable: u128,
    /// Of the usable ones: some Service has it.
    pub used: u128,
    /// Of the usable ones: are in flight.
    pub claimed: u128,
    /// Of the usable ones: may be handed out now.
    pub free: u128,
    /// Are never handed out.
    pub excluded: u128,
    /// Of these: some Service has it all the same.
    pub beside: u128,
    /// Are held by a node whose agent renews its heartbeat; nothing where no Leases were read.
    pub held: Option<u128>,
}

/// An external address that is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalAddress {
    /// It.
    pub address: IpAddr,
    /// How.
    pub state: State,
    /// The Services that have it: one, where all is as it should be.
    pub services: Vec<ExternalUse>,
    /// The node that holds it, by its claim.
    pub holder: Option<Holder>,
}

/// A Service that has an external address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalUse {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it says so: `record`, a field, or the annotation of somebody else.
    pub by: String,
}

/// A node that holds an external address, by its claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Its name.
    pub node: String,
    /// Whether its agent renews its heartbeat, as far as one look can tell.
    pub renewed: bool,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// The namespace of the Service that it is about; none where it is about a pool or the settings.
    pub namespace: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// The Node that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The addresses that it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The blocks that it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<IpNet>,
    /// The pool that it is about, or that the Service or Node belongs to.
    pub pool: Option<String>,
    /// What is known of the nodes of the Service, in words.
    pub evidence: Option<String>,
    /// What is wrong, in words that name the Service or pool, its address, its range and its evidence.
    pub message: String,
    /// What can be done about it, in words that fit others of its kind, too.
    pub way_out: String,
}

impl Finding {
    /// One that says no more than what is wrong, and what can be done about it.
    pub fn new(kind: Kind, message: String, way_out: &str) -> Self {
        Self {
            kind,
            namespace: None,
            name: None,
            node: None,
            addresses: Vec::new(),
            blocks: Vec::new(),
            pool: None,
            evidence: None,
            message,
            way_out: way_out.to_owned(),
        }
    }
}

/// The kinds of findings, those about Services and their pools first, then those about Nodes, then those about
/// external addresses; of each the worst first. The names are those of `--fail-on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A move of a Service has begun, and has not ended
    HalfMoved,
    /// A Service lies in another pool than its evidence names
    Misplaced,
    /// A Service lies in another pool than its evidence names, set there by hand: nothing moves it
    ByHand,
    /// A Service that belongs to a pool has an address of none
    NoPool,
    /// A Service without a pool has an address of one
    Squatter,
    /// A Service would be denied if it were created now
    Denied,
    /// A Service selects Pods for several kinds of nodes
    MixedNodes,
    /// A pool has no free address
    Full,
    /// A pool lies outside of the cluster's Service ranges
    OutsideRanges,
    /// The API server refuses addresses of a ServiceCIDR, which is being deleted or not ready
    UnusableRange,
    /// A pool might hand out the address of default/kubernetes
    OverKubernetes,
    /// A pool might hand out the address that many installers give to the cluster's DNS
    OverDns,
    /// `order: lowest`, which many parallel requests fail with where no ledger is
    LowestOrder,
    /// Several Nodes have a block, or parts of it
    SharedBlock,
    /// A Node has a block of a pool that is not its own
    WrongNodePool,
    /// A Node that belongs to a pool has a block outside of it
    OutsideNodePool,
    /// A Node has a block that is never handed out
    WithheldBlock,
    /// A Node has no block, though a pool is for it
    NoBlock,
    /// A pool of Nodes has no free block
    FullNodePool,
    /// Several Services have an external address
    SharedExternal,
    /// A Service has recorded or claims an external address that the policy refuses it
    RefusedExternal,
    /// A Service uses an address of a pool of external addresses without being given it
    ForeignExternal,
    /// No living node holds the external address of a Service
    NotHeld,
    /// A Service has no external address, though it is to have one
    NoExternal,
    /// The status of a Service shows another external address than it has recorded
    WrongIngress,
    /// A node holds an external address that no Service has
    IdleClaim,
    /// A pool of external addresses has no free address
    FullExternalPool,
}
