//! The steps of the startup: the connection to the cluster, and the duties of the server, each of which one method
//! starts.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use clusterip_api::Compilation;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::{
    Follower, LiveSettings, list_if_defined, report_missing_permissions, start_following,
};
use clusterip_cluster::permissions::Duties;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::reservations::replica_claims::{ClaimStore, Claims};
use clusterip_cluster::shutdown::until;
use clusterip_cluster::watch::stores::Stores;
use clusterip_failover::leases::{Identity, Role, Timing};
use kube::{Api, Client};
use tokio::sync::{Notify, watch};

use super::running::{Election, Tasks};
use super::{LOG_TARGET, Moves, ServeArguments};
use crate::audit::LiveAudit;
use crate::audit::service_findings::{OTHER_WEBHOOK_PROBLEM, OTHER_WEBHOOK_REMEDY};
use crate::external::assigner::Assigner;
use crate::leader::event_recorder::EventQueue;
use crate::leader::{Candidate, Gate};
use crate::map_server::{AUDIT_TIME, MapServer};
use crate::pools::status_writer::StatusWriter;
use crate::report::map::About;
use crate::server_metrics::ServerMetrics;
use crate::services::controller::affected::Changes;
use crate::services::controller::reconcile::Reconciler;
use crate::services::controller::replicas::Replicas;
use crate::services::controller::settings_in_use::SettingsOrigin;
use crate::services::misplaced::Allowed;
use crate::services::service_metrics::ServiceMetrics;
use crate::text::several;
use crate::{external, nodes, services};

/// The values that the steps of the startup share.
pub(super) struct Startup<'a> {
    // The first field is dropped first: if a step fails, the tasks are aborted before anything else is dropped.
    pub(super) tasks: Tasks,
    pub(super) evaluator: Evaluator,
    /// The claims of this replica, until [`Self::claim_addresses`] takes them; `None` if addresses in flight are
    /// recorded in memory only.
    claims: Option<Claims>,
    pub(super) settings: watch::Receiver<Arc<LiveSettings>>,
    /// What the settings were compiled from; `None` if they do not come from objects.
    compilation: watch::Receiver<Option<Arc<Compilation>>>,
    pub(super) stores: Stores,
    me: Identity,
    pub(super) metrics: Arc<ServerMetrics>,
    agents_namespace: String,
    /// Is notified of changes that matter for external addresses.
    external_changed: Arc<Notify>,
    pub(super) namespace: String,
    pub(super) client: Client,
    pub(super) arguments: &'a ServeArguments,
}

impl<'a> Startup<'a> {
    /// Connects to the cluster, reads the settings, checks the permissions, and starts to watch the cluster. Also returns
    /// what the duties of the leader need: the candidate, and the changes that the stores see.
    pub(super) async fn begin(arguments: &'a ServeArguments) -> anyhow::Result<(Self, Candidate, Changes)> {
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
        let metrics = Arc::new(ServerMetrics::new());
        let me = Identity::new(Role::Serve);
        let candidate = Candidate::new(client.clone(), &namespace, me.clone(), Timing::default());
        // A server with `--register-url` leaves nothing behind.
        let mut candidate = if arguments.register_url.is_some() { candidate.temporary() } else { candidate };
        // The Lease that a dead leader left behind expires while everything else starts. An error is reported later.
        let _ = candidate.look().await;
        let ledger = Ledger::default();
        let seen = ledger.clone();
        let changes = Changes::default();
        let collected = changes.clone();
        let external_changed = Arc::new(Notify::new());
        let notified = Arc::clone(&external_changed);
        let stores = Stores::new(
            client.clone(),
            metrics.cluster.clone(),
            move |address| seen.mark_seen(address),
            move |change| {
                if external::controller::matters(change) {
                    notified.notify_one();
                }
                collected.add(change);
            },
        );
        stores.ask_for_service_cidrs().await;
        let (source, duties) = (arguments.settings_source(&client), arguments.duties(&namespace));
        let follower = start_following(source, stores.service_cidrs(), &metrics.cluster, &client, &duties).await?;
        let settings = follower.subscribe();
        stores.watch(&settings.borrow().settings);
        let claims = (arguments.claims == ClaimStore::Lease)
            .then(|| Claims::new(client.clone(), &namespace, me.as_str(), ledger.clone(), metrics.claims.clone()));
        let evaluator = Evaluator::new(settings.clone(), stores.clone(), ledger, metrics.evaluation.clone());
        let evaluator = match &claims {
            Some(claims) => evaluator.claiming(claims.clone()),
            None => evaluator,
        };
        let mut startup = Self {
            tasks: Tasks::new(),
            evaluator,
            claims,
            settings,
            compilation: follower.subscribe_compilation(),
            stores,
            me,
            metrics,
            external_changed,
            agents_namespace: arguments.agents_namespace.clone().unwrap_or_else(|| namespace.clone()),
            namespace,
            client,
            arguments,
        };
        startup.follow_settings(follower, duties);
        Ok((startup, candidate, changes))
    }

