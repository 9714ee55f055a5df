//! The control loop for external addresses, which runs while this process leads. It assigns the addresses that
//! admission did not assign, and writes the status of Services.
//!
//! # Guarantees
//! - Every Service that gets external addresses from this product has them recorded, even if no webhook saw it.
//! - The status of such a Service contains exactly those of its addresses that a living agent holds. The status of any
//!   other Service is not changed.
//! - The controller asks the policy, as admission does, and writes the answer only to the version that it asked about.
//! - An Event on the Service reports when another node holds one of its addresses, and when no node has held the
//!   address for a while. Changes that happen while no process leads are not reported.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::api_error::{error_chain, error_message};
use clusterip_cluster::background;
use clusterip_cluster::backoff::RetryBackoff;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::external::assignment_builder::assignments;
use clusterip_cluster::external::policy_check::ExternalPolicy;
use clusterip_cluster::external::service_fields::{is_served, recorded, shown};
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::object::{Packed, service_path, text};
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_core::annotations::RECORD_ANNOTATION;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::assignments::Assignments;
use clusterip_failover::observer::Observer;
use futures::StreamExt;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};

mod assign;

use super::holder_reports::{Assigned, HolderReport, HolderReports};
use crate::external::external_metrics::ExternalMetrics;
use crate::leader::Leadership;
use crate::leader::activation::wait_until_active;
use crate::leader::event_recorder::{CONTROLLER, EventContent, publish_event};
use crate::text::joined;
use crate::usage;

/// How long changes are collected before they are handled, because many Services may change at once.
const GATHER_TIME: Duration = Duration::from_millis(300);
/// How long after a refusal the policy is asked again about a Service without an address, if the Service does not
/// change.
const AGAIN: Duration = Duration::from_secs(30);

/// The control loop for external addresses.
pub struct Controller {
    /// Asks the policy about Services.
    pub evaluator: Evaluator,
    /// The client that reads and writes Services.
    pub client: Client,
    /// The namespace of the agents' Leases.
    pub namespace: String,
    /// The settings in force.
    pub settings: watch::Receiver<Arc<LiveSettings>>,
    /// Whether this process leads. Only the leader handles external addresses.
    pub leadership: watch::Receiver<Leadership>,
    /// The metrics of external addresses.
    pub metrics: ExternalMetrics,
}

/// The state of one term of leadership.
#[derive(Default)]
struct Term {
    observer: Observer,
    /// The Leases of a list that is still being received.
    listing: Vec<Lease>,
    /// Whether a complete list of Leases was received.
    complete: bool,
    /// The node that holds each address, when the Services were last reconciled.
    holders: BTreeMap<IpAddr, String>,
    /// The Services without an address: when to ask the policy again, and the reported reason.
    waiting: BTreeMap<ServiceKey, (Instant, String)>,
    /// The holders that were reported.
    holder_reports: HolderReports,
}

