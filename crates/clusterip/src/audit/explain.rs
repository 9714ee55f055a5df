//! Explains why one Service has its address. docs/audit.md describes the fields.

use std::net::IpAddr;
use std::sync::Arc;

use clusterip_cluster::lookups::stored_cluster::{Asked, StoredCluster, Subject};
use clusterip_cluster::reservations::ledger::{Ledger, RESERVATION_TIME};
use clusterip_cluster::snapshot::{Snapshot, StoredService};
use clusterip_cluster::watch::control_plane_services::{MOVE_OPTION, called_by, webhook_remedy};
use clusterip_core::address::Withholding;
use clusterip_core::annotations::{MOVE_ANNOTATION, Move};
use clusterip_core::decision::Report;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_core::{Decision, InUse, Verdict, decide_create};
use clusterip_failover::claims::Owner;
use ipnet::IpNet;
use serde::Serialize;

use super::model::{self, ExternalAddress, ExternalUse, Finding};
use super::services::{self, MoveConditions, PlacedService};
use super::{AuditInput, external};
use crate::service_placement::{Fit, Placement, Skip, as_if_created, merge, skip_reason, without_subject};
use crate::text::joined;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub namespace: String,
    pub name: String,
    pub addresses: Vec<AddressLocation>,
    pub by_hand: Option<bool>,
    pub decision: Verdict,
    pub pool: Option<String>,
    pub evidence: Option<Report>,
    pub asked: Vec<Asked>,
    pub warnings: Vec<String>,
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub external: Vec<ExternalAddress>,
    pub findings: Vec<Finding>,
    #[serde(rename = "move")]
    pub moves: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AddressLocation {
    pub address: IpAddr,
    pub pool: Option<String>,
    pub range: Option<IpNet>,
    pub withheld: Option<Withholding>,
}

const REFUSES: &str = "but refuses the settings: they don't fit the Service ranges of the cluster";

pub(crate) fn of(input: &AuditInput<'_>, key: &ServiceKey) -> Option<Explanation> {
    let stored = Snapshot::read(&input.cluster.snapshot).service(key)?.clone();
    let settings = &input.settings.settings;
    let own = stored.addresses().to_vec();
    // The owner of `clusterIP: None` has chosen no address.
    let by_hand = stored.by_hand().filter(|_| !own.is_empty());
    let skip = skip_reason(settings, &stored);
    // For a Service that is left alone, the policy gives the reason.
    let created = if skip == Some(Skip::Unmanaged) { stored.in_request(|_| true) } else { as_if_created(&stored) };
    let ledger = Ledger::default();
    for (address, owner) in &input.cluster.in_flight {
        ledger.reserve_claimed(*address, owner, RESERVATION_TIME);
    }
    let owner = Owner::new(&key.namespace, &key.name, "");
    let subject = Subject { owner, own: own.clone(), dry_run: true };
    let cluster = StoredCluster::reserving(&input.cluster.snapshot, subject, settings, &ledger, None);
    cluster.asked.replace(Some(Vec::new()));
    let decision = decide_create("", &key.namespace, created, settings, InUse::default(), &cluster);
    let decision = input.settings.worded(decision);
    let asked = cluster.asked.take().unwrap_or_default();
    let placement = Placement::of(settings, &stored, &decision, &cluster);
    // For the findings, all addresses count as free: a full pool is not a problem of the Service.
    let as_if_free = Arc::new(services::place(settings, &input.cluster.snapshot, &stored));
    let placed = PlacedService { service: Arc::clone(&stored), placement: as_if_free };
    let mut findings = services::of_service(settings, &placed, MoveConditions::of(input));
    for finding in &mut findings {
        finding.message = input.settings.words(std::mem::take(&mut finding.message));
    }
    let ServiceKey { namespace, name } = key.clone();
    // The problems of its external addresses depend on the addresses of other Services.
    let mut of_external = Vec::new();
    let external = external::audit(input, &mut of_external, &mut Vec::new());
    let is_own = |one: &ExternalUse| one.namespace == namespace && one.name == name;
    let pools = external.into_iter().flat_map(|external| external.pools);
    let external = pools.flat_map(|pool| pool.ranges).flat_map(|range| range.addresses);
    let external = external.filter(|address| address.services.iter().any(is_own)).collect();
    of_external
        .retain(|finding| finding.namespace.as_ref() == Some(&namespace) && finding.name.as_ref() == Some(&name));
    findings.extend(of_external);
    findings.sort_by_key(|finding| finding.kind);
    let said = placement.verdict.reason().is_some().then(|| reason(key, &placement, "").to_owned());
    let moves = match skip {
        Some(Skip::HalfMoved) if input.refused => format!("would finish the move that has begun, {REFUSES}"),
        Some(Skip::HalfMoved) => "finishes the move that has begun".to_owned(),
        Some(Skip::Unmanaged) => {
            format!("does not move it: {}", said.as_deref().unwrap_or("clusterip does not manage it"))
        }
        None => {
            moves(input, &stored, &decision, &placement).unwrap_or_else(|stays| format!("does not move it: {stays}"))
        }
    };
    Some(Explanation {
        namespace,
        name,
        addresses: own.iter().map(|address| location(settings, *address)).collect(),
        by_hand,
        decision: decision.verdict.clone(),
        pool: placement.pool.clone(),
        evidence: decision.evidence.clone(),
        warnings: decision.cut_warnings(),
        asked,
        reason: said,
        external,
        findings,
        moves,
    })
}

