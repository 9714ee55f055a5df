//! Pools of pod CIDRs for Nodes.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool_fields::{Cidr, CidrOrAddress, NodeMatch};
use crate::status::PoolStatus;

/// A pool of address blocks, and the Nodes it is for.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "clusterip-policy.io",
    version = "v1alpha1",
    kind = "NodeBlockPool",
    shortname = "nbpool",
    category = "clusterip-policy",
    status = "NodeBlockPoolStatus",
    derive = "PartialEq",
    doc = "NodeBlockPool is a pool of address blocks for Nodes. A new Node gets its pod CIDRs from the first pool that \
           matches it.",
    validation = Rule::new("size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')")
        .message("the name must be a DNS label: at most 63 of a-z, 0-9 and -"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1,
        description = "Pools with a higher priority are tried first."),
    printcolumn(name = "Ranges", type_ = "string", json_path = ".status.rangeSummary",
        description = "The ranges of the pool."),
    printcolumn(name = "For", type_ = "string", json_path = ".status.for",
        description = "The Nodes that the pool is for."),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.blocks.used",
        description = "Blocks that Nodes have."),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.blocks.free",
        description = "Free blocks of the family that has fewer of them."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether the pool is in use as it was written last."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1, description = "Why the pool is in use or not."),
    printcolumn(name = "Checked", type_ = "date", json_path = ".status.checkedAt",
        description = "When a server wrote the status last: at most five minutes ago while a server runs."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeBlockPoolSpec {
    /// Pools with a higher priority are tried first, and pools of the same priority in the order of their names:
    /// -1000000 to 1000000, 0 by default.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// IPv4 and IPv6 ranges. A Node gets one block for each family, in this order.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "set"))]
    pub cidrs: Vec<Cidr>,
    /// The prefix length of a block, by family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// Ranges and addresses. A block that contains one of them is not handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub exclude: Option<Vec<CidrOrAddress>>,
    /// The Nodes that the pool is for. Without it, the pool is for all Nodes.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<NodeMatch>,
}

/// The prefix lengths of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockSize {
    /// The prefix length of IPv4 blocks: 24 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub ipv4: Option<i32>,
    /// The prefix length of IPv6 blocks: 64 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub ipv6: Option<i32>,
}

/// The state of a pool, as `clusterip serve` observed it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBlockPoolStatus {
    #[serde(flatten)]
    pub common: PoolStatus,
    /// The ranges in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 43)), extend("x-kubernetes-list-type" = "atomic"))]
    pub ranges: Vec<String>,
    /// The Nodes that the pool is for, in one line.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub selects: Option<String>,
    /// How many blocks the pool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

/// How many blocks a pool has. A number above 2^63 - 1 is reported as 2^63 - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocks {
    /// Blocks that the pool may hand out, used or free: those of the family that has fewer free ones.
    pub usable: i64,
    /// Blocks that Nodes have, of both families.
    pub used: i64,
    /// Free blocks of the family that has fewer of them.
    pub free: i64,
}
