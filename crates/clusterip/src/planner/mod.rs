//! Plans a list of manifests: assigns addresses to their Services one after the other, as if they were created now,
//! gives them external addresses if the settings have pools of them, and gives blocks to their Nodes if there are
//! pools for Nodes.

pub(crate) mod api_server_rules;
pub(crate) mod nodes;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, RwLock};
use std::thread;

use clusterip_cluster::external::admission_state::concerns;
use clusterip_cluster::lookups::snapshot::{Snapshot, addresses};
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::manifests::{Manifest, Origin};
use clusterip_cluster::object::{self, Packed};
use clusterip_cluster::policy::own_requests::ServiceRequest;
use clusterip_core::decision::{External, RecordChange, Report};
use clusterip_core::external::{HolderOf, stored};
use clusterip_core::request::Request;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{Decision, Denial, InUse, Verdict};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use self::api_server_rules::{ApiServerRules, misspelled_fields};
use self::nodes::{NodePlan, NodePlanner};
use crate::external::plan_state::PlanState;
use crate::service_selector::ServiceSelector;
use crate::usage::{self, PoolUsage};

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
    pub fn has_denied(&self) -> bool {
        let nodes = self.nodes.iter().flat_map(|nodes| &nodes.rows).map(|row| &row.decision);
        self.rows.iter().map(|row| &row.decision).chain(nodes).any(Verdict::is_denied)
    }
}

/// Plans Services and Nodes in a cluster to which each planned Service is added.
pub struct Planner {
    settings: Settings,
    snapshot: Arc<RwLock<Snapshot>>,
    existing: BTreeMap<ServiceKey, Existing>,
    /// The Nodes of the cluster: they keep the blocks that they have.
    existing_nodes: BTreeMap<String, Existing>,
    /// The external addresses of the plan; `None` if the settings have no such pools.
    external: Option<PlanState>,
    /// What the API server refuses although the policy allows it.
    api_server: ApiServerRules,
    /// Which Services of the manifests are planned; `None` for all.
    selector: Option<ServiceSelector>,
}

/// A Service or Node that exists already.
struct Existing {
    object: Packed,
    /// The manifest that it comes from; `None` for the cluster.
    origin: Option<Origin>,
}

impl Planner {
    pub fn new(settings: Settings, cluster: Vec<Value>) -> Self {
        let has_external = !settings.external.pools.is_empty();
        let mut external = has_external.then(|| PlanState::new(&settings.external));
        let mut snapshot = Snapshot::default();
        let mut api_server = ApiServerRules::default();
        let mut existing = BTreeMap::new();
        let mut existing_nodes = BTreeMap::new();
        for object in cluster {
            api_server.add_existing(&object);
            snapshot.insert(&object);
            if object::is_service(&object) {
                let key = ServiceKey::of(&object);
                if let Some(external) = &mut external {
                    external.add_existing(&key.to_string(), &object);
                }
                existing.insert(key, Existing { object: Packed::new(&object), origin: None });
            } else if object::is_node(&object) {
                let name = object::name(&object).to_owned();
                existing_nodes.insert(name, Existing { object: Packed::new(&object), origin: None });
            }
        }
        let snapshot = Arc::new(RwLock::new(snapshot));
        Self { settings, snapshot, existing, existing_nodes, external, api_server, selector: None }
    }

    /// Plans only the Services of the manifests that match. The addresses that the others name count as used.
    #[must_use]
    pub fn only(self, selector: Option<ServiceSelector>) -> Self {
        Self { selector, ..self }
    }

    /// Plans the Services among `manifests`, and then the Nodes. All other objects, and all addresses and blocks that
    /// exist already, are known before the first Service is planned. `progress` is called after each with the number
    /// that is done.
    pub fn plan(mut self, manifests: &[Manifest], mut progress: impl FnMut(u64)) -> Plan {
        each_object(manifests, |manifest, object| {
            self.api_server.add_namespace(object);
            // A Service that exists keeps its address, whatever its manifest says about it.
            if !manifest.is_service() || !self.has(object) {
                Snapshot::insert_in(&self.snapshot, object);
            }
        });
        let services = || manifests.iter().enumerate().filter(|(_, manifest)| manifest.is_service());
        if let Some(external) = &mut self.external {
            for (index, manifest) in services() {
                let object = manifest.object.value();
                external.add_pending(index, &planned_key(&object, index).to_string(), &object);
            }
        }
        let selector = self.selector.take();
        let is_selected =
            |manifest: &Manifest| selector.as_ref().is_none_or(|selector| selector.matches(&manifest.object.value()));
        let selected: Vec<(usize, &Manifest)> = services().filter(|(_, manifest)| is_selected(manifest)).collect();
        let mut rows = Vec::with_capacity(selected.len());
        for &(index, manifest) in &selected {
            rows.push(self.plan_service(index, manifest));
            progress(rows.len() as u64);
        }
        let Self { settings, snapshot, existing_nodes, external, .. } = self;
        let used: Vec<IpAddr> = Snapshot::read(&snapshot).addresses().collect();
        let mut done = rows.len() as u64;
        let nodes = (!settings.nodes.pools.is_empty()).then(|| {
            let mut nodes = NodePlanner::new(&settings, &snapshot, existing_nodes);
            nodes.learn(manifests);
            nodes.plan(manifests, || {
                done += 1;
                progress(done);
            })
        });
        Plan {
            rows,
            manifests: selected.iter().map(|(index, _)| *index).collect(),
            pools: usage::of_services(&settings, &used),
            external: external.map(|external| usage::of_external(&settings.external, &external.used(), None)),
            nodes,
        }
    }

