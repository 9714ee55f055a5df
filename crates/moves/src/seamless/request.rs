//! The requests of the steps of a seamless move.

use std::net::IpAddr;

use clusterip_core::annotations::{
    MOVE_ANNOTATION, MOVING_ANNOTATION, MOVING_NAME, OS_ANNOTATION, POOL_ANNOTATION, SERVICE_ANNOTATION,
    SWAPPED_ANNOTATION, TEMPORARY_LABEL, in_service_annotation,
};
use serde_json::{Map, Value, json};

use super::temporary::{MANAGED_BY, Role};
use super::{Observed, Plan, SeamlessStep};
use crate::journal::Journal;
use crate::step;

/// A request of a seamless move to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create this Service.
    Create {
        /// Its namespace.
        namespace: String,
        /// The Service.
        body: Value,
    },
    /// Replace the Service. The body names the UID and the version that it replaces.
    Replace {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The Service.
        body: Value,
        /// Whether nothing is stored.
        dry_run: bool,
    },
    /// Delete the Service, if it still has this UID and version.
    Delete {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// Its version.
        resource_version: String,
    },
}

/// The fields of a spec that decide where and how its traffic goes.
const COPIED: [&str; 9] = [
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "ports",
    "publishNotReadyAddresses",
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "trafficDistribution",
];

/// The annotations that decide where the traffic goes, and which pool the policy chooses.
const COPIED_ANNOTATIONS: [&str; 4] = [
    OS_ANNOTATION,
    POOL_ANNOTATION,
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// The request of a step; `None` for a step that sends none, or whose object does not exist. `now` is the time in
/// seconds since 1970.
pub fn request(step: &SeamlessStep, seen: &Observed, journal: &Journal, plan: &Plan, now: i64) -> Option<Request> {
    let replace = |(namespace, name): (&str, &str), body: Value, dry_run: bool| {
        Some(Request::Replace { namespace: namespace.to_owned(), name: name.to_owned(), body, dry_run })
    };
    let service = (journal.namespace.as_str(), journal.name.as_str());
    let old = plan.place(Role::Old, journal);
    match step {
        SeamlessStep::Create(role) => {
            let (namespace, name) = plan.place(*role, journal);
            let body = temporary(*role, name, namespace, seen, journal);
            Some(Request::Create { namespace: namespace.to_owned(), body })
        }
        SeamlessStep::ReleaseOld => replace(old, without_address(seen.old.as_ref()?), false),
        SeamlessStep::TryOld => replace(old, at_old_address(seen.old.as_ref()?, journal, now), true),
        SeamlessStep::TakeOld => replace(old, at_old_address(seen.old.as_ref()?, journal, now), false),
        SeamlessStep::Release => replace(service, step::released(seen.service.as_ref()?, journal), false),
        SeamlessStep::PreventRelease => replace(service, step::marked(seen.service.as_ref()?, journal), false),
        SeamlessStep::Delete(role) => {
            let object = match role {
                Role::New => &seen.new,
                Role::Old => &seen.old,
                Role::Trigger => &seen.trigger,
            };
            let metadata = object.as_ref()?.get("metadata")?;
            let (namespace, name) = plan.place(*role, journal);
            Some(Request::Delete {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: metadata.get("uid")?.as_str()?.to_owned(),
                resource_version: metadata.get("resourceVersion")?.as_str()?.to_owned(),
            })
        }
        SeamlessStep::Original(_) | SeamlessStep::GiveUp(_) | SeamlessStep::Wait(_) | SeamlessStep::End => None,
    }
}

/// A temporary Service as it is created.
fn temporary(role: Role, name: &str, namespace: &str, seen: &Observed, journal: &Journal) -> Value {
    let service = seen.service.as_ref();
    let copied = |key: &&str| {
        let value = service?.get("metadata")?.get("annotations")?.get(*key)?;
        Some(((*key).to_owned(), value.clone()))
    };
    let mut annotations: Map<String, Value> = COPIED_ANNOTATIONS.iter().filter_map(copied).collect();
    annotations.insert(MOVE_ANNOTATION.to_owned(), "never".into());
    annotations.insert(SERVICE_ANNOTATION.to_owned(), in_service_annotation(&journal.namespace, &journal.name).into());
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, TEMPORARY_LABEL: role.as_str()},
        "annotations": annotations,
    });
    let spec = match role {
        Role::Trigger => json!({"type": "ClusterIP", "ports": [{"port": 1, "protocol": "TCP"}]}).as_object().cloned(),
        Role::New => Some(spec_at(journal, &journal.to)),
        Role::Old => Some(spec_at(journal, &[])),
    };
    if role != Role::Trigger {
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Service", "name": journal.name, "uid": journal.uid}]);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec.unwrap_or_default()})
}

/// The spec of a temporary Service that sends traffic where the Service sends it, with these addresses.
fn spec_at(journal: &Journal, addresses: &[IpAddr]) -> Map<String, Value> {
    let copied = |key: &&str| Some(((*key).to_owned(), journal.spec.get(*key)?.clone()));
    let mut spec: Map<String, Value> = COPIED.iter().filter_map(copied).collect();
    spec.insert("type".to_owned(), "ClusterIP".into());
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for port in ports.filter_map(Value::as_object_mut) {
        port.remove("nodePort");
    }
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    if let Some(first) = texts.first() {
        spec.insert("clusterIP".to_owned(), first.as_str().into());
        spec.insert("clusterIPs".to_owned(), texts.into());
    }
    spec
}

/// `old` without an address.
fn without_address(old: &Value) -> Value {
    let mut old = step::bare(old);
    if let Some(spec) = old.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("type".into(), "ExternalName".into());
        spec.insert("externalName".into(), MOVING_NAME.into());
    }
    old
}

/// `old` with the old addresses, and with the time from which the grace period counts.
fn at_old_address(old: &Value, journal: &Journal, now: i64) -> Value {
    let mut old = step::bare(old);
    old["spec"] = spec_at(journal, &journal.from).into();
    step::annotate(&mut old, SWAPPED_ANNOTATION, Some(&now.to_string()));
    step::annotate(&mut old, MOVING_ANNOTATION, None);
    old
}
