//! The duties of the leader: the election, and the controllers, which work while this process leads.

use std::sync::Arc;

use anyhow::Context;
use clusterip_api::Compilation;
use clusterip_cluster::shutdown::until;
use clusterip_cluster::watch::stores::Change;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Moves;
use super::startup::Startup;
use crate::external;
use crate::leader::competing_server::CompetingServer;
use crate::leader::contact::Contact;
use crate::leader::{Candidate, Leadership};
use crate::nodes;
use crate::pools::status_writer::StatusWriter;
use crate::services;
use crate::services::controller::reconcile::Reconciler;
use crate::services::controller::replicas::Replicas;
use crate::services::controller::settings_in_use::SettingsOrigin;
use crate::services::misplaced::Allowed;

/// The tasks that keep the Leases of this process: the leader's Lease, and that of the replica. They end last, because
/// all other tasks rely on the leadership.
pub(super) struct Election {
    /// Keeps the Lease of this replica; `None` if addresses in flight are recorded in memory only.
    replica: Option<JoinHandle<()>>,
    /// Keeps the leader's Lease whenever possible.
    candidate: JoinHandle<()>,
    /// Until when this process leads without another renewal.
    term: watch::Receiver<Option<Instant>>,
    /// Whether another server is at work.
    pub(super) competing_server: watch::Receiver<CompetingServer>,
    /// When the API server last answered a request for the leader's Lease.
    pub(super) contact: watch::Receiver<Contact>,
    /// Whether this process leads.
    pub(super) leadership: watch::Receiver<Leadership>,
    ended: watch::Receiver<bool>,
    end: watch::Sender<bool>,
}

impl Election {
    /// Takes part in the leader election.
    pub(super) fn start(candidate: Candidate) -> Self {
        let (end, ended) = watch::channel(false);
        let (leadership, competing_server, term) =
            (candidate.subscribe(), candidate.competing_server(), candidate.term());
        let contact = candidate.contact();
        let candidate = tokio::spawn(candidate.run(until(ended.clone())));
        Self { replica: None, candidate, term, competing_server, contact, leadership, ended, end }
    }

    /// Gives the leader's Lease back, and removes that of the replica.
    pub(super) async fn leave(self) {
        self.end.send_replace(true);
        let _ = self.candidate.await;
        if let Some(replica) = self.replica {
            let _ = replica.await;
        }
    }
}

impl Startup<'_> {
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
        election.replica = Some(tokio::spawn(replicas.run(move || leadership.borrow().leads(), ended)));
        let (leadership, end) = (election.leadership.clone(), self.tasks.until_stop());
        self.tasks.spawn(async move { claims.run(|| leadership.borrow().leads(), end).await });
        reconciler
    }

    /// Gives Nodes their pod CIDRs, with a client of its own.
    pub(super) fn assign_pod_cidrs(&mut self, client: Client, election: &Election) -> anyhow::Result<()> {
        let controller = nodes::controller::Controller {
            stores: self.stores.clone(),
            client,
            settings: self.settings.clone(),
            leadership: election.leadership.clone(),
            term: election.term.clone(),
            metrics: self.metrics.nodes.clone(),
            evaluation: self.metrics.evaluation.clone(),
        };
        let ended = controller.run_in_thread(self.tasks.until_stop())?;
        self.tasks.try_spawn(async move { ended.await.context("the node CIDR controller") });
        Ok(())
    }

    /// Assigns external addresses, and writes the status of Services that have them.
    pub(super) fn assign_external_addresses(&mut self, election: &Election) {
        let controller = external::controller::Controller {
            evaluator: self.evaluator.clone(),
            client: self.client.clone(),
            namespace: self.agents_namespace.clone(),
            settings: self.settings.clone(),
            leadership: election.leadership.clone(),
            metrics: self.metrics.external.clone(),
        };
        let end = self.tasks.until_stop();
        self.tasks.spawn(async move { controller.run(end).await });
    }

    /// Writes the status of the objects that the settings consist of, if they do.
    pub(super) fn write_status(
        &mut self,
        reconciler: Arc<Reconciler>,
        compilation: watch::Receiver<Option<Arc<Compilation>>>,
        election: &Election,
    ) {
        let writer = StatusWriter {
            client: self.client.clone(),
            reconciler,
            compilation,
            leadership: election.leadership.clone(),
        };
        let end = self.tasks.until_stop();
        self.tasks.spawn(async move { writer.run(end).await });
    }

    /// Finds misplaced Services and moves them.
    pub(super) fn move_services(
        &mut self,
        reconciler: Arc<Reconciler>,
        changes: mpsc::UnboundedReceiver<Change>,
        election: &Election,
    ) {
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
        let end = self.tasks.until_stop();
        self.tasks.spawn(async move { controller.run(end).await });
    }
}
