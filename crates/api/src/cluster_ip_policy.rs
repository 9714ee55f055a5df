//! The settings that belong to no pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool_fields::Cidr;
use crate::status::{ObjectStatus, conditions};

/// The settings that belong to no pool.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "clusterip-policy.io",
    version = "v1alpha1",
    kind = "ClusterIPPolicy",
    plural = "clusterippolicies",
    shortname = "cippol",
    category = "clusterip-policy",
    status = "ClusterIPPolicyStatus",
    derive = "PartialEq",
    doc = "ClusterIPPolicy has the settings that belong to no pool. The only one is named default. Without it, the \
           defaults of all fields are in use.",
    validation = Rule::new("self.metadata.name == 'default'").message("the name must be default"),
    printcolumn(name = "Pools", type_ = "integer", json_path = ".status.pools",
        description = "Pools in use, of all kinds."),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether the settings are in use as they were written last."),
    printcolumn(name = "Settings", type_ = "string", json_path = ".status.settingsHash", priority = 1,
        description = "The hash of the settings in use."),
    printcolumn(name = "Checked", type_ = "date", json_path = ".status.checkedAt",
        description = "When a server wrote the status last: at most five minutes ago while a server runs."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterIPPolicySpec {
    /// The operating system to assume for a Service if no source names one: linux by default.
    #[serde(rename = "assumeOS")]
    #[schemars(length(min = 1, max = 63))]
    pub assume_os: Option<String>,
    /// The order in which addresses are tried.
    pub order: Option<Order>,
    /// What happens to an address set by hand that lies outside of the pool of the Service: Warn (the default), Allow
    /// or Deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Explicit")]
    pub explicit: Option<Explicit>,
    /// What happens to a Service whose pool has no free address.
    pub when_full: Option<WhenFull>,
    /// What happens to a Service that no pool matches.
    pub unmatched: Option<Unmatched>,
    /// Whether a new Service gets the annotation clusterip-policy/reason, which says why it has its address: false
    /// by default.
    pub annotate_reason: Option<bool>,
    /// The Services of these namespaces are left unchanged: kube-system by default. Their addresses count as used.
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub exempt_namespaces: Option<Vec<String>>,
    /// How the policy learns on which Nodes the Pods of a Service run.
    pub evidence: Option<Evidence>,
    /// The Service ranges of the cluster, the primary one first. Needed only before Kubernetes 1.33, which has no
    /// ServiceCIDR objects.
    #[serde(rename = "serviceCIDRs")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub service_cidrs: Option<Vec<Cidr>>,
    /// Settings about pod CIDRs of Nodes.
    pub nodes: Option<NodeSettings>,
    /// Settings about external addresses.
    pub external: Option<ExternalSettings>,
}

// `kubectl explain` shows the description of the type for a field that is an optional enum, so these descriptions name
// the values and the default. The fields of the type `Explicit` have descriptions of their own: they are declared as if
// they were not optional.

/// The order in which addresses are tried: Spread (the default) or Lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum Order {
    /// Begin at a position that depends on the Service.
    Spread,
    /// Begin at the lowest address.
    Lowest,
}

/// What happens to an address or a pod CIDR that was set by hand and is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum Explicit {
    /// It is accepted without a check.
    Allow,
    /// It is accepted with a warning.
    Warn,
    /// The request is denied.
    Deny,
}

/// What happens to a Service whose pool has no free address: Deny (the default), or Unmanaged, which lets Kubernetes
/// pick an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum WhenFull {
    /// The Service is denied.
    Deny,
    /// Kubernetes picks an address, and the client gets a warning.
    Unmanaged,
}

/// What happens to a Service that no pool matches: Unmanaged (the default) lets Kubernetes pick any address, also one
/// of a pool. Outside (the default if explicit is Deny) gives it an address that no pool contains. Deny denies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub enum Unmatched {
    /// Kubernetes picks any address, also one of a pool, and the client gets a warning.
    Unmanaged,
    /// It gets an address of the Service ranges that no pool contains.
    Outside,
    /// The Service is denied.
    Deny,
}

/// How the policy learns on which Nodes the Pods of a Service run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// The kinds of workloads to look up, in this order. group/version/Kind names a custom resource that has its Pod
    /// template at spec.template.
    #[schemars(length(max = 32), inner(length(min = 1, max = 320)), extend("x-kubernetes-list-type" = "atomic"))]
    pub kinds: Option<Vec<String>>,
}

/// Settings about pod CIDRs of Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSettings {
    /// What happens to a pod CIDR that clusterip did not assign and that is wrong: Warn (the default), Allow or Deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Explicit")]
    pub explicit: Option<Explicit>,
}

/// Settings about external addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalSettings {
    /// Services of type LoadBalancer that have this class get an address: clusterip-policy/external by default.
    #[schemars(length(min = 1, max = 317))]
    pub load_balancer_class: Option<String>,
    /// Whether Services of type LoadBalancer without a class get an address too: false by default.
    pub default: Option<bool>,
}

/// The state of the settings, as `clusterip serve` observed it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterIPPolicyStatus {
    #[serde(flatten)]
    pub object: ObjectStatus,
    /// The hash of the settings in use: of this object and of all pools.
    pub settings_hash: Option<String>,
    /// How many pools of all kinds are in use.
    pub pools: Option<i64>,
    /// Ready is true if the settings are in use as they were written last. AddressesInPools is true if the address of
    /// every Service lies in a pool. HasWarnings is true if the settings are probably not intended as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}
