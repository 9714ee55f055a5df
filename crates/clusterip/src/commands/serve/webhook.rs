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

use super::running::Election;
use super::startup::Startup;
use super::{CLAIMING_THREADS, LOG_TARGET};
use crate::leader::Leadership;
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

impl Startup<'_> {
    /// Listens for HTTPS connections, and answers none yet.
    pub(super) async fn listen(&self) -> anyhow::Result<WebhookServer> {
        let mut limits = Limits::default();
        if self.arguments.claims == ClaimStore::Lease {
            // A review mostly waits for its claim.
            limits.reviews = limits.reviews.max(CLAIMING_THREADS);
        }
        let server = WebhookServer::bind(self.arguments.listen, limits).await?;
        tracing::info!(target: LOG_TARGET, listen = %server.local_addr(), namespace = self.namespace, "serving");
        Ok(server)
    }

    /// The certificate of the server, which a task keeps up to date, and the registration of the webhook, if this
    /// server looks after one. `files` is the user's own certificate.
    pub(super) async fn certificate(
        &mut self,
        files: Option<CertificateFiles>,
    ) -> anyhow::Result<(Certificate, Option<Registration>)> {
        let arguments = self.arguments;
        if let Some(files) = files {
            let (certificate, chain) = (files.certificate(), String::from_utf8_lossy(files.chain()).into_owned());
            self.tasks.spawn(files.run(FILE_CHECK_INTERVAL, self.tasks.until_stop()));
            let registration = match &arguments.register_url {
                Some(url) => Some(self.registration_by_url(url, watch::channel(chain).1).await?),
                // A user with an own certificate has configured the API server to trust it.
                None => None,
            };
            return Ok((certificate, registration));
        }
        let names = match &arguments.register_url {
            Some(url) => vec![registration::url_host(url)?],
            None => authority::service_names(&arguments.service, &self.namespace),
        };
        let authority = Authority::open(self.client.clone(), &self.namespace, names, Arc::new(Timestamp::now)).await?;
        let authority = if arguments.register_url.is_some() { authority.temporary() } else { authority };
        let certificate = authority.certificate();
        let registration = match &arguments.register_url {
            _ if arguments.no_webhook => None,
            Some(url) => Some(self.registration_by_url(url, authority.bundle()).await?),
            None => {
                let name = &arguments.webhook_configuration;
                Some(Registration::in_cluster(self.client.clone(), name, authority.bundle()))
            }
        };
        // Without a webhook the API server need not trust this server.
        let trusted = registration.as_ref().map_or_else(|| authority.bundle(), Registration::registered);
        self.tasks.spawn(authority.run(trusted, self.tasks.until_stop()));
        Ok((certificate, registration))
    }

    /// The registration by `--register-url`, which follows the settings.
    async fn registration_by_url(&self, url: &str, bundle: watch::Receiver<String>) -> anyhow::Result<Registration> {
        let name = &self.arguments.webhook_configuration;
        let registration = Registration::with_url(self.client.clone(), name, url, bundle).await?;
        Ok(registration.following(self.settings.clone()))
    }

    /// Answers reviews only for clients with a certificate, if `--client-ca` asks for it.
    pub(super) fn trust_clients(&mut self, certificate: &Certificate) -> anyhow::Result<()> {
        let Some(path) = &self.arguments.client_ca else { return Ok(()) };
        let file = CertificateFiles::of_clients(path, certificate)?;
        self.tasks.spawn(file.run(FILE_CHECK_INTERVAL, self.tasks.until_stop()));
        Ok(())
    }

    /// The answers of the server: to reviews, to probes and to scrapes.
    pub(super) fn backend(
        &self,
        reconciler: Arc<Reconciler>,
        certificate: &Certificate,
        election: &Election,
    ) -> Backend {
        let (metrics, leadership) = (Arc::clone(&self.metrics), election.leadership.clone());
        let last_contact = election.contact.clone();
        let gauges = Gauges {
            metrics,
            reconciler,
            leadership,
            certificate: certificate.clone(),
            last_contact: last_contact.clone(),
        };
        let (evaluator, metrics) = (self.evaluator.clone(), self.metrics.admission.clone());
        let (stores, certificate) = (self.stores.clone(), certificate.clone());
        let competing_server = self.competing_server(election);
        Backend {
            reviewer: Arc::new(Admission::new(evaluator, metrics, self.arguments.on_error)),
            not_ready: Arc::new(move || {
                let lagging = stores.lagging().into_iter().chain(certificate.problem(Timestamp::now()));
                let silent = last_contact.borrow().problem(Instant::now());
                let competing = competing_server.as_ref().and_then(|found| found.borrow().problem());
                lagging.chain(silent).chain(competing).collect()
            }),
            scrapes: Scrapes::new(move || gauges.encode()),
        }
    }

    /// Registers the webhook, if this server has a registration, and looks after the registration until the stop. The
    /// webhook is registered only after the caches have synced.
    pub(super) fn register(&mut self, registration: Option<Registration>, election: &Election) {
        let Some(registration) = registration else { return };
        if let Some(url) = self.arguments.register_url.clone() {
            let (client, metrics) = (self.client.clone(), self.metrics.admission.clone());
            self.tasks.spawn_until_stop(reachability::check(client, url, registration.registered(), metrics));
        }
        let (stores, competing_server) = (self.stores.clone(), self.competing_server(election));
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
            registration.run(end).await
        });
    }

    /// Tells whether another server is at work, beside which this server must not serve; `None` if several replicas
    /// may run. They may run if each one claims the addresses that it assigns, or if they serve no webhook.
    fn competing_server(&self, election: &Election) -> Option<watch::Receiver<CompetingServer>> {
        let alone = self.arguments.claims == ClaimStore::Memory && !self.arguments.no_webhook;
        alone.then(|| election.competing_server.clone())
    }
}

