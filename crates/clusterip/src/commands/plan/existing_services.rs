//! The Services that exist before the plan, and those of them that are misplaced with its settings.

use std::sync::{Arc, RwLock};

use anyhow::Context;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::field_mask::Mask;
use clusterip_cluster::lookups::snapshot::{Snapshot, addresses};
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::object;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_cluster::watch::kinds;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use crate::audit::misplaced_services::MisplacedServices;
use crate::audit::source;
use crate::service_selector::ServiceSelector;
use crate::snapshot_kinds::kind_of;

/// The fields that decide where a Service belongs, and whether it moves.
const FIELDS: [&str; 4] = ["metadata.labels", "metadata.annotations", "spec.selector", "spec.type"];

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
        match snapshot.service(&ServiceKey::of(&object)).map(|existing| existing.value()) {
            Some(existing) => drop(snapshot.insert(&updated(existing, object))),
            None if is_of_cluster(&object) => drop(snapshot.insert(&object)),
            None => {}
        }
    }
    Ok(MisplacedServices::find(settings, &Arc::new(RwLock::new(snapshot)), &called, selector))
}

fn callers(cluster: &[Value]) -> anyhow::Result<ControlPlaneServices> {
    let called = ControlPlaneServices::default();
    for object in cluster {
        let kind = kind_of(object);
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
fn updated(mut service: Value, mut manifest: Value) -> Value {
    Mask::new(&FIELDS.map(str::to_owned).into()).prune(&mut manifest);
    if let (Some(selector), Some(_)) = (service.pointer_mut("/spec/selector"), manifest.pointer("/spec/selector")) {
        *selector = Value::Null;
    }
    json_patch::merge(&mut service, &manifest);
    service
}
