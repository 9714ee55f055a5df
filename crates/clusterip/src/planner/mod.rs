//! Plans manifests: Services and their external addresses, one after the other, as if created now, and then Nodes.

pub(crate) mod api_server_rules;
pub(crate) mod misspellings;
pub(crate) mod nodes;
mod planned_object;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_cluster::evaluator::may_be_external;
use clusterip_cluster::in_order::in_order;
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::manifests::{Manifest, Origin};
use clusterip_cluster::object::{self, blocks_of};
use clusterip_cluster::snapshot::{ReadObject, Snapshot, addresses};
use clusterip_core::decision::{External, RecordChange, Report};
use clusterip_core::external::{HolderOf, claim};
use clusterip_core::json::TypeMismatch;
use clusterip_core::request::Request;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{Decision, Denial, InUse, Verdict};
use ipnet::IpNet;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use self::api_server_rules::{ADDRESS_FIELDS, ApiServerRules, is_namespace, misspelled_fields};
use self::nodes::RangeUsage;
pub use self::planned_object::PlannedObject;
use self::planned_object::PlannedService;
use crate::audit::services::MisplacedService;
use crate::external::plan_state::PlanState;
use crate::usage::{self, PoolUsage};

/// So many Services are planned before their fields are dropped. In a large plan, these take as much memory as the rest.
const AT_ONCE: usize = 4096;

/// A plan, as `-o json` prints it.
#[derive(Serialize)]
pub struct Plan {
    #[serde(rename = "services")]
    pub rows: Vec<Row>,
    /// A row for each Node; `None` if the settings have no pools for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<Row>>,
    /// The existing Services that are misplaced with the settings of the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) misplaced: Vec<MisplacedService>,
    pub pools: PlannedPools,
}

/// How full the pools are after the plan; `None` if the settings have no such pools.
#[derive(Serialize)]
pub struct PlannedPools {
    pub services: Vec<PoolUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<Vec<PoolUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<RangeUsage>>,
}

impl Plan {
    pub(crate) fn has_denied(&self) -> bool {
        self.rows.iter().chain(self.nodes.iter().flatten()).any(|row| row.decision.is_denied())
    }
}

/// Plans Services and Nodes in a cluster to which each planned Service is added.
#[derive(Default)]
pub struct Planner {
    settings: Settings,
    snapshot: Arc<RwLock<Snapshot>>,
    /// The Services that exist already, each with the manifest that it comes from; `None` for the cluster.
    existing: HashMap<Arc<ServiceKey>, Option<Origin>>,
    /// The Nodes that exist already, each with its blocks, which it keeps, and with its manifest as above.
    existing_nodes: BTreeMap<String, (Vec<IpNet>, Option<Origin>)>,
    external: PlanState,
    /// The evidence in the rows: most Services have the same as others, and it takes more memory than the rest of a
    /// row.
    reports: HashSet<Arc<Report>>,
    /// What the API server refuses although the policy allows it.
    api_server: ApiServerRules,
}

impl Planner {
    pub fn new(settings: Settings, cluster: Vec<Value>) -> Self {
        let external = PlanState::new(&settings.external);
        let mut planner = Self { settings, external, ..Self::default() };
        for object in cluster {
            planner.api_server.add_existing(&object);
            Snapshot::insert_in(&planner.snapshot, &object);
            if object::is_service(&object) {
                let key = ServiceKey::of(&object);
                planner.external.add_existing(&key, &object);
                planner.existing.insert(Arc::new(key), None);
            } else if object::is_node(&object) {
                planner.existing_nodes.insert(object::name(&object).to_owned(), (blocks_of(&object), None));
            }
        }
        planner
    }

    /// Plans the selected Services among `manifests`, and then the Nodes. All other objects, and all addresses and blocks
    /// that exist already or that other Services name, are known before the first Service is planned. `progress` is called
    /// after each Service and Node. The manifests of planned Services lose all but their kind, namespace and name.
    pub fn plan(
        &mut self,
        manifests: &mut [Manifest<PlannedObject>],
        is_selected: impl Fn(&Manifest<PlannedObject>) -> bool,
        mut progress: impl FnMut(),
    ) -> Plan {
        let mut seen = HashSet::new();
        for Manifest { object: PlannedObject { read, .. }, .. } in &*manifests {
            if is_namespace(&read.kind.0, &read.kind.1) {
                self.api_server.add_namespace(&read.name);
            }
            // A Service that exists keeps its address, whatever its manifest says about it. Services without an address
            // are added when they are planned.
            let is_known_before = read.service().is_none_or(|service| {
                let key = service.key();
                let is_new = !self.existing.contains_key(key) && seen.insert(key);
                is_new && !service.addresses().is_empty()
            });
            if is_known_before {
                Snapshot::write(&self.snapshot).add(read.clone());
            }
        }
        let services = || manifests.iter().enumerate().filter(|(_, manifest)| manifest.object.read.service().is_some());
        let has_external = !self.settings.external.pools.is_empty();
        for (index, manifest) in services().filter(|_| has_external) {
            let object = manifest.object.value();
            self.external.add_pending(index, &planned_key(&object, index), &object);
        }
        let selected: Vec<usize> =
            services().filter(|(_, manifest)| is_selected(manifest)).map(|(index, _)| index).collect();
        let mut rows = Vec::with_capacity(selected.len());
        for some in selected.chunks(AT_ONCE) {
            let taken = |index: &usize| Some((*index, manifests[*index].object.take()?));
            let some: Vec<_> = some.iter().filter_map(taken).collect();
            in_order(
                &some,
                |(index, service)| service.create(*index),
                |(index, service), create| {
                    rows.push(self.plan_service(*index, service, create, &manifests[*index]));
                    progress();
                },
            );
        }
        let used: Vec<IpAddr> = Snapshot::read(&self.snapshot).addresses().collect();
        let nodes = (!self.settings.nodes.pools.is_empty()).then(|| self.plan_nodes(manifests, &mut progress));
        let (nodes, blocks) = nodes.unzip();
        let external = has_external.then(|| usage::of_external(&self.settings.external, &self.external.used(), None));
        let pools = PlannedPools { services: usage::of_services(&self.settings, &used), external, nodes: blocks };
        Plan { rows, nodes, misplaced: Vec::new(), pools }
    }

