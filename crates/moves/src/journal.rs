//! The journal of a move: all data that is needed to finish it.
//!
//! Journals are stored in the server's namespace, where tenants can't write. A journal never relies on what a Service
//! itself says about its move, because each user who may edit a namespace can write its Services.

use std::net::IpAddr;

use clusterip_core::annotations::MOVING_NAME;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReleaseMethod {
    /// The Service becomes `type: ExternalName` for a moment, and has no address then.
    ExternalName,
    /// The Service becomes single-stack for a moment. Only its second address moves, and the first is never released.
    SingleStack,
}

/// All that a leader needs to finish a move. It is written once, before the move begins, and never changed. Addresses are in the order
/// of the Service, primary first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    pub namespace: String,
    pub name: String,
    /// The UID of the Service. The journal does not apply to another Service of the same name.
    pub uid: String,
    /// The `resourceVersion` from which the release is made. As long as the Service still has it, a release that got
    /// no answer may still be carried out.
    pub resource_version: String,
    /// When the move was recorded, in seconds since 1970. A status is not restored long after that.
    #[serde(default)]
    pub recorded_at: i64,
    #[serde(rename = "way")]
    pub release_method: ReleaseMethod,
    pub from: Vec<IpAddr>,
    pub to: Vec<IpAddr>,
    #[serde(default)]
    pub why: String,
    /// The reason for the new addresses, for the annotation of the Service. `None` if the settings do not ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub spec: Map<String, Value>,
    /// The `spec` that the API server makes of the original when the address is released. A field that differs from it
    /// later was changed by another client.
    pub released: Map<String, Value>,
    #[serde(default)]
    pub managed_fields: Vec<Map<String, Value>>,
    /// The value of `SOURCE_RANGES_ANNOTATION`, if the release has to remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<String>,
    /// The original `status.loadBalancer`, if it was not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<Map<String, Value>>,
    /// The plan of a seamless move; `None` for a plain one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seamless: Option<Plan>,
}

impl Journal {
    /// The external name of the Service while it has no address.
    pub fn external_name(&self) -> &str {
        self.seamless.as_ref().map_or(MOVING_NAME, |plan| &plan.external_name)
    }
}

/// What a journal contains for a seamless move: the names of its temporary Services, and when they are deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub new: String,
    pub old: String,
    pub trigger: String,
    /// The namespace of `trigger`.
    pub server_namespace: String,
    pub external_name: String,
    /// For how many seconds after swap 1 `old` stays.
    pub grace: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeamlessOptions {
    /// For how many seconds after the first swap the old address answers. DNS caches must forget it in this time.
    pub grace_period: u32,
    /// The domain of the cluster in DNS, such as `cluster.local`.
    pub cluster_domain: String,
}

/// The annotation that the API server allows only on Services of type `LoadBalancer`.
pub(crate) const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
