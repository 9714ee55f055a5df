//! The control loop for external addresses, which runs while this process leads. It assigns the addresses that
//! admission did not assign, and writes the status of Services.
//!
//! # Guarantees
//! - Every Service that gets external addresses from this product has them recorded, even if no webhook saw it.
//! - The status of such a Service contains exactly those of its addresses that a living agent holds. As long as the
//!   watch of the agents' Leases is silent, no address is taken away.
//! - The status of a Service whose addresses another program announces is not changed: it gets the record, and what
//!   that program reads.
//! - The status of a Service that the settings no longer serve loses its recorded addresses, and only then the record is
//!   removed. That of any other Service is not changed.
//! - If the settings have no pool any more, the record stays, and the status loses the addresses that it had from this
//!   product, whatever the record has become: of a Service that this process has served, and of one with the class of
//!   this product. Another program may have taken over any other.
//! - A status is written only if the Service still has the type, class and record that the addresses are from.
//! - A Service whose move is unfinished keeps its record.
//! - The controller asks the policy, as admission does, and writes the answer only to the version that it asked about.
//! - An Event reports when another node holds an address, and when no node has held it for a while, unless no process
//!   leads.
//! - No namespace delays others. A look at the Services takes at most a fifth of the time. The namespaces take turns, and
//!   writes of statuses, questions to the policy and Events run beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use clusterip_cluster::api_error::error_chain;
use clusterip_cluster::backoff::retry_backoff;
use clusterip_cluster::external::assignments::{Owners, owners};
use clusterip_cluster::external::{ExternalPolicy, recorded};
use clusterip_cluster::kinds::own_name;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::metrics::whole;
use clusterip_cluster::panics;
use clusterip_cluster::snapshot::{Snapshot, Stored, StoredService};
use clusterip_cluster::watch::stores::{Change, watch_config};
use clusterip_core::address::{Family, parse_address};
use clusterip_core::annotations::{is_moving, recorded_addresses};
use clusterip_core::external::Announcer;
use clusterip_core::json::TypeMismatch;
use clusterip_core::lookups::NamespaceMeta;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{ExternalPool, ExternalSettings};
use clusterip_failover::holders::Observer;
use clusterip_failover::leases::keep_used_fields;
use clusterip_failover::timing::WATCH_SILENCE;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::assigner::{Asked, Assigner};
use super::external_metrics::{AssignmentResult, ExternalMetrics};
use super::holder_reports::{Assigned, HolderReports};
use super::status_writes::{REWRITE_PAUSE, Status, StatusWrites};
use super::waiting::{Question, Report, Waiting};
use crate::leader::Gate;
use crate::leader::event_recorder::EventContent;
use crate::services::mover::records::UnfinishedMoves;
use crate::usage;

/// How long changes are collected before they are handled, because many Services may change at once.
const GATHER_TIME: Duration = Duration::from_millis(300);
/// How many events about Leases that have arrived already are handled at once.
const EVENTS: usize = 128;
/// How long the record of a Service stays that has the marker of a move which this process does not know: another
/// process moves it, or a tenant has written the marker where no policy prevents that.
const MOVE_TIME: Duration = Duration::from_secs(300);

pub struct Controller {
    pub(crate) assigner: Assigner,
    /// The namespace of the agents' Leases.
    pub namespace: String,
    pub(crate) gate: Gate,
    /// Is notified of each change of the stores that [`matters`].
    pub changed: Arc<Notify>,
    pub metrics: ExternalMetrics,
}

struct Term {
    observer: Observer,
    /// When the watch of the Leases last delivered something.
    delivered: Instant,
    /// When that watch is restarted unless it delivers something before.
    restart: Instant,
    /// The Leases of a list that is still being received.
    listing: Vec<Lease>,
    complete: bool,
    /// When the next events of that watch are handled.
    next_events: Instant,
    /// The node that holds each address, when the Services were last looked at while the watch was not silent.
    holders: Arc<BTreeMap<IpAddr, String>>,
    /// The addresses of the pools that Services had or claimed then.
    in_use: BTreeSet<IpAddr>,
    /// When the Services are looked at because of a change.
    next_look: Option<Instant>,
    earliest_look: Option<Instant>,
    waiting: Waiting<Version>,
    writes: StatusWrites,
    served: Served,
    /// The Services whose records stay because of a move, and since when.
    moving: BTreeMap<ServiceKey, Instant>,
    holder_reports: HolderReports,
}

