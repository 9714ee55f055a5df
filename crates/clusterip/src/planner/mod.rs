//! Plans a list of manifests: assigns addresses to their Services one after the other, as if they were created now,
//! gives them external addresses if the settings have pools of them, and gives blocks to their Nodes if there are
//! pools for Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::RwLock;
use std::sync::mpsc::sync_channel;
use std::thread;

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
use clusterip_core::{Decision, InUse, Verdict, decide_value};
use serde_json::{Value, json};

pub(crate) mod api_server_rules;
mod rows;

use self::api_server_rules::{ApiServerRules, misspelled_fields};
use self::rows::shown_name;
pub use self::rows::{AddressSource, ExternalRow, Row};
use crate::external::plan_state::PlanState;
use crate::nodes::block_planner::{NodePlan, NodePlanner};
use crate::service_selector::ServiceSelector;
use crate::usage::{self, PoolUsage};

/// The planned results for all Services and Nodes.
pub struct Plan {
    /// A row for each Service, in the order of the manifests.
    pub rows: Vec<Row>,
    /// For each row: the index of its manifest.
    pub manifests: Vec<usize>,
    /// How full each pool is after the plan.
    pub pools: Vec<PoolUsage>,
    /// How full each pool of external addresses is after the plan; `None` if the settings have no such pools.
    pub external: Option<Vec<PoolUsage>>,
    /// The planned results for Nodes; `None` if the settings have no pools for them.
    pub nodes: Option<NodePlan>,
}

impl Plan {
    /// Whether any Service or Node is denied.
    pub fn has_denied(&self) -> bool {
        let nodes = self.nodes.iter().flat_map(|nodes| &nodes.rows).map(|row| &row.decision);
        self.rows.iter().map(|row| &row.decision).chain(nodes).any(Verdict::is_denied)
    }
}

/// Plans Services and Nodes.
pub struct Planner {
    evaluator: PlanEvaluator,
    planned: PlannedServices,
    /// Which Services of the manifests are planned; `None` for all.
    selector: Option<ServiceSelector>,
}

/// What the Services that are planned already have, besides the objects that the policy looks up.
struct PlannedServices {
    /// The external addresses of the plan; `None` if the settings have no such pools.
    external: Option<PlanState>,
    /// What the API server refuses although the policy allows it.
    api_server: ApiServerRules,
}

impl Planner {
    /// A planner for a cluster with these objects.
    pub fn new(settings: Settings, cluster: Vec<Value>) -> Self {
        let mut snapshot = Snapshot::default();
        let mut api_server = ApiServerRules::default();
        for object in cluster {
            api_server.add_existing(&object);
            snapshot.insert(object);
        }
        let has_external = !settings.external.pools.is_empty();
        let mut external = has_external.then(|| PlanState::new(&settings.external));
        if let Some(external) = &mut external {
            for service in snapshot.all("v1", "Service") {
                external.add_existing(&ServiceKey::of(&service).to_string(), &service);
            }
        }
        let evaluator = PlanEvaluator::new(settings, snapshot);
        Self { evaluator, planned: PlannedServices { external, api_server }, selector: None }
    }

    /// Plans only the Services of the manifests that match. The addresses that the others name count as used.
    #[must_use]
    pub fn only(self, selector: Option<ServiceSelector>) -> Self {
        Self { selector, ..self }
    }

    /// Plans the Services among `manifests`, and then the Nodes. All other objects, and all addresses and blocks that
    /// exist already, are known before the first Service is planned. `progress` is called after each with the number
    /// that is done.
    pub fn plan(self, manifests: &[Manifest], mut progress: impl FnMut(u64)) -> Plan {
        let Self { mut evaluator, mut planned, selector } = self;
        // Found before the manifests are known, because Nodes of the cluster keep the blocks that they have.
        let existing_nodes: Vec<Value> = Snapshot::read(&evaluator.snapshot).all("v1", "Node").collect();
        each_object(manifests, |manifest, object| {
            planned.api_server.add_namespace(object);
            evaluator.add(object, manifest);
        });
        let services = || manifests.iter().enumerate().filter(|(_, manifest)| manifest.is_service());
        if let Some(external) = &mut planned.external {
            for (index, manifest) in services() {
                let object = manifest.object.value();
                external.add_pending(index, &planned_key(&object, index).to_string(), &object);
            }
        }
        let is_selected =
            |manifest: &Manifest| selector.as_ref().is_none_or(|selector| selector.matches(&manifest.object.value()));
        let selected: Vec<(usize, &Manifest)> = services().filter(|(_, manifest)| is_selected(manifest)).collect();
        let mut rows = Vec::with_capacity(selected.len());
        for &(index, manifest) in &selected {
            rows.push(planned.plan_service(&mut evaluator, index, manifest));
            progress(rows.len() as u64);
        }
        let PlanEvaluator { settings, snapshot, .. } = &evaluator;
        let used: Vec<IpAddr> = Snapshot::read(snapshot).addresses().collect();
        let mut done = rows.len() as u64;
        let nodes = (!settings.nodes.pools.is_empty()).then(|| {
            let mut nodes = NodePlanner::new(settings, snapshot, existing_nodes);
            nodes.learn(manifests);
            nodes.plan(manifests, || {
                done += 1;
                progress(done);
            })
        });
        Plan {
            rows,
            manifests: selected.iter().map(|(index, _)| *index).collect(),
            pools: usage::of_services(settings, &used),
            external: planned.external.map(|external| usage::of_external(&settings.external, &external.used(), None)),
            nodes,
        }
    }
}

