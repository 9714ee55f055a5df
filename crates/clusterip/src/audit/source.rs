//! Reads a cluster at one moment. To save memory, each object is reduced to the needed fields as soon as it arrives.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use anyhow::Context;
use clusterip_api::{GROUP, Kind as PoolKind, ObjectKey, ReservationStatus};
use clusterip_cluster::api_error::{RequestFailure, error_message};
use clusterip_cluster::kinds::{self, Kind, State};
use clusterip_cluster::live_settings::{is_service_cidr, is_settings_object};
use clusterip_cluster::manifests::large_texts::{self, ObjectText};
use clusterip_cluster::manifests::{self, ManifestText};
use clusterip_cluster::object::items;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::snapshot::{ReadObject, Snapshot};
use clusterip_cluster::watch::api_server_lists;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::annotations::LEASE_LABEL;
use clusterip_core::settings::Settings;
use clusterip_failover::claims::{CLAIM, Owner, ReplicaClaim};
use clusterip_failover::holders::HolderSnapshot;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Error as KubeError};
use serde::Deserialize;
use serde_json::{Value, to_value};

use crate::announcer_pools::{self, AnnouncerPool};
use crate::lease_namespaces::LeaseNamespaces;
use crate::snapshot_kinds::{self, SnapshotKinds};
use crate::text::joined;

pub(crate) struct AuditedCluster {
    pub snapshot: Arc<RwLock<Snapshot>>,
    pub ranges: ServiceRanges,
    /// The addresses in flight that replicas of a server claim.
    pub in_flight: Vec<(IpAddr, Owner)>,
    pub reservations: BTreeMap<IpAddr, ReservationStatus>,
    pub holders: Result<HolderSnapshot, String>,
    pub called: ControlPlaneServices,
    /// The pools of the programs that announce external addresses; `None` if they are unknown.
    pub announcer_pools: Option<Vec<AnnouncerPool>>,
    pub notes: Vec<String>,
}

impl AuditedCluster {
    /// A cluster without Leases.
    fn new(snapshot: Arc<RwLock<Snapshot>>, ranges: ServiceRanges, called: ControlPlaneServices) -> Self {
        let holders = Err("no Leases were read in the namespace of --agents-namespace".to_owned());
        let (in_flight, reservations, notes) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { snapshot, ranges, in_flight, reservations, holders, called, announcer_pools: None, notes }
    }

    pub fn of(stores: &Stores) -> Self {
        let (ranges, called) = (stores.service_cidrs().borrow().clone(), stores.control_plane_services().clone());
        Self::new(Arc::clone(stores.snapshot()), ranges, called)
    }

    /// Adds a Lease of an agent, or a claim of a server. A claim for a Service that has no name yet contains none.
    fn add_lease(&mut self, lease: &Lease, namespaces: &LeaseNamespaces) {
        let is_in = |namespace: &Option<String>| namespace.is_some() && lease.metadata.namespace == *namespace;
        if is_in(&namespaces.agents) {
            if self.holders.is_err() {
                // The newest time in these Leases tells when a snapshot was taken.
                self.holders = Ok(HolderSnapshot::new(None));
            }
            self.holders.iter_mut().for_each(|holders| holders.apply(lease));
        }
        let label = lease.metadata.labels.as_ref().and_then(|labels| labels.get(LEASE_LABEL));
        let is_claim = is_in(&namespaces.server) && label.is_some_and(|label| label == CLAIM);
        let claim = ReplicaClaim::of(lease).filter(|_| is_claim);
        self.in_flight.extend(claim.map(|claim| (claim.address, claim.owner)));
    }

    fn add_reservations(&mut self, pool: &Value) {
        let reservations = items(pool, "/status/reservations");
        let statuses = reservations.filter_map(|status| ReservationStatus::deserialize(status).ok());
        self.reservations.extend(statuses.filter_map(|status| Some((status.address.parse().ok()?, status))));
    }

