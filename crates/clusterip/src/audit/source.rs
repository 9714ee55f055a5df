//! Reads a cluster at one moment, from a snapshot file, its API server or watched stores. Each object is reduced to the
//! needed fields as soon as it arrives, to save memory.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use anyhow::Context;
use clusterip_api::{GROUP, Kind as PoolKind, ObjectKey, ReservationStatus};
use clusterip_cluster::api_error::{RequestFailure, error_message};
use clusterip_cluster::live_settings::{is_service_cidr, is_settings_object};
use clusterip_cluster::lookups::api_server_lists;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::manifests::{self, ManifestText, json_list};
use clusterip_cluster::object;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_cluster::watch::kinds::{self, Kind};
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_cluster::watch::service_ranges::ServiceRanges;
use clusterip_cluster::watch::stores::{State, Stores};
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
    pub notes: Vec<String>,
}

#[derive(Default)]
struct Collector {
    asked: Vec<Kind>,
    snapshot: Snapshot,
    in_flight: Vec<(IpAddr, Owner)>,
    reservations: BTreeMap<IpAddr, ReservationStatus>,
    holders: Option<HolderSnapshot>,
    called: ControlPlaneServices,
    kinds: SnapshotKinds,
    namespaces: LeaseNamespaces,
}

impl Collector {
    fn new(settings: &Settings, namespaces: &LeaseNamespaces) -> Self {
        Self { asked: kinds::asked(settings).collect(), namespaces: namespaces.clone(), ..Self::default() }
    }

    fn take(&mut self, kind: &Kind, object: PartialObject) {
        if let Some(object) = object.value(kind) {
            self.snapshot.insert(&object);
        }
    }

    /// Adds a Lease of an agent, or a claim of a server. A claim for a Service that has no name yet contains none.
    fn add_lease(&mut self, lease: &Lease) {
        let is_in = |namespace: &Option<String>| namespace.is_some() && lease.metadata.namespace == *namespace;
        if is_in(&self.namespaces.agents) {
            // The newest time in these Leases tells when a snapshot was taken.
            self.holders.get_or_insert_with(|| HolderSnapshot::new(None)).apply(lease);
        }
        let label = lease.metadata.labels.as_ref().and_then(|labels| labels.get(LEASE_LABEL));
        let is_claim = is_in(&self.namespaces.server) && label.is_some_and(|label| label == CLAIM);
        if let Some(claim) = ReplicaClaim::of(lease).filter(|_| is_claim) {
            self.in_flight.push((claim.address, claim.owner));
        }
    }

    fn add_reservations(&mut self, pool: &Value) {
        let reservations = pool.pointer("/status/reservations").and_then(Value::as_array).into_iter().flatten();
        let statuses = reservations.filter_map(|status| ReservationStatus::deserialize(status).ok());
        self.reservations.extend(statuses.filter_map(|status| Some((status.address.parse::<IpAddr>().ok()?, status))));
    }

    /// Adds what the status of pools says about reservations. Returns notes about this, and about fences.
    async fn add_pool_objects(&mut self, client: &Client, settings: &Settings) -> Vec<String> {
        let mut notes = Vec::new();
        for kind in [PoolKind::ServicePool, PoolKind::ExternalPool] {
            let pools: Api<DynamicObject> = Api::all_with(client.clone(), &kind.api_resource());
            match pools.list(&ListParams::default()).await {
                Ok(pools) => {
                    pools.items.iter().for_each(|pool| self.add_reservations(&pool.data));
                    let pools: Vec<Value> = pools.items.iter().filter_map(|pool| to_value(pool).ok()).collect();
                    notes.extend(unenforced_fences(client, &pools).await);
                }
                // Without the permission, the settings come from a file.
                Err(error)
                    if kind == PoolKind::ServicePool
                        && !matches!(&error, KubeError::Api(status) if status.code == 404)
                        && settings.pools.iter().any(|pool| !pool.reservations.is_empty()) =>
                {
                    notes.push(format!(
                        "it is unknown since when reserved addresses are held or free: servicepools can't be listed: {}",
                        error_message(&error)
                    ));
                }
                Err(_) => {}
            }
        }
        notes
    }

