//! The problems that an audit finds.

use std::net::IpAddr;

use clap::ValueEnum;
use ipnet::IpNet;
use serde::Serialize;

/// A problem that an audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The kind of problem.
    pub kind: Kind,
    /// Namespace of the Service with the problem; `null` if the problem is that of a pool, a Node or the settings.
    pub namespace: Option<String>,
    /// Name of the Service with the problem.
    pub name: Option<String>,
    /// Name of the Node with the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Name of the MutatingWebhookConfiguration with the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_configuration: Option<String>,
    /// The pool object or ClusterIPPolicy with the problem, such as `ServicePool windows`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The addresses concerned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The blocks concerned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<IpNet>,
    /// The pool with the problem, or the pool that the Service or Node belongs to.
    pub pool: Option<String>,
    /// The evidence about the Service's nodes, in words.
    pub evidence: Option<String>,
    /// The problem in words, with the Service, Node or pool, the address, the range and the evidence.
    pub message: String,
    /// The remedy, in words that also fit other findings of this kind.
    pub remedy: String,
}

impl Finding {
    /// A finding that names no object.
    pub fn new(kind: Kind, message: String, remedy: &str) -> Self {
        Self {
            kind,
            namespace: None,
            name: None,
            node: None,
            webhook_configuration: None,
            object: None,
            addresses: Vec::new(),
            blocks: Vec::new(),
            pool: None,
            evidence: None,
            message,
            remedy: remedy.to_owned(),
        }
    }
}

/// The kinds of findings: first those of Services and their pools, then those of Nodes, then those of external
/// addresses, each group with the worst first. The names are the values of `--fail-on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A move of a Service has begun and has not ended
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
}
