//! Plans a list of manifests: assigns addresses to their Services one after the other, as if they were created now,
//! gives them external addresses if the settings have pools of them, and gives blocks to their Nodes if there are
//! pools for Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::available_parallelism;

use clusterip_core::answer::{Answer, Outcome};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use clusterip_host::cluster::manifests::{Manifest, Origin};
use clusterip_host::external::admission_state::concerns;
use clusterip_host::object;
use clusterip_host::policy::module::{Module, ModuleError, Series};
use clusterip_host::policy::service_request::ServiceRequest;
use serde_json::{Value, json};
use thiserror::Error;

mod early;
mod rows;

use self::early::EarlyAnswer;
use self::rows::shown_name;
pub use self::rows::{AddressSource, ExternalRow, Row};
use crate::api_server_rules::{ApiServerRules, misspelled_fields};
use crate::external::plan_state::PlanState;
use crate::nodes::block_planner::{NodePlan, NodePlanner};
use crate::pool_use::{self, PoolUse};
use crate::service_selector::ServiceSelector;

/// The planned results for all Services and Nodes.
pub struct Plan {
    /// A row for each Service, in the order of the manifests.
    pub rows: Vec<Row>,
    /// For each row: the index of its manifest.
    pub manifests: Vec<usize>,
    /// How full each pool is after the plan.
    pub pools: Vec<PoolUse>,
    /// How full each pool of external addresses is after the plan; `None` if the settings have no such pools.
    pub external: Option<Vec<PoolUse>>,
    /// The planned results for Nodes; `None` if the settings have no pools for them.
    pub nodes: Option<NodePlan>,
}

impl Plan {
    /// Whether any Service or Node is denied.
    pub fn has_denied(&self) -> bool {
        let nodes = self.nodes.iter().flat_map(|nodes| &nodes.rows).map(|row| row.decision);
        self.rows.iter().map(|row| row.decision).chain(nodes).any(|decision| decision == Outcome::Denied)
    }
}

/// The policy did not answer about a Service or a Node.
#[derive(Debug, Error)]
#[error("{origin}: {subject}: {error}")]
pub struct PlanError {
    origin: Origin,
    subject: String,
    error: ModuleError,
}

/// Plans Services and Nodes.
pub struct Planner<'m> {
    module: &'m Module,
    /// The settings as the policy gets them.
    document: Value,
    settings: Settings,
    snapshot: Arc<RwLock<Snapshot>>,
    /// The Services that exist already, with their origin; `None` for the cluster.
    existing: BTreeMap<ServiceKey, Option<Origin>>,
    /// The external addresses of the plan; `None` if the settings have no such pools.
    external: Option<PlanState>,
    /// What the API server refuses although the policy allows it.
    api_server: ApiServerRules,
    /// Which Services of the manifests are planned; `None` for all.
    selector: Option<ServiceSelector>,
    /// How many threads evaluate Services.
    threads: usize,
}

/// A Service of the manifests, and the request about it.
struct PendingService {
    id: ServiceKey,
    object: Value,
    /// The existing Service, if the request is an update.
    old: Option<Value>,
    warnings: Vec<String>,
    request: Value,
}

/// A Service after the policy has answered.
struct AnsweredService {
    id: ServiceKey,
    object: Value,
    /// The existing Service, if the request is an update.
    old: Option<Value>,
    /// The Service as the policy returns it; `None` if it is denied.
    placed: Option<Value>,
    row: Row,
}

impl PendingService {
    fn answered(self, answer: Answer) -> AnsweredService {
        let Self { id, object, old, warnings, .. } = self;
        let row = Row::new(&object, old.as_ref(), &answer, warnings);
        let placed = answer.accepted.then(|| answer.mutated_object.unwrap_or_else(|| object.clone()));
        AnsweredService { id, object, old, placed, row }
    }
}