    /// Follows changes of the settings, and reports the permissions that later settings require and this identity
    /// lacks.
    fn follow_settings(&mut self, follower: Follower, duties: Duties) {
        self.tasks.spawn(follower.run(self.tasks.until_stop()));
        let missing = report_missing_permissions(self.client.clone(), self.settings.clone(), duties);
        self.tasks.spawn_until_stop(missing);
    }

    /// Warns about what the cluster has beside this server: an address that a pool should not hand out, webhooks of
    /// other programs, and pool objects that are not used.
    pub(super) fn warn_about_the_cluster(&mut self) {
        let warned = dns_address(self.stores.clone(), self.settings.clone());
        self.tasks.spawn_until_stop(warned);
        if self.arguments.settings.is_some() {
            self.tasks.spawn_until_stop(unused_pools(self.client.clone()));
        }
        let reported = other_webhooks(self.stores.clone(), self.metrics.services.clone());
        self.tasks.spawn_until_stop(reported);
    }

    /// Serves the map of all pools, if `--ui` asks for it.
    pub(super) async fn serve_map(&mut self) -> anyhow::Result<()> {
        let Some(address) = self.arguments.ui else { return Ok(()) };
        let cluster = self.arguments.cluster.name().await;
        let settings = self.arguments.settings_source(&self.client).to_string();
        let about = About { cluster, settings: Some(settings), made: None };
        let mut ui = MapServer::bind(address, AUDIT_TIME).await?;
        ui.about = Some(about);
        let leases = Api::namespaced(self.client.clone(), &self.agents_namespace);
        let audit = LiveAudit::new(self.evaluator.clone(), leases, self.compilation.clone());
        tracing::info!(target: LOG_TARGET, url = %format_args!("http://{}/", ui.local_addr()), "showing the map");
        let end = self.tasks.until_stop();
        self.tasks.try_spawn(async move { ui.run(Arc::new(move || Ok(audit.audit())), end).await });
        Ok(())
    }

    /// The reconciler, which moves what the arguments allow.
    pub(super) fn reconciler(&self) -> Reconciler {
        let allowed = Allowed {
            any: self.arguments.moves != Moves::Never,
            ready: self.arguments.moves == Moves::Always,
            seamless: false,
            load_balancers: self.arguments.move_load_balancers,
        };
        let metrics = self.metrics.services.clone();
        Reconciler::new(self.evaluator.clone(), self.client.clone(), &self.namespace, metrics, allowed)
    }

