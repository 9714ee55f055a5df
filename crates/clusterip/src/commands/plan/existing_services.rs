//! The Services that exist before the plan, and those of them that are misplaced with its settings.

use std::sync::{Arc, RwLock};

use anyhow::Context;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::{Snapshot, addresses};
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::object;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_cluster::watch::kinds;
use clusterip_core::service_key::ServiceKey;
use serde_json::{Value, json};

use crate::audit::services::MisplacedServices;
use crate::audit::source;
use crate::service_selector::ServiceSelector;

/// The fields of `metadata` that decide where a Service belongs, and whether it moves.
const METADATA: [&str; 2] = ["labels", "annotations"];
const SPEC: [&str; 2] = ["selector", "type"];

/// The misplaced Services of the cluster, and those of the manifests that come from a cluster.
pub(super) fn misplaced(
    settings: &LiveSettings,
    cluster: &[Value],
    manifests: &[Manifest],
    selector: Option<&ServiceSelector>,
) -> anyhow::Result<MisplacedServices> {
    let is_existing = |manifest: &Manifest| {
        manifest.is_service() && manifest.object.may_have("uid") && is_of_cluster(&manifest.object.value())
    };
    if cluster.is_empty() && !manifests.iter().any(is_existing) {
        return Ok(MisplacedServices::default());
    }
    let called = callers(cluster)?;
    let mut snapshot = Snapshot::default();
    for object in cluster {
        snapshot.insert(object);
    }
    for manifest in manifests {
        let object = manifest.object.value();
        if !manifest.is_service() {
            snapshot.insert(&object);
            continue;
        }
        let id = ServiceKey::of(&object);
        let existing = snapshot.service(&id).map(|existing| updated(existing.value(), &object));
        if let Some(object) = existing.or_else(|| is_of_cluster(&object).then_some(object)) {
            snapshot.insert(&object);
        }
    }
    Ok(MisplacedServices::find(settings, &Arc::new(RwLock::new(snapshot)), &called, selector))
}

fn callers(cluster: &[Value]) -> anyhow::Result<ControlPlaneServices> {
    let called = ControlPlaneServices::default();
    for object in cluster {
        let kind = (object::api_version(object).to_owned(), object::kind(object).to_owned());
        if kinds::callers().any(|caller| caller == kind) {
            let read = source::add_caller(&called, &kind, object.clone());
            read.with_context(|| format!("{} {} can't be read", kind.1, object::name(object)))?;
        }
    }
    Ok(called)
}

/// Whether `kubectl get -o yaml` printed the Service: the API server sets its UID.
fn is_of_cluster(service: &Value) -> bool {
    !object::text(service, &["metadata", "uid"]).is_empty() && !addresses(service).is_empty()
}

/// A Service of the cluster after its manifest has been applied: it keeps its addresses, and their owners.
fn updated(mut service: Value, manifest: &Value) -> Value {
    let given = |part: &str, field: &str| manifest.get(part).and_then(|part| part.get(field));
    if let Some(metadata) = service.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in METADATA {
            let Some(given) = given("metadata", field).and_then(Value::as_object) else { continue };
            if let Some(kept) = metadata.entry(field).or_insert_with(|| json!({})).as_object_mut() {
                kept.extend(given.clone());
            }
        }
    }
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        for field in SPEC {
            if let Some(given) = given("spec", field) {
                spec.insert(field.to_owned(), given.clone());
            }
        }
    }
    service
}
