//! The control loop for external addresses, which runs while this process leads. It assigns the addresses that
//! admission did not assign, and writes the status of Services.
//!
//! # Guarantees
//! - Every Service that gets external addresses from this product has them recorded, even if no webhook saw it.
//! - The status of such a Service contains exactly those of its addresses that a living agent holds. That of any other
//!   Service is not changed.
//! - The controller asks the policy, as admission does, and writes the answer only to the version that it asked about.
//! - An Event reports when another node holds an address, and when no node has held it for a while, unless no process
//!   leads.
//! - No namespace delays others. A look at the Services writes only what has changed, for a limited time. The
//!   namespaces take turns. Questions to the policy and Events run beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::api_error::{error_chain, error_message};
use clusterip_cluster::backoff::{RetryBackoff, pause_after};
use clusterip_cluster::external::assignment_builder::{Owners, owners};
use clusterip_cluster::external::policy_check::ExternalPolicy;
use clusterip_cluster::external::service_fields::recorded;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::StoredService;
use clusterip_cluster::metrics::length;
use clusterip_cluster::object::service_path;
use clusterip_cluster::panics;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_cluster::watch::stores::{Stores, watch_config};
use clusterip_core::annotations::RECORD_ANNOTATION;
use clusterip_core::json::TypeMismatch;
use clusterip_core::lookups::NamespaceMeta;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::holders::Observer;
use clusterip_failover::leases::keep_used_fields;
use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::assigner::{Asked, Assigner, patch};
use super::external_metrics::{AssignmentResult, ExternalMetrics};
use super::holder_reports::{Assigned, HolderReports};
use super::waiting::{Question, Report, Waiting};
use crate::leader::Gate;
use crate::leader::event_recorder::EventContent;
use crate::text::joined;
use crate::usage;

/// How long changes are collected before they are handled, because many Services may change at once.
const GATHER_TIME: Duration = Duration::from_millis(300);
/// How long the writes of statuses may begin until the Services are looked at again.
const WRITE_TIME: Duration = Duration::from_millis(500);
/// How long after a look that did not write all statuses the next one begins.
const REWRITE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before a status is written again that the API server refuses. The first one is [`REWRITE_PAUSE`].
const MAX_REWRITE_PAUSE: Duration = Duration::from_secs(60);
const WRITES: usize = 8;

pub struct Controller {
    pub(crate) assigner: Assigner,
    /// The namespace of the agents' Leases.
    pub namespace: String,
    pub(crate) gate: Gate,
    pub metrics: ExternalMetrics,
}

#[derive(Default)]
struct Term {
    observer: Observer,
    /// The Leases of a list that is still being received.
    listing: Vec<Lease>,
    complete: bool,
    /// The node that holds each address, when the Services were last looked at.
    holders: Arc<BTreeMap<IpAddr, String>>,
    /// The addresses of the pools that Services had or claimed then.
    in_use: BTreeSet<IpAddr>,
    /// When the Services are looked at because of a change.
    next_look: Option<Instant>,
    earliest_look: Option<Instant>,
    waiting: Waiting<Version>,
    refused: BTreeMap<ServiceKey, Refused>,
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
    statuses: Vec<Status>,
    lacking: BTreeMap<ServiceKey, Version>,
}

/// The addresses that the status of a Service is to contain.
struct Status {
    service: Arc<StoredService>,
    held: Vec<IpAddr>,
}

impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.service, &other.service) && self.held == other.held
    }
}

struct Refused {
    status: Status,
    failures: u32,
    /// When the status is written again, unless the Service or its addresses change before.
    until: Instant,
}

impl Controller {
    pub async fn run(mut self) {
        while let Some(settings) = self.gate.opened().await {
            self.term(settings).await;
            // Only the leader reports these metrics.
            self.metrics.pools(&[]);
            self.metrics.waiting.set(0);
        }
    }

