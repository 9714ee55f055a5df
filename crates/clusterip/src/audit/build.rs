//! Builds an audit from its input.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_api::{Kind as ObjectKind, ObjectKey, ObjectState, Reason, ReservationHolder};
use clusterip_cluster::lookups::snapshot::{Snapshot, addresses};
use clusterip_cluster::object::{self, name};
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_core::address_set_by_hand::is_set_by_hand;
use clusterip_core::settings::{self, Settings};
use serde_json::Value;

use super::cache::AuditCache;
use super::input::AuditInput;
use super::model::{Address, Audit, Finding, Kind, Pool, Reservation, ReservationState, State};
use super::services::evaluate::{EvaluatedService, Evaluation};
use super::{external, nodes, services};
use crate::reservation_holder;
use crate::service_placement::{Placement, Skip, Standing};
use crate::service_selector::ServiceSelector;

impl AuditInput<'_> {
    /// Audits the cluster. A decision in `cache` that still holds is not made again.
    pub fn audit(&self, cache: &mut AuditCache) -> Audit {
        cache.renew(&self.settings.hash);
        let evaluated = services::evaluate::all(self.settings, self.snapshot, &mut cache.services);
        let settings = &self.settings.settings;
        let used = self.used(&evaluated);
        let pools: Vec<Pool> = settings
            .pools
            .iter()
            .map(|pool| Pool {
                name: pool.name.clone(),
                ranges: pool.cidrs.iter().map(|cidr| services::ranges::range(settings, pool, *cidr, &used)).collect(),
            })
            .collect();
        let mut findings = Vec::new();
        for evaluated in &evaluated {
            services::findings::of_service(settings, evaluated, &self.called, self.refused, &mut findings);
        }
        let kubernetes = self.kubernetes();
        services::findings::of_pools(settings, &pools, &self.ranges, &kubernetes, self.ledger, &mut findings);
        findings.extend(services::findings::over_dns(settings, |address| used.contains_key(&address)));
        findings.extend(services::findings::of_other_webhooks(&self.called));
        findings.extend(self.objects.iter().filter_map(not_ready));
        let nodes = nodes::audit::audit(self.settings, self.snapshot, &mut findings);
        let mut notes = self.notes.clone();
        let external = external::audit::audit(self, &mut findings, &mut notes);
        sort(settings, &mut findings);
        for finding in &mut findings {
            finding.message = self.settings.words(std::mem::take(&mut finding.message));
            finding.remedy = self.settings.words(std::mem::take(&mut finding.remedy));
        }
        notes.extend(unknown_owners(&evaluated));
        notes.extend(unknown_callers(&self.called, &findings));
        notes.extend(unknown_webhooks(&self.called));
        let services = evaluated.iter().filter(|evaluated| has_address(evaluated)).count();
        let reservations = self.reservations();
        Audit { pools, reservations, nodes, external, findings, services, notes }
    }

    /// The audit with only the findings about Services of this namespace that match the selector, and about everything
    /// that has no namespace. `None` stands for all namespaces, and for any labels.
    pub fn only_of(&self, mut audit: Audit, namespace: Option<&str>, selector: Option<&ServiceSelector>) -> Audit {
        if namespace.is_none() && selector.is_none() {
            return audit;
        }
        let is_selected = |service: &&Value| {
            namespace.is_none_or(|namespace| object::namespace(service) == namespace)
                && selector.is_none_or(|selector| selector.matches(service))
        };
        let services = self.objects("v1", "Service");
        let selected: Vec<&Value> = services.iter().filter(is_selected).collect();
        let keys: BTreeSet<(&str, &str)> =
            selected.iter().map(|service| (object::namespace(service), name(service))).collect();
        audit.findings.retain(|finding| match (&finding.namespace, &finding.name) {
            (Some(namespace), Some(name)) => keys.contains(&(namespace.as_str(), name.as_str())),
            _ => true,
        });
        audit.services = selected.iter().filter(|service| !addresses(service).is_empty()).count();
        audit
    }

    /// The addresses that pools keep for single Services, and who has them.
    fn reservations(&self) -> Vec<Reservation> {
        let snapshot = Snapshot::read(self.snapshot);
        let pools = self.settings.settings.pools.iter();
        let reservations = pools.flat_map(|pool| pool.reservations.iter().map(move |reservation| (pool, reservation)));
        let audited = |(pool, reservation): (&settings::Pool, &settings::Reservation)| {
            let (holder, other) = reservation_holder::of(&snapshot, reservation);
            let observed = self.reservations.get(&reservation.address).filter(|observed| observed.holder == holder);
            Reservation {
                address: reservation.address,
                pool: pool.name.clone(),
                namespace: reservation.service.namespace.clone(),
                name: reservation.service.name.clone(),
                state: match holder {
                    ReservationHolder::Owner => ReservationState::Held,
                    ReservationHolder::Nobody => ReservationState::Free,
                    ReservationHolder::Other => ReservationState::Taken,
                },
                taken_by: other.map(ToString::to_string),
                since: observed.map(|observed| observed.since.clone()),
            }
        };
        reservations.map(audited).collect()
    }

    /// All objects of a kind in the snapshot.
    pub(super) fn objects(&self, api_version: &str, kind: &str) -> Vec<Value> {
        Snapshot::read(self.snapshot).all(api_version, kind).collect()
    }

    /// Every address that is used or in flight. A Service has precedence over an address in flight, and that over an
    /// `IPAddress` object, because it contains more information.
    fn used(&self, evaluated: &[EvaluatedService]) -> BTreeMap<IpAddr, Address> {
        let mut used = BTreeMap::new();
        for evaluated in evaluated {
            for address in of_service(evaluated) {
                used.entry(address.address).or_insert(address);
            }
        }
        for (address, owner) in &self.in_flight {
            let (namespace, name) = owner.id();
            used.entry(*address).or_insert_with(|| bare(*address, State::InFlight, namespace, name));
        }
        let snapshot = Snapshot::read(self.snapshot);
        for object in snapshot.all("networking.k8s.io/v1", "IPAddress") {
            if let Ok(address) = name(&object).parse() {
                used.entry(address).or_insert_with(|| Address {
                    evidence: Some("an IPAddress object without its Service".to_owned()),
                    ..bare(address, State::Used, "", "")
                });
            }
        }
        used
    }

    /// The addresses of `default/kubernetes`.
    fn kubernetes(&self) -> Vec<IpAddr> {
        let snapshot = Snapshot::read(self.snapshot);
        snapshot.get("v1", "Service", "default", "kubernetes").map(|service| addresses(&service)).unwrap_or_default()
    }
}