    /// Adds what is not watched, and notes about what is unknown. Returns whether the API server does not answer.
    async fn add_others(&mut self, client: &Client, settings: &Settings, namespaces: &LeaseNamespaces) -> bool {
        let mut is_unreachable = false;
        match namespaces.leases(client).await.map_err(|error| RequestFailure::from(&error)) {
            Ok(leases) => {
                // Without the namespace of the agents, the holders are unknown.
                if namespaces.agents.is_some() {
                    self.holders = Ok(HolderSnapshot::new(Some(Timestamp::now())));
                }
                leases.iter().for_each(|lease| self.add_lease(lease, namespaces));
                self.in_flight.sort_by_key(|(address, _)| *address);
            }
            Err(failure) => {
                is_unreachable = failure.unreachable.is_some();
                let remedy = "; name their namespaces with --server-namespace and --agents-namespace";
                let remedy = if is_unreachable { "" } else { remedy };
                let note = format!("the addresses in flight are unknown: Leases can't be listed: {failure}{remedy}");
                self.notes.push(note);
            }
        }
        if !settings.external.pools.is_empty() {
            match announcer_pools::objects(client).await {
                Ok((_, objects)) => {
                    self.announcer_pools = Some(objects.iter().filter_map(AnnouncerPool::read).collect());
                }
                Err(reason) => self.notes.push(format!(
                    "it is unknown whether programs that announce external addresses have pools with them: {reason}"
                )),
            }
        }
        for kind in [PoolKind::ServicePool, PoolKind::ExternalPool] {
            let pools: Api<DynamicObject> = Api::all_with(client.clone(), &kind.api_resource());
            match pools.list(&ListParams::default()).await {
                Ok(pools) => {
                    pools.items.iter().for_each(|pool| self.add_reservations(&pool.data));
                    let pools: Vec<Value> = pools.items.iter().filter_map(|pool| to_value(pool).ok()).collect();
                    self.notes.extend(unenforced_fences(client, &pools).await);
                }
                // Without the permission, the settings come from a file.
                Err(error)
                    if kind == PoolKind::ServicePool
                        && !matches!(&error, KubeError::Api(status) if status.code == 404)
                        && settings.pools.iter().any(|pool| !pool.reservations.is_empty()) =>
                {
                    self.notes.push(format!(
                        "it is unknown since when reserved addresses are held or free: servicepools can't be listed: {}",
                        error_message(&error)
                    ));
                }
                Err(_) => {}
            }
        }
        is_unreachable
    }
}

/// The settings objects of a snapshot and the ServiceCIDRs that they may select. [`of_text`] reports mistakes.
pub(crate) fn settings_objects(text: &ManifestText) -> Vec<Value> {
    if !text.text.contains(GROUP) {
        return Vec::new();
    }
    objects_in(text, |object| is_settings_object(object) || is_service_cidr(object))
}

pub(crate) fn objects_in(text: &ManifestText, is_part: impl Fn(&Value) -> bool + Sync) -> Vec<Value> {
    let part = |object: WrittenObject<'_>| Some(Ok(Some(object.whole()?).filter(&is_part)));
    let parts = collected(text, Vec::new, part, |found: &mut Vec<Value>, part| found.extend(part));
    parts.unwrap_or_default()
}

/// An object of a snapshot, as it is read.
enum WrittenObject<'t> {
    Json(ObjectText<'t>),
    Yaml(Value),
}

impl WrittenObject<'_> {
    fn fields(&self) -> Option<Value> {
        match self {
            Self::Json(object) => object.fields(),
            Self::Yaml(object) => PartialObject::fields(object).ok(),
        }
    }

    fn whole(self) -> Option<Value> {
        match self {
            Self::Json(object) => object.whole(),
            Self::Yaml(object) => Some(object),
        }
    }
}

