//! The startup of the server: the connection to the cluster, the policy, the stores and the settings, and the values
//! that all later steps share.

use std::sync::Arc;

use clusterip_api::Compilation;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::startup::{report_missing_permissions, start_following};
use clusterip_cluster::live_settings::{Follower, LiveSettings, list_if_defined};
use clusterip_cluster::permissions::Duties;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::reservations::replica_claims::{self, Claims};
use clusterip_cluster::watch::stores::{Change, Stores};
use clusterip_failover::leases::election::Timing;
use clusterip_failover::leases::identity::{Identity, Role};
use kube::Client;
use tokio::sync::{mpsc, watch};

use super::running::Tasks;
use super::{LOG_TARGET, Serve};
use crate::audit::live_audit::LiveAudit;
use crate::dns_address;
use crate::leader::Candidate;
use crate::other_webhooks;
use crate::report::map::About;
use crate::server_metrics::ServerMetrics;
use crate::services::mover::SeamlessOptions;
use crate::ui::map_server::{Limits, MapServer};
use crate::webhook::registration::Registration;
use crate::webhook::server::WebhookServer;
use crate::webhook::tls::Certificate;

/// The connection to the cluster, and the values of the server that depend on no settings.
pub(super) struct Connection<'a> {
    arguments: &'a Serve,
    client: Client,
    /// The namespace of the server.
    pub(super) namespace: String,
    agents_namespace: String,
    metrics: Arc<ServerMetrics>,
    /// The identity of this process in Leases.
    me: Identity,
    ledger: Ledger,
}

impl<'a> Connection<'a> {
    /// Connects to the cluster.
    pub(super) async fn open(arguments: &'a Serve) -> anyhow::Result<Self> {
        let client = arguments.cluster.client().await?;
        let namespace = arguments.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        // Outside of a cluster, the namespace may be `default` without a decision of the administrator. The line
        // `serving` names every other namespace.
        if arguments.namespace.is_none() && namespace == "default" {
            tracing::warn!(
                "neither --namespace nor the kubeconfig names a namespace: the Lease, the Secret and the records of \
                 this server are in namespace default, where other users may have permissions"
            );
        }
        let agents_namespace = arguments.agents_namespace.clone().unwrap_or_else(|| namespace.clone());
        let metrics = Arc::new(ServerMetrics::new());
        let me = Identity::new(Role::Serve);
        Ok(Self { arguments, client, namespace, agents_namespace, metrics, me, ledger: Ledger::default() })
    }

    /// This process as a candidate in the leader election.
    pub(super) fn candidate(&self) -> Candidate {
        let candidate = Candidate::new(self.client.clone(), &self.namespace, self.me.clone(), Timing::default());
        // A server with `--register-url` leaves nothing behind.
        if self.arguments.register_url.is_some() { candidate.temporary() } else { candidate }
    }

    /// The stores, which know the Service ranges of the cluster and watch nothing yet, and the receiver of the changes
    /// that they will see.
    pub(super) async fn stores(&self) -> (Stores, mpsc::UnboundedReceiver<Change>) {
        let ledger = self.ledger.clone();
        let (stores, changes) =
            Stores::new(self.client.clone(), self.metrics.cluster.clone(), move |address| ledger.mark_seen(address));
        stores.ask_for_service_cidrs().await;
        (stores, changes)
    }

    /// Reads the settings, and checks the permissions for these duties.
    pub(super) async fn settings(&self, stores: &Stores, duties: &Duties) -> anyhow::Result<Follower> {
        let source = self.arguments.settings_source(&self.client);
        Ok(start_following(source, stores.service_cidrs(), &self.metrics.cluster, &self.client, duties).await?)
    }
}

/// A server that has read its settings and listens, but takes no part in the leader election and answers no request
/// yet.
pub(super) struct Prepared<'a> {
    // The first field is dropped first: if the start is given up, the tasks are aborted before the server is dropped.
    pub(super) startup: Startup<'a>,
    pub(super) candidate: Candidate,
    /// The changes that the stores see.
    pub(super) changes: mpsc::UnboundedReceiver<Change>,
    /// What the settings were compiled from; `None` if they do not come from objects.
    pub(super) compilation: watch::Receiver<Option<Arc<Compilation>>>,
    /// The client of the task that gives Nodes their pod CIDRs.
    pub(super) nodes_client: Client,
    pub(super) server: WebhookServer,
    pub(super) certificate: Certificate,
    /// The registration of the webhook, if this server looks after one.
    pub(super) registration: Option<Registration>,
    /// The options of seamless moves; `None` for plain moves.
    pub(super) seamless: Option<SeamlessOptions>,
}

