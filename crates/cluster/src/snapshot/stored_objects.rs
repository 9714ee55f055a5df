//! What is kept of each object: here of Nodes, Namespaces, RuntimeClasses and EndpointSlices.

use std::sync::Arc;

use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::NamespaceMeta;
use clusterip_core::workload::TemplateAt;
use ipnet::IpNet;
use serde_json::Value;

use super::service_ranges::ServiceCidr;
use super::shared;
use super::stored_service::StoredService;
use super::workloads::StoredWorkload;
use crate::kinds::Kind;
use crate::object::{self, blocks_of, items, map, name, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoredKind {
    Service,
    EndpointSlice,
    Namespace,
    Node,
    RuntimeClass,
    ServiceCidr,
    IpAddress,
    /// The place of the kind in the list of the kinds of workloads.
    Workload(usize),
}

impl StoredKind {
    /// A kind with a meaning of its own.
    pub(super) fn known(api_version: &str, kind: &str) -> Option<Self> {
        Some(match (api_version, kind) {
            ("v1", "Service") => Self::Service,
            ("discovery.k8s.io/v1", "EndpointSlice") => Self::EndpointSlice,
            ("v1", "Namespace") => Self::Namespace,
            ("v1", "Node") => Self::Node,
            ("node.k8s.io/v1", "RuntimeClass") => Self::RuntimeClass,
            ("networking.k8s.io/v1", "ServiceCIDR") => Self::ServiceCidr,
            ("networking.k8s.io/v1", "IPAddress") => Self::IpAddress,
            _ => return None,
        })
    }

    /// The namespace of an object of this kind. A manifest of a Node may name one, too.
    pub(super) fn scope(self, namespace: &str) -> &str {
        match self {
            Self::Service | Self::EndpointSlice | Self::Workload(_) => namespace,
            Self::Namespace | Self::Node | Self::RuntimeClass | Self::ServiceCidr | Self::IpAddress => "",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    Service(Arc<StoredService>),
    Endpoints(Arc<StoredEndpoints>),
    /// The labels and annotations of a Namespace, or the mistake in them.
    Namespace(Arc<Result<NamespaceMeta, TypeMismatch>>),
    Node(Arc<StoredNode>),
    /// The node selector of a RuntimeClass, or the mistake in it.
    RuntimeClass(Arc<Result<Labels, TypeMismatch>>),
    ServiceCidr(Arc<ServiceCidr>),
    IpAddress,
    Workload(Arc<StoredWorkload>),
}

impl Stored {
    fn read(object: &Value) -> Self {
        let (api_version, kind) = (object::api_version(object), object::kind(object));
        match StoredKind::known(api_version, kind) {
            Some(StoredKind::Service) => Self::Service(Arc::new(StoredService::read(object))),
            Some(StoredKind::EndpointSlice) => Self::Endpoints(Arc::new(StoredEndpoints::read(object))),
            Some(StoredKind::Namespace) => Self::Namespace(Arc::new(namespace(object))),
            Some(StoredKind::Node) => Self::Node(Arc::new(StoredNode::read(object))),
            Some(StoredKind::RuntimeClass) => Self::RuntimeClass(Arc::new(runtime_class_nodes(object))),
            Some(StoredKind::ServiceCidr) => Self::ServiceCidr(Arc::new(ServiceCidr::read(object))),
            Some(StoredKind::IpAddress) => Self::IpAddress,
            Some(StoredKind::Workload(_)) | None => {
                Self::Workload(Arc::new(StoredWorkload::read(TemplateAt::of(api_version, kind), object)))
            }
        }
    }

    pub(super) fn service(&self) -> Option<&Arc<StoredService>> {
        if let Self::Service(service) = self { Some(service) } else { None }
    }

    pub(super) fn node(&self) -> Option<&Arc<StoredNode>> {
        if let Self::Node(node) = self { Some(node) } else { None }
    }

    /// About how many bytes of memory the object takes, with its entries in the indexes; 0 for the objects of
    /// administrators.
    pub(super) fn bytes(&self, name: &str) -> usize {
        match self {
            Self::Service(service) => service.bytes(),
            Self::Workload(workload) => workload.bytes(name),
            Self::Endpoints(endpoints) => endpoints.bytes(name),
            Self::Namespace(_) | Self::Node(_) | Self::RuntimeClass(_) | Self::ServiceCidr(_) | Self::IpAddress => 0,
        }
    }
}

/// An object that is read, and yet to be added to a snapshot.
#[derive(Clone)]
pub struct ReadObject {
    pub kind: Arc<Kind>,
    pub namespace: String,
    pub name: String,
    pub(super) stored: Stored,
}

impl ReadObject {
    pub fn new(object: &Value) -> Self {
        Self {
            kind: shared::kind((object::api_version(object).to_owned(), object::kind(object).to_owned())),
            namespace: object::namespace(object).to_owned(),
            name: object::name(object).to_owned(),
            stored: Stored::read(object),
        }
    }

    /// As [`Self::new`], for the Service `before` after its manifest has been applied: its addresses keep their owners.
    pub fn updated(service: &Value, before: &StoredService) -> Self {
        let mut after = StoredService::read(service);
        after.by_hand = before.by_hand;
        Self { stored: Stored::Service(Arc::new(after)), ..Self::new(service) }
    }

    /// The same object, if it is this Service now.
    pub fn with(&self, service: Arc<StoredService>) -> Self {
        Self { stored: Stored::Service(service), ..self.clone() }
    }

    pub fn service(&self) -> Option<&Arc<StoredService>> {
        self.stored.service()
    }

    /// Forgets all but the kind, the namespace and the name.
    pub fn forget(&mut self) {
        // The variant without content.
        self.stored = Stored::IpAddress;
    }
}

/// The label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The fields of a Node that decisions and assignments read.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredNode {
    pub name: String,
    pub labels: Labels,
    pub blocks: Vec<IpNet>,
    pub is_ready: bool,
    pub(super) mistake: Option<TypeMismatch>,
}

impl StoredNode {
    pub fn read(node: &Value) -> Self {
        let conditions = items(node, "/status/conditions");
        let mut ready = conditions.filter(|condition| text(condition, &["type"]) == "Ready");
        Self {
            name: name(node).to_owned(),
            labels: map(node, &["metadata", "labels"]),
            blocks: blocks_of(node),
            is_ready: ready.any(|condition| text(condition, &["status"]) == "True"),
            mistake: strings(node, "metadata", "labels").err(),
        }
    }
}

pub(crate) fn namespace(object: &Value) -> Result<NamespaceMeta, TypeMismatch> {
    let labels = strings(object, "metadata", "labels")?;
    Ok(NamespaceMeta { labels, annotations: strings(object, "metadata", "annotations")?.into() })
}

pub(super) fn runtime_class_nodes(object: &Value) -> Result<Labels, TypeMismatch> {
    strings(object, "scheduling", "nodeSelector")
}

fn strings(object: &Value, outer: &str, inner: &str) -> Result<Labels, TypeMismatch> {
    Located::new(object, "").get(outer)?.map_or(Ok(Labels::new()), |at| at.map_of(inner))
}

/// The endpoints of an EndpointSlice that get requests.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEndpoints {
    /// The name of the Service; empty if the EndpointSlice names none.
    pub service: Box<str>,
    /// The name of the Node of each endpoint; empty if it has none.
    pub nodes: Box<[Box<str>]>,
}

impl StoredEndpoints {
    pub fn read(slice: &Value) -> Self {
        let endpoints = slice.get("endpoints").and_then(Value::as_array).into_iter().flatten();
        let nodes = endpoints.filter(|endpoint| answers(endpoint)).map(|endpoint| text(endpoint, &["nodeName"]).into());
        Self { service: text(slice, &["metadata", "labels", SERVICE_NAME_LABEL]).into(), nodes: nodes.collect() }
    }

    /// With the entry of the EndpointSlice in the indexes.
    pub(super) fn bytes(&self, name: &str) -> usize {
        const ENTRY: usize = 96;
        const TEXT: usize = 32;
        let nodes = self.nodes.iter().map(|node| node.len() + TEXT).sum::<usize>();
        ENTRY + 2 * (name.len() + self.service.len()) + nodes
    }
}

/// Whether an endpoint gets requests. Without the condition `ready` it is ready, and without `serving` it serves as long
/// as it is ready. If no endpoint is ready, kube-proxy sends requests to those that serve while they end.
fn answers(endpoint: &Value) -> bool {
    let condition = |name: &str| endpoint.get("conditions").and_then(|conditions| conditions.get(name)?.as_bool());
    let is_ending = condition("terminating") == Some(true);
    condition("ready").unwrap_or(true) || condition("serving").unwrap_or(is_ending)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoint_answers_by_its_conditions() {
        let ends = |more: Value| {
            let mut conditions = json!({"ready": false, "terminating": true});
            json_patch::merge(&mut conditions, &more);
            conditions
        };
        for (name, conditions, answers) in [
            ("no conditions", Value::Null, true),
            ("unknown", json!({"ready": null, "serving": null}), true),
            ("ready", json!({"ready": true}), true),
            ("not ready", json!({"ready": false}), false),
            ("not ready, and unknown", json!({"ready": false, "serving": null}), false),
            ("ends, and serves", ends(json!({"serving": true})), true),
            ("ends, and may serve", ends(json!({})), true),
            ("ends, and serves no more", ends(json!({"serving": false})), false),
        ] {
            assert_eq!(super::answers(&json!({ "conditions": conditions })), answers, "{name}");
        }
    }
}
