//! The webhook of the server: its listener, its certificate, its answers, its metrics, and its registration with the
//! API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clusterip_cluster::http::status::Scrapes;
use clusterip_cluster::reservations::replica_claims::ClaimStore;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::LOG_TARGET;
use super::startup::Startup;
use super::tasks::Tasks;
use crate::leader::readiness::{CompetingServer, Contact, MAX_SILENCE};
use crate::server_metrics::ServerMetrics;
use crate::services::controller::reconcile::Reconciler;
use crate::usage;
use crate::webhook::admission::Admission;
use crate::webhook::admission_metrics::{AdmissionResult, ResourceKind};
use crate::webhook::authority::{self, Authority};
use crate::webhook::reachability;
use crate::webhook::registration::{self, Registration};
use crate::webhook::server::{Backend, Limits, WebhookServer};
use crate::webhook::tls::{Certificate, CertificateFiles};

/// The interval at which certificate files are checked for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum number of threads for reviews if each of them waits for its claim.
const CLAIMING_THREADS: usize = 16;

/// A webhook that listens for HTTPS connections, and answers none yet.
pub(super) struct Webhook {
    server: WebhookServer,
    certificate: Certificate,
    /// The registration, if this server looks after one.
    registration: Option<Registration>,
}

impl Webhook {
    /// `files` is the user's own certificate.
    pub(super) async fn listen(startup: &mut Startup<'_>, files: Option<CertificateFiles>) -> anyhow::Result<Self> {
        let arguments = startup.arguments;
        let mut limits = Limits::default();
        if arguments.claims == ClaimStore::Lease {
            // A review mostly waits for its claim.
            limits.reviews = limits.reviews.max(CLAIMING_THREADS);
        }
        let server = WebhookServer::bind(arguments.listen, limits).await?;
        tracing::info!(target: LOG_TARGET, listen = %server.local_addr(), namespace = startup.namespace, "serving");
        let (certificate, registration) = startup.certificate(files).await?;
        if let Some(authorities) = &arguments.client_ca {
            let file = CertificateFiles::of_clients(authorities, &certificate)?;
            startup.tasks.spawn(file.run(FILE_CHECK_INTERVAL, startup.tasks.until_stop()));
        }
        Ok(Self { server, certificate, registration })
    }

    /// Answers reviews, probes and scrapes, and registers the webhook. Returns the task that answers.
    pub(super) fn start(self, startup: &mut Startup<'_>, reconciler: Arc<Reconciler>) -> Tasks {
        let Self { server, certificate, registration } = self;
        let backend = startup.backend(reconciler, &certificate);
        let mut tasks = Tasks::default();
        let closed = tasks.until_stop();
        tasks.try_spawn(async move { server.run(backend, &certificate, closed).await });
        if let Some(registration) = registration {
            startup.register(registration);
        }
        tasks
    }
}