    /// Plans the Service of a manifest in the present state of the plan, and adds it to that state. `create` is the request
    /// to create it, if it does not exist already, and the object of the request.
    fn plan_service(
        &mut self,
        index: usize,
        service: &PlannedService,
        (create, mut object): (Result<Request, TypeMismatch>, Value),
        Manifest { object: manifest, origin }: &Manifest<PlannedObject>,
    ) -> Row {
        let id = service.read.key();
        let existing = self.existing.get(id).filter(|_| !id.name.is_empty());
        let old = existing.and_then(|_| Some(Snapshot::read(&self.snapshot).service(id)?.value()));
        if let Some(old) = &old {
            keep_addresses(&mut object, old);
        }
        let first = existing.and_then(Option::as_ref).map(|first| format!("the same Service as in {first}"));
        let warnings = first.into_iter().chain(misspelled_fields(&object)).collect();
        let request = match &old {
            Some(old) => Request::of_service(&format!("plan-{index}"), &object, Some(old)),
            None => create,
        };
        let mut decision = self.decide(request, &object);
        let evidence = decision.evidence.take().map(|report| self.shared(report));
        let given = match &decision.verdict {
            Verdict::Denied(_) => Vec::new(),
            Verdict::Allocated(addresses) => addresses.clone(),
            Verdict::Unchanged(_) | Verdict::Assigned(_) => addresses(&object),
        };
        let external = decision.external.clone();
        let external = external.map(|external| Box::new(ExternalRow::new(external, &object, old.as_ref())));
        let mut row =
            Row { external, evidence, ..Row::new(index, &object, &decision, Given::ClusterIps(given), warnings) };
        let key = if id.name.is_empty() {
            Arc::new(planned_key(&object, index))
        } else {
            Arc::clone(service.read.shared_key())
        };
        decision.carry_out(&mut object);
        let mut placed = decision.denial().is_none().then_some(object);
        let refusal = |placed: &Value| self.api_server.refusal(&self.settings, &key, placed, old.as_ref());
        if let Some(reason) = placed.as_ref().and_then(refusal) {
            let message = format!("Service {}/{}: the API server refuses it: {reason}", key.namespace, row.name);
            row.decision = Verdict::Denied(Denial { code: 422, message: message.clone() });
            row = Row { given: Given::ClusterIps(Vec::new()), external: None, message: Some(message), ..row };
            placed = None;
        }
        if !self.settings.external.pools.is_empty() {
            self.external.set_planned(index, &key, placed.as_ref(), old.as_ref());
        }
        if let Some(mut placed) = placed {
            self.api_server.add_planned(&key, &placed, origin);
            let only_addresses = old.is_none() && changes_only_addresses(&decision);
            let read = if id.name.is_empty() {
                // Its name is yet to be generated.
                placed["metadata"]["name"] = json!(key.name);
                None
            } else {
                self.existing.entry(key).or_insert_with(|| Some(origin.clone()));
                match decision.allocated() {
                    _ if !only_addresses => None,
                    Some(addresses) => service.read.given(addresses).map(Arc::new),
                    None => Some(Arc::clone(&service.read)),
                }
            };
            let read = read.map_or_else(|| ReadObject::new(&placed), |read| manifest.read.with(read));
            Snapshot::write(&self.snapshot).add(read);
        }
        row
    }

    fn shared(&mut self, report: Report) -> Arc<Report> {
        if let Some(known) = self.reports.get(&report) {
            return Arc::clone(known);
        }
        let report = Arc::new(report);
        self.reports.insert(Arc::clone(&report));
        report
    }

