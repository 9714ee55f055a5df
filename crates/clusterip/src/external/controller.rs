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
use clusterip_cluster::lookups::stored_cluster::Subject;
use clusterip_cluster::object::{service_path, text};
use clusterip_cluster::policy::own_requests::ServiceRequest;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_core::annotations::{RECORD_ANNOTATION, in_record};
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::assignments::Assignments;
use clusterip_failover::claims::Owner;
use clusterip_failover::holders::Observer;
use futures::StreamExt;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::external_metrics::{AssignmentResult, ExternalMetrics};
use super::holder_reports::{Assigned, HolderReports};
use crate::leader::event_recorder::{CONTROLLER, EventContent, publish_service_event};
use crate::leader::{Gate, GateChange};
use crate::text::joined;
use crate::usage;

/// How long changes are collected before they are handled, because many Services may change at once.
const GATHER_TIME: Duration = Duration::from_millis(300);
/// How long after a refusal the policy is asked again about a Service without an address, if the Service does not
/// change.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Controller {
    pub evaluator: Evaluator,
    pub client: Client,
    /// The namespace of the agents' Leases.
    pub namespace: String,
    /// Open while this process leads and the settings have pools of external addresses.
    pub(crate) gate: Gate,
    pub metrics: ExternalMetrics,
}

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
    holder_reports: HolderReports,
}