impl Controller {
    /// Runs until `shutdown` completes.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        // Every wait ends at the shutdown, also those for the API server.
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.work() => {}
        }
    }

    /// Runs until the settings or the leadership are not published any more.
    async fn work(&mut self) {
        while wait_until_active(&mut self.settings, &mut self.leadership, has_pools).await {
            let ended = self.term().await;
            // Only the leader reports these metrics.
            self.metrics.pools(&[]);
            self.metrics.waiting(0);
            if ended {
                return;
            }
        }
    }

    /// Runs while this process leads and the settings have pools. Returns whether to stop for good.
    async fn term(&mut self) -> bool {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let labels = watcher::Config::default().labels(&Observer::labels());
        let mut leases = pin!(watcher(leases, labels).backoff(RetryBackoff::default()));
        let changed = Arc::new(Notify::new());
        self.listen(&changed);
        let mut term = Term::default();
        // Without all Services, the first round would miss addresses, which the second would report as new holders.
        self.evaluator.stores().completed().await;
        loop {
            let now = Instant::now();
            let due = term.waiting.values().map(|(due, _)| *due).chain(term.observer.next_change(now));
            let due = due.chain(term.holder_reports.next()).min();
            tokio::select! {
                changed = self.leadership.changed() => {
                    if changed.is_err() || !self.leadership.borrow_and_update().leads() {
                        return changed.is_err();
                    }
                }
                Ok(()) = self.settings.changed() => {
                    if !has_pools(&self.settings.borrow_and_update()) {
                        return false;
                    }
                    term.waiting.clear();
                }
                Some(event) = leases.next() => {
                    if !term.handle_lease_event(event) {
                        continue;
                    }
                }
                () = changed.notified() => {}
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
            sleep(GATHER_TIME).await;
            if term.complete {
                term.holders = term.observer.holders(Instant::now());
                self.reconcile(&mut term).await;
            }
        }
    }

    /// Notifies `changed` whenever a Service changes that may have external addresses.
    fn listen(&self, changed: &Arc<Notify>) {
        let changed = Arc::downgrade(changed);
        let matters = |service: &PartialObject| {
            let annotations = service.metadata.annotations.as_ref();
            let spec = service.data.get("spec").and_then(|spec| spec.get("type"));
            spec.is_some_and(|kind| kind == "LoadBalancer")
                || annotations.is_some_and(|annotations| annotations.contains_key(RECORD_ANNOTATION))
        };
        let listener = move |event: &Event<PartialObject>| {
            let Some(changed) = changed.upgrade() else { return false };
            match event {
                Event::Init => {}
                Event::InitDone => changed.notify_one(),
                Event::InitApply(service) | Event::Apply(service) | Event::Delete(service) => {
                    if matters(service) {
                        changed.notify_one();
                    }
                }
            }
            true
        };
        self.evaluator.stores().listen(&("v1".to_owned(), "Service".to_owned()), Box::new(listener));
    }

    /// Writes the status of all Services, and assigns the addresses that they lack.
    async fn reconcile(&self, term: &mut Term) {
        let settings = Arc::clone(&self.settings.borrow());
        let external = &settings.settings.external;
        let Some((services, assigned)) = self.assigned_addresses(&settings).await else { return };
        let ids: BTreeSet<ServiceKey> = services.iter().map(ServiceKey::of).collect();
        term.waiting.retain(|id, _| ids.contains(id));
        let used: Vec<IpAddr> = assigned.keys().copied().collect();
        let held = used.iter().copied().filter(|address| term.holders.contains_key(address)).collect();
        self.metrics.pools(&usage::of_external(external, &used, Some(&held)));
        for service in &services {
            let has = recorded(service, external);
            if is_served(service, external) {
                self.update_status(service, &has, &assigned, term).await;
            }
            let unserved = !is_served(service, external) && !record(service).is_empty();
            let due = term.waiting.get(&ServiceKey::of(service)).is_none_or(|(due, _)| *due <= Instant::now());
            if (unserved || has.is_empty()) && due {
                self.assign(service, term).await;
            }
        }
        self.report_holders(&services, &assigned, term).await;
        self.metrics.waiting(term.waiting.len());
    }

    /// Reports the changes of holders.
    async fn report_holders(&self, services: &[Value], assigned: &Assignments, term: &mut Term) {
        let by_id: BTreeMap<ServiceKey, &Value> =
            services.iter().map(|service| (ServiceKey::of(service), service)).collect();
        let seen = assigned.iter().filter_map(|(address, assignment)| {
            let service = by_id.get(&assignment.service)?;
            Some(Assigned {
                address: *address,
                uid: text(service, &["metadata", "uid"]).to_owned(),
                shown: shown(service).contains(address),
                holder: term.holders.get(address).cloned(),
            })
        });
        for report in term.holder_reports.changes(seen.collect(), Instant::now()) {
            let Some(assignment) = assigned.get(&report.address()) else { continue };
            if let HolderReport::Held { before: Some(_), .. } = report {
                self.metrics.taken_over();
            }
            let ServiceKey { namespace, name } = &assignment.service;
            let ((reason, warning), note) = (report.reason(), report.note());
            match warning {
                true => tracing::warn!(namespace, name, note, "an external address is not held"),
                false => tracing::info!(namespace, name, note, "an external address is held"),
            }
            let reference = object_reference(&assignment.service, report.uid());
            publish_event(&self.client, reference, "Hold", EventContent { uid: report.uid(), warning, reason, note })
                .await;
        }
    }

    /// The Services that may have external addresses, and the addresses to hold for them.
    async fn assigned_addresses(&self, settings: &Arc<LiveSettings>) -> Option<(Vec<Value>, Assignments)> {
        let (evaluator, settings) = (self.evaluator.clone(), Arc::clone(settings));
        let known = background::run_long(move || {
            let external = &settings.settings.external;
            let stores = evaluator.stores();
            // The objects are parsed while the snapshot is not locked.
            let (services, nodes) = {
                let snapshot = stores.read_snapshot();
                (snapshot.external_services(), snapshot.packed_all("v1", "Node"))
            };
            let concerned = |service: &Value| is_served(service, external) || !record(service).is_empty();
            let services: Vec<Value> = services.iter().map(Packed::value).filter(concerned).collect();
            let nodes: Vec<Value> = nodes.iter().map(Packed::value).collect();
            let policy = ExternalPolicy::new(external);
            let admits = &mut |service: &Value| policy.refusal(stores.snapshot(), service);
            let (assigned, _) = assignments(external, services.iter().cloned(), &nodes, admits);
            (services, assigned)
        });
        known.await.inspect_err(|error| tracing::error!(%error, "external addresses could not be looked up")).ok()
    }

    /// Writes the held addresses of a Service to its status.
    async fn update_status(&self, service: &Value, has: &[IpAddr], assigned: &Assignments, term: &Term) {
        let id = ServiceKey::of(service);
        let own = |address: &IpAddr| assigned.get(address).is_some_and(|assigned| assigned.service == id);
        let held: Vec<IpAddr> =
            has.iter().copied().filter(|address| own(address) && term.holders.contains_key(address)).collect();
        // The texts are compared: other programs read them, and may not accept another spelling of an address.
        let written = service.pointer("/status/loadBalancer/ingress").and_then(Value::as_array).into_iter().flatten();
        let written: BTreeSet<&str> = written.filter_map(|entry| entry.get("ip")?.as_str()).collect();
        let texts: Vec<String> = held.iter().map(ToString::to_string).collect();
        if written == texts.iter().map(String::as_str).collect() {
            return;
        }
        let ingress: Vec<Value> = held.iter().map(|address| json!({"ip": address, "ipMode": "VIP"})).collect();
        let uid = text(service, &["metadata", "uid"]);
        let patch = json!({"metadata": {"uid": uid}, "status": {"loadBalancer": {"ingress": ingress}}});
        let addresses = joined(&held, ",");
        match self.patch(&format!("{}/status", service_path(&id.namespace, &id.name)), &patch).await {
            Ok(_) => tracing::info!(namespace = id.namespace, name = id.name, addresses, "external addresses are held"),
            Err(error) => {
                let error = error_message(&error);
                tracing::warn!(
                    namespace = id.namespace,
                    name = id.name,
                    addresses,
                    error,
                    "the status can't be written"
                );
            }
        }
    }

    async fn patch(&self, path: &str, patch: &Value) -> Result<Value, kube::Error> {
        let request = Request::patch(format!("{path}?fieldManager={CONTROLLER}"))
            .header("content-type", "application/merge-patch+json")
            .body(patch.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

impl Term {
    /// Handles an event. Returns whether the Services have to be reconciled: after the first complete list, and when the
    /// holder of an address has changed.
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
        // Services that changed before the first list of Leases was complete have not been reconciled.
        self.complete && (!was_complete || self.observer.holders(now) != self.holders)
    }
}

fn has_pools(settings: &LiveSettings) -> bool {
    !settings.settings.external.pools.is_empty()
}

fn record(service: &Value) -> String {
    text(service, &["metadata", "annotations", RECORD_ANNOTATION]).to_owned()
}

/// The reference to a Service for an Event.
fn object_reference(id: &ServiceKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(id.namespace.clone()),
        name: Some(id.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_reconciled_when_the_first_list_of_leases_is_complete() {
        let mut term = Term::default();
        let events = [Event::Init, Event::InitDone, Event::Init, Event::InitDone];
        let reconciles = events.map(|event| term.handle_lease_event(Ok(event)));
        assert_eq!(reconciles, [false, true, false, false]);
    }
}