/// What an answer of the policy depends on besides the addresses in use. A part stays the same until it changes.
struct Version {
    service: Arc<StoredService>,
    namespace: Option<Arc<Result<NamespaceMeta, TypeMismatch>>>,
    settings: Arc<LiveSettings>,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        let pointers =
            |it: &Self| (Arc::as_ptr(&it.service), it.namespace.as_ref().map(Arc::as_ptr), Arc::as_ptr(&it.settings));
        pointers(self) == pointers(other)
    }
}

#[derive(Default)]
struct Look {
    owners: Owners,
    /// The addresses of the pools that Services have or claim.
    in_use: BTreeSet<IpAddr>,
    /// The addresses of the pools that other programs than agents announce.
    announced: Vec<IpAddr>,
    statuses: Vec<Status>,
    served: Served,
    lacking: BTreeMap<ServiceKey, Version>,
}

/// The addresses that Services have from this product, by the UIDs of the Services.
type Served = BTreeMap<String, BTreeSet<IpAddr>>;

impl Controller {
    pub async fn run(mut self) {
        let (mut served, mut writes) = Default::default();
        while let Some(settings) = self.gate.opened().await {
            if !has_pools(&settings) {
                self.empty_statuses(&settings.settings.external, &mut served, &mut writes).await;
                continue;
            }
            (served, writes) = self.term(settings).await;
            // Only the leader reports these metrics.
            self.metrics.pools(&[]);
            self.metrics.waiting.set(0);
        }
    }

    /// Works as long as this process leads and there are pools.
    async fn term(&mut self, mut settings: Arc<LiveSettings>) -> (Served, StatusWrites) {
        let leases: Api<Lease> = Api::namespaced(self.assigner.client.clone(), &self.namespace);
        let labels = watch_config().labels(&Observer::labels());
        let events = || {
            let events = watcher(leases.clone(), labels.clone());
            events.modify(keep_used_fields).backoff(retry_backoff()).ready_chunks(EVENTS).boxed()
        };
        let mut leases = events();
        let mut term = Term::new(Instant::now());
        let mut questions = JoinSet::new();
        // Without all Services, the first look would miss addresses, which the second would report as new holders.
        self.assigner.evaluator.stores().completed().await;
        loop {
            let now = Instant::now();
            while let Some(question) = term.waiting.next(now) {
                let assigner = self.assigner.clone();
                questions.spawn(async move {
                    let asked = assigner.ask(&question.service).await;
                    (question, asked)
                });
            }
            let due = [term.next_look, term.observer.next_change(now), term.holder_reports.next()];
            let due = due.into_iter().chain([term.waiting.next_due(now)]).flatten().min();
            let due = due.map(|due| due.max(term.earliest_look.unwrap_or(due)));
            let next_events = term.next_events;
            tokio::select! {
                changed = self.gate.changed() => match changed {
                    Some(changed) if has_pools(&changed) => {
                        settings = changed;
                        term.look_soon();
                    }
                    _ => return (term.served, term.writes),
                },
                Some(events) = async { sleep_until(next_events).await; leases.next().await } => {
                    let begin = Instant::now();
                    if term.handle_lease_events(events, begin) {
                        term.look_soon();
                    }
                    // With the token of an agent, an attacker can change thousands of claims all the time.
                    term.next_events = Instant::now() + 4 * begin.elapsed();
                }
                Some(_) = term.writes.answered(&self.assigner.client) => term.look_soon(),
                // Holders renew their heartbeats, so the watch is broken, or all of them have died.
                () = sleep_until(term.restart), if !term.holders.is_empty() => {
                    tracing::warn!("the watch of the Leases of agents delivers nothing: restarting the watch");
                    term.restart = Instant::now() + WATCH_SILENCE;
                    leases = events();
                }
                () = self.changed.notified() => term.look_soon(),
                Some(Ok((question, asked))) = questions.join_next() => self.answered(&mut term, question, asked),
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {
                    term.next_look = None;
                    let begin = Instant::now();
                    if term.complete {
                        self.look(&settings, &mut term).await;
                    }
                    // A tenant can change a Service all the time.
                    term.earliest_look = Some(Instant::now() + GATHER_TIME.max(4 * begin.elapsed()));
                }
            }
        }
    }

