//! Audits a cluster: how its addresses and blocks are used, and which problems there are.
//!
//! - `services`, `nodes` and `external` decide about all objects of their sort, count addresses and blocks, and
//!   describe problems; `service_findings` those of Services.
//! - `source` reads a cluster, a snapshot or watched stores, and [`LiveAudit`] audits the watched stores of a server.
//! - `misplaced_services` finds misplaced Services for other commands, and `explain` explains the address of one
//!   Service.

pub(crate) mod explain;
pub mod external;
pub(crate) mod misplaced_services;
pub mod model;
mod nodes;
pub(crate) mod service_findings;
pub(crate) mod services;
pub(crate) mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_api::{Compilation, Kind as ObjectKind, ObjectKey, ObjectState, Reason};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::{Snapshot, StoredService};
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::is_set_by_hand;
use clusterip_core::settings::{self, Settings};
use clusterip_failover::holders::{HolderSnapshot, Observer};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::model::{Address, Audit, Finding, Kind, Pool, Reservation, State};
use self::services::{AuditCache, PlacedService};
use self::source::AuditedCluster;
use crate::lease_namespaces::list_leases;
use crate::service_placement::{Fit, Skip};
use crate::service_selector::ServiceSelector;
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
    /// Audits the cluster. A decision in `cache` that still holds is not made again.
    pub fn audit(&self, cache: &mut AuditCache) -> Audit {
        let placed = services::place_all(self.settings, &self.cluster.snapshot, cache);
        let settings = &self.settings.settings;
        let used = self.used(&placed);
        let pools: Vec<Pool> = settings
            .pools
            .iter()
            .map(|pool| Pool {
                name: pool.name.clone(),
                ranges: pool.cidrs.iter().map(|cidr| services::range(settings, pool, *cidr, &used)).collect(),
            })
            .collect();
        let mut findings = Vec::new();
        for placed in &placed {
            service_findings::of_service(settings, placed, &self.cluster.called, self.refused, &mut findings);
        }
        let kubernetes = self.kubernetes();
        service_findings::of_pools(
            settings,
            &pools,
            &self.cluster.ranges.nets(),
            &kubernetes,
            self.ledger,
            &mut findings,
        );
        findings.extend(service_findings::over_dns(settings, |address| used.contains_key(&address)));
        findings.extend(service_findings::of_other_webhooks(&self.cluster.called));
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
        notes.extend(unknown_webhooks(&self.cluster.called));
        let services = placed.iter().filter(|placed| has_address(placed)).count();
        let reservations = self.reservations();
        Audit { pools, reservations, nodes, external, findings, services, notes }
    }

    /// The audit with only the findings about Services of this namespace that match the selector, and about everything
    /// that has no namespace. `None` stands for all namespaces, and for any labels.
    pub fn only_of(&self, mut audit: Audit, namespace: Option<&str>, selector: Option<&ServiceSelector>) -> Audit {
        if namespace.is_none() && selector.is_none() {
            return audit;
        }
        let is_selected =
            |service: &&Arc<StoredService>| selector.is_none_or(|selector| selector.matches(&service.value()));
        let snapshot = Snapshot::read(&self.cluster.snapshot);
        let selected: Vec<&Arc<StoredService>> = snapshot.each_service(namespace).filter(is_selected).collect();
        let keys: BTreeSet<(&str, &str)> =
            selected.iter().map(|service| (&*service.key().namespace, &*service.key().name)).collect();
        audit.findings.retain(|finding| match (&finding.namespace, &finding.name) {
            (Some(namespace), Some(name)) => keys.contains(&(namespace.as_str(), name.as_str())),
            _ => true,
        });
        audit.services = selected.iter().filter(|service| !service.addresses().is_empty()).count();
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

    /// Every address that is used or in flight. A Service has precedence over an address in flight, and that over an
    /// `IPAddress` object, because it contains more information.
    fn used(&self, placed: &[PlacedService]) -> BTreeMap<IpAddr, Address> {
        let mut used = BTreeMap::new();
        for address in placed.iter().flat_map(of_service) {
            used.entry(address.address).or_insert(address);
        }
        for (address, owner) in &self.cluster.in_flight {
            let (namespace, name) = owner.id();
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

    fn kubernetes(&self) -> Vec<IpAddr> {
        let snapshot = Snapshot::read(&self.cluster.snapshot);
        let kubernetes = snapshot.service(&ServiceKey::new("default", "kubernetes"));
        kubernetes.map(|service| service.addresses().to_vec()).unwrap_or_default()
    }
}

/// Audits what a server watches. Clones are cheap and share one cache.
///
/// The first audit decides about every Service. A later audit decides only about the Services for which something has
/// changed: the Service, an object in its namespace, the nodes, or the settings.
#[derive(Clone)]
pub struct LiveAudit {
    evaluator: Evaluator,
    cache: Arc<Mutex<AuditCache>>,
    leases: Option<Api<Lease>>,
    /// What the settings were compiled from; `None` if they do not come from objects.
    compilation: watch::Receiver<Option<Arc<Compilation>>>,
}

impl LiveAudit {
    /// Audits with the policy, settings, stores and ledger of `evaluator`. The settings come from the objects of
    /// `compilation`.
    pub fn new(evaluator: Evaluator, compilation: watch::Receiver<Option<Arc<Compilation>>>) -> Self {
        Self { evaluator, cache: Arc::default(), leases: None, compilation }
    }

    /// Also reports which nodes hold external addresses: if the settings have pools of external addresses, each
    /// audit reads the Leases of the agents in `namespace`.
    pub fn reading_leases(self, client: Client, namespace: &str) -> Self {
        Self { leases: Some(Api::namespaced(client, namespace)), ..self }
    }

    /// Audits the cluster as it is now. The call blocks until the audit is done, so a caller that reads Leases must
    /// call it from a thread that a runtime lets block.
    pub fn audit(&self) -> Audit {
        let settings = self.evaluator.settings();
        let stores = self.evaluator.stores();
        let holders = match settings.settings.external.pools.is_empty() {
            true => Ok(HolderSnapshot::default()),
            false => self.holders(),
        };
        let cluster = AuditedCluster {
            snapshot: Arc::clone(stores.snapshot()),
            ranges: stores.service_cidrs().borrow().clone(),
            in_flight: self.evaluator.ledger().reservations(),
            reservations: BTreeMap::new(),
            holders,
            called: stores.control_plane_services().clone(),
            notes: stores.lagging(),
        };
        let objects = self.compilation.borrow().as_ref().map(|compiled| compiled.states.clone()).unwrap_or_default();
        let input = AuditInput { settings: &settings, objects, cluster: &cluster, ledger: true, refused: false };
        // A panic while the cache is locked only loses decisions that are not stored yet.
        input.audit(&mut self.cache.lock())
    }

    /// What the Leases say now, or why they can't be read.
    fn holders(&self) -> Result<HolderSnapshot, String> {
        let Some(leases) = &self.leases else { return Err("Leases are not read here".to_owned()) };
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let leases = runtime.block_on(list_leases(leases, &Observer::labels()));
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
    let address = |address| bare(address, State::Used, &placed.id.namespace, &placed.id.name);
    let own = || placed.service.addresses().iter().copied().map(address);
    match placed.placement.as_ref() {
        Err(Skip::Unmanaged) => {
            let by_hand = is_set_by_hand(&placed.service.value());
            own().map(|address| Address { by_hand, ..address }).collect()
        }
        Err(Skip::HalfMoved) => {
            let evidence = Some("it looks as if a move has begun and has not ended".to_owned());
            own().map(|own| Address { state: State::InFlight, evidence: evidence.clone(), ..own }).collect()
        }
        Ok(placement) => {
            let state = match placement.fit {
                Fit::InPlace | Fit::NotWhereAssumed => State::Used,
                Fit::Unmatched | Fit::Misplaced => State::Misplaced,
            };
            let (pool, evidence, by_hand) = (&placement.pool, &placement.evidence, placement.by_hand);
            let own = placement.addresses.iter().copied().map(address);
            own.map(|own| Address { state, pool: pool.clone(), evidence: evidence.clone(), by_hand, ..own }).collect()
        }
    }
}

fn bare(address: IpAddr, state: State, namespace: &str, name: &str) -> Address {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Address { address, state, namespace, name, pool: None, evidence: None, by_hand: None }
}

fn has_address(placed: &PlacedService) -> bool {
    placed.placement.is_ok() || !placed.service.addresses().is_empty()
}

/// Sorts by kind, then by pool in the order of the settings, then by namespace and name.
fn sort(settings: &Settings, findings: &mut [Finding]) {
    let place = |finding: &Finding| {
        let is_it = |name: &String| Some(name) == finding.pool.as_ref();
        // Findings of pools come first; the pool of a Service or Node does not count.
        match finding.kind {
            _ if finding.name.is_some() || finding.node.is_some() => None,
            Kind::FullNodePool => settings.nodes.pools.iter().position(|pool| is_it(&pool.name)),
            Kind::FullExternalPool => settings.external.pools.iter().position(|pool| is_it(&pool.name)),
            _ => settings.pools.iter().position(|pool| is_it(&pool.name)),
        }
    };
    findings.sort_by_cached_key(|finding| {
        let node = finding.node.clone();
        (finding.kind, place(finding), finding.namespace.clone(), finding.name.clone(), node, finding.blocks.clone())
    });
}

/// A note if Services could move and it is unknown whether the control plane calls them.
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

fn unknown_webhooks(called: &ControlPlaneServices) -> Option<String> {
    let reason = called.unknown_webhooks()?;
    Some(format!(
        "it is unknown whether a webhook of another program also chooses addresses of Services: \
         MutatingWebhookConfigurations can't be read: {reason}"
    ))
}

/// One note for all Services whose addresses may have been set by hand.
fn unknown_owners(placed: &[PlacedService]) -> Option<String> {
    let is_unknown =
        |placed: &&PlacedService| placed.placement.as_ref().as_ref().is_ok_and(|placement| placement.by_hand.is_none());
    let count = placed.iter().filter(is_unknown).count();
    (count > 0).then(|| {
        let services = if count == 1 { "1 Service comes".to_owned() } else { format!("{count} Services come") };
        format!(
            "{services} without metadata.managedFields: it is unknown whether an address was set by hand \
             (`kubectl get --show-managed-fields` shows them)"
        )
    })
}
