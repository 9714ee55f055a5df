//! The journal of a move: everything that is needed to finish it.
//!
//! [`records`](super::records) keeps it in the server's namespace, where no tenant can write. Nothing that
//! stands on a Service is part of it: a Service may be written by anybody who may edit its namespace.

use std::net::IpAddr;

use clusterip_core::service::MOVING_ANNOTATION;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How the old address is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Way {
    /// The Service is `type: ExternalName` for a moment, and has no address at all.
    ExternalName,
    /// It is single-stack for a moment: only its second address moves, the first is never away.
    SingleStack,
}

/// What a move remembers. It is written once, before the move begins, and never changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The UID of the Service: the journal is about no other Service of that name.
    pub uid: String,
    /// The version of the Service that the release is made of. As long as the Service has it, a release that got no
    /// answer may still be carried out.
    pub resource_version: String,
    /// When the move was recorded, in seconds since 1970: a status is not restored long after that.
    #[serde(default)]
    pub recorded_at: i64,
    /// How the old address is released.
    pub way: Way,
    /// The old addresses, primary first.
    pub from: Vec<IpAddr>,
    /// The new addresses, primary first.
    pub to: Vec<IpAddr>,
    /// Why the Service is moved.
    #[serde(default)]
    pub why: String,
    /// The original `spec`.
    pub spec: Map<String, Value>,
    /// The `spec` that the API server makes of the original when the address is released. What differs from it
    /// later was changed by somebody else.
    pub released: Map<String, Value>,
    /// The original `metadata.managedFields`.
    #[serde(default)]
    pub managed_fields: Vec<Map<String, Value>>,
    /// The value of [`SOURCE_RANGES_ANNOTATION`], where it had to be taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<String>,
    /// `status.loadBalancer`, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<Map<String, Value>>,
}

/// The annotation that the API server allows on no other type than `LoadBalancer`.
pub const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// The value of the annotation [`MOVING_ANNOTATION`], which marks a Service on the move. It informs people, and
/// webhook configurations recognise the mover's requests by it. No decision depends on its value.
pub fn marker(from: &[IpAddr], to: &[IpAddr]) -> String {
    json!({"from": from, "to": to}).to_string()
}

/// Whether a Service carries the annotation [`MOVING_ANNOTATION`].
pub fn is_marked(service: &Value) -> bool {
    service.pointer("/metadata/annotations").and_then(|all| all.get(MOVING_ANNOTATION)).is_some()
}