    /// Empties the statuses that are left, because no agent holds an address, until the settings have changed or this
    /// process does not lead.
    async fn empty_statuses(&mut self, external: &ExternalSettings, served: &mut Served, writes: &mut StatusWrites) {
        self.assigner.evaluator.stores().completed().await;
        // A status that shows an address must not be written afterwards.
        let client = &self.assigner.client;
        writes.set(Vec::new(), client);
        while writes.answered(client).await.is_some() {}
        loop {
            let services = {
                let snapshot = self.assigner.evaluator.stores().read_snapshot();
                [snapshot.external_services(), snapshot.shown_left_out()].concat()
            };
            let left: Vec<_> = services.iter().filter_map(|service| left_status(service, external, served)).collect();
            let is_done = left.is_empty();
            writes.set(left, client);
            let mut again = pin!(async {
                sleep(REWRITE_PAUSE).await;
                if is_done {
                    self.changed.notified().await;
                }
            });
            loop {
                tokio::select! {
                    _ = self.gate.changed() => return,
                    Some((service, is_written)) = writes.answered(client) => {
                        if is_written {
                            // Another program may take it over.
                            served.remove(&*service.uid());
                        }
                    }
                    () = &mut again => break,
                }
            }
        }
    }

    /// Writes the statuses that have changed, and finds the Services that lack addresses.
    async fn look(&self, settings: &Arc<LiveSettings>, term: &mut Term) {
        term.observe_holders(Instant::now());
        let external = &settings.settings.external;
        let snapshot = Arc::clone(self.assigner.evaluator.stores().snapshot());
        let (of_look, holders) = (Arc::clone(settings), Arc::clone(&term.holders));
        let policy = self.assigner.evaluator.external_policy(external);
        let look = panics::catch_blocking(move || Look::at(&snapshot, &of_look, &holders, &policy)).await;
        let Ok(Look { owners, in_use, announced, statuses, served, mut lacking }) =
            look.inspect_err(|error| tracing::error!(%error, "external addresses could not be looked up"))
        else {
            return;
        };
        let mut used: Vec<IpAddr> = owners.keys().copied().collect();
        let held = used.iter().copied().filter(|address| term.holders.contains_key(address)).collect();
        used.extend(announced);
        used.sort_unstable();
        used.dedup();
        self.metrics.pools(&usage::of_external(external, &used, Some(&held)));
        term.next_look = term.writes.set(statuses, &self.assigner.client);
        term.served = served;
        self.report_holders(&owners, term);
        let freed = term.in_use.difference(&in_use).filter_map(|address| external.pool_of(*address));
        term.waiting.freed(&freed.map(|pool| &*pool.name).collect::<Vec<_>>());
        term.in_use = in_use;
        if let Some(again) = term.leave_moves(&mut lacking, &self.assigner.moves, Instant::now()) {
            term.next_look = Some(term.next_look.map_or(again, |next| next.min(again)));
        }
        term.waiting.set(lacking, Instant::now());
        self.metrics.waiting.set(whole(term.waiting.count()));
    }

    fn report_holders(&self, owners: &Owners, term: &mut Term) {
        let seen = owners.iter().map(|(address, service)| Assigned {
            address: *address,
            uid: service.uid().into_owned(),
            shown: service.shown().contains(address),
            holder: term.holders.get(address).cloned(),
        });
        for report in term.holder_reports.changes(seen.collect(), Instant::now()) {
            let Some(service) = owners.get(&report.address) else { continue };
            if report.before.is_some() {
                self.metrics.takeovers.inc();
            }
            let (ServiceKey { namespace, name }, note) = (service.key(), report.note());
            let (reason, warning) = report.reason();
            match warning {
                true => tracing::warn!(namespace, name, note, "an external address is not held"),
                false => tracing::info!(namespace, name, note, "an external address is held"),
            }
            let content = EventContent { uid: &report.uid, warning, reason, note };
            self.assigner.events.tell(("v1", "Service"), (Some(namespace), name), "Hold", content);
        }
    }

    fn answered(&self, term: &mut Term, question: Question, asked: Asked) {
        let (id, result) = (question.service.clone(), asked.result());
        let Asked { answer, reason, uid } = asked;
        let Report { is_new, as_event } = term.waiting.answered(question, answer, &reason, Instant::now());
        let is_counted = |result: &AssignmentResult| is_new || *result != AssignmentResult::Refused;
        if let Some(result) = result.filter(is_counted) {
            self.metrics.assignments.get_or_create(&[("result", result)]).inc();
        }
        self.metrics.waiting.set(whole(term.waiting.count()));
        if is_new {
            tracing::warn!(namespace = id.namespace, name = id.name, reason, "no external address");
        }
        if let Some(uid) = uid.filter(|_| as_event) {
            self.assigner.report_unavailable(&id, &uid, reason);
        }
    }
}

