//! The startup of the server: the connection to the cluster, and each of its duties.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::http::probes::Scrapes;
use clusterip_cluster::http::server::Server;
use clusterip_cluster::live_settings::{
    LiveSettings, SettingsSource, list_if_defined, report_missing_permissions, start_following,
};
use clusterip_cluster::metrics::{timestamp, whole};
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::reservations::replica_claims::{ClaimStore, Claims};
use clusterip_cluster::watch::stores::Stores;
use clusterip_failover::leases::{Identity, Role, Timing};
use futures::FutureExt;
use jiff::Timestamp;
use kube::{Api, Client};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::tasks::{Running, Tasks};
use super::{LOG_TARGET, Moves, ServeArguments};
use crate::audit::LiveAudit;
use crate::audit::services::{OTHER_WEBHOOK_PROBLEM, OTHER_WEBHOOK_REMEDY};
use crate::external::assigner::Assigner;
use crate::leader::event_recorder::EventQueue;
use crate::leader::{Candidate, CompetingServer, Contact, Gate, MAX_SILENCE};
use crate::map_server::{AUDIT_TIME, MapServer};
use crate::pools::status_writer::StatusWriter;
use crate::report::map::About;
use crate::server_metrics::ServerMetrics;
use crate::services::controller::affected::Changes;
use crate::services::controller::reconcile::Reconciler;
use crate::services::controller::replicas::Replicas;
use crate::services::controller::stored_settings::{SettingsInUse, SettingsOrigin};
use crate::services::misplaced::Allowed;
use crate::services::service_metrics::ServiceMetrics;
use crate::text::several;
use crate::webhook::admission::Admission;
use crate::webhook::admission_metrics::{AdmissionResult, ResourceKind};
use crate::webhook::authority::{self, Authority};
use crate::webhook::registration::{self, Registration};
use crate::webhook::server::{self, Backend, Limits};
use crate::webhook::tls::{Certificate, CertificateFiles};
use crate::{external, nodes, services, usage};

/// The interval at which certificate files are checked for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum number of threads for reviews if each of them waits for its claim.
const CLAIMING_THREADS: usize = 16;