impl PlannedServices {
    /// Plans the Service of a manifest.
    fn plan_service(&mut self, evaluator: &mut PlanEvaluator, index: usize, manifest: &Manifest) -> Row {
        let service = evaluator.pending(index, manifest);
        let external = self.external.as_ref().filter(|_| evaluator.is_external(&service));
        let held = external.map(|external| external.held(&service.object));
        let decision = evaluator.decide(&service, held.as_ref());
        let PlannedService { id, object, old, placed, row } = service.planned(decision);
        let key = planned_key(&object, index);
        let refusal =
            placed.as_ref().and_then(|placed| self.api_server.refusal(&evaluator.settings, &key, placed, old.as_ref()));
        let (row, placed) = match refusal {
            Some(reason) => (row.refused(&reason), None),
            None => (row, placed),
        };
        if let Some(external) = &mut self.external {
            external.set_planned(index, &key.to_string(), placed.as_ref(), old.as_ref());
        }
        if let Some(mut placed) = placed {
            self.api_server.add_planned(&key, &placed, &manifest.origin.to_string());
            let is_generated = id.name.is_empty();
            if is_generated {
                placed["metadata"]["name"] = json!(key.name);
            }
            evaluator.add_planned(&id, placed, (!is_generated).then_some(&manifest.origin));
        }
        row
    }
}

/// Decides about Services in the present state of the plan.
struct PlanEvaluator {
    settings: Settings,
    snapshot: RwLock<Snapshot>,
    /// The Services that exist already, with their origin; `None` for the cluster.
    existing: BTreeMap<ServiceKey, Option<Origin>>,
}

/// A Service of the manifests that is to be evaluated.
struct PendingService {
    id: ServiceKey,
    object: Value,
    /// The existing Service, if the request is an update.
    old: Option<Value>,
    warnings: Vec<String>,
    request_uid: String,
}

/// A Service after the decision.
struct PlannedService {
    id: ServiceKey,
    object: Value,
    /// The existing Service, if the request is an update.
    old: Option<Value>,
    /// The Service with its addresses; `None` if it is denied.
    placed: Option<Value>,
    row: Row,
}

impl PendingService {
    /// The Service as this decision about it says.
    fn planned(self, decision: Decision) -> PlannedService {
        let Self { id, object, old, warnings, .. } = self;
        let row = Row::new(&object, old.as_ref(), &decision, warnings);
        let answer = Response::new(decision, object.clone());
        let placed = answer.accepted.then(|| answer.mutated_object.unwrap_or_else(|| object.clone()));
        PlannedService { id, object, old, placed, row }
    }
}

impl PlanEvaluator {
    /// An evaluator in a cluster with these objects.
    fn new(settings: Settings, snapshot: Snapshot) -> Self {
        let existing = snapshot.services(None).into_iter().map(|id| (id, None)).collect();
        Self { settings, snapshot: RwLock::new(snapshot), existing }
    }

    /// The Service of a manifest, with the Service that its request would update in the present state of the plan.
    fn pending(&self, index: usize, manifest: &Manifest) -> PendingService {
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
    fn decide(&self, service: &PendingService, held: Option<&Held>) -> Decision {
        let PendingService { object, old, request_uid: uid, .. } = service;
        let request = ServiceRequest { uid, username: "clusterip-plan", object, old: old.as_ref(), dry_run: true };
        let unused = Unused(&self.snapshot);
        let cluster = StoredCluster::new(&self.snapshot, object, &unused);
        decide_value(&request.to_value(), &self.settings, InUse { blocks: None, external: held }, &cluster)
    }

    /// Whether a request may be about external addresses.
    fn is_external(&self, service: &PendingService) -> bool {
        concerns(&self.settings.external, [Some(&service.object), service.old.as_ref()])
    }

    /// Adds an object of the manifests that is not planned. A Service that exists keeps its address, whatever its
    /// manifest says about it.
    fn add(&self, object: &Value, manifest: &Manifest) {
        if !manifest.is_service() || !self.has(object) {
            Snapshot::share_in(&self.snapshot, object, manifest.object.clone());
        }
    }

    /// Adds a planned Service. `origin` is the position of its manifest; `None` if its name is yet to be generated.
    fn add_planned(&mut self, id: &ServiceKey, service: Value, origin: Option<&Origin>) {
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

/// Calls `visit` with each manifest and its object, in their order. Meanwhile another thread parses the next objects.
fn each_object(manifests: &[Manifest], mut visit: impl FnMut(&Manifest, &Value)) {
    /// How many objects a thread parses before it hands them over, and how many such groups may wait.
    const GROUP: usize = 32;
    const WAITING_GROUPS: usize = 8;
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Vec<Value>>(WAITING_GROUPS);
        scope.spawn(move || {
            for group in manifests.chunks(GROUP) {
                if sender.send(group.iter().map(|manifest| manifest.object.value()).collect()).is_err() {
                    break;
                }
            }
        });
        for (manifest, object) in manifests.iter().zip(receiver.into_iter().flatten()) {
            visit(manifest, &object);
        }
    });
}

/// The key of a planned Service. If its name is yet to be generated, the key contains a text that can't be the name of
/// a Service.
fn planned_key(service: &Value, index: usize) -> ServiceKey {
    let id = ServiceKey::of(service);
    if id.name.is_empty() { ServiceKey::new(id.namespace, format!("{}/{index}", shown_name(service))) } else { id }
}