impl Look {
    fn at(
        shared: &Arc<RwLock<Snapshot>>,
        settings: &Arc<LiveSettings>,
        holders: &BTreeMap<IpAddr, String>,
        policy: &ExternalPolicy,
    ) -> Self {
        let external = &settings.settings.external;
        let mut look = Self::default();
        let (services, left_out) = {
            let snapshot = Snapshot::read(shared);
            look.in_use = snapshot.external_of_pools(external).collect();
            (snapshot.external_services(), snapshot.shown_left_out())
        };
        let refusal = &mut |service: &StoredService| policy.refusal(shared, service);
        (look.owners, _) = owners(external, services.iter().cloned(), refusal);
        let mut lacking = Vec::new();
        for service in services {
            let has = recorded(&service, external);
            let own = |address: &IpAddr| look.owners.get(address).is_some_and(|owner| owner.key() == service.key());
            let is_held = |address: &IpAddr| own(address) && holders.contains_key(address);
            let announcer = service.announcer(external);
            if let Some(announcer) = announcer.filter(|announcer| *announcer != Announcer::Agents) {
                // Another program writes its status.
                let recorded = recorded_addresses(service.record());
                look.announced.extend(recorded.into_iter().filter(|address| external.pool_of(*address).is_some()));
                if !service.is_deleting() && !service.is_announced(announcer) {
                    lacking.push(service);
                }
                continue;
            }
            if announcer.is_none() {
                // As long as the status shows the address, kube-proxy serves it, and no other Service may get it.
                let recorded: BTreeSet<IpAddr> = recorded_addresses(service.record()).into_iter().collect();
                match without(&service, &recorded) {
                    Some(status) => look.statuses.push(status),
                    None if !service.record().is_empty() => lacking.push(Arc::clone(&service)),
                    None => {}
                }
                look.served.insert(service.uid().into_owned(), recorded);
                continue;
            }
            let shown = service.shown().into_iter().filter(|address| external.pool_of(*address).is_some());
            look.served.insert(service.uid().into_owned(), shown.chain(has.iter().copied()).collect());
            if has.is_empty() && !service.is_deleting() {
                lacking.push(Arc::clone(&service));
            }
            let held: Vec<IpAddr> = has.into_iter().filter(is_held).collect();
            if !shows(&service, &held) {
                let ingress = held.iter().map(|address| json!({"ip": address, "ipMode": "VIP"})).collect();
                look.statuses.push(Status { service, ingress });
            }
        }
        // They keep the addresses of pools that they show. What else they show must not stay.
        let is_of_pool = |address: IpAddr| {
            let pool = external.pool_of(address);
            pool.is_some_and(|pool| pool.candidates(Family::of(address)).contains(address))
        };
        for service in left_out {
            let (of_pools, others) = match service.announcer(external) {
                Some(Announcer::Agents) => service.shown().into_iter().partition(|address| is_of_pool(*address)),
                Some(_) => continue,
                None => (BTreeSet::new(), recorded_addresses(service.record()).into_iter().collect()),
            };
            look.statuses.extend(without(&service, &others));
            look.served.insert(service.uid().into_owned(), &of_pools | &others);
        }
        let snapshot = Snapshot::read(shared);
        for service in lacking {
            let namespace = snapshot.namespace(&service.key().namespace).cloned();
            let id = service.key().clone();
            look.lacking.insert(id, Version { service, namespace, settings: Arc::clone(settings) });
        }
        look
    }
}

fn has_pools(settings: &LiveSettings) -> bool {
    !settings.settings.external.pools.is_empty()
}

/// The status of a Service without the addresses that it has from the time when there were pools; `None` if it shows none
/// of them. A tenant can change the record without pools, so it counts beside what this process has `served`.
fn left_status(service: &Arc<StoredService>, external: &ExternalSettings, served: &Served) -> Option<Status> {
    let ours = ExternalSettings { default: false, pools: vec![ExternalPool::default()], ..external.clone() };
    let recorded = recorded_addresses(service.record()).into_iter().filter(|_| service.is_served(&ours));
    let before = served.get(&*service.uid()).into_iter().flatten().copied();
    without(service, &recorded.chain(before).collect())
}

/// The status of a Service without these addresses; `None` if it shows none of them.
fn without(service: &Arc<StoredService>, addresses: &BTreeSet<IpAddr>) -> Option<Status> {
    let is_among = |entry: &Value| {
        let address = entry.get("ip").and_then(Value::as_str).and_then(parse_address);
        address.is_some_and(|address| addresses.contains(&address))
    };
    let (gone, ingress): (Vec<Value>, Vec<Value>) = service.ingress()?.as_array()?.iter().cloned().partition(is_among);
    (!gone.is_empty()).then(|| Status { service: Arc::clone(service), ingress: ingress.into() })
}