impl ServeArguments {
    /// Connects to the cluster, and starts the duties of the server one after the other. `files` is the user's own
    /// certificate.
    ///
    /// This may be dropped at each point at which it waits: until the last one, no Lease is taken and no request is
    /// answered.
    pub(super) async fn start(&self, files: Option<CertificateFiles>) -> anyhow::Result<Running> {
        let client = self.cluster.client().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        // Outside of a cluster, the namespace may be `default` without a decision of the administrator. The line
        // `serving` names every other namespace.
        if self.namespace.is_none() && namespace == "default" {
            tracing::warn!(
                "neither --namespace nor the kubeconfig names a namespace: the Lease, the Secret and the records of \
                 this server are in namespace default, where other users may have permissions"
            );
        }
        let agents_namespace = self.agents_namespace.clone().unwrap_or_else(|| namespace.clone());
        let metrics = Arc::new(ServerMetrics::new());
        let me = Identity::new(Role::Serve);
        // A server with `--register-url` leaves nothing behind.
        let temporary = self.register_url.is_some();
        let mut candidate = Candidate::new(client.clone(), &namespace, me.clone(), Timing::default());
        candidate.temporary = temporary;
        // The Lease that a dead leader left behind expires while everything else starts. An error is reported later.
        let _ = candidate.look().await;
        let (leadership, contact) = (candidate.subscribe(), candidate.contact.subscribe());

        let (ledger, changes) = (Ledger::default(), Changes::default());
        let (seen, collected) = (ledger.clone(), changes.clone());
        let external_changed = Arc::new(Notify::new());
        let notified = Arc::clone(&external_changed);
        let stores = Stores::new(
            client.clone(),
            metrics.cluster.clone(),
            move |service| seen.mark_seen(service),
            move |change| {
                if external::controller::matters(change) {
                    notified.notify_one();
                }
                collected.add(change);
            },
        );
        let source = SettingsSource::chosen(self.settings.as_deref(), self.policy.as_deref(), &client);
        let duties = self.duties(&namespace);
        let origin = SettingsOrigin::from(&source);
        let about = About { cluster: None, settings: Some(source.to_string()), made: None };
        let follower = start_following(source, &stores, &duties).await?;
        let (settings, compilation) = (follower.subscribe(), follower.subscribe_compilation());
        let is_claiming = self.claims == ClaimStore::Lease;
        let claims = is_claiming
            .then(|| Claims::new(client.clone(), &namespace, me.as_str(), ledger.clone(), metrics.claims.clone()));
        let mut evaluator = Evaluator::new(settings.clone(), stores.clone(), ledger, metrics.evaluation.clone());
        evaluator.claims.clone_from(&claims);

        // From here on requests may be in progress: each task ends by itself after the stop.
        let mut tasks = Tasks::default();
        tasks.spawn(follower.run(tasks.until_stop()));
        tasks.spawn_until_stop(report_missing_permissions(client.clone(), settings.clone(), duties));
        tasks.spawn_until_stop(dns_address(stores.clone(), settings.clone()));
        tasks.spawn_until_stop(other_webhooks(stores.clone(), metrics.services.clone()));
        if self.settings.is_some() {
            tasks.spawn_until_stop(unused_pools(client.clone()).then(|()| pending()));
        }
        if let Some(address) = self.ui {
            let mut ui = MapServer::bind(address, AUDIT_TIME).await?;
            ui.about = Some(About { cluster: self.cluster.name().await, ..about });
            let leases = Api::namespaced(client.clone(), &agents_namespace);
            let audit = LiveAudit::new(evaluator.clone(), leases, compilation.clone());
            tracing::info!(target: LOG_TARGET, url = %format_args!("http://{}/", ui.local_addr()), "showing the map");
            let end = tasks.until_stop();
            tasks.try_spawn(async move { ui.run(Arc::new(move || Ok(audit.audit())), end).await });
        }

        let mut limits = Limits::default();
        if is_claiming {
            // A review mostly waits for its claim.
            limits.reviews = limits.reviews.max(CLAIMING_THREADS);
        }
        let server = Server::bind(self.listen, "the webhook", "--listen").await?;
        tracing::info!(target: LOG_TARGET, listen = %server.local_addr(), namespace, "serving");
        let (certificate, registration) =
            self.certificate(files, &client, &namespace, settings.clone(), &mut tasks).await?;
        if let Some(authorities) = &self.client_ca {
            let file = CertificateFiles::of_clients(authorities, &certificate)?;
            tasks.spawn(file.run(FILE_CHECK_INTERVAL, tasks.until_stop()));
        }
        let seamless = self.dns.options(&client, self.seamless_moves).await;
        // The controller of Nodes runs in a thread of its own, and its connections live there.
        let nodes_client = self.cluster.client().await?;

        // From here on nothing waits.
        let gate = |has_work: fn(&LiveSettings) -> bool| Gate {
            settings: settings.clone(),
            leadership: leadership.clone(),
            has_work,
        };
        let nodes = nodes::controller::Controller {
            stores: stores.clone(),
            client: nodes_client,
            gate: gate(|live| !live.settings.nodes.pools.is_empty()),
            term: candidate.term.subscribe(),
            metrics: metrics.nodes.clone(),
        };
        // Several replicas may run if each one claims the addresses that it assigns, or if they serve no webhook.
        // Otherwise this server must not serve beside another one.
        let is_alone = !is_claiming && !self.no_webhook;
        let competing_server = is_alone.then(|| candidate.competing_server.subscribe());
        let mut election = Tasks::default();
        election.spawn(candidate.run(election.until_stop()));

        let allowed = Allowed {
            any: self.moves != Moves::Never,
            ready: self.moves == Moves::Always,
            seamless,
            load_balancers: self.move_load_balancers,
        };
        let of_services = metrics.services.clone();
        let mut reconciler =
            Reconciler::new(evaluator.clone(), client.clone(), &namespace, of_services.clone(), allowed);
        if let Some(claims) = claims {
            // The reconciler moves nothing while other replicas use other settings.
            let replicas = Replicas::new(client.clone(), &namespace, me.clone(), settings.clone(), of_services);
            reconciler.agreement = Some(replicas.subscribe());
            let (of_replicas, of_claims) = (gate(|_| true), gate(|_| true));
            election.spawn(replicas.run(move || of_replicas.is_open(), election.until_stop()));
            let (seen, end) = (stores.clone(), tasks.until_stop());
            let is_used = move |address| {
                let snapshot = seen.read_snapshot();
                snapshot.is_used(address) || snapshot.external_owners(address).next().is_some()
            };
            tasks.spawn(async move { claims.run(|| of_claims.is_open(), is_used, end).await });
        }
        let reconciler = Arc::new(reconciler);

        let nodes = nodes.run_in_thread(tasks.until_stop())?;
        tasks.try_spawn(async move { nodes.await.context("the node CIDR controller") });
        let external = external::controller::Controller {
            assigner: Assigner {
                evaluator: evaluator.clone(),
                client: client.clone(),
                events: EventQueue::start(client.clone()),
                moves: reconciler.mover.unfinished.clone(),
            },
            namespace: agents_namespace.clone(),
            gate: gate(|_| true),
            changed: external_changed,
            metrics: metrics.external.clone(),
        };
        tasks.spawn_until_stop(external.run());
        let status = StatusWriter { client: client.clone(), reconciler: Arc::clone(&reconciler), compilation };
        tasks.spawn_until_stop(status.run(gate(|_| true)));
        let services = services::controller::Controller {
            reconciler: Arc::clone(&reconciler),
            changes,
            gate: gate(|_| true),
            in_use: SettingsInUse { leader: me.to_string(), version: String::new(), source: origin, agents_namespace },
            temporary,
        };
        tasks.spawn(services.run(tasks.until_stop()));

        if let Some(registration) = registration {
            if let Some(url) = self.register_url.clone() {
                let metrics = metrics.admission.clone();
                let check = registration::check_calls(client, url, registration.registered(), metrics);
                tasks.spawn_until_stop(check.then(|()| pending()));
            }
            let (stopped, end) = (tasks.until_stop(), tasks.until_stop());
            tasks.try_spawn(register(registration, stores.clone(), competing_server.clone(), stopped, end));
        }
        let (of_probes, last_contact) = (certificate.clone(), contact.clone());
        let of_scrapes = certificate.clone();
        let backend = Backend {
            reviewer: Arc::new(Admission::new(evaluator, metrics.admission.clone(), self.on_error)),
            not_ready: Arc::new(move || {
                let lagging = stores.lagging().into_iter().chain(of_probes.problem(Timestamp::now()));
                let silent = contact.borrow().problem(Instant::now());
                let competing = competing_server.as_ref().and_then(|found| found.borrow().problem());
                lagging.chain(silent).chain(competing).collect()
            }),
            scrapes: Scrapes::new(move || {
                let (leads, contact) = (leadership.borrow().leads(), *last_contact.borrow());
                update_gauges(&metrics, &reconciler, leads, contact);
                metrics.admission.certificate_expiry.set(of_scrapes.not_after().as_second() as f64);
                metrics.encode()
            }),
        };
        let mut webhook = Tasks::default();
        let closed = webhook.until_stop();
        webhook.try_spawn(async move { server::serve(server, limits, backend, &certificate, closed).await });
        Ok(Running { tasks, webhook, election, unregisters: temporary })
    }