impl<'m> Planner<'m> {
    /// A planner for a cluster with these objects.
    pub fn new(module: &'m Module, document: Value, settings: Settings, cluster: Vec<Value>) -> Self {
        let mut snapshot = Snapshot::default();
        let mut existing = BTreeMap::new();
        let mut api_server = ApiServerRules::default();
        for object in cluster {
            api_server.add_existing(&object);
            if object::is_service(&object) {
                existing.insert(ServiceKey::of(&object), None);
            }
            snapshot.insert(object);
        }
        let has_external = !settings.external.pools.is_empty();
        let mut external = has_external.then(|| PlanState::new(&settings.external));
        if let Some(external) = &mut external {
            for service in snapshot.all("v1", "Service") {
                external.add_existing(&ServiceKey::of(&service).to_string(), &service);
            }
        }
        let (snapshot, selector) = (Arc::new(RwLock::new(snapshot)), None);
        let threads = available_parallelism().map_or(1, NonZero::get);
        Self { module, document, settings, snapshot, existing, external, api_server, selector, threads }
    }

    /// Plans only the Services of the manifests that match. The addresses that the others name count as used.
    #[must_use]
    pub fn only(self, selector: Option<ServiceSelector>) -> Self {
        Self { selector, ..self }
    }

    /// Evaluates Services on this many threads, instead of one for each processor. The plan is always the same.
    #[must_use]
    pub fn on_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Plans the Services among `manifests`, and then the Nodes. All other objects, and all addresses and blocks that
    /// exist already, are known before the first Service is planned. `progress` is called after each with the number
    /// that is done.
    ///
    /// # Errors
    /// [`PlanError`] if the policy does not answer.
    pub fn plan(mut self, manifests: &[Manifest], mut progress: impl FnMut(u64)) -> Result<Plan, PlanError> {
        let snapshot = Arc::clone(&self.snapshot);
        let (document, settings) = (self.document.clone(), self.settings.clone());
        let has_pools = !settings.nodes.pools.is_empty();
        // Made before the manifests are known, because Nodes of the cluster keep the blocks that they have.
        let mut nodes = has_pools.then(|| NodePlanner::new(self.module, &document, &settings, &snapshot));
        for manifest in manifests {
            // A Service that exists keeps its address, whatever its manifest says about it.
            let object = manifest.object.value();
            self.api_server.add_namespace(&object);
            if !manifest.is_service() || !self.has(&object) {
                self.snapshot.write().unwrap_or_else(PoisonError::into_inner).share(&object, manifest.object.clone());
            }
        }
        if let Some(nodes) = &mut nodes {
            nodes.learn(manifests);
        }
        let services = || manifests.iter().enumerate().filter(|(_, manifest)| manifest.is_service());
        if let Some(external) = &mut self.external {
            for (index, manifest) in services() {
                let object = manifest.object.value();
                external.add_pending(index, &planned_key(&object, index).to_string(), &object);
            }
        }
        let mut plan = Plan { rows: Vec::new(), manifests: Vec::new(), pools: Vec::new(), external: None, nodes: None };
        let is_selected = |manifest: &Manifest| {
            self.selector.as_ref().is_none_or(|selector| selector.matches(&manifest.object.value()))
        };
        let selected: Vec<(usize, &Manifest)> = services().filter(|(_, manifest)| is_selected(manifest)).collect();
        let mut series = self.module.series();
        for batch in selected.chunks(early::BATCH) {
            let answers = self.evaluate_early(batch);
            let mut planned = BTreeSet::new();
            for (&(index, manifest), early) in batch.iter().zip(answers) {
                // A second manifest of a Service updates the first one.
                let early = early.filter(|early| !planned.contains(&early.answered.id) && early.holds());
                let (row, id) = self.plan_service(index, manifest, early, &mut series)?;
                planned.insert(id);
                plan.rows.push(row);
                plan.manifests.push(index);
                progress(plan.rows.len() as u64);
            }
        }
        let used: Vec<IpAddr> = Snapshot::read(&self.snapshot).addresses().collect();
        plan.pools = pool_use::of(&self.settings, &used);
        plan.external =
            self.external.as_ref().map(|external| pool_use::of_external(&self.settings.external, &external.used()));
        let mut done = plan.rows.len() as u64;
        let planned = nodes.map(|nodes| {
            nodes.plan(manifests, || {
                done += 1;
                progress(done);
            })
        });
        plan.nodes = planned.transpose().map_err(|(index, error)| {
            let manifest = &manifests[index];
            let subject = format!("Node {}", object::name(&manifest.object.value()));
            PlanError { origin: manifest.origin.clone(), subject, error }
        })?;
        Ok(plan)
    }