    fn decide(&self, request: Result<Request, TypeMismatch>, object: &Value) -> Decision {
        let request = match request {
            Ok(request) => request,
            Err(mismatch) => return Decision::unreadable(&mismatch),
        };
        let may_be_external = may_be_external(&self.settings.external, &request);
        let read = |key: &ServiceKey| Snapshot::read(&self.snapshot).service(key)?.in_request(|_| true).ok();
        let holder_of = may_be_external.then(|| self.external.holder_of(object, &read));
        let in_use = InUse { blocks: None, external: holder_of.as_ref().map(|holder_of| holder_of as &HolderOf<'_>) };
        clusterip_core::decide(&request, &self.settings, in_use, &StoredCluster::new(&self.snapshot, object))
    }
}

fn changes_only_addresses(decision: &Decision) -> bool {
    decision.note.is_none() && !decision.external.as_ref().is_some_and(External::changes)
}

/// Keeps the addresses in an update that does not mention them, as `kubectl apply` does.
fn keep_addresses(object: &mut Value, old: &Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let is_none = |value: &Value| value.is_null() || *value == json!("") || *value == json!([]);
    let becomes_name = spec.get("type").is_some_and(|kind| kind == "ExternalName");
    if becomes_name || !ADDRESS_FIELDS.iter().all(|field| spec.get(*field).is_none_or(is_none)) {
        return;
    }
    for field in ADDRESS_FIELDS {
        if let Some(value) = old.get("spec").and_then(|spec| spec.get(field)) {
            spec.insert(field.to_owned(), value.clone());
        }
    }
}

fn planned_key(service: &Value, index: usize) -> ServiceKey {
    ServiceKey::new(object::namespace(service), planned_name(service, index))
}

/// The name of a planned object. If it is yet to be generated, a text that can't be the name of an object.
fn planned_name(object: &Value, index: usize) -> String {
    let name = object::name(object);
    if name.is_empty() { format!("{}/{index}", shown_name(object)) } else { name.to_owned() }
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(skip)]
    pub manifest: usize,
    /// `None` for a Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// If the name is yet to be generated, `generateName` with an ellipsis.
    pub name: String,
    pub decision: Verdict,
    pub pool: Option<String>,
    /// Why the object belongs to its pool: node labels, or conditions such as its namespace.
    #[serde(serialize_with = "of_report")]
    pub evidence: Option<Arc<Report>>,
    #[serde(flatten)]
    pub given: Given,
    pub warnings: Vec<String>,
    pub message: Option<String>,
    /// The planned result for its external addresses; `None` if the request is not about any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<Box<ExternalRow>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Given {
    #[serde(rename = "clusterIPs")]
    ClusterIps(Vec<IpAddr>),
    #[serde(rename = "podCIDRs")]
    PodCidrs(Vec<IpNet>),
}

impl Given {
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::ClusterIps(addresses) => addresses.iter().map(ToString::to_string).collect(),
            Self::PodCidrs(blocks) => blocks.iter().map(ToString::to_string).collect(),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct ExternalRow {
    /// The decision: `recorded`, `removed`, `unchanged` or `denied`.
    #[serde(serialize_with = "by_name")]
    pub decision: RecordChange,
    pub pool: Option<String>,
    pub addresses: Vec<IpAddr>,
    pub source: Option<AddressSource>,
    pub message: Option<String>,
    /// The annotations that are written for a program that announces the addresses. An empty text removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<&'static str, String>,
}

/// Why a Service gets certain external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AddressSource {
    Asked,
    Kept,
    Free,
}

impl Row {
    fn new(manifest: usize, object: &Value, decision: &Decision, given: Given, mut warnings: Vec<String>) -> Self {
        warnings.extend(decision.cut_warnings());
        Self {
            manifest,
            namespace: matches!(given, Given::ClusterIps(_)).then(|| object::namespace(object).to_owned()),
            name: shown_name(object),
            decision: decision.verdict.clone(),
            pool: decision.pool.clone(),
            evidence: decision.evidence.clone().map(Arc::new),
            given,
            warnings,
            message: decision.verdict.reason().map(str::to_owned),
            external: None,
        }
    }
}

impl ExternalRow {
    /// The result of a decision about `object`, which is an update of `old`.
    fn new(
        External { outcome, pool, addresses, reason, announcement }: External,
        object: &Value,
        old: Option<&Value>,
    ) -> Self {
        let are_among = |named: Vec<IpAddr>| named.iter().any(|address| addresses.contains(address));
        let recorded = |service: &Value| claim::recorded(&claim::read_stored(service));
        let source = if addresses.is_empty() {
            None
        } else if are_among(claim::requested(&claim::read_stored(object))) {
            Some(AddressSource::Asked)
        } else if are_among(recorded(object)) || old.is_some_and(|old| are_among(recorded(old))) {
            Some(AddressSource::Kept)
        } else {
            Some(AddressSource::Free)
        };
        let annotations = announcement.annotations.into_iter().collect();
        Self { decision: outcome, pool, addresses, source, message: reason, annotations }
    }
}

fn of_report<S: Serializer>(report: &Option<Arc<Report>>, serializer: S) -> Result<S::Ok, S::Error> {
    report.as_deref().serialize(serializer)
}

fn by_name<S: Serializer>(outcome: &RecordChange, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

fn shown_name(object: &Value) -> String {
    match object::name(object) {
        "" => format!("{}…", object::text(object, &["metadata", "generateName"])),
        name => name.to_owned(),
    }
}
