//! Decides about the Services of a plan.

use std::collections::BTreeMap;
use std::sync::RwLock;

use clusterip_cluster::external::admission_state::concerns;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::lookups::stored_cluster::{StoredCluster, Unused};
use clusterip_cluster::manifests::{Manifest, Origin};
use clusterip_cluster::object::Packed;
use clusterip_cluster::policy::service_request::ServiceRequest;
use clusterip_core::external::Held;
use clusterip_core::response::Response;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{Decision, InUse, decide_value};
use serde_json::{Value, json};

use super::rows::Row;
use crate::api_server_rules::misspelled_fields;

/// Decides about Services in the present state of the plan.
pub(super) struct PlanEvaluator {
    pub(super) settings: Settings,
    pub(super) snapshot: RwLock<Snapshot>,
    /// The Services that exist already, with their origin; `None` for the cluster.
    existing: BTreeMap<ServiceKey, Option<Origin>>,
}

/// A Service of the manifests that is to be evaluated.
pub(super) struct PendingService {
    pub(super) id: ServiceKey,
    pub(super) object: Value,
    /// The existing Service, if the request is an update.
    old: Option<Value>,
    warnings: Vec<String>,
    request_uid: String,
}

/// A Service after the decision.
pub(super) struct PlannedService {
    pub(super) id: ServiceKey,
    pub(super) object: Value,
    /// The existing Service, if the request is an update.
    pub(super) old: Option<Value>,
    /// The Service with its addresses; `None` if it is denied.
    pub(super) placed: Option<Value>,
    pub(super) row: Row,
}

impl PendingService {
    /// The Service as this decision about it says.
    pub(super) fn planned(self, decision: Decision) -> PlannedService {
        let Self { id, object, old, warnings, .. } = self;
        let row = Row::new(&object, old.as_ref(), &decision, warnings);
        let answer = Response::new(decision, object.clone());
        let placed = answer.accepted.then(|| answer.mutated_object.unwrap_or_else(|| object.clone()));
        PlannedService { id, object, old, placed, row }
    }
}

impl PlanEvaluator {
    /// An evaluator in a cluster with these objects.
    pub(super) fn new(settings: Settings, snapshot: Snapshot) -> Self {
        let existing = snapshot.services(None).into_iter().map(|id| (id, None)).collect();
        Self { settings, snapshot: RwLock::new(snapshot), existing }
    }

    /// The Service of a manifest, with the Service that its request would update in the present state of the plan.
    pub(super) fn pending(&self, index: usize, manifest: &Manifest) -> PendingService {
        let mut object = manifest.object.value();
        let id = ServiceKey::of(&object);
        let old = self.updated_service(&id);
        let mut warnings = Vec::new();
        if let Some(old) = &old {
            keep_addresses(&mut object, old);
            let first = self.existing.get(&id).cloned().flatten();
            warnings.extend(first.map(|first| format!("the same Service as in {first}")));
        }
        warnings.extend(misspelled_fields(&object));
        PendingService { id, object, old, warnings, request_uid: format!("plan-{index}") }
    }

    /// The Service that a request with this key would update; `None` if the request would create a Service.
    fn updated_service(&self, id: &ServiceKey) -> Option<Value> {
        let exists = !id.name.is_empty() && self.existing.contains_key(id);
        if exists { self.get(id) } else { None }
    }

    /// Decides about a Service. `held` are the external addresses of the plan, if the request [`Self::is_external`].
    pub(super) fn decide(&self, service: &PendingService, held: Option<&Held>) -> Decision {
        let PendingService { object, old, request_uid: uid, .. } = service;
        let request = ServiceRequest { uid, username: "clusterip-plan", object, old: old.as_ref(), dry_run: true };
        let unused = Unused(&self.snapshot);
        let cluster = StoredCluster::new(&self.snapshot, object, &unused);
        decide_value(&request.to_value(), &self.settings, InUse { blocks: None, external: held }, &cluster)
    }

    /// Whether a request may be about external addresses.
    pub(super) fn is_external(&self, service: &PendingService) -> bool {
        concerns(&self.settings.external, [Some(&service.object), service.old.as_ref()])
    }

    /// Adds an object of the manifests that is not planned. A Service that exists keeps its address, whatever its
    /// manifest says about it.
    pub(super) fn add(&self, object: &Value, manifest: &Manifest) {
        if !manifest.is_service() || !self.has(object) {
            Snapshot::share_in(&self.snapshot, object, manifest.object.clone());
        }
    }

    /// Adds a planned Service. `origin` is the position of its manifest; `None` if its name is yet to be generated.
    pub(super) fn add_planned(&mut self, id: &ServiceKey, service: Value, origin: Option<&Origin>) {
        if let Some(origin) = origin {
            self.existing.entry(id.clone()).or_insert_with(|| Some(origin.clone()));
        }
        Snapshot::share_in(&self.snapshot, &service, Packed::new(&service));
    }

    fn get(&self, id: &ServiceKey) -> Option<Value> {
        Snapshot::read(&self.snapshot).get("v1", "Service", &id.namespace, &id.name)
    }

    fn has(&self, service: &Value) -> bool {
        let id = ServiceKey::of(service);
        self.existing.contains_key(&id) || self.get(&id).is_some()
    }
}

/// Keeps the addresses in an update that does not mention them, as `kubectl apply` does.
fn keep_addresses(object: &mut Value, old: &Value) {
    let none =
        |value: Option<&Value>| value.is_none_or(|value| value.is_null() || *value == json!("") || *value == json!([]));
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let becomes_name = spec.get("type").is_some_and(|kind| kind == "ExternalName");
    if becomes_name || !none(spec.get("clusterIP")) || !none(spec.get("clusterIPs")) {
        return;
    }
    for key in ["clusterIP", "clusterIPs"] {
        if let Some(value) = old.get("spec").and_then(|spec| spec.get(key)) {
            spec.insert(key.to_owned(), value.clone());
        }
    }
}
