//! Audits a cluster, which `source` reads: `services`, `nodes` and `external` decide about all objects of their sort, count
//! addresses and blocks, and describe problems.

pub(crate) mod explain;
pub mod external;
pub mod model;
mod nodes;
pub(crate) mod services;
pub(crate) mod source;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_api::{Compilation, Kind as ObjectKind, ObjectKey, ObjectState, Reason};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::snapshot::{Snapshot, StoredService};
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_core::label_selector::LabelSelector;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{self, Settings};
use clusterip_failover::holders::{HolderSnapshot, Observer};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::model::{Address, Audit, Finding, Kind, Pool, Reservation, State};
use self::services::{AuditCache, HALF_MOVED, MoveConditions, PlacedService};
use self::source::AuditedCluster;
use crate::lease_namespaces::list_leases;
use crate::service_placement::{Fit, Skip};
use crate::usage::reservation_holder;

pub(crate) struct AuditInput<'m> {
    pub settings: &'m LiveSettings,
    /// The state of the objects that the settings come from; empty if they come from no objects.
    pub objects: BTreeMap<ObjectKey, ObjectState>,
    pub cluster: &'m AuditedCluster,
    /// Whether the addresses in flight are complete.
    pub ledger: bool,
    /// Whether a server and `clusterip move` refuse the settings, because they don't fit the cluster's ranges.
    pub refused: bool,
}

impl AuditInput<'_> {
    pub fn audit(&self, cache: &mut AuditCache) -> Audit {
        let placed = services::place_all(self.settings, &self.cluster.snapshot, cache);
        let settings = &self.settings.settings;
        let used = self.used(&placed);
        let pools = settings.pools.iter().map(|pool| {
            let ranges = pool.cidrs.iter().map(|cidr| services::range(settings, pool, *cidr, &used));
            Pool { name: pool.name.clone(), ranges: ranges.collect() }
        });
        let pools: Vec<Pool> = pools.collect();
        let of_service = |placed| services::of_service(settings, placed, MoveConditions::of(self));
        let mut findings: Vec<Finding> = placed.iter().flat_map(of_service).collect();
        services::of_pools(self, &pools, &mut findings);
        findings.extend(services::over_dns(settings, |address| used.contains_key(&address)));
        findings.extend(services::of_other_webhooks(&self.cluster.called));
        findings.extend(self.objects.iter().filter_map(not_ready));
        let nodes = nodes::audit(settings, &self.cluster.snapshot, &mut findings);
        let mut notes = self.cluster.notes.clone();
        let external = external::audit(self, &mut findings, &mut notes);
        sort(settings, &mut findings);
        for finding in &mut findings {
            finding.message = self.settings.words(std::mem::take(&mut finding.message));
            finding.remedy = self.settings.words(std::mem::take(&mut finding.remedy));
        }
        notes.extend(unknown_owners(&placed));
        notes.extend(unknown_callers(&self.cluster.called, &findings));
        notes.extend(self.cluster.called.unknown_webhooks().map(|reason| {
            format!(
                "it is unknown whether a webhook of another program also chooses addresses of Services: \
                 MutatingWebhookConfigurations can't be read: {reason}"
            )
        }));
        let services =
            placed.iter().filter(|placed| placed.placement.is_ok() || !placed.service.addresses().is_empty()).count();
        let reservations = self.reservations();
        Audit { pools, reservations, nodes, external, findings, services, notes }
    }

    /// The audit with only the findings about these Services, and about everything that has no namespace.
    pub(crate) fn only_of(&self, mut audit: Audit, namespace: Option<&str>, selector: Option<&LabelSelector>) -> Audit {
        if namespace.is_none() && selector.is_none() {
            return audit;
        }
        let snapshot = Snapshot::read(&self.cluster.snapshot);
        let is_selected =
            |service: &&Arc<StoredService>| selector.is_none_or(|selector| service.is_selected_by(selector));
        let selected: BTreeMap<&ServiceKey, &Arc<StoredService>> =
            snapshot.each_service(namespace).filter(is_selected).map(|service| (service.key(), service)).collect();
        audit.findings.retain(|finding| match (&finding.namespace, &finding.name) {
            (Some(namespace), Some(name)) => selected.contains_key(&ServiceKey::new(namespace, name)),
            _ => true,
        });
        audit.services = selected.values().filter(|service| !service.addresses().is_empty()).count();
        audit
    }

    fn reservations(&self) -> Vec<Reservation> {
        let snapshot = Snapshot::read(&self.cluster.snapshot);
        let pools = self.settings.settings.pools.iter();
        let reservations = pools.flat_map(|pool| pool.reservations.iter().map(move |reservation| (pool, reservation)));
        let audited = |(pool, reservation): (&settings::Pool, &settings::Reservation)| {
            let (holder, other) = reservation_holder(&snapshot, reservation);
            let observed =
                self.cluster.reservations.get(&reservation.address).filter(|observed| observed.holder == holder);
            Reservation {
                address: reservation.address,
                pool: pool.name.clone(),
                namespace: reservation.service.namespace.clone(),
                name: reservation.service.name.clone(),
                state: holder,
                taken_by: other.map(ToString::to_string),
                since: observed.map(|observed| observed.since.clone()),
            }
        };
        reservations.map(audited).collect()
    }

    /// Every address that is used or in flight. A Service says most about it, and an `IPAddress` object least.
    fn used(&self, placed: &[PlacedService]) -> BTreeMap<IpAddr, Address> {
        let mut used = BTreeMap::new();
        for address in placed.iter().flat_map(of_service) {
            used.entry(address.address).or_insert(address);
        }
        for (address, owner) in &self.cluster.in_flight {
            let ServiceKey { namespace, name } = &owner.service;
            used.entry(*address).or_insert_with(|| bare(*address, State::InFlight, namespace, name));
        }
        for address in Snapshot::read(&self.cluster.snapshot).ip_addresses() {
            used.entry(*address).or_insert_with(|| Address {
                evidence: Some("an IPAddress object without its Service".to_owned()),
                ..bare(*address, State::Used, "", "")
            });
        }
        used
    }
}