/// Whether a change may affect which Service gets an external address, or which address a status shows.
pub(crate) fn matters(change: &Change<'_>) -> bool {
    let may_have = |version: Option<&Stored>| matches!(version, Some(Stored::Service(of)) if of.may_have_external());
    own_name(change.kind) == "Namespace" || may_have(change.before) || may_have(change.after)
}

/// Whether a status has exactly these addresses, as texts: other programs may not accept another spelling.
fn shows(service: &StoredService, held: &[IpAddr]) -> bool {
    let ingress = service.ingress();
    let written = ingress.as_ref().and_then(Value::as_array).into_iter().flatten();
    let written: BTreeSet<&str> = written.filter_map(|entry| entry.get("ip")?.as_str()).collect();
    let texts: Vec<String> = held.iter().map(ToString::to_string).collect();
    written == texts.iter().map(String::as_str).collect()
}

impl Term {
    fn new(now: Instant) -> Self {
        Self {
            observer: Observer::default(),
            delivered: now,
            restart: now + WATCH_SILENCE,
            listing: Vec::new(),
            complete: false,
            next_events: now,
            holders: Arc::default(),
            in_use: BTreeSet::new(),
            next_look: None,
            earliest_look: None,
            waiting: Waiting::default(),
            writes: StatusWrites::default(),
            served: Served::new(),
            moving: BTreeMap::new(),
            holder_reports: HolderReports::default(),
        }
    }

    /// Determines which node holds each address. While the watch is silent, living agents look dead, so the last known
    /// holders count.
    fn observe_holders(&mut self, now: Instant) {
        if now < self.delivered + WATCH_SILENCE {
            self.holders = Arc::new(self.observer.holders(now));
        }
    }

    /// Leaves out the Services whose records stay because of a move, which makes them an ExternalName for a while.
    /// Returns when to look at them again.
    fn leave_moves(
        &mut self,
        lacking: &mut BTreeMap<ServiceKey, Version>,
        unfinished: &UnfinishedMoves,
        now: Instant,
    ) -> Option<Instant> {
        let before = std::mem::take(&mut self.moving);
        let mut again = None;
        lacking.retain(|id, Version { service, .. }| {
            let is_known = unfinished.due(&service.uid()).is_some();
            if service.record().is_empty() || !is_known && !is_moving(&service.value()) {
                return true;
            }
            let since = *before.get(id).unwrap_or(&now);
            self.moving.insert(id.clone(), since);
            let stays = is_known || now < since + MOVE_TIME;
            again = again.or(stays.then_some(now + MOVE_TIME));
            !stays
        });
        again
    }

    fn look_soon(&mut self) {
        let soon = Instant::now() + GATHER_TIME;
        self.next_look = Some(self.next_look.map_or(soon, |next| next.min(soon)));
    }

    /// Handles events. Returns whether to look: after the first complete list, and when a holder has changed.
    fn handle_lease_events(&mut self, events: Vec<Result<Event<Lease>, watcher::Error>>, now: Instant) -> bool {
        let was_complete = self.complete;
        events.into_iter().for_each(|event| self.handle_lease_event(event, now));
        // Services that changed before the first list of Leases was complete have not been looked at.
        self.complete && (!was_complete || self.observer.holders(now) != *self.holders)
    }

    fn handle_lease_event(&mut self, event: Result<Event<Lease>, watcher::Error>, now: Instant) {
        match &event {
            // A list begins without an answer of the API server.
            Ok(Event::Init) | Err(_) => {}
            // The observer learns of a list when it is complete.
            Ok(Event::InitApply(_)) => self.restart = now + WATCH_SILENCE,
            Ok(_) => (self.delivered, self.restart) = (now, now + WATCH_SILENCE),
        }
        match event {
            Ok(Event::Init) => self.listing.clear(),
            Ok(Event::InitApply(lease)) => self.listing.push(lease),
            Ok(Event::InitDone) => {
                self.observer.replace_all(&std::mem::take(&mut self.listing), now);
                self.complete = true;
            }
            Ok(Event::Apply(lease)) => self.observer.apply(&lease, now),
            Ok(Event::Delete(lease)) => self.observer.delete(&lease, now),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the Leases of agents can't be watched, trying again");
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
