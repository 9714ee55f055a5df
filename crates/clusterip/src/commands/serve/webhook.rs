//! The webhook of the server: its certificate, its registration with the API server, and its metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::watch::stores::Stores;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use super::tasks::Tasks;
use super::{LOG_TARGET, ServeArguments};
use crate::leader::readiness::{CompetingServer, Contact, MAX_SILENCE};
use crate::server_metrics::ServerMetrics;
use crate::services::controller::reconcile::Reconciler;
use crate::usage;
use crate::webhook::admission_metrics::{AdmissionResult, ResourceKind};
use crate::webhook::authority::{self, Authority};
use crate::webhook::registration::{self, Registration};
use crate::webhook::tls::{Certificate, CertificateFiles};

/// The interval at which certificate files are checked for changes.
pub(super) const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum number of threads for reviews if each of them waits for its claim.
pub(super) const CLAIMING_THREADS: usize = 16;

impl ServeArguments {
    /// The certificate of the server, and the registration of the webhook, if this server looks after one. Tasks keep
    /// the certificate up to date.
    pub(super) async fn certificate(
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
                let authority = Authority::open(client.clone(), namespace, names, clock).await?;
                let authority = if self.register_url.is_some() { authority.temporary() } else { authority };
                (authority.certificate(), authority.bundle(), Some(authority))
            }
        };
        let (name, trusted) = (&self.webhook_configuration, bundle.clone());
        let registration = match &self.register_url {
            _ if self.no_webhook => None,
            Some(url) => {
                let registration = Registration::with_url(client.clone(), name, url, trusted).await?;
                Some(registration.following(settings))
            }
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
pub(super) async fn register(
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
    Ok(registration.run(end).await?)
}

/// Sets the gauges that are computed for each scrape.
pub(super) fn update_gauges(metrics: &ServerMetrics, reconciler: &Reconciler, leads: bool, contact: Contact) {
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