/// Audits what a server watches. A later audit decides only about the Services for which something has changed.
pub struct LiveAudit {
    evaluator: Evaluator,
    cache: Mutex<AuditCache>,
    /// Those of the agents.
    leases: Api<Lease>,
    /// What the settings were compiled from; `None` if they do not come from objects.
    compilation: watch::Receiver<Option<Arc<Compilation>>>,
}

impl LiveAudit {
    pub fn new(
        evaluator: Evaluator,
        leases: Api<Lease>,
        compilation: watch::Receiver<Option<Arc<Compilation>>>,
    ) -> Self {
        Self { evaluator, cache: Mutex::default(), leases, compilation }
    }

    /// Audits the cluster as it is now. If it reads Leases, the thread must be one that a runtime lets block.
    pub fn audit(&self) -> Audit {
        let settings = self.evaluator.settings();
        let stores = self.evaluator.stores();
        let holders = match settings.settings.external.pools.is_empty() {
            true => Ok(HolderSnapshot::default()),
            false => self.holders(),
        };
        let (in_flight, notes) = (self.evaluator.ledger().reservations(), stores.lagging());
        let cluster = AuditedCluster { in_flight, holders, notes, ..AuditedCluster::of(stores) };
        let objects = self.compilation.borrow().as_ref().map(|compiled| compiled.states.clone()).unwrap_or_default();
        let input = AuditInput { settings: &settings, objects, cluster: &cluster, ledger: true, refused: false };
        // A panic while the cache is locked only loses decisions that are not stored yet.
        input.audit(&mut self.cache.lock())
    }