fn location(settings: &Settings, address: IpAddr) -> AddressLocation {
    let pool = settings.pool_of(address);
    let range = pool.and_then(|pool| pool.cidrs.iter().copied().find(|cidr| cidr.contains(&address)));
    let spans = pool.zip(range).map(|(pool, range)| settings.withheld_spans(pool, range)).unwrap_or_default();
    let mut spans = spans.into_iter().map(model::Span::from);
    let withheld = spans.find(|span| span.first <= address && address <= span.last).map(|span| span.why);
    AddressLocation { address, pool: pool.map(|pool| pool.name.clone()), range, withheld }
}

fn moves(
    input: &AuditInput<'_>,
    stored: &StoredService,
    decision: &Decision,
    placement: &Placement,
) -> Result<String, String> {
    let (settings, called) = (&input.settings.settings, &input.cluster.called);
    let pool = placement.pool.as_deref().and_then(|name| settings.pool(name));
    let stays = match (placement.fit, pool) {
        (Fit::InPlace, Some(_)) => "its address lies in its pool",
        (Fit::NotWhereAssumed, _) => "the setting assumeOS decides its pool, and its address lies in another pool",
        (Fit::InPlace, _) => reason(stored.key(), placement, "no pool matches it"),
        (Fit::Unmatched, _) if !placement.verdict.is_allocated() => {
            reason(stored.key(), placement, "no pool matches it")
        }
        _ if stored.by_hand() == Some(true) => "its address was set by hand",
        _ if stored.asked_move() == Some(Move::Never) => return Err(format!("annotation {MOVE_ANNOTATION}: never")),
        _ if stored.is_deleting() => "it is being deleted",
        (Fit::Misplaced | Fit::Unmatched, pool) => {
            let Some(new) = decision.allocated() else {
                return Err(reason(stored.key(), placement, "its pool has no address for it").to_owned());
            };
            let callers = called.known_callers(&stored.key().namespace, &stored.key().name);
            let snapshot = Snapshot::read(&input.cluster.snapshot);
            let blocking = called.known_blocking_webhooks(stored, &snapshot, &[]);
            if !blocking.is_empty() {
                return Err(format!("it is {}; {}", called_by(&callers), webhook_remedy(&blocking)));
            }
            let to = joined(merge(settings, pool, &placement.addresses, new), " and ");
            let load_balancer = stored.is_load_balancer();
            let mut options: Vec<&str> = Vec::new();
            options.extend(load_balancer.then_some("--load-balancers"));
            options.extend((!callers.is_empty()).then_some(MOVE_OPTION));
            let with = if options.is_empty() { String::new() } else { format!(" with {}", options.join(" and ")) };
            let with = if callers.is_empty() { with } else { format!("{with}, as it is {}", called_by(&callers)) };
            let unless = if stored.by_hand().is_none() { ", unless its address was set by hand" } else { "" };
            return Ok(match input.refused {
                true => format!("would move it to {to}{with}{unless}, {REFUSES}"),
                false => format!("moves it to {to}{with}{unless}"),
            });
        }
    };
    Err(stays.to_owned())
}

fn reason<'p>(key: &ServiceKey, placement: &'p Placement, otherwise: &'p str) -> &'p str {
    without_subject(key, placement.verdict.reason().unwrap_or(otherwise))
}