    /// Plans the Service of a manifest. Returns its row, and its key as the manifest has it.
    fn plan_service(
        &mut self,
        index: usize,
        manifest: &Manifest,
        early: Option<EarlyAnswer>,
        series: &mut Series<'_>,
    ) -> Result<(Row, ServiceKey), PlanError> {
        let answered = match early {
            Some(early) => early.answered,
            None => {
                let service = self.pending(index, manifest);
                let answer = self.evaluate(&service, series).map_err(|error| PlanError {
                    origin: manifest.origin.clone(),
                    subject: format!("Service {}", service.id),
                    error,
                })?;
                service.answered(answer)
            }
        };
        let AnsweredService { id, object, old, placed, row } = answered;
        let key = planned_key(&object, index);
        let refusal =
            placed.as_ref().and_then(|placed| self.api_server.refusal(&self.settings, &key, placed, old.as_ref()));
        let (row, placed) = match refusal {
            Some(reason) => (row.refused(&reason), None),
            None => (row, placed),
        };
        if let Some(external) = &mut self.external {
            external.set_planned(index, &key.to_string(), placed.as_ref(), old.as_ref());
        }
        if let Some(mut placed) = placed {
            self.api_server.add_planned(&key, &placed, &manifest.origin.to_string());
            if id.name.is_empty() {
                placed["metadata"]["name"] = json!(key.name);
            } else {
                self.existing.entry(id.clone()).or_insert_with(|| Some(manifest.origin.clone()));
            }
            self.insert(placed);
        }
        Ok((row, id))
    }

    /// The Service of a manifest, and the request about it in the present state.
    fn pending(&self, index: usize, manifest: &Manifest) -> PendingService {
        let (mut object, mut old, mut warnings) = (manifest.object.value(), None, Vec::new());
        let id = ServiceKey::of(&object);
        if let Some(first) = self.existing.get(&id).filter(|_| !id.name.is_empty()) {
            old = self.get(&id);
            if let Some(old) = &old {
                keep_addresses(&mut object, old);
            }
            warnings.extend(first.as_ref().map(|first| format!("the same Service as in {first}")));
        }
        warnings.extend(misspelled_fields(&object));
        let uid = format!("plan-{index}");
        let request =
            ServiceRequest { uid: &uid, username: "clusterip-plan", object: &object, old: old.as_ref(), dry_run: true };
        let request = request.to_value();
        PendingService { id, object, old, warnings, request }
    }

    fn evaluate(&self, service: &PendingService, series: &mut Series<'_>) -> Result<Answer, ModuleError> {
        let calls = Arc::new(self.calls(service));
        match self.external_of(service) {
            Some(external) => {
                let held = external.held(&service.object);
                self.module.evaluate_with_held(&service.request, &self.document, &held, calls)
            }
            None => series.validate(&service.request, &self.document, calls),
        }
    }

    /// The look-ups of the policy about a Service.
    fn calls(&self, service: &PendingService) -> SnapshotCalls {
        let calls = SnapshotCalls::new(Arc::clone(&self.snapshot)).for_object(&service.object);
        calls.prefetching(&self.settings, &service.id)
    }

    /// The external addresses of the plan, if the request is about any.
    fn external_of(&self, service: &PendingService) -> Option<&PlanState> {
        self.external.as_ref().filter(|_| concerns(&self.settings.external, &service.request))
    }

    fn insert(&self, object: Value) {
        self.snapshot.write().unwrap_or_else(PoisonError::into_inner).insert(object);
    }

    fn get(&self, id: &ServiceKey) -> Option<Value> {
        Snapshot::read(&self.snapshot).get("v1", "Service", &id.namespace, &id.name)
    }

    fn has(&self, service: &Value) -> bool {
        let id = ServiceKey::of(service);
        self.existing.contains_key(&id) || self.get(&id).is_some()
    }
}

/// The key of a planned Service. If its name is yet to be generated, the key contains a text that can't be the name of
/// a Service.
fn planned_key(service: &Value, index: usize) -> ServiceKey {
    let id = ServiceKey::of(service);
    if id.name.is_empty() { ServiceKey::new(id.namespace, format!("{}/{index}", shown_name(service))) } else { id }
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
