//! The running server: its tasks, its Leases, its listener, and the order in which they end.

use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use clusterip_cluster::shutdown::until;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::LOG_TARGET;
use crate::leader::readiness::{CompetingServer, Contact};
use crate::leader::{Candidate, Leadership};

/// How long the tasks may take to end after the stop. Moves that have begun are finished in this time, unless the API
/// server is away. It is less than the grace period of the deployment, 60 s, so that the Lease is given back.
const MAX_STOP: Duration = Duration::from_secs(30);
/// How long tasks may take to end after they were aborted.
const MAX_ABORT: Duration = Duration::from_secs(2);

/// The tasks of the server. Each one ends by itself after `stop`; all are aborted if this is dropped.
pub(super) struct Tasks {
    spawned: JoinSet<anyhow::Result<()>>,
    stopped: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
}

impl Tasks {
    pub(super) fn new() -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { spawned: JoinSet::new(), stopped, stop }
    }

    pub(super) fn until_stop(&self) -> impl Future<Output = ()> + Send + use<> {
        until(self.stopped.clone())
    }

    /// Spawns a task that ends by itself after the stop.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.try_spawn(async move {
            task.await;
            Ok(())
        });
    }

    /// Spawns a task that ends by itself after the stop, and ends the server if it fails.
    pub(super) fn try_spawn(&mut self, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.spawned.spawn(task);
    }

    /// Spawns work that is dropped at the stop. The work may end earlier. A task that ends early would end the server,
    /// so the task of the work waits for the stop.
    pub(super) fn spawn_until_stop(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let (stopped, end) = (self.until_stop(), self.until_stop());
        self.spawn(async move {
            tokio::select! {
                () = work => end.await,
                () = stopped => {}
            }
        });
    }

    fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all tasks have ended. Tasks that take too long are aborted. Returns the first error of a task.
    async fn end(&mut self) -> anyhow::Result<()> {
        let mut failed = Ok(());
        let all = timeout(MAX_STOP, async {
            while let Some(ended) = self.next_ended().await {
                failed = std::mem::replace(&mut failed, Ok(())).and(ended);
            }
        });
        if all.await.is_err() {
            let tasks = self.spawned.len();
            tracing::warn!(target: LOG_TARGET, tasks, "aborting tasks that did not end within {MAX_STOP:?}");
            // The next leader finishes the moves that are cut off here.
            let _ = timeout(MAX_ABORT, self.spawned.shutdown()).await;
        }
        failed
    }

    /// The result of the next task that ends; `None` if all have ended.
    async fn next_ended(&mut self) -> Option<anyhow::Result<()>> {
        let ended = self.spawned.join_next().await?;
        Some(ended.context("a server task stopped early").flatten())
    }
}

/// The tasks that keep the Leases of this process: the leader's Lease, and that of the replica. They end last, because
/// all other tasks rely on the leadership.
pub(super) struct Election {
    /// Keep the leader's Lease whenever possible, and the Lease of this replica, unless addresses in flight are
    /// recorded in memory only.
    pub(super) tasks: JoinSet<()>,
    // What the candidate shows of the leader's Lease.
    pub(super) term: watch::Receiver<Option<Instant>>,
    pub(super) competing_server: watch::Receiver<CompetingServer>,
    pub(super) contact: watch::Receiver<Contact>,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) ended: watch::Receiver<bool>,
    end: watch::Sender<bool>,
}

impl Election {
    pub(super) fn start(candidate: Candidate) -> Self {
        let (end, ended) = watch::channel(false);
        let (leadership, competing_server) = (candidate.subscribe(), candidate.competing_server.subscribe());
        let (term, contact) = (candidate.term.subscribe(), candidate.contact.subscribe());
        let mut tasks = JoinSet::new();
        tasks.spawn(candidate.run(until(ended.clone())));
        Self { tasks, term, competing_server, contact, leadership, ended, end }
    }

    /// Gives the leader's Lease back, and removes that of the replica.
    pub(super) async fn leave(mut self) {
        self.end.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

pub(super) struct Running {
    pub(super) tasks: Tasks,
    pub(super) server: JoinHandle<anyhow::Result<()>>,
    pub(super) close: watch::Sender<bool>,
    pub(super) election: Election,
    /// Whether the tasks remove the registration of the webhook at the end.
    pub(super) unregisters: bool,
}

impl Running {
    /// Serves until `shutdown`, or until a task ends early. Then the tasks end first, the webhook after them, and the
    /// leadership last.
    pub(super) async fn until_shutdown(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { mut tasks, mut server, close, election, unregisters } = self;
        let mut failed = tokio::select! {
            () = shutdown => {
                tracing::info!(target: LOG_TARGET, "stopping");
                None
            }
            ended = &mut server => Some(ended.context("the server stopped early").flatten()),
            Some(ended) = tasks.next_ended() => Some(ended),
        };
        tasks.stop();
        // A registration by URL is removed before the server stops.
        if !unregisters {
            close.send_replace(true);
        }
        failed = failed.or(Some(tasks.end().await).filter(Result::is_err));
        close.send_replace(true);
        if !server.is_finished() {
            let ended = server.await.context("the server stopped early").flatten();
            failed = failed.or(Some(ended).filter(Result::is_err));
        }
        election.leave().await;
        tracing::info!(target: LOG_TARGET, "stopped");
        failed.unwrap_or(Ok(()))
    }
}
