//! The webhook of the server: its listener, its certificate, its answers, and its registration with the API server.

use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::http::server::ServerError;
use clusterip_cluster::reservations::replica_claims;
use clusterip_cluster::shutdown::until;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::controllers::Election;
use super::gauges::Gauges;
use super::startup::Startup;
use super::{CLAIMING_THREADS, LOG_TARGET};
use crate::leader::competing_server::CompetingServer;
use crate::leader::contact;
use crate::services::controller::reconcile::Reconciler;
use crate::webhook::admission::Admission;
use crate::webhook::authority::{self, Authority};
use crate::webhook::client_ca::ClientCaFile;
use crate::webhook::reachability;
use crate::webhook::registration::{self, Registration};
use crate::webhook::server::{Backend, Limits, WebhookServer};
use crate::webhook::tls::{Certificate, CertificateFiles};

/// The interval at which certificate files are checked for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The running HTTPS server.
pub(super) struct Webhook {
    pub(super) server: JoinHandle<Result<(), ServerError>>,
    /// Stops the server.
    pub(super) close: watch::Sender<bool>,
}

impl Webhook {
    /// Answers requests.
    pub(super) fn start(server: WebhookServer, backend: Backend, certificate: Certificate) -> Self {
        let (close, closed) = watch::channel(false);
        let end = until(closed);
        Self { server: tokio::spawn(async move { server.run(backend, &certificate, end).await }), close }
    }
}

impl Startup<'_> {
    /// Listens for HTTPS connections, and answers none yet.
    pub(super) async fn listen(&self) -> anyhow::Result<WebhookServer> {
        let mut limits = Limits::default();
        if self.arguments.claims == replica_claims::ClaimStore::Lease {
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
            let end = self.tasks.until_stop();
            self.tasks.spawn(async move { files.run(FILE_CHECK_INTERVAL, end).await });
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
        let end = self.tasks.until_stop();
        self.tasks.spawn(async move { authority.run(trusted, end).await });
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
        let file = ClientCaFile::open(path, certificate)?;
        let end = self.tasks.until_stop();
        self.tasks.spawn(async move { file.run(FILE_CHECK_INTERVAL, end).await });
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
                let silent = contact::problem(*last_contact.borrow(), Instant::now());
                let competing = competing_server.as_ref().and_then(|found| found.borrow().problem());
                lagging.chain(silent).chain(competing).collect()
            }),
            metrics: Arc::new(move || gauges.encode()),
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
            Ok(registration.run(end).await?)
        });
    }

    /// Tells whether another server is at work, beside which this server must not serve; `None` if several replicas
    /// may run. They may run if each one claims the addresses that it assigns, or if they serve no webhook.
    fn competing_server(&self, election: &Election) -> Option<watch::Receiver<CompetingServer>> {
        let alone = self.arguments.claims == replica_claims::ClaimStore::Memory && !self.arguments.no_webhook;
        alone.then(|| election.competing_server.clone())
    }
}