/// The finding about an object whose latest version is not in use.
fn not_ready((key, state): (&ObjectKey, &ObjectState)) -> Option<Finding> {
    if state.reason == Reason::InUse {
        return None;
    }
    let message = format!("{key}: {}: {}", state.reason.as_str(), state.message);
    let remedy = "correct the object, or the other one that the message names";
    let pool = (key.kind != ObjectKind::ClusterIPPolicy).then(|| key.name.clone());
    Some(Finding { object: Some(key.to_string()), pool, ..Finding::new(Kind::NotReady, message, remedy) })
}

/// The addresses of a Service, with their state.
fn of_service(evaluated: &EvaluatedService) -> Vec<Address> {
    let (namespace, name) = (&evaluated.id.namespace, &evaluated.id.name);
    match evaluated.evaluation.as_ref() {
        Evaluation::Skipped(Skip::Unmanaged) => {
            let service = evaluated.service.value();
            let by_hand = is_set_by_hand(&service);
            let own = addresses(&service).into_iter();
            own.map(|address| Address { by_hand, ..bare(address, State::Used, namespace, name) }).collect()
        }
        Evaluation::Skipped(Skip::HalfMoved) => addresses(&evaluated.service.value())
            .into_iter()
            .map(|address| Address {
                evidence: Some("it looks as if a move has begun and has not ended".to_owned()),
                ..bare(address, State::InFlight, namespace, name)
            })
            .collect(),
        Evaluation::Placed(placement) => placement
            .addresses
            .iter()
            .map(|&address| Address {
                state: state(placement),
                pool: placement.pool.clone(),
                evidence: placement.evidence.clone(),
                by_hand: placement.by_hand,
                ..bare(address, State::Used, namespace, name)
            })
            .collect(),
    }
}