    /// Adds the claims of servers, and the Leases of agents. Without the namespace of the agents, the holders are unknown.
    async fn add_leases(&mut self, client: &Client) -> Result<(), RequestFailure> {
        let leases = self.namespaces.leases(client).await.map_err(|error| RequestFailure::from(&error))?;
        self.holders = self.namespaces.agents.is_some().then(|| HolderSnapshot::new(Some(Timestamp::now())));
        for lease in &leases {
            self.add_lease(lease);
        }
        Ok(())
    }

    /// Adds what is not watched. Returns notes about what is unknown, and whether the API server does not answer.
    async fn add_others(&mut self, client: &Client, settings: &Settings) -> (Vec<String>, bool) {
        let failure = self.add_leases(client).await.err();
        let is_unreachable = failure.as_ref().is_some_and(|failure| failure.unreachable().is_some());
        let mut notes: Vec<String> = failure.iter().map(note_about_leases).collect();
        notes.extend(self.add_pool_objects(client, settings).await);
        (notes, is_unreachable)
    }

    fn end(mut self, notes: Vec<String>) -> AuditedCluster {
        let holders =
            self.holders.ok_or_else(|| "no Leases were read in the namespace of --agents-namespace".to_owned());
        self.in_flight.sort_by_key(|(address, _)| *address);
        let ranges = self.snapshot.service_ranges();
        let snapshot = Arc::new(RwLock::new(self.snapshot));
        let Self { in_flight, reservations, called, .. } = self;
        AuditedCluster { snapshot, ranges, in_flight, reservations, holders, called, notes }
    }
}

/// The settings objects of a snapshot and the ServiceCIDRs that they may select. [`of_text`] reports mistakes.
pub(crate) fn settings_objects(text: &ManifestText) -> Vec<Value> {
    if !text.text.contains(GROUP) {
        return Vec::new();
    }
    objects_in(text, |object| is_settings_object(object) || is_service_cidr(object))
}

pub(crate) fn service_cidrs(text: &ManifestText) -> Vec<Value> {
    objects_in(text, is_service_cidr)
}

fn objects_in(text: &ManifestText, is_part: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut found = Vec::new();
    let is_list = json_list::visit(&text.text, "default", &mut |object| {
        if is_part(&object) {
            found.push(object);
        }
    });
    if !is_list {
        found.clear();
        let _ = manifests::stream(text, "default", &mut |manifest| {
            let object = manifest.object.value();
            if is_part(&object) {
                found.push(object);
            }
        });
    }
    found
}

/// Reads a file of `clusterip snapshot` or `kubectl get -A -o yaml`. What it lacks is in the notes.
pub(crate) fn of_text(
    text: &ManifestText,
    settings: &Settings,
    namespaces: &LeaseNamespaces,
) -> anyhow::Result<AuditedCluster> {
    let mut collector = collected(text, settings, namespaces)?;
    if collector.namespaces.agents.is_some() && collector.kinds.was_listed("coordination.k8s.io/v1", "Lease") {
        collector.holders.get_or_insert_with(|| HolderSnapshot::new(None));
    }
    collector.kinds.check(settings).with_context(|| format!("snapshot: {}", text.name))?;
    let notes = collector.kinds.note(settings).into_iter().collect();
    Ok(collector.end(notes))
}

fn collected(source: &ManifestText, settings: &Settings, namespaces: &LeaseNamespaces) -> anyhow::Result<Collector> {
    let (mut collector, mut wrong) = (Collector::new(settings, namespaces), false);
    let is_list = json_list::visit(&source.text, "default", &mut |object| {
        wrong |= collect(&mut collector, object).is_err();
    });
    if is_list && !wrong {
        return Ok(collector);
    }
    let mut collector = Collector::new(settings, namespaces);
    let mut wrong = None;
    let read = manifests::stream(source, "default", &mut |manifest| {
        if wrong.is_none() {
            wrong = collect(&mut collector, manifest.object.value())
                .err()
                .map(|error| anyhow::anyhow!("{}: {error}", manifest.origin));
        }
    });
    read.context("snapshot")?;
    match wrong {
        Some(error) => Err(error.context("snapshot")),
        None => Ok(collector),
    }
}

