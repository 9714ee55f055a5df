//! Admission requests about the Service `shop/web`, and the expected answers, as JSON.

use clusterip_core::validate;
use serde_json::{Value, json};

use super::FakeCluster;

/// The Service `shop/web` with this `spec`.
pub fn service(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
}

/// The Service `shop/web` with these annotations, selecting `app=web`.
pub fn annotated(annotations: &[(&str, &str)]) -> Value {
    let mut object = selecting();
    object["metadata"]["annotations"] = annotations.iter().copied().collect();
    object
}

/// The Service `shop/web` that selects Pods with the label `app=web`.
pub fn selecting() -> Value {
    service(json!({"selector": {"app": "web"}}))
}

/// `object` with these fields of its spec.
pub fn with_spec(mut object: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    object["spec"].as_object_mut().unwrap().extend(fields);
    object
}

/// An AdmissionRequest about `object`; `old` is null for a creation.
pub fn request(operation: &str, object: Value, old: Value) -> Value {
    let field = |name: &str| [&object, &old].into_iter().find_map(|object| object["metadata"][name].as_str());
    json!({
        "uid": "7f3c0e1a-uid",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "operation": operation,
        "name": field("name"),
        "namespace": field("namespace"),
        "object": object,
        "oldObject": old,
    })
}

/// The creation of `object`.
pub fn created(object: Value) -> Value {
    request("CREATE", object, Value::Null)
}

/// The update from `old` to `object`.
pub fn updated(old: Value, object: Value) -> Value {
    request("UPDATE", object, old)
}

/// The whole answer to `request`.
pub fn answer_of(request: &Value, settings: &Value, cluster: &FakeCluster) -> Value {
    let payload = serde_json::to_vec(&json!({"request": request, "settings": settings})).unwrap();
    serde_json::to_value(validate(&payload, cluster)).unwrap()
}

/// The whole answer to the creation of `object`.
pub fn answer(object: &Value, settings: &Value, cluster: &FakeCluster) -> Value {
    answer_of(&created(object.clone()), settings, cluster)
}

/// The pool and the evidence of an answer: its source and its labels.
pub type Why<'a> = (Option<&'a str>, Option<(&'a str, &'a [(&'a str, &'a str)])>);

/// Neither pool nor evidence was needed.
pub const UNASKED: Why<'static> = (None, None);

/// The pool of this name, chosen by the operating system from `source`.
pub fn by_os<'a>(pool: &'a str, source: &'a str, os: &'a [(&'a str, &'a str)]) -> Why<'a> {
    (Some(pool), Some((source, os)))
}

/// The pool of this name, chosen by conditions that do not concern nodes.
pub fn by<'a>(pool: &'a str, source: &'a str) -> Why<'a> {
    (Some(pool), Some((source, &[])))
}

pub const WINDOWS: &[(&str, &str)] = &[("kubernetes.io/os", "windows")];
pub const LINUX: &[(&str, &str)] = &[("kubernetes.io/os", "linux")];
/// The pool and the evidence if no source names an operating system.
pub const ASSUMED: Why<'static> = (Some("linux"), Some(("setting assumeOS", LINUX)));

fn audit(decision: &str, (pool, evidence): Why<'_>, reason: Option<&str>) -> Value {
    let mut audit = json!({ "decision": decision });
    if let Some(pool) = pool {
        audit["pool"] = pool.into();
    }
    if let Some((source, labels)) = evidence {
        // Written out, because the order of the keys is a part of the answer.
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|&(key, value)| (key.to_owned(), value.into())).collect();
        audit["evidence"] = format!(r#"{{"source":{},"labels":{}}}"#, json!(source), json!(labels)).into();
    }
    if let Some(reason) = reason {
        audit["reason"] = reason.into();
    }
    audit
}

fn with_warnings(answer: Value, warnings: &[&str]) -> Value {
    let disagreeing = |warning: &&&str| warning.ends_with(": the first by name decides");
    let mixed: Vec<&str> = warnings.iter().filter(disagreeing).copied().collect();
    let mut answer = with_mixed(answer, &mixed);
    if !warnings.is_empty() {
        answer["warnings"] = json!(warnings);
    }
    answer
}

/// The answer with these sentences about disagreeing workloads in its evidence.
pub fn with_mixed(mut answer: Value, mixed: &[&str]) -> Value {
    if let Some(evidence) = answer["audit_annotations"]["evidence"].as_str().filter(|_| !mixed.is_empty()) {
        let evidence = evidence.strip_suffix('}').expect("an object");
        answer["audit_annotations"]["evidence"] = format!(r#"{evidence},"mixed":{}}}"#, json!(mixed)).into();
    }
    answer
}

/// The answer that assigns these addresses to `object`.
pub fn allocated(object: &Value, addresses: &[&str], why: Why<'_>, warnings: &[&str]) -> Value {
    let mut object = object.clone();
    object["spec"]["clusterIP"] = addresses[0].into();
    if addresses.len() > 1 {
        object["spec"]["clusterIPs"] = json!(addresses);
    }
    let answer =
        json!({"accepted": true, "mutated_object": object, "audit_annotations": audit("allocated", why, None)});
    with_warnings(answer, warnings)
}

/// The answer that leaves the object unchanged.
pub fn unchanged(reason: &str, why: Why<'_>, warnings: &[&str]) -> Value {
    with_warnings(json!({"accepted": true, "audit_annotations": audit("unchanged", why, Some(reason))}), warnings)
}

/// The answer that refuses.
pub fn denied(code: u16, message: &str, why: Why<'_>, warnings: &[&str]) -> Value {
    let audit = audit("denied", why, Some(message));
    with_warnings(json!({"accepted": false, "code": code, "message": message, "audit_annotations": audit}), warnings)
}

/// The request with one field of the request itself, not of its object, changed.
pub fn with_field(mut request: Value, key: &str, value: Value) -> Value {
    request[key] = value;
    request
}
