//! Kubernetes objects as JSON: identity and scope.

use serde_json::Value;

/// Kinds without a namespace, of those that are looked up or found beside them.
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

/// Whether objects of this kind live in a namespace.
pub fn is_namespaced(kind: &str) -> bool {
    !CLUSTER_SCOPED.contains(&kind)
}

/// The string at a path of fields; empty where there is none.
pub fn text<'v>(object: &'v Value, path: &[&str]) -> &'v str {
    path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_str).unwrap_or_default()
}

/// `apiVersion`
pub fn api_version(object: &Value) -> &str {
    text(object, &["apiVersion"])
}

/// `kind`
pub fn kind(object: &Value) -> &str {
    text(object, &["kind"])
}

/// `metadata.name`
pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// `metadata.namespace`
pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// Whether it is a Service of the core API.
pub fn is_service(object: &Value) -> bool {
    kind(object) == "Service" && api_version(object) == "v1"
}