    async fn term(&mut self, mut settings: Arc<LiveSettings>) {
        let leases: Api<Lease> = Api::namespaced(self.assigner.client.clone(), &self.namespace);
        let labels = watch_config().labels(&Observer::labels());
        let mut leases = pin!(watcher(leases, labels).modify(keep_used_fields).backoff(RetryBackoff::default()));
        let changed = Arc::new(Notify::new());
        self.listen(&changed);
        let mut term = Term::default();
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
            tokio::select! {
                changed = self.gate.changed() => match changed {
                    Some(changed) => {
                        settings = changed;
                        term.look_soon();
                    }
                    None => return,
                },
                Some(event) = leases.next() => {
                    if term.handle_lease_event(event) {
                        term.look_soon();
                    }
                }
                () = changed.notified() => term.look_soon(),
                Some(Ok((question, asked))) = questions.join_next() => self.answered(&mut term, question, asked),
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {
                    term.next_look = None;
                    if term.complete {
                        self.look(&settings, &mut term).await;
                    }
                    term.earliest_look = Some(Instant::now() + GATHER_TIME);
                }
            }
        }
    }

    /// Notifies `changed` whenever a Service changes that may have external addresses.
    fn listen(&self, changed: &Arc<Notify>) {
        let changed = Arc::downgrade(changed);
        let matters = |service: &PartialObject| {
            let annotations = service.object.pointer("/metadata/annotations");
            service.object.pointer("/spec/type").is_some_and(|kind| kind == "LoadBalancer")
                || annotations.is_some_and(|annotations| annotations.get(RECORD_ANNOTATION).is_some())
        };
        let listener = move |event: &Event<PartialObject>| {
            let Some(changed) = changed.upgrade() else { return false };
            let is_change = match event {
                Event::Init => false,
                Event::InitDone => true,
                Event::InitApply(service) | Event::Apply(service) | Event::Delete(service) => matters(service),
            };
            is_change.then(|| changed.notify_one());
            true
        };
        self.assigner.evaluator.stores().listen(&("v1".to_owned(), "Service".to_owned()), Box::new(listener));
    }

    /// Writes the statuses that have changed, and finds the Services that lack addresses.
    async fn look(&self, settings: &Arc<LiveSettings>, term: &mut Term) {
        term.holders = Arc::new(term.observer.holders(Instant::now()));
        let external = &settings.settings.external;
        let (stores, of_look, holders) =
            (self.assigner.evaluator.stores().clone(), Arc::clone(settings), Arc::clone(&term.holders));
        let look = panics::catch_blocking(move || Look::at(&stores, &of_look, &holders)).await;
        let Ok(Look { owners, in_use, statuses, lacking }) =
            look.inspect_err(|error| tracing::error!(%error, "external addresses could not be looked up"))
        else {
            return;
        };
        let used: Vec<IpAddr> = owners.keys().copied().collect();
        let held = used.iter().copied().filter(|address| term.holders.contains_key(address)).collect();
        self.metrics.pools(&usage::of_external(external, &used, Some(&held)));
        term.next_look = self.write_statuses(statuses, &mut term.refused).await;
        self.report_holders(&owners, term);
        let freed = term.in_use.difference(&in_use).filter_map(|address| external.pool_of(*address));
        term.waiting.freed(&freed.map(|pool| &*pool.name).collect::<Vec<_>>());
        term.in_use = in_use;
        term.waiting.set(lacking, Instant::now());
        self.metrics.waiting.set(length(term.waiting.count()));
    }

    /// Writes these statuses, as long as there is time. Returns when to look again, if any is left.
    async fn write_statuses(
        &self,
        statuses: Vec<Status>,
        refused: &mut BTreeMap<ServiceKey, Refused>,
    ) -> Option<Instant> {
        let wanted: BTreeSet<&ServiceKey> = statuses.iter().map(|status| status.service.key()).collect();
        refused.retain(|id, _| wanted.contains(id));
        let now = Instant::now();
        let is_due = |status: &Status| {
            let known = refused.get(status.service.key());
            known.is_none_or(|known| known.until <= now || known.status != *status)
        };
        let due: Vec<Status> = statuses.into_iter().filter(is_due).collect();
        let mut left = due.len();
        let writes = stream::iter(in_turns(due)).take_until(sleep(WRITE_TIME));
        let mut writes = pin!(writes.map(|status| self.write_status(status)).buffer_unordered(WRITES));
        while let Some((status, written)) = writes.next().await {
            let id = status.service.key().clone();
            match written {
                Ok(()) => drop(refused.remove(&id)),
                Err(kube::Error::Api(_)) => {
                    let before = refused.get(&id).filter(|known| known.status == status);
                    let failures = before.map_or(1, |before| before.failures.saturating_add(1));
                    let until = Instant::now() + pause_after(failures, REWRITE_PAUSE, MAX_REWRITE_PAUSE);
                    refused.insert(id, Refused { status, failures, until });
                }
                Err(_) => continue,
            }
            left -= 1;
        }
        let again = (left > 0).then(|| Instant::now() + REWRITE_PAUSE);
        refused.values().map(|refused| refused.until).chain(again).min()
    }

    fn report_holders(&self, owners: &Owners, term: &mut Term) {
        let seen = owners.iter().map(|(address, service)| Assigned {
            address: *address,
            uid: service.uid().to_owned(),
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
            self.metrics.assigned(result);
        }
        self.metrics.waiting.set(length(term.waiting.count()));
        if is_new {
            tracing::warn!(namespace = id.namespace, name = id.name, reason, "no external address");
        }
        if let Some(uid) = uid.filter(|_| as_event) {
            self.assigner.report_unavailable(&id, &uid, reason);
        }
    }

    async fn write_status(&self, status: Status) -> (Status, kube::Result<()>) {
        let Status { service, held } = &status;
        let ServiceKey { namespace, name } = service.key();
        let ingress: Vec<Value> = held.iter().map(|address| json!({"ip": address, "ipMode": "VIP"})).collect();
        let body = json!({"metadata": {"uid": service.uid()}, "status": {"loadBalancer": {"ingress": ingress}}});
        let (path, addresses) = (format!("{}/status", service_path(namespace, name)), joined(held, ","));
        let written = patch(&self.assigner.client, &path, &body).await;
        match &written {
            Ok(()) => tracing::info!(namespace, name, addresses, "external addresses are held"),
            Err(error) => {
                let error = error_message(error);
                tracing::warn!(namespace, name, addresses, error, "the status can't be written");
            }
        }
        (status, written)
    }
}