    /// The certificate of the server, and the registration of the webhook, if this server looks after one. Tasks keep
    /// the certificate up to date.
    async fn certificate(
        &self,
        files: Option<CertificateFiles>,
        client: &Client,
        namespace: &str,
        settings: watch::Receiver<Arc<LiveSettings>>,
        tasks: &mut Tasks,
    ) -> anyhow::Result<(Certificate, Option<Registration>)> {
        let (certificate, bundle, authority) = match files {
            Some(files) => {
                let (certificate, chain) = (files.certificate(), String::from_utf8_lossy(files.chain()).into_owned());
                tasks.spawn(files.run(FILE_CHECK_INTERVAL, tasks.until_stop()));
                (certificate, watch::channel(chain).1, None)
            }
            None => {
                let names = match &self.register_url {
                    Some(url) => vec![registration::url_host(url)?],
                    None => authority::service_names(&self.service, namespace),
                };
                let clock = Arc::new(Timestamp::now);
                let mut authority = Authority::open(client.clone(), namespace, names, clock).await?;
                authority.temporary = self.register_url.is_some();
                (authority.certificate(), authority.bundle(), Some(authority))
            }
        };
        let (name, trusted) = (&self.webhook_configuration, bundle.clone());
        let registration = match &self.register_url {
            _ if self.no_webhook => None,
            Some(url) => Some(Registration::with_url(client.clone(), name, url, trusted, settings).await?),
            // A user with an own certificate has configured the API server to trust it.
            None => authority.is_some().then(|| Registration::in_cluster(client.clone(), name, trusted)),
        };
        if let Some(authority) = authority {
            // Without a webhook the API server need not trust this server.
            let trusted = registration.as_ref().map_or(bundle, Registration::registered);
            tasks.spawn(authority.run(trusted, tasks.until_stop()));
        }
        Ok((certificate, registration))
    }
}