    fn holders(&self) -> Result<HolderSnapshot, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let leases = runtime.block_on(list_leases(&self.leases, &Observer::labels()));
        let leases = leases.map_err(|error| error_message(&error))?;
        let mut holders = HolderSnapshot::new(Some(Timestamp::now()));
        leases.iter().for_each(|lease| holders.apply(lease));
        Ok(holders)
    }
}

fn not_ready((key, state): (&ObjectKey, &ObjectState)) -> Option<Finding> {
    if state.reason == Reason::InUse {
        return None;
    }
    let message = format!("{key}: {}: {}", state.reason.as_str(), state.message);
    let remedy = "correct the object, or the other one that the message names";
    let pool = (key.kind != ObjectKind::ClusterIPPolicy).then(|| key.name.clone());
    Some(Finding { object: Some(key.to_string()), pool, ..Finding::new(Kind::NotReady, message, remedy) })
}

fn of_service(placed: &PlacedService) -> Vec<Address> {
    let (state, pool, evidence, by_hand) = match placed.placement.as_ref() {
        Err(Skip::Unmanaged) => (State::Used, None, None, placed.service.by_hand()),
        Err(Skip::HalfMoved) => (State::InFlight, None, Some(HALF_MOVED.to_owned()), None),
        Ok(placement) => {
            let is_misplaced = matches!(placement.fit, Fit::Unmatched | Fit::Misplaced);
            let state = if is_misplaced { State::Misplaced } else { State::Used };
            (state, placement.pool.clone(), placement.evidence.clone(), placed.service.by_hand())
        }
    };
    let ServiceKey { namespace, name } = placed.service.key();
    let of_service = |address: &IpAddr| {
        let bare = bare(*address, state, namespace, name);
        Address { pool: pool.clone(), evidence: evidence.clone(), by_hand, ..bare }
    };
    placed.service.addresses().iter().map(of_service).collect()
}

fn bare(address: IpAddr, state: State, namespace: &str, name: &str) -> Address {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Address { address, state, namespace, name, pool: None, evidence: None, by_hand: None }
}

/// Sorts by kind, then by pool in the order of the settings, then by namespace and name.
fn sort(settings: &Settings, findings: &mut [Finding]) {
    let place = |finding: &Finding| {
        let is_it = |name: &String| Some(name) == finding.pool.as_ref();
        // Findings of pools come first; the pool of a Service or Node does not count.
        match finding.kind {
            _ if finding.name.is_some() || finding.node.is_some() => None,
            Kind::FullNodePool => settings.nodes.pools.iter().position(|pool| is_it(&pool.name)),
            Kind::FullExternalPool | Kind::AnnouncerPool => {
                settings.external.pools.iter().position(|pool| is_it(&pool.name))
            }
            _ => settings.pools.iter().position(|pool| is_it(&pool.name)),
        }
    };
    findings.sort_by_cached_key(|finding| {
        let node = finding.node.clone();
        (finding.kind, place(finding), finding.namespace.clone(), finding.name.clone(), node, finding.blocks.clone())
    });
}

fn unknown_callers<'f>(
    called: &ControlPlaneServices,
    findings: impl IntoIterator<Item = &'f Finding>,
) -> Option<String> {
    let reason = called.missing()?;
    let is_movable = |finding: &Finding| matches!(finding.kind, Kind::Misplaced | Kind::NoPool);
    findings.into_iter().any(is_movable).then(|| {
        format!("it is unknown whether the control plane calls a misplaced Service, which then does not move: {reason}")
    })
}

fn unknown_owners(placed: &[PlacedService]) -> Option<String> {
    let is_unknown = |placed: &&PlacedService| placed.placement.is_ok() && placed.service.by_hand().is_none();
    let count = placed.iter().filter(is_unknown).count();
    (count > 0).then(|| {
        let services = if count == 1 { "1 Service comes".to_owned() } else { format!("{count} Services come") };
        format!(
            "{services} without metadata.managedFields: it is unknown whether an address was set by hand \
             (`kubectl get --show-managed-fields` shows them)"
        )
    })
}
