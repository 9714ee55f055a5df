//! Kubernetes objects as JSON: their identity and scope, and the blocks of Nodes.

use clusterip_api::Kind;
use clusterip_core::label_selector::Labels;
use clusterip_core::nodes::blocks;
use ipnet::IpNet;
use serde_json::Value;

/// The kinds without a namespace among those that are looked up, or that may occur beside them in manifests.
const CLUSTER_SCOPED: [&str; 20] = [
    "APIService",
    "ClusterAdmissionPolicy",
    "ClusterRole",
    "ClusterRoleBinding",
    "CSIDriver",
    "CSINode",
    "CustomResourceDefinition",
    "IngressClass",
    "IPAddress",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PriorityClass",
    "RuntimeClass",
    "ServiceCIDR",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

pub(crate) fn is_namespaced(kind: &str) -> bool {
    !CLUSTER_SCOPED.contains(&kind) && Kind::parse(kind).is_none()
}

pub fn text<'v>(object: &'v Value, path: &[&str]) -> &'v str {
    path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_str).unwrap_or_default()
}

pub fn map(object: &Value, path: &[&str]) -> Labels {
    let found = path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_object);
    let strings = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    found.into_iter().flatten().filter_map(strings).collect()
}

/// The items of the list with this JSON pointer.
pub fn items<'v>(object: &'v Value, path: &str) -> impl Iterator<Item = &'v Value> {
    object.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

pub fn texts<'v>(object: &'v Value, path: &str) -> impl Iterator<Item = &'v str> {
    items(object, path).filter_map(Value::as_str)
}

pub fn api_version(object: &Value) -> &str {
    text(object, &["apiVersion"])
}

pub fn kind(object: &Value) -> &str {
    text(object, &["kind"])
}

pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// The API path of the Service with this namespace and name. Both are DNS labels, so nothing needs to be escaped.
pub fn service_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services/{name}")
}

pub fn blocks_of(node: &Value) -> Vec<IpNet> {
    let first = node.pointer("/spec/podCIDR").and_then(Value::as_str);
    blocks(first.into_iter().chain(texts(node, "/spec/podCIDRs")))
}

pub fn is_node(object: &Value) -> bool {
    kind(object) == "Node" && api_version(object) == "v1"
}

pub fn is_service(object: &Value) -> bool {
    kind(object) == "Service" && api_version(object) == "v1"
}
