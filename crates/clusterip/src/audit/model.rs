//! The result of an audit. `-o json` prints this, and the map is drawn from it. docs/audit.md describes the fields.

use std::net::IpAddr;

use clap::ValueEnum;
use clusterip_api::ReservationHolder;
use clusterip_core::address::{WithheldSpan, Withholding};
use clusterip_core::service_key::ServiceKey;
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Serialize, Serializer};

use crate::usage::{self, Usage};

/// The audit of a cluster at one moment. Pools and their ranges are in the order of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    pub pools: Vec<Pool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// By kind, then those of pools in the order of the settings, then by namespace and name.
    pub findings: Vec<Finding>,
    pub services: usize,
    pub notes: Vec<String>,
}

/// A pool of Services, or with other ranges a pool of Nodes or of external addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool<R = Range> {
    pub name: String,
    pub ranges: Vec<R>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    pub cidr: IpNet,
    #[serde(serialize_with = "usage::services_json")]
    pub counts: Usage,
    pub withheld: Vec<Span>,
    pub addresses: Vec<Address>,
}

/// Consecutive addresses that are not assigned to every Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span<A = IpAddr, W = Withholding> {
    pub first: A,
    pub last: A,
    pub why: W,
}

pub type BlockSpan = Span<IpNet, WithheldBlock>;

impl From<WithheldSpan> for Span {
    fn from(WithheldSpan { span, why }: WithheldSpan) -> Self {
        Self { first: span.first(), last: span.last(), why }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    pub address: IpAddr,
    pub state: State,
    pub namespace: String,
    pub name: String,
    pub pool: Option<String>,
    pub evidence: Option<String>,
    pub by_hand: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    pub address: IpAddr,
    pub pool: String,
    pub namespace: String,
    pub name: String,
    #[serde(serialize_with = "reservation_state")]
    pub state: ReservationHolder,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

fn reservation_state<S: Serializer>(holder: &ReservationHolder, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match holder {
        ReservationHolder::Owner => "held",
        ReservationHolder::Nobody => "free",
        ReservationHolder::Other => "taken",
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    Used,
    /// By a Service or Node that belongs elsewhere, or that may not have it.
    Misplaced,
    InFlight,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    pub pools: Vec<Pool<BlockRange>>,
    pub count: usize,
    pub with_blocks: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRange {
    pub cidr: IpNet,
    pub block_length: u8,
    #[serde(serialize_with = "usage::nodes_json")]
    pub counts: Usage,
    pub withheld: Vec<BlockSpan>,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WithheldBlock {
    ServiceRange,
    ServicePool,
    Excluded,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    pub block: IpNet,
    pub state: State,
    pub node: String,
    pub pool: Option<String>,
    pub evidence: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct External {
    pub pools: Vec<Pool<ExternalRange>>,
    pub count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalRange {
    pub range: String,
    pub first: IpAddr,
    pub last: IpAddr,
    pub around: IpNet,
    #[serde(serialize_with = "usage::external_json")]
    pub counts: Usage,
    pub withheld: Vec<Span>,
    pub addresses: Vec<ExternalAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalAddress {
    pub address: IpAddr,
    pub state: State,
    pub services: Vec<ExternalUse>,
    pub holder: Option<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ExternalUse {
    pub namespace: String,
    pub name: String,
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    pub node: String,
    pub renewed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub kind: Kind,
    pub namespace: Option<String>,
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_configuration: Option<String>,
    /// The pool object or ClusterIPPolicy with the problem, such as `ServicePool windows`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<IpNet>,
    pub pool: Option<String>,
    pub evidence: Option<String>,
    /// The problem in words, with the Service, Node or pool, the address, the range and the evidence.
    pub message: String,
    /// The remedy, in words that also fit other findings of this kind.
    pub remedy: String,
}

impl Finding {
    pub fn new(kind: Kind, message: String, remedy: &str) -> Self {
        Self { kind, message, remedy: remedy.to_owned(), ..Self::default() }
    }

    pub(super) fn of_service(kind: Kind, id: &ServiceKey, message: &str, remedy: &str) -> Self {
        let (namespace, name) = (Some(id.namespace.clone()), Some(id.name.clone()));
        Self { namespace, name, ..Self::new(kind, format!("Service {id}: {message}"), remedy) }
    }

    pub(super) fn of_node(kind: Kind, node: &str, message: &str, remedy: &str) -> Self {
        Self { node: Some(node.to_owned()), ..Self::new(kind, format!("Node {node}: {message}"), remedy) }
    }

    pub(crate) fn of_pool(kind: Kind, pool: &str, message: String, remedy: &str) -> Self {
        Self { pool: Some(pool.to_owned()), ..Self::new(kind, message, remedy) }
    }
}

/// The kinds of findings: first those of Services and their pools, then those of Nodes, then those of external
/// addresses, each group with the worst first. The names are the values of `--fail-on`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A move of a Service has begun and has not ended
    #[default]
    HalfMoved,
    /// A Service lies in another pool than its evidence names
    Misplaced,
    /// A Service lies in another pool than its evidence names. Its address was set by hand: nothing moves it
    ByHand,
    /// A Service that belongs to a pool has an address of no pool
    NoPool,
    /// A Service that no pool matches has an address of a pool
    Unmatched,
    /// A Service would be denied if it were created now
    Denied,
    /// A Service selects Pods for several kinds of nodes
    MixedNodes,
    /// A pool object or the ClusterIPPolicy is not in use as it was written last
    NotReady,
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
    /// `order: lowest` without a ledger: parallel requests pick the same address
    LowestOrder,
    /// The webhook of another program also chooses addresses of Services
    OtherWebhook,
    /// Several Nodes have the same block, or parts of it
    SharedBlock,
    /// A Node has a block of a pool that is not its own
    WrongNodePool,
    /// A Node that belongs to a pool has a block outside of it
    OutsideNodePool,
    /// A Node has a block that is never handed out
    WithheldBlock,
    /// A Node has no block, although it belongs to a pool
    NoBlock,
    /// A pool of Nodes has no free block
    FullNodePool,
    /// Several Services have the same external address
    SharedExternal,
    /// A Service has recorded or claims an external address that the policy refuses
    RefusedExternal,
    /// A Service uses an address of an external pool that it was not given
    ForeignExternal,
    /// No living node holds the external address of a Service
    NotHeld,
    /// A Service has no external address, but should have one
    NoExternal,
    /// The status of a Service shows another external address than it has recorded
    WrongIngress,
    /// A node holds an external address that no Service has
    IdleClaim,
    /// A pool of external addresses has no free address
    FullExternalPool,
    /// The program that announces the addresses of a pool lacks them, or chooses them itself
    AnnouncerPool,
}