/// The values that the steps of the startup share. Each step is a method that starts one duty of the server.
pub(super) struct Startup<'a> {
    // The first field is dropped first: if a step fails, the tasks are aborted before anything else is dropped.
    pub(super) tasks: Tasks,
    pub(super) evaluator: Evaluator,
    /// The claims of this replica, until [`Self::claim_addresses`] takes them; `None` if addresses in flight are
    /// recorded in memory only.
    pub(super) claims: Option<Claims>,
    /// The settings in force.
    pub(super) settings: watch::Receiver<Arc<LiveSettings>>,
    pub(super) stores: Stores,
    /// The identity of this process in Leases.
    pub(super) me: Identity,
    pub(super) metrics: Arc<ServerMetrics>,
    pub(super) agents_namespace: String,
    /// The namespace of the server.
    pub(super) namespace: String,
    pub(super) client: Client,
    pub(super) arguments: &'a Serve,
}

impl<'a> Startup<'a> {
    /// Starts to watch the cluster, and makes the evaluator, which claims addresses if there may be several replicas.
    pub(super) fn new(
        connection: Connection<'a>,
        stores: Stores,
        settings: watch::Receiver<Arc<LiveSettings>>,
    ) -> Self {
        let Connection { arguments, client, namespace, agents_namespace, metrics, me, ledger } = connection;
        stores.watch(&settings.borrow().settings);
        let claims = (arguments.claims == replica_claims::ClaimStore::Lease)
            .then(|| Claims::new(client.clone(), &namespace, me.as_str(), ledger.clone(), metrics.claims.clone()));
        let evaluator = Evaluator::new(settings.clone(), stores.clone(), ledger, metrics.evaluation.clone());
        let evaluator = match &claims {
            Some(claims) => evaluator.claiming(claims.clone()),
            None => evaluator,
        };
        Self {
            tasks: Tasks::new(),
            evaluator,
            claims,
            settings,
            stores,
            me,
            metrics,
            agents_namespace,
            namespace,
            client,
            arguments,
        }
    }

    /// Follows changes of the settings.
    pub(super) fn follow_settings(&mut self, follower: Follower) {
        let end = self.tasks.until_stop();
        self.tasks.spawn(async move { follower.run(end).await });
    }

    /// Reports the permissions that later settings require and this identity lacks.
    pub(super) fn report_missing_permissions(&mut self, duties: Duties) {
        let missing = report_missing_permissions(self.client.clone(), self.settings.clone(), duties);
        self.tasks.spawn_until_stop(missing);
    }

    /// Warns if the server reads its settings from a file, although the cluster has pool objects.
    pub(super) fn warn_about_unused_pools(&mut self) {
        if self.arguments.settings.is_none() {
            return;
        }
        let client = self.client.clone();
        self.tasks.spawn_until_stop(async move {
            // Without the permission to list them, the cluster may have any.
            let count = list_if_defined(&client).await.map_or(0, |objects| objects.len());
            if count > 0 {
                let objects = if count == 1 { "object" } else { "objects" };
                tracing::warn!(
                    target: LOG_TARGET,
                    "the cluster has {count} pool {objects}, which this server does not follow: omit --settings to use \
                     them"
                );
            }
        });
    }

    /// Warns if a pool may hand out the address that many installers give to the cluster's DNS.
    pub(super) fn warn_about_dns_address(&mut self) {
        let warned = dns_address::warn(self.stores.clone(), self.settings.clone());
        self.tasks.spawn_until_stop(warned);
    }

    /// Reports webhooks of other programs that also choose the addresses of Services.
    pub(super) fn report_other_webhooks(&mut self) {
        let reported = other_webhooks::report(self.stores.clone(), self.metrics.services.clone());
        self.tasks.spawn_until_stop(reported);
    }

    /// Serves the map of all pools, if `--ui` asks for it.
    pub(super) async fn serve_map(
        &mut self,
        compilation: watch::Receiver<Option<Arc<Compilation>>>,
    ) -> anyhow::Result<()> {
        let Some(address) = self.arguments.ui else { return Ok(()) };
        let cluster = self.arguments.cluster.name().await;
        let settings = self.arguments.settings_source(&self.client).to_string();
        let about = About { cluster, settings: Some(settings), made: None };
        let ui = MapServer::bind(address, Limits::default()).await?.about(about);
        let audit = LiveAudit::new(self.evaluator.clone(), compilation);
        let audit = audit.reading_leases(self.client.clone(), &self.agents_namespace);
        tracing::info!(target: LOG_TARGET, url = %format_args!("http://{}/", ui.local_addr()), "showing the map");
        let end = self.tasks.until_stop();
        self.tasks.try_spawn(async move { Ok(ui.run(Arc::new(move || Ok(audit.audit())), end).await?) });
        Ok(())
    }

    /// Ends the startup. Only the tasks remain.
    pub(super) fn into_tasks(self) -> Tasks {
        self.tasks
    }
}
