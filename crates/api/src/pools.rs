//! The pools of Services, of external addresses and of blocks for Nodes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool_fields::{
    AddressRange, AddressRangeOrAddress, Cidr, CidrOrAddress, ExternalMatch, Fence, NodeMatch, ServiceMatch, selector,
};
use crate::status::{PoolAddresses, PoolStatus};

/// A pool of ClusterIPs, and the Services it is for.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "clusterip-policy.io",
    version = "v1alpha1",
    kind = "ServicePool",
    shortname = "spool",
    category = "clusterip-policy",
    status = "ServicePoolStatus",
    derive = "PartialEq",
    doc = "ServicePool is a pool of ClusterIPs. A new Service gets an address of the first pool that matches it.",
    validation = Rule::new("size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')")
        .message("the name must be a DNS label: at most 63 of a-z, 0-9 and -"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1,
        description = "Pools with a higher priority are tried first."),
    printcolumn(name = "Ranges", type_ = "string", json_path = ".status.rangeSummary",
        description = "The ranges of the pool."),
    printcolumn(name = "For", type_ = "string", json_path = ".status.for",
        description = "The Services that the pool is for."),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.addresses.used",
        description = "Addresses that Services have."),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.addresses.free",
        description = "Free addresses of the family that has fewer of them."),
    printcolumn(name = "Misplaced", type_ = "integer", json_path = ".status.addresses.misplaced",
        description = "Addresses of Services that belong to another pool."),
    printcolumn(name = "Fence", type_ = "string", json_path = ".spec.fence", priority = 1,
        description = "What the API server does about a Service that the pool does not admit."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether the pool is in use as it was written last."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1, description = "Why the pool is in use or not."),
    printcolumn(name = "Checked", type_ = "date", json_path = ".status.checkedAt",
        description = "When a server wrote the status last: at most five minutes ago while a server runs."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
// Two ranges overlap if one contains the first address of the other. `containsCIDR` of Kubernetes 1.31 compares the
// whole address and so finds almost no range.
#[x_kube(
    validation = Rule::new("has(self.cidrs) != has(self.serviceCIDRSelector)")
        .message("give either cidrs or serviceCIDRSelector"),
    validation = Rule::new(
        "!has(self.cidrs) || !has(self.exclude) || self.exclude.all(e, self.cidrs.exists(c, \
         isCIDR(c) && (isIP(e) ? cidr(c).containsIP(e) : isCIDR(e) && \
         (cidr(c).containsIP(cidr(e).ip()) || cidr(e).containsIP(cidr(c).ip())))))")
        .message("each entry of exclude must lie in a range of cidrs")
)]
pub struct ServicePoolSpec {
    /// Pools with a higher priority are tried first, and pools of the same priority in the order of their names:
    /// -1000000 to 1000000, 0 by default.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// IPv4 and IPv6 ranges. A Service gets one address for each of its families.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "set"))]
    pub cidrs: Option<Vec<Cidr>>,
    /// Instead of cidrs: the ranges are those of the ServiceCIDR objects with these labels.
    #[serde(default, rename = "serviceCIDRSelector", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub service_cidr_selector: Option<LabelSelector>,
    /// How many addresses, counted from the first address of each range, are kept for addresses set by hand: 0 by
    /// default.
    #[schemars(range(min = 0))]
    pub reserved: Option<i64>,
    /// Ranges and addresses that are never handed out.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub exclude: Option<Vec<CidrOrAddress>>,
    /// Whether the static band of each range, the first addresses that Kubernetes avoids itself (KEP-3070), is used
    /// after all other addresses: false by default.
    pub bands: Option<bool>,
    /// The Services that the pool is for. Without it, the pool is for all Services.
    #[serde(rename = "match")]
    pub matches: Option<ServiceMatch>,
    /// What the API server does about a Service that gets an address of the pool although namespaces,
    /// namespaceSelector or serviceSelector of the pool do not match it, or although the address is reserved for
    /// another Service: Allow (the default), Warn or Deny.
    #[serde(default)]
    pub fence: Fence,
    /// Addresses that are kept for one Service, whether that Service exists or not.
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["address"])
    )]
    pub reservations: Option<Vec<Reservation>>,
}