/// Adds what `read` makes of each object of a snapshot to what `new` returns. `None` leaves the object to the YAML
/// parser.
fn collected<T, R: Send>(
    source: &ManifestText,
    new: impl Fn() -> T,
    read: impl Fn(WrittenObject<'_>) -> Option<Result<R, serde_json::Error>> + Sync,
    add: impl Fn(&mut T, R),
) -> anyhow::Result<T> {
    let (mut all, mut is_right) = (new(), true);
    let is_list = large_texts::visit(
        &source.text,
        "default",
        |text| read(WrittenObject::Json(text)),
        |part| match part {
            Ok(part) => add(&mut all, part),
            Err(_) => is_right = false,
        },
    );
    if is_list && is_right {
        return Ok(all);
    }
    // The YAML parser knows where a mistake is.
    let (mut all, mut wrong) = (new(), None);
    let streamed =
        manifests::stream(source, "default", &mut |manifest| match read(WrittenObject::Yaml(manifest.object)) {
            None => {}
            Some(Ok(part)) => add(&mut all, part),
            Some(Err(error)) => drop(wrong.get_or_insert_with(|| anyhow::anyhow!("{}: {error}", manifest.origin))),
        });
    streamed.and(wrong.map_or(Ok(all), Err)).context("snapshot")
}

/// Reads a file of `clusterip snapshot` or `kubectl get -A -o yaml`. What it lacks is in the notes.
pub(crate) fn of_text(
    text: &ManifestText,
    settings: &Settings,
    namespaces: &LeaseNamespaces,
) -> anyhow::Result<AuditedCluster> {
    let (asked, callers): (Vec<Kind>, Vec<Kind>) = (kinds::asked(settings).collect(), kinds::callers().collect());
    let new = || Contents { cluster: empty(), kinds: SnapshotKinds::default(), namespaces: namespaces.clone() };
    let read = |object: WrittenObject<'_>| Part::read(object, &asked, &callers);
    let Contents { mut cluster, kinds, namespaces } = collected(text, new, read, Contents::add)?;
    let has_leases = namespaces.agents.is_some() && kinds.was_listed("coordination.k8s.io/v1", "Lease");
    if has_leases && cluster.holders.is_err() {
        cluster.holders = Ok(HolderSnapshot::new(None));
    }
    kinds.check(settings).with_context(|| format!("snapshot: {}", text.name))?;
    cluster.in_flight.sort_by_key(|(address, _)| *address);
    let ranges = Snapshot::read(&cluster.snapshot).service_ranges();
    Ok(AuditedCluster { ranges, notes: kinds.note(settings).into_iter().collect(), ..cluster })
}

fn empty() -> AuditedCluster {
    AuditedCluster::new(Arc::default(), ServiceRanges::default(), ControlPlaneServices::default())
}

/// The objects of a snapshot.
struct Contents {
    cluster: AuditedCluster,
    kinds: SnapshotKinds,
    namespaces: LeaseNamespaces,
}

/// What an audit takes from an object of a snapshot.
struct Part {
    kinds: SnapshotKinds,
    namespaces: Option<LeaseNamespaces>,
    of: PartOf,
}

enum PartOf {
    Lease(Box<Lease>),
    ServicePool(Value),
    AnnouncerPool(AnnouncerPool),
    Caller(Kind, Value),
    Object(ReadObject),
    Other,
}

impl Part {
    fn read(object: WrittenObject<'_>, asked: &[Kind], callers: &[Kind]) -> Option<Result<Self, serde_json::Error>> {
        let fields = object.fields()?;
        let kind = snapshot_kinds::kind_of(&fields);
        let is_lease = (kind.0.as_str(), kind.1.as_str()) == ("coordination.k8s.io/v1", "Lease");
        let is_pool = ObjectKey::of(&fields).is_some_and(|key| key.kind == PoolKind::ServicePool);
        let is_caller = callers.contains(&kind);
        let is_asked = !is_lease && !is_pool && !is_caller && asked.contains(&kind);
        // Most objects are asked for, and are never read completely.
        let object = if is_asked { fields } else { object.whole()? };
        let mut kinds = SnapshotKinds::default();
        kinds.add(&object);
        let namespaces = snapshot_kinds::lease_namespaces(&object);
        let of = if is_lease {
            // Leases of other programs need not be readable.
            serde_json::from_value(object).map_or(PartOf::Other, PartOf::Lease)
        } else if is_pool {
            PartOf::ServicePool(object)
        } else if let Some(pool) = AnnouncerPool::read(&object) {
            PartOf::AnnouncerPool(pool)
        } else if is_caller {
            PartOf::Caller(kind, object)
        } else if is_asked {
            match PartialObject::with_fields::<serde_json::Error>(object) {
                Ok(object) => {
                    object.value(&kind).map_or(PartOf::Other, |object| PartOf::Object(ReadObject::new(&object)))
                }
                Err(error) => return Some(Err(error)),
            }
        } else {
            PartOf::Other
        };
        Some(Ok(Self { kinds, namespaces, of }))
    }
}

impl Contents {
    fn add(&mut self, Part { kinds, namespaces, of }: Part) {
        self.kinds.append(kinds);
        if let Some(named) = namespaces {
            self.namespaces = self.namespaces.or(&named);
        }
        match of {
            PartOf::Lease(lease) => self.cluster.add_lease(&lease, &self.namespaces),
            PartOf::ServicePool(pool) => self.cluster.add_reservations(&pool),
            PartOf::AnnouncerPool(pool) => self.cluster.announcer_pools.get_or_insert_default().push(pool),
            PartOf::Caller(kind, object) => add_caller(&self.cluster.called, &kind, &object),
            PartOf::Object(object) => drop(Snapshot::write(&self.cluster.snapshot).add(object)),
            PartOf::Other => {}
        }
    }
}

/// Adds an object of a snapshot that makes the control plane call Services. `kind` is one of [`kinds::callers`].
pub(crate) fn add_caller(called: &ControlPlaneServices, kind: &Kind, object: &Value) {
    called.take(kind, object);
    // Every cluster has APIServices: a snapshot with some was taken with all objects that refer to Services.
    if kind.1 == "APIService" {
        kinds::callers().for_each(|kind| called.listed(&kind));
    }
}

pub(crate) async fn of_cluster(
    client: &Client,
    settings: &Settings,
    namespaces: &LeaseNamespaces,
) -> anyhow::Result<AuditedCluster> {
    let mut cluster = empty();
    for kind in kinds::asked(settings) {
        let mut insert = |object| drop(Snapshot::insert_in(&cluster.snapshot, &object));
        api_server_lists::each(client, &kind, &mut insert).await?;
    }
    for kind in kinds::callers() {
        let called = &cluster.called;
        match api_server_lists::each(client, &kind, &mut |object| called.take(&kind, &object)).await {
            Ok(()) => called.listed(&kind),
            Err(error) => called.failed(&kind, error.to_string()),
        }
    }
    cluster.add_others(client, settings, namespaces).await;
    let ranges = Snapshot::read(&cluster.snapshot).service_ranges();
    Ok(AuditedCluster { ranges, ..cluster })
}

/// Reads the watched stores, and the Leases from the API server as [`of_cluster`] does.
pub(crate) async fn of_stores(
    client: &Client,
    stores: &Stores,
    settings: &Settings,
    namespaces: &LeaseNamespaces,
) -> AuditedCluster {
    let mut cluster = AuditedCluster::of(stores);
    let is_unreachable = cluster.add_others(client, settings, namespaces).await;
    let watches = failing(stores);
    // Watches report no error while the API server hangs.
    if watches.is_empty() && is_unreachable {
        cluster.notes.push("the API server does not answer, so the watched objects may have changed".to_owned());
    }
    cluster.notes.extend(watches);
    cluster
}

/// The watches that fail, without the time since when: otherwise no two audits would be the same.
fn failing(stores: &Stores) -> Vec<String> {
    let failing = |((api_version, kind), state): (&Kind, &State)| match state {
        State::Failing { reason, .. } => {
            Some(format!("{api_version}/{kind} can't be watched, so its objects may have changed: {reason}"))
        }
        State::Syncing | State::Synced | State::Absent => None,
    };
    stores.states().iter().filter_map(failing).collect()
}

/// Which pools among these objects have a fence that nothing enforces, or for which that is unknown.
pub(crate) async fn unenforced_fences(client: &Client, objects: &[Value]) -> Vec<String> {
    let mut fenced: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in objects {
        let Some(key) = ObjectKey::of(object) else { continue };
        let kind = match key.kind {
            PoolKind::ServicePool => "service",
            PoolKind::ExternalPool => "external",
            _ => continue,
        };
        let suffix = match object.pointer("/spec/fence").and_then(Value::as_str) {
            Some("Deny") => "",
            Some("Warn") => "-warning",
            _ => continue,
        };
        let binding = format!("{kind}-fence{suffix}.clusterip-policy.io");
        fenced.entry(binding).or_default().push(key.to_string());
    }
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let mut notes = Vec::new();
    for (name, pools) in fenced {
        let binding = format!("ValidatingAdmissionPolicyBinding {name}");
        let pools = joined(pools, ", ");
        match bindings.get_metadata_opt(&name).await {
            Ok(Some(_)) => {}
            Ok(None) => notes.push(format!(
                "nothing enforces spec.fence of {pools}: the cluster has no {binding}; apply deploy/fence, or run helm \
                 upgrade if the chart is installed"
            )),
            Err(error) => notes.push(format!(
                "it is unknown whether the API server enforces spec.fence of {pools}: {binding} can't be read: {}",
                error_message(&error)
            )),
        }
    }
    notes
}