impl Controller {
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        // Every wait ends at the shutdown, also those for the API server.
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.work() => {}
        }
    }

    async fn work(&mut self) {
        while let Some(settings) = self.gate.opened().await {
            self.term(settings).await;
            // Only the leader reports these metrics.
            self.metrics.pools(&[]);
            self.metrics.waiting(0);
        }
    }

    async fn term(&mut self, mut settings: Arc<LiveSettings>) {
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
                change = self.gate.changed() => match change {
                    GateChange::Settings(changed) => {
                        settings = changed;
                        term.waiting.clear();
                    }
                    GateChange::NoWork | GateChange::NotLeading => return,
                },
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
                self.reconcile(&settings, &mut term).await;
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
    async fn reconcile(&self, settings: &Arc<LiveSettings>, term: &mut Term) {
        let external = &settings.settings.external;
        let Some((services, assigned)) = self.assigned_addresses(settings).await else { return };
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
            let Some(assignment) = assigned.get(&report.address) else { continue };
            if report.before.is_some() {
                self.metrics.taken_over();
            }
            let ServiceKey { namespace, name } = &assignment.service;
            let ((reason, warning), note) = (report.reason(), report.note());
            match warning {
                true => tracing::warn!(namespace, name, note, "an external address is not held"),
                false => tracing::info!(namespace, name, note, "an external address is held"),
            }
            let content = EventContent { uid: &report.uid, warning, reason, note };
            publish_service_event(&self.client, &assignment.service, "Hold", content, None).await;
        }
    }

    /// The Services that may have external addresses, and the addresses to hold for them.
    async fn assigned_addresses(&self, settings: &Arc<LiveSettings>) -> Option<(Vec<Value>, Assignments)> {
        let (evaluator, settings) = (self.evaluator.clone(), Arc::clone(settings));
        let known = background::run_long(move || {
            let external = &settings.settings.external;
            let stores = evaluator.stores();
            let (services, nodes): (_, Vec<_>) = {
                let snapshot = stores.read_snapshot();
                (snapshot.external_services(), snapshot.nodes().cloned().collect())
            };
            let concerned = |service: &Value| is_served(service, external) || !record(service).is_empty();
            let services: Vec<Value> = services.iter().map(|service| service.value()).filter(concerned).collect();
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
    /// Handles an event. Returns whether the Services have to be reconciled: after the first complete list, and when
    /// the holder of an address has changed.
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

pub(crate) fn has_pools(settings: &LiveSettings) -> bool {
    !settings.settings.external.pools.is_empty()
}

fn record(service: &Value) -> String {
    text(service, &["metadata", "annotations", RECORD_ANNOTATION]).to_owned()
}

/// Why a Service gets no address. `uid` is the UID of the Service if the policy refused the address.
struct Without {
    uid: Option<String>,
    reason: String,
    result: AssignmentResult,
}

impl Controller {
    /// Asks the policy for the addresses of a Service, and records them.
    async fn assign(&self, service: &Value, term: &mut Term) {
        let id = ServiceKey::of(service);
        let Without { uid, reason, result } = match self.decide(&id).await {
            Ok(result) => {
                if let Some(result) = result {
                    self.metrics.assigned(result);
                }
                term.waiting.remove(&id);
                return;
            }
            Err(without) => without,
        };
        let before = term.waiting.insert(id.clone(), (Instant::now() + AGAIN, reason.clone()));
        let said = before.is_some_and(|(_, before)| before == reason);
        if !said || result == AssignmentResult::Failed {
            self.metrics.assigned(result);
        }
        if said {
            return;
        }
        tracing::warn!(namespace = id.namespace, name = id.name, reason, "no external address");
        if let Some(uid) = uid {
            self.report_unavailable(&id, &uid, reason).await;
        }
    }

    async fn report_unavailable(&self, id: &ServiceKey, uid: &str, note: String) {
        let content = EventContent { uid, warning: true, reason: "ExternalAddressNotAvailable", note };
        publish_service_event(&self.client, id, "Assign", content, None).await;
    }

    /// Asks the policy, and writes the record according to its answer. Returns the result, or `None` if there was
    /// nothing to do.
    async fn decide(&self, id: &ServiceKey) -> Result<Option<AssignmentResult>, Without> {
        let failed = |reason: String| Without { uid: None, reason, result: AssignmentResult::Failed };
        let path = service_path(&id.namespace, &id.name);
        let request = Request::get(&path).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
        let service: Value = match self.client.request(request).await {
            Ok(service) => service,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(failed(error_message(&error))),
        };
        let (evaluator, owner) = (self.evaluator.clone(), Owner::new(&id.namespace, &id.name, ""));
        let object = service.clone();
        let evaluated = background::run_long(move || {
            let request = ServiceRequest {
                uid: "external",
                username: CONTROLLER,
                object: &object,
                old: Some(&object),
                dry_run: false,
            };
            evaluator.evaluate(&request.to_value(), &Subject { owner, own: Vec::new(), dry_run: false })
        });
        let evaluation = evaluated.await.map_err(|error| failed(error.to_string()))?;
        let evaluation = evaluation.map_err(|error| failed(error.to_string()))?;
        let uid = text(&service, &["metadata", "uid"]).to_owned();
        let decision = &evaluation.decision;
        let warnings = decision.cut_warnings().join("; ");
        let changed = decision.external.as_ref().filter(|external| external.changes());
        let after = changed.map(|external| in_record(&external.addresses)).filter(|after| *after != record(&service));
        let Some(after) = after else {
            if !record(&service).is_empty() {
                return Ok(None);
            }
            let message = decision.denial().map(|denial| denial.message.clone());
            let reason = message.or(Some(warnings).filter(|warnings| !warnings.is_empty()));
            let reason = reason.unwrap_or_else(|| "the policy gives it no external address".to_owned());
            return Err(Without { uid: Some(uid), reason, result: AssignmentResult::Refused });
        };
        let version = text(&service, &["metadata", "resourceVersion"]);
        let value = if after.is_empty() { Value::Null } else { after.clone().into() };
        let annotations = json!({RECORD_ANNOTATION: value});
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "annotations": annotations}});
        // Commit before the watch can deliver the Service with these addresses. Until an evaluation is committed, its
        // addresses stay reserved even if the watch delivers a Service that has them. If that Service were deleted
        // soon, they would stay reserved for a long time without an owner.
        evaluation.commit(&[]);
        match self.patch(&path, &patch).await {
            Ok(_) => {
                tracing::info!(
                    namespace = id.namespace,
                    name = id.name,
                    addresses = after,
                    "external addresses recorded"
                );
                if !warnings.is_empty() {
                    // The Service does not get all that it asks for. Admission would have shown these warnings to its
                    // author.
                    tracing::warn!(
                        namespace = id.namespace,
                        name = id.name,
                        warnings,
                        "the Service does not get everything that it asks for"
                    );
                    self.report_unavailable(id, &uid, warnings).await;
                }
                // A record that was removed is not counted as given.
                Ok((!after.is_empty()).then_some(AssignmentResult::Assigned))
            }
            // Another program changed the Service meanwhile. The watch delivers that change next.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(AssignmentResult::Conflict)),
            Err(error) => Err(failed(error_message(&error))),
        }
    }
}