impl Look {
    fn at(stores: &Stores, settings: &Arc<LiveSettings>, holders: &BTreeMap<IpAddr, String>) -> Self {
        let external = &settings.settings.external;
        let mut look = Self::default();
        let services = {
            let snapshot = stores.read_snapshot();
            let in_use = snapshot.external_addresses().map(|(address, _)| address);
            look.in_use = in_use.filter(|address| external.pool_of(*address).is_some()).collect();
            snapshot.external_services()
        };
        let policy = ExternalPolicy::new(external);
        let admits = &mut |service: &StoredService| policy.refusal(stores.snapshot(), service);
        (look.owners, _) = owners(external, services.iter().cloned(), admits);
        let mut lacking = Vec::new();
        for service in services {
            let has = recorded(&service, external);
            let own = |address: &IpAddr| look.owners.get(address).is_some_and(|owner| owner.key() == service.key());
            let is_held = |address: &IpAddr| own(address) && holders.contains_key(address);
            let lacks = match service.is_served(external) {
                true => has.is_empty() && !service.is_deleting(),
                false => !service.record().is_empty(),
            };
            if service.is_served(external) {
                let held: Vec<IpAddr> = has.into_iter().filter(is_held).collect();
                if !shows(&service, &held) {
                    look.statuses.push(Status { service: Arc::clone(&service), held });
                }
            }
            if lacks {
                lacking.push(service);
            }
        }
        let snapshot = stores.read_snapshot();
        for service in lacking {
            let namespace = snapshot.namespace(&service.key().namespace).cloned();
            let id = service.key().clone();
            look.lacking.insert(id, Version { service, namespace, settings: Arc::clone(settings) });
        }
        look
    }
}

/// Whether a status has exactly these addresses, as texts: other programs may not accept another spelling.
fn shows(service: &StoredService, held: &[IpAddr]) -> bool {
    let ingress = service.ingress();
    let written = ingress.as_ref().and_then(Value::as_array).into_iter().flatten();
    let written: BTreeSet<&str> = written.filter_map(|entry| entry.get("ip")?.as_str()).collect();
    let texts: Vec<String> = held.iter().map(ToString::to_string).collect();
    written == texts.iter().map(String::as_str).collect()
}

fn in_turns(mut statuses: Vec<Status>) -> Vec<Status> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    statuses.sort_by_cached_key(|status| {
        let count = counts.entry(status.service.key().namespace.clone()).or_default();
        *count += 1;
        *count
    });
    statuses
}

impl Term {
    fn look_soon(&mut self) {
        let soon = Instant::now() + GATHER_TIME;
        self.next_look = Some(self.next_look.map_or(soon, |next| next.min(soon)));
    }

    /// Handles an event. Returns whether to look: after the first complete list, and when a holder has changed.
    fn handle_lease_event(&mut self, event: Result<Event<Lease>, watcher::Error>) -> bool {
        let now = Instant::now();
        let was_complete = self.complete;
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
                return false;
            }
        }
        // Services that changed before the first list of Leases was complete have not been looked at.
        self.complete && (!was_complete || self.observer.holders(now) != *self.holders)
    }
}
