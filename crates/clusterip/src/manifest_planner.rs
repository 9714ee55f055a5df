//! Plans a list of manifests: assigns addresses to their Services one after the other, as if they were created now,
//! gives them external addresses if the settings have pools of them, and gives blocks to their Nodes if there are
//! pools for Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use clusterip_core::answer::{Answer, Outcome};
use clusterip_core::evidence::Report;
use clusterip_core::external::{self, External, stored};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls, addresses};
use clusterip_host::cluster::manifests::{Manifest, Origin};
use clusterip_host::external::admission_state::concerns;
use clusterip_host::object;
use clusterip_host::policy::module::{Module, ModuleError};
use clusterip_host::policy::service_request::ServiceRequest;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use thiserror::Error;

use crate::api_server_rules::{ApiServerRules, misspelled_fields};
use crate::external::plan_state::PlanState;
use crate::nodes::block_planner::{NodePlan, NodePlanner};
use crate::pool_use::{self, PoolUse};
use crate::service_selector::ServiceSelector;

/// The planned result for a Service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service. If the name is yet to be generated, `generateName` with an ellipsis.
    pub name: String,
    /// The decision.
    pub decision: Outcome,
    /// The pool of the Service; `None` if no pool matches it.
    pub pool: Option<String>,
    /// What is known of the nodes of the Service.
    pub evidence: Option<Report>,
    /// The addresses of the Service after the plan.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<IpAddr>,
    /// Warnings for the author of the Service.
    pub warnings: Vec<String>,
    /// Why the Service stays unchanged or is denied.
    pub message: Option<String>,
    /// The planned result for its external addresses; `None` if the request is not about any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalRow>,
}

/// The planned result for the external addresses of a Service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalRow {
    /// The decision: `recorded`, `removed`, `unchanged` or `denied`.
    #[serde(serialize_with = "by_name")]
    pub decision: external::RecordChange,
    /// The pool that the addresses are from.
    pub pool: Option<String>,
    /// The external addresses of the Service after the plan.
    pub addresses: Vec<IpAddr>,
    /// Why the Service gets these addresses; `None` if it gets none.
    pub source: Option<AddressSource>,
    /// Why nothing happens, or why addresses are taken away.
    pub message: Option<String>,
}

/// Why a Service gets certain external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AddressSource {
    /// The Service asks for one of them.
    Asked,
    /// The Service has had one of them before.
    Kept,
    /// The addresses are free.
    Free,
}

impl Row {
    /// The same Service, refused by the API server for this reason.
    fn refused(self, reason: &str) -> Self {
        let message = format!("Service {}/{}: the API server refuses it: {reason}", self.namespace, self.name);
        let decision = Outcome::Denied;
        Self { decision, cluster_ips: Vec::new(), external: None, message: Some(message), ..self }
    }
}

impl AddressSource {
    fn of(addresses: &[IpAddr], object: &Value, old: Option<&Value>) -> Option<Self> {
        let are_among = |named: &[IpAddr]| named.iter().any(|address| addresses.contains(address));
        let service = stored::read(object);
        let had_before = || old.is_some_and(|old| are_among(&stored::recorded(&stored::read(old))));
        if addresses.is_empty() {
            None
        } else if are_among(&stored::requested(&service)) {
            Some(Self::Asked)
        } else if are_among(&stored::recorded(&service)) || had_before() {
            Some(Self::Kept)
        } else {
            Some(Self::Free)
        }
    }
}

fn by_name<S: Serializer>(outcome: &external::RecordChange, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

impl ExternalRow {
    fn new(External { outcome, pool, addresses, reason }: External, object: &Value, old: Option<&Value>) -> Self {
        let source = AddressSource::of(&addresses, object, old);
        Self { decision: outcome, pool, addresses, source, message: reason }
    }
}

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
        Self { module, document, settings, snapshot, existing, external, api_server, selector }
    }

    /// Plans only the Services of the manifests that match. The addresses that the others name count as used.
    #[must_use]
    pub fn only(self, selector: Option<ServiceSelector>) -> Self {
        Self { selector, ..self }
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
        for (index, manifest) in services() {
            if self.selector.as_ref().is_some_and(|selector| !selector.matches(&manifest.object.value())) {
                continue;
            }
            plan.rows.push(self.plan_service(index, manifest)?);
            plan.manifests.push(index);
            progress(plan.rows.len() as u64);
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

    fn plan_service(&mut self, index: usize, manifest: &Manifest) -> Result<Row, PlanError> {
        let (mut object, mut old, mut warnings) = (manifest.object.value(), None, Vec::new());
        let id = ServiceKey::of(&object);
        let generated = id.name.is_empty();
        if let Some(first) = self.existing.get(&id).filter(|_| !generated) {
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
        let calls = SnapshotCalls::new(Arc::clone(&self.snapshot)).for_object(&object).prefetching(&self.settings, &id);
        let request = request.to_value();
        let answer = match self.external.as_ref().filter(|_| concerns(&self.settings.external, &request)) {
            Some(external) => {
                self.module.evaluate_with_held(&request, &self.document, &external.held(&object), Arc::new(calls))
            }
            None => self.module.validate(&request, &self.document, Arc::new(calls)),
        };
        let answer = answer.map_err(|error| PlanError {
            origin: manifest.origin.clone(),
            subject: format!("Service {id}"),
            error,
        })?;
        let row = row(&object, old.as_ref(), &answer, warnings);
        let key = planned_key(&object, index);
        let placed = answer.accepted.then(|| answer.mutated_object.unwrap_or(object));
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
            if generated {
                placed["metadata"]["name"] = json!(key.name);
            } else {
                self.existing.entry(id).or_insert_with(|| Some(manifest.origin.clone()));
            }
            self.insert(placed);
        }
        Ok(row)
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

/// The name of a Service as a row shows it.
fn shown_name(service: &Value) -> String {
    match object::name(service) {
        "" => format!("{}…", object::text(service, &["metadata", "generateName"])),
        name => name.to_owned(),
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

fn row(object: &Value, old: Option<&Value>, answer: &Answer, mut warnings: Vec<String>) -> Row {
    warnings.extend(answer.warnings.iter().flatten().cloned());
    let audit = answer.audit();
    let reason = audit.as_ref().and_then(|audit| audit.reason.clone());
    Row {
        namespace: object::namespace(object).to_owned(),
        name: shown_name(object),
        decision: answer.outcome(),
        pool: audit.as_ref().and_then(|audit| audit.pool.clone()),
        external: audit
            .as_ref()
            .and_then(|audit| audit.external.clone())
            .map(|external| ExternalRow::new(external, object, old)),
        evidence: audit.and_then(|audit| audit.evidence),
        cluster_ips: if answer.accepted {
            addresses(answer.mutated_object.as_ref().unwrap_or(object))
        } else {
            Vec::new()
        },
        warnings,
        message: answer.message.clone().or(reason),
    }
}