    /// If there may be several replicas: follows the other replicas and their claims, and makes the reconciler move
    /// nothing while they use other settings.
    pub(super) fn claim_addresses(&mut self, reconciler: Reconciler, election: &mut Election) -> Reconciler {
        let Some(claims) = self.claims.take() else { return reconciler };
        let (me, settings, metrics) = (self.me.clone(), self.settings.clone(), self.metrics.services.clone());
        let replicas = Replicas::new(self.client.clone(), &self.namespace, me, settings, metrics);
        let reconciler = reconciler.agreeing(replicas.subscribe());
        let (leadership, ended) = (election.leadership.clone(), until(election.ended.clone()));
        election.tasks.spawn(replicas.run(move || leadership.borrow().leads(), ended));
        let (leadership, end) = (election.leadership.clone(), self.tasks.until_stop());
        self.tasks.spawn(async move { claims.run(|| leadership.borrow().leads(), end).await });
        reconciler
    }

    fn gate(&self, election: &Election, has_work: fn(&LiveSettings) -> bool) -> Gate {
        Gate { settings: self.settings.clone(), leadership: election.leadership.clone(), has_work }
    }

    /// Gives Nodes their pod CIDRs, with a client of its own.
    pub(super) fn assign_pod_cidrs(&mut self, client: Client, election: &Election) -> anyhow::Result<()> {
        let controller = nodes::controller::Controller {
            stores: self.stores.clone(),
            client,
            gate: self.gate(election, |live| !live.settings.nodes.pools.is_empty()),
            term: election.term.clone(),
            metrics: self.metrics.nodes.clone(),
        };
        let ended = controller.run_in_thread(self.tasks.until_stop())?;
        self.tasks.try_spawn(async move { ended.await.context("the node CIDR controller") });
        Ok(())
    }

    /// Assigns external addresses, and writes the status of Services that have them.
    pub(super) fn assign_external_addresses(&mut self, reconciler: &Reconciler, election: &Election) {
        let (evaluator, client) = (self.evaluator.clone(), self.client.clone());
        let moves = reconciler.mover.unfinished().clone();
        let events = EventQueue::start(client.clone());
        let controller = external::controller::Controller {
            assigner: Assigner { evaluator, client, events, moves },
            namespace: self.agents_namespace.clone(),
            gate: self.gate(election, |live| !live.settings.external.pools.is_empty()),
            changed: Arc::clone(&self.external_changed),
            metrics: self.metrics.external.clone(),
        };
        self.tasks.spawn_until_stop(controller.run());
    }

    /// Writes the status of the objects that the settings consist of, if they do.
    pub(super) fn write_status(&mut self, reconciler: Arc<Reconciler>, election: &Election) {
        let (client, compilation) = (self.client.clone(), self.compilation.clone());
        let writer = StatusWriter { client, reconciler, compilation };
        let gate = self.gate(election, |_| true);
        self.tasks.spawn_until_stop(writer.run(gate));
    }

    pub(super) fn move_services(&mut self, reconciler: Arc<Reconciler>, changes: Changes, election: &Election) {
        let controller = services::controller::Controller {
            reconciler,
            changes,
            settings: self.settings.clone(),
            leadership: election.leadership.clone(),
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            identity: self.me.to_string(),
            source: SettingsOrigin::from(&self.arguments.settings_source(&self.client)),
            agents_namespace: self.agents_namespace.clone(),
            // A server with `--register-url` leaves nothing behind.
            temporary: self.arguments.register_url.is_some(),
        };
        self.tasks.spawn(controller.run(self.tasks.until_stop()));
    }
}

/// Logs a warning if a pool may hand out the address that many installers give to the cluster's DNS: once the cluster
/// is known, and again after each change of the settings that leads to another warning.
async fn dns_address(stores: Stores, mut settings: watch::Receiver<Arc<LiveSettings>>) {
    stores.completed().await;
    let mut told = None;
    loop {
        let live = Arc::clone(&settings.borrow_and_update());
        let found = live.settings.unused_dns_address(|address| stores.read_snapshot().has_ip_address(address));
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
        metrics.other_webhooks(now.len());
        told = now;
        if names.changed().await.is_err() {
            return;
        }
    }
}