fn state(placement: &Placement) -> State {
    match placement.standing {
        Standing::InPlace | Standing::NotWhereAssumed => State::Used,
        Standing::Unmatched | Standing::Misplaced => State::Misplaced,
    }
}

fn bare(address: IpAddr, state: State, namespace: &str, name: &str) -> Address {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Address { address, state, namespace, name, pool: None, evidence: None, by_hand: None }
}

fn has_address(evaluated: &EvaluatedService) -> bool {
    match evaluated.evaluation.as_ref() {
        Evaluation::Placed(_) => true,
        Evaluation::Skipped(_) => !addresses(&evaluated.service.value()).is_empty(),
    }
}

/// Sorts by kind, then by pool in the order of the settings, then by namespace and name.
fn sort(settings: &Settings, findings: &mut [Finding]) {
    let place = |finding: &Finding| {
        let of_nodes = || settings.nodes.pools.iter().position(|pool| Some(&pool.name) == finding.pool.as_ref());
        let external = || settings.external.pools.iter().position(|pool| Some(&pool.name) == finding.pool.as_ref());
        let of_services = || settings.pools.iter().position(|pool| Some(&pool.name) == finding.pool.as_ref());
        // Findings of pools come first; the pool of a Service or Node does not count.
        match finding.kind {
            _ if finding.name.is_some() || finding.node.is_some() => None,
            Kind::FullNodePool => of_nodes(),
            Kind::FullExternalPool => external(),
            _ => of_services(),
        }
    };
    findings.sort_by_cached_key(|finding| {
        let node = finding.node.clone();
        (finding.kind, place(finding), finding.namespace.clone(), finding.name.clone(), node, finding.blocks.clone())
    });
}

/// A note if Services could move and it is unknown whether the control plane calls them.
pub(in crate::audit) fn unknown_callers<'f>(
    called: &ControlPlaneServices,
    findings: impl IntoIterator<Item = &'f Finding>,
) -> Option<String> {
    let reason = called.missing()?;
    let is_movable = |finding: &Finding| matches!(finding.kind, Kind::Misplaced | Kind::NoPool);
    findings.into_iter().any(is_movable).then(|| {
        format!("it is unknown whether the control plane calls a misplaced Service, which then does not move: {reason}")
    })
}

/// A note if webhook configurations can't be read.
fn unknown_webhooks(called: &ControlPlaneServices) -> Option<String> {
    let reason = called.unknown_webhooks()?;
    Some(format!(
        "it is unknown whether a webhook of another program also chooses addresses of Services: \
         MutatingWebhookConfigurations can't be read: {reason}"
    ))
}

/// One note for all Services whose addresses may have been set by hand.
pub(in crate::audit) fn unknown_owners(evaluated: &[EvaluatedService]) -> Option<String> {
    let unknown = |evaluated: &&EvaluatedService| match evaluated.evaluation.as_ref() {
        Evaluation::Placed(placement) => placement.by_hand.is_none(),
        Evaluation::Skipped(_) => false,
    };
    let count = evaluated.iter().filter(unknown).count();
    (count > 0).then(|| {
        let services = if count == 1 { "1 Service comes".to_owned() } else { format!("{count} Services come") };
        format!(
            "{services} without metadata.managedFields: it is unknown whether an address was set by hand \
             (`kubectl get --show-managed-fields` shows them)"
        )
    })
}