/// An address that is kept for one Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// The address. It must lie in a range of the pool.
    #[schemars(
        length(max = 39),
        extend("x-kubernetes-validations" = [{"rule": "isIP(self)", "message": "must be an IP address"}])
    )]
    pub address: String,
    /// The namespace of the Service.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// The name of the Service.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// The state of a pool, as `clusterip serve` observed it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePoolStatus {
    #[serde(flatten)]
    pub common: PoolStatus,
    /// The ranges in use: those of cidrs, or of the selected ServiceCIDR objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 43)), extend("x-kubernetes-list-type" = "atomic"))]
    pub ranges: Vec<String>,
    /// The Services that the pool is for, in one line.
    #[serde(rename = "for")]
    pub selects: Option<String>,
    /// How many addresses the pool has.
    pub addresses: Option<PoolAddresses>,
    /// Who has the addresses of the reservations in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub reservations: Vec<ReservationStatus>,
}

/// Who has the address of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// The address.
    pub address: String,
    /// Owner if the Service of the reservation has the address, Other if another Service has it, otherwise Nobody.
    pub holder: ReservationHolder,
    /// Since when this holder has been observed.
    pub since: Time,
}

/// Who has an address that is kept for one Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum ReservationHolder {
    /// The Service that the address is kept for.
    Owner,
    /// No Service.
    Nobody,
    /// Another Service.
    Other,
}

/// A pool of external addresses, the Services it is for, and the Nodes that may hold its addresses.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "clusterip-policy.io",
    version = "v1alpha1",
    kind = "ExternalPool",
    shortname = "epool",
    category = "clusterip-policy",
    status = "ExternalPoolStatus",
    derive = "PartialEq",
    doc = "ExternalPool is a pool of addresses that clients outside of the cluster can reach. A Service of type \
           LoadBalancer gets an address of the first pool that matches it.",
    validation = Rule::new("size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')")
        .message("the name must be a DNS label: at most 63 of a-z, 0-9 and -"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority", priority = 1,
        description = "Pools with a higher priority are tried first."),
    printcolumn(name = "Ranges", type_ = "string", json_path = ".status.rangeSummary",
        description = "The ranges of the pool."),
    printcolumn(name = "For", type_ = "string", json_path = ".status.for",
        description = "The Services that the pool is for."),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.addresses.used",
        description = "Addresses that Services have."),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.addresses.free",
        description = "Free addresses of the family that has fewer of them."),
    printcolumn(name = "Fence", type_ = "string", json_path = ".spec.fence", priority = 1,
        description = "What the API server does about a Service that the pool does not admit."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether the pool is in use as it was written last."),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1, description = "Why the pool is in use or not."),
    printcolumn(name = "Checked", type_ = "date", json_path = ".status.checkedAt",
        description = "When a server wrote the status last: at most five minutes ago while a server runs."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPoolSpec {
    /// Pools with a higher priority are tried first, and pools of the same priority in the order of their names:
    /// -1000000 to 1000000, 0 by default.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// IPv4 and IPv6 ranges: CIDRs, or ranges such as 10.0.9.10-10.0.9.40. A Service gets one address for each of its
    /// families.
    #[schemars(length(min = 1, max = 32), extend("x-kubernetes-list-type" = "set"))]
    pub cidrs: Vec<AddressRange>,
    /// Ranges and addresses that no Service may have.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub exclude: Option<Vec<AddressRangeOrAddress>>,
    /// The Services that the pool is for. Without it, the pool is for all Services.
    #[serde(rename = "match")]
    pub matches: Option<ExternalMatch>,
    /// The Nodes that may hold addresses of the pool. Without it, every Node may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector")]
    pub nodes: Option<LabelSelector>,
    /// What the API server does about a Service that claims an address of the pool although the pool does not match it:
    /// Allow (the default), Warn or Deny.
    #[serde(default)]
    pub fence: Fence,
}

/// The state of a pool, as `clusterip serve` observed it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPoolStatus {
    #[serde(flatten)]
    pub common: PoolStatus,
    /// The ranges in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 79)), extend("x-kubernetes-list-type" = "atomic"))]
    pub ranges: Vec<String>,
    /// The Services that the pool is for, in one line.
    #[serde(rename = "for")]
    pub selects: Option<String>,
    /// How many addresses the pool has.
    pub addresses: Option<PoolAddresses>,
}

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
    pub block_size: Option<BlockSize>,
    /// Ranges and addresses. A block that contains one of them is not handed out.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub exclude: Option<Vec<CidrOrAddress>>,
    /// The Nodes that the pool is for. Without it, the pool is for all Nodes.
    #[serde(rename = "match")]
    pub matches: Option<NodeMatch>,
}

/// The prefix lengths of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockSize {
    /// The prefix length of IPv4 blocks: 24 by default.
    #[schemars(range(min = 1, max = 32))]
    pub ipv4: Option<i32>,
    /// The prefix length of IPv6 blocks: 64 by default.
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
    #[serde(rename = "for")]
    pub selects: Option<String>,
    /// How many blocks the pool has.
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