fn collect(collector: &mut Collector, object: Value) -> Result<(), serde_json::Error> {
    collector.kinds.add(&object);
    if let Some(named) = snapshot_kinds::lease_namespaces(&object) {
        collector.namespaces = collector.namespaces.or(&named);
    }
    let kind = (object::api_version(&object).to_owned(), object::kind(&object).to_owned());
    if kind == ("coordination.k8s.io/v1".to_owned(), "Lease".to_owned()) {
        // Leases of other programs need not be readable.
        if let Ok(lease) = serde_json::from_value(object) {
            collector.add_lease(&lease);
        }
        return Ok(());
    }
    if ObjectKey::of(&object).is_some_and(|key| key.kind == PoolKind::ServicePool) {
        collector.add_reservations(&object);
        return Ok(());
    }
    if kinds::callers().any(|caller| caller == kind) {
        return add_caller(&collector.called, &kind, object);
    }
    if collector.asked.contains(&kind) {
        collector.take(&kind, serde_json::from_value(object)?);
    }
    Ok(())
}

/// Adds an object of a snapshot that makes the control plane call Services. `kind` is one of [`kinds::callers`].
pub(crate) fn add_caller(called: &ControlPlaneServices, kind: &Kind, object: Value) -> Result<(), serde_json::Error> {
    called.take(kind, serde_json::from_value(object)?);
    // Every cluster has APIServices: a snapshot with some was taken with all objects that refer to Services.
    if kind.1 == "APIService" {
        kinds::callers().for_each(|kind| called.listed(&kind));
    }
    Ok(())
}

pub(crate) async fn of_cluster(
    client: &Client,
    settings: &Settings,
    namespaces: &LeaseNamespaces,
) -> anyhow::Result<AuditedCluster> {
    let mut collector = Collector::new(settings, namespaces);
    for kind in kinds::asked(settings) {
        api_server_lists::each(client, &kind, &mut |object| collector.take(&kind, object)).await?;
    }
    for kind in kinds::callers() {
        match api_server_lists::each(client, &kind, &mut |object| collector.called.take(&kind, object)).await {
            Ok(()) => collector.called.listed(&kind),
            Err(error) => collector.called.failed(&kind, error.to_string()),
        }
    }
    let (notes, _) = collector.add_others(client, settings).await;
    Ok(collector.end(notes))
}

/// Reads the watched stores, and the Leases from the API server as [`of_cluster`] does.
pub(crate) async fn of_stores(
    client: &Client,
    stores: &Stores,
    settings: &Settings,
    namespaces: &LeaseNamespaces,
) -> AuditedCluster {
    let mut collector = Collector::new(settings, namespaces);
    let (mut notes, is_unreachable) = collector.add_others(client, settings).await;
    let watches = failing(stores);
    // Watches report no error while the API server hangs.
    if watches.is_empty() && is_unreachable {
        notes.push("the API server does not answer, so the watched objects may have changed".to_owned());
    }
    notes.extend(watches);
    let source = collector.end(notes);
    let ranges = stores.service_cidrs().borrow().clone();
    let called = stores.control_plane_services().clone();
    AuditedCluster { snapshot: Arc::clone(stores.snapshot()), ranges, called, ..source }
}

fn note_about_leases(failure: &RequestFailure) -> String {
    let note = format!("the addresses in flight are unknown: Leases can't be listed: {failure}");
    match failure.unreachable() {
        Some(_) => note,
        None => format!("{note}; name their namespaces with --server-namespace and --agents-namespace"),
    }
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
