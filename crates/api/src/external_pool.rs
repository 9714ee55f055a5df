//! Pools of external addresses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool_fields::{AddressRange, AddressRangeOrAddress, ExternalMatch, Fence, selector};
use crate::status::{Addresses, PoolStatus};

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub exclude: Option<Vec<AddressRangeOrAddress>>,
    /// The Services that the pool is for. Without it, the pool is for all Services.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
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
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub selects: Option<String>,
    /// How many addresses the pool has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Addresses>,
}