    /// Plans the Service of a manifest in the present state of the plan, and adds it to that state.
    fn plan_service(&mut self, index: usize, manifest: &Manifest) -> Row {
        let mut object = manifest.object.value();
        let id = ServiceKey::of(&object);
        let existing = self.existing.get(&id).filter(|_| !id.name.is_empty());
        let old = existing.map(|existing| existing.object.value());
        let mut warnings = Vec::new();
        if let Some(old) = &old {
            keep_addresses(&mut object, old);
            let first = existing.and_then(|existing| existing.origin.as_ref());
            warnings.extend(first.map(|first| format!("the same Service as in {first}")));
        }
        warnings.extend(misspelled_fields(&object));
        let decision = self.decide(index, &object, old.as_ref());
        let mut row = Row::new(&object, old.as_ref(), &decision, warnings);
        let key = planned_key(&object, index);
        decision.carry_out(&mut object);
        let mut placed = decision.denial().is_none().then_some(object);
        let refusal = |placed: &Value| self.api_server.refusal(&self.settings, &key, placed, old.as_ref());
        if let Some(reason) = placed.as_ref().and_then(refusal) {
            (row, placed) = (row.refused(&reason), None);
        }
        if let Some(external) = &mut self.external {
            external.set_planned(index, &key.to_string(), placed.as_ref(), old.as_ref());
        }
        if let Some(mut placed) = placed {
            self.api_server.add_planned(&key, &placed, &manifest.origin.to_string());
            if id.name.is_empty() {
                // Its name is yet to be generated.
                placed["metadata"]["name"] = json!(key.name);
            } else {
                let object = Packed::new(&placed);
                let first = self.existing.remove(&id).map(|existing| existing.origin);
                let origin = first.unwrap_or_else(|| Some(manifest.origin.clone()));
                self.existing.insert(id, Existing { object, origin });
            }
            Snapshot::insert_in(&self.snapshot, &placed);
        }
        row
    }

    fn decide(&self, index: usize, object: &Value, old: Option<&Value>) -> Decision {
        let uid = format!("plan-{index}");
        let request = ServiceRequest { uid: &uid, username: "clusterip-plan", object, old, dry_run: true };
        let request = match Request::read(&request.to_value()) {
            Ok(request) => request,
            Err(mismatch) => return Decision::unreadable(&mismatch),
        };
        let external = self.external.as_ref().filter(|_| concerns(&self.settings.external, &request));
        let holder_of = external.map(|external| external.holder_of(object));
        let in_use = InUse { blocks: None, external: holder_of.as_ref().map(|holder_of| holder_of as &HolderOf<'_>) };
        clusterip_core::decide(&request, &self.settings, in_use, &StoredCluster::new(&self.snapshot, object))
    }

    fn has(&self, service: &Value) -> bool {
        let id = ServiceKey::of(service);
        self.existing.contains_key(&id) || Snapshot::read(&self.snapshot).service(&id).is_some()
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

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub namespace: String,
    /// The name of the Service. If the name is yet to be generated, `generateName` with an ellipsis.
    pub name: String,
    pub decision: Verdict,
    /// The pool of the Service; `None` if no pool matches it.
    pub pool: Option<String>,
    /// Why the Service belongs to its pool: the labels of the nodes of its Pods, or conditions such as its namespace.
    pub evidence: Option<Report>,
    /// The addresses of the Service after the plan.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<IpAddr>,
    pub warnings: Vec<String>,
    /// Why the Service stays unchanged or is denied.
    pub message: Option<String>,
    /// The planned result for its external addresses; `None` if the request is not about any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalRow>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalRow {
    /// The decision: `recorded`, `removed`, `unchanged` or `denied`.
    #[serde(serialize_with = "by_name")]
    pub decision: RecordChange,
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
    /// The result of a decision about `object`, which is an update of `old`.
    fn new(object: &Value, old: Option<&Value>, decision: &Decision, mut warnings: Vec<String>) -> Self {
        warnings.extend(decision.cut_warnings());
        Self {
            namespace: object::namespace(object).to_owned(),
            name: shown_name(object),
            decision: decision.verdict.clone(),
            pool: decision.pool.clone(),
            external: decision.external.clone().map(|external| ExternalRow::new(external, object, old)),
            evidence: decision.evidence.clone(),
            cluster_ips: match &decision.verdict {
                Verdict::Denied(_) => Vec::new(),
                Verdict::Allocated(addresses) => addresses.clone(),
                Verdict::Unchanged(_) | Verdict::Assigned(_) => addresses(object),
            },
            warnings,
            message: decision.verdict.reason().map(str::to_owned),
        }
    }

    /// The same Service, refused by the API server for this reason.
    fn refused(self, reason: &str) -> Self {
        let message = format!("Service {}/{}: the API server refuses it: {reason}", self.namespace, self.name);
        let decision = Verdict::Denied(Denial { code: 422, message: message.clone() });
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

fn by_name<S: Serializer>(outcome: &RecordChange, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

impl ExternalRow {
    fn new(External { outcome, pool, addresses, reason }: External, object: &Value, old: Option<&Value>) -> Self {
        let source = AddressSource::of(&addresses, object, old);
        Self { decision: outcome, pool, addresses, source, message: reason }
    }
}

/// The name of a Service or Node as a row shows it.
fn shown_name(object: &Value) -> String {
    match object::name(object) {
        "" => format!("{}…", object::text(object, &["metadata", "generateName"])),
        name => name.to_owned(),
    }
}