impl Startup<'_> {
    /// The certificate of the server, which a task keeps up to date, and the registration of the webhook.
    async fn certificate(
        &mut self,
        files: Option<CertificateFiles>,
    ) -> anyhow::Result<(Certificate, Option<Registration>)> {
        let (arguments, client) = (self.arguments, self.client.clone());
        let (certificate, bundle, authority) = match files {
            Some(files) => {
                let (certificate, chain) = (files.certificate(), String::from_utf8_lossy(files.chain()).into_owned());
                self.tasks.spawn(files.run(FILE_CHECK_INTERVAL, self.tasks.until_stop()));
                (certificate, watch::channel(chain).1, None)
            }
            None => {
                let names = match &arguments.register_url {
                    Some(url) => vec![registration::url_host(url)?],
                    None => authority::service_names(&arguments.service, &self.namespace),
                };
                let clock = Arc::new(Timestamp::now);
                let authority = Authority::open(client.clone(), &self.namespace, names, clock).await?;
                let authority = if arguments.register_url.is_some() { authority.temporary() } else { authority };
                (authority.certificate(), authority.bundle(), Some(authority))
            }
        };
        let (name, trusted) = (&arguments.webhook_configuration, bundle.clone());
        let registration = match &arguments.register_url {
            _ if arguments.no_webhook => None,
            Some(url) => {
                let registration = Registration::with_url(client, name, url, trusted).await?;
                Some(registration.following(self.settings.clone()))
            }
            // A user with an own certificate has configured the API server to trust it.
            None => authority.is_some().then(|| Registration::in_cluster(client, name, trusted)),
        };
        if let Some(authority) = authority {
            // Without a webhook the API server need not trust this server.
            let trusted = registration.as_ref().map_or(bundle, Registration::registered);
            self.tasks.spawn(authority.run(trusted, self.tasks.until_stop()));
        }
        Ok((certificate, registration))
    }

    /// The answers of the server: to reviews, to probes and to scrapes.
    fn backend(&self, reconciler: Arc<Reconciler>, certificate: &Certificate) -> Backend {
        let (evaluator, metrics) = (self.evaluator.clone(), self.metrics.admission.clone());
        let (stores, competing_server) = (self.stores.clone(), self.competing_server.clone());
        let (of_probes, of_scrapes) = (certificate.clone(), certificate.clone());
        let (contact, last_contact) = (self.contact.clone(), self.contact.clone());
        let (all_metrics, leadership) = (Arc::clone(&self.metrics), self.leadership.clone());
        Backend {
            reviewer: Arc::new(Admission::new(evaluator, metrics, self.arguments.on_error)),
            not_ready: Arc::new(move || {
                let lagging = stores.lagging().into_iter().chain(of_probes.problem(Timestamp::now()));
                let silent = contact.borrow().problem(Instant::now());
                let competing = competing_server.as_ref().and_then(|found| found.borrow().problem());
                lagging.chain(silent).chain(competing).collect()
            }),
            scrapes: Scrapes::new(move || {
                let (leads, contact) = (leadership.borrow().leads(), *last_contact.borrow());
                update_gauges(&all_metrics, &reconciler, leads, contact);
                all_metrics.admission.certificate_expiry(of_scrapes.not_after());
                all_metrics.encode()
            }),
        }
    }

    /// Registers the webhook, and looks after the registration until the stop. The webhook is registered only after the
    /// caches have synced.
    fn register(&mut self, registration: Registration) {
        if let Some(url) = self.arguments.register_url.clone() {
            let (client, metrics) = (self.client.clone(), self.metrics.admission.clone());
            self.tasks.spawn_until_stop(reachability::check(client, url, registration.registered(), metrics));
        }
        let (stores, competing_server) = (self.stores.clone(), self.competing_server.clone());
        let (end, stopped) = (self.tasks.until_stop(), self.tasks.until_stop());
        self.tasks.try_spawn(async move {
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
            Ok(registration.run(end).await?)
        });
    }
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
    let blocks = {
        let snapshot = evaluator.stores().read_snapshot();
        usage::of_nodes(&settings.settings, || snapshot.nodes().flat_map(|node| &node.blocks).copied().collect())
    };
    for pool in &blocks {
        metrics.admission.begin_pool(ResourceKind::Node, &[AdmissionResult::Denied], &pool.pool);
    }
    metrics.nodes.blocks(&blocks);
    metrics.services.ledger(in_flight.len());
    metrics.services.leader(leads);
    if !leads {
        // Only the leader reports misplaced Services.
        metrics.services.misplaced(&BTreeMap::new());
    }
    evaluator.stores().update_metrics();
    let stale = evaluator.stores().stale_since().map(|since| since.elapsed()).unwrap_or_default();
    let silence = contact.last.elapsed();
    if silence > MAX_SILENCE.max(stale) {
        metrics.cluster.api_server_contact(SystemTime::now() - silence);
    }
}