/// Registers the webhook, and looks after the registration until `end`. The webhook is registered only after the caches
/// have synced.
async fn register(
    registration: Registration,
    stores: Stores,
    competing_server: Option<watch::Receiver<CompetingServer>>,
    stopped: impl Future<Output = ()>,
    end: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let ready = async {
        stores.completed().await;
        if let Some(mut competing_server) = competing_server {
            // A replica must not take over the webhook configuration of another running server.
            let _ = competing_server.wait_for(|found| *found == CompetingServer::None).await;
        }
    };
    tokio::select! {
        () = ready => {}
        () = stopped => return Ok(()),
    }
    tracing::info!(target: LOG_TARGET, "ready");
    registration.run(end).await
}

/// Sets the gauges that are computed for each scrape.
fn update_gauges(metrics: &ServerMetrics, reconciler: &Reconciler, leads: bool, contact: Contact) {
    let evaluator = &reconciler.evaluator;
    let settings = evaluator.settings();
    let mut used: Vec<_> = evaluator.stores().read_snapshot().addresses().collect();
    let in_flight = evaluator.ledger().reservations();
    used.extend(in_flight.iter().map(|(address, _)| *address));
    used.sort_unstable();
    used.dedup();
    let unmatched = if leads { reconciler.unmatched() } else { BTreeMap::default() };
    let pools = usage::of_services(&settings.settings, &used);
    for pool in &pools {
        let results = [AdmissionResult::Allocated, AdmissionResult::Denied];
        metrics.admission.begin_pool(ResourceKind::Service, &results, &pool.pool);
    }
    metrics.services.pools(&pools, &unmatched);
    let blocks = usage::of_nodes(&settings.settings, &evaluator.stores().read_snapshot());
    for pool in &blocks {
        metrics.admission.begin_pool(ResourceKind::Node, &[AdmissionResult::Denied], &pool.pool);
    }
    metrics.nodes.blocks(&blocks);
    metrics.services.ledger.set(whole(in_flight.len()));
    metrics.services.leader.set(i64::from(leads));
    if !leads {
        // Only the leader reports misplaced Services.
        metrics.services.none_stays();
    }
    evaluator.stores().update_metrics();
    let stale = evaluator.stores().stale_since().map(|since| since.elapsed()).unwrap_or_default();
    let silence = contact.last.elapsed();
    if silence > MAX_SILENCE.max(stale) {
        metrics.cluster.last_contact.set(timestamp(SystemTime::now() - silence));
    }
}

/// Logs a warning if a pool may hand out the address that many installers give to the cluster's DNS: once the cluster
/// is known, and again after each change of the settings that leads to another warning.
async fn dns_address(stores: Stores, mut settings: watch::Receiver<Arc<LiveSettings>>) {
    stores.completed().await;
    let mut told = None;
    loop {
        let live = Arc::clone(&settings.borrow_and_update());
        let found = live.settings.unused_dns_address(|address| stores.read_snapshot().is_used(address));
        if let Some(found) = found.as_ref().filter(|found| told.as_ref() != Some(*found)) {
            let warning = live.warning(found.into());
            tracing::warn!(target: LOG_TARGET, %warning, "settings");
        }
        told = found;
        if settings.changed().await.is_err() {
            return;
        }
    }
}

/// Logs a warning if the cluster has pool objects, although the server reads its settings from a file.
async fn unused_pools(client: Client) {
    // Without the permission to list them, the cluster may have any.
    let count = list_if_defined(&client).await.map_or(0, |objects| objects.len());
    if count > 0 {
        tracing::warn!(
            target: LOG_TARGET,
            "the cluster has {}, which this server does not follow: omit --settings to use them",
            several(count, "pool object")
        );
    }
}

/// Logs each configuration of a webhook that also chooses addresses of Services: once it is seen, and once the API
/// server does not call its webhooks any more. Sets the metric.
async fn other_webhooks(stores: Stores, metrics: ServiceMetrics) {
    let mut names = stores.control_plane_services().other_webhooks();
    let mut told = BTreeSet::new();
    loop {
        let now = names.borrow_and_update().clone();
        for name in now.difference(&told) {
            tracing::warn!(
                target: LOG_TARGET,
                webhook_configuration = name,
                remedy = OTHER_WEBHOOK_REMEDY,
                "{OTHER_WEBHOOK_PROBLEM}"
            );
        }
        for name in told.difference(&now) {
            tracing::info!(target: LOG_TARGET, webhook_configuration = name, "the webhook of K2s is not called any more");
        }
        metrics.other_webhooks.set(whole(now.len()));
        told = now;
        if names.changed().await.is_err() {
            return;
        }
    }
}