/// The gauges that are computed for each scrape.
struct Gauges {
    metrics: Arc<ServerMetrics>,
    reconciler: Arc<Reconciler>,
    leadership: watch::Receiver<Leadership>,
    certificate: Certificate,
    /// When the API server last answered a request for the leader's Lease.
    last_contact: watch::Receiver<Contact>,
}

impl Gauges {
    /// The metrics in the OpenMetrics text format, with the gauges as they are now.
    fn encode(&self) -> String {
        let evaluator = &self.reconciler.evaluator;
        let settings = evaluator.settings();
        let mut used: Vec<_> = evaluator.stores().read_snapshot().addresses().collect();
        let in_flight = evaluator.ledger().reservations();
        used.extend(in_flight.iter().map(|(address, _)| *address));
        used.sort_unstable();
        used.dedup();
        let unmatched =
            if self.leadership.borrow().leads() { self.reconciler.unmatched() } else { BTreeMap::default() };
        let pools = usage::of_services(&settings.settings, &used);
        let admission = &self.metrics.admission;
        for pool in &pools {
            admission.begin_pool(
                ResourceKind::Service,
                &[AdmissionResult::Allocated, AdmissionResult::Denied],
                &pool.pool,
            );
        }
        self.metrics.services.pools(&pools, &unmatched);
        let blocks = {
            let snapshot = evaluator.stores().read_snapshot();
            usage::of_nodes(&settings.settings, || snapshot.nodes().flat_map(|node| &node.blocks).copied().collect())
        };
        for pool in &blocks {
            admission.begin_pool(ResourceKind::Node, &[AdmissionResult::Denied], &pool.pool);
        }
        self.metrics.nodes.blocks(&blocks);
        self.metrics.services.ledger(in_flight.len());
        let leads = self.leadership.borrow().leads();
        self.metrics.services.leader(leads);
        if !leads {
            // Only the leader reports misplaced Services.
            self.metrics.services.misplaced(&BTreeMap::new());
        }
        evaluator.stores().update_metrics();
        let stale = evaluator.stores().stale_since().map(|since| since.elapsed()).unwrap_or_default();
        let silence = self.last_contact.borrow().last.elapsed();
        if silence > MAX_SILENCE.max(stale) {
            self.metrics.cluster.api_server_contact(SystemTime::now() - silence);
        }
        self.metrics.admission.certificate_expiry.set(self.certificate.not_after().as_second() as f64);
        self.metrics.encode()
    }
}
