//! The running server: its tasks, and the order in which they end.

use std::future::Future;

use anyhow::Context;
use clusterip_runtime::shutdown::{shutdown_signal, until};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::LOG_TARGET;
use super::controllers::Election;
use super::webhook::Webhook;

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

    /// Completes at the stop.
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

    /// Spawns work that is dropped at the stop.
    pub(super) fn spawn_until_stop(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.until_stop();
        self.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stopped => {}
            }
        });
    }

    fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// The result of the next task that ends; `None` if all have ended.
    async fn next_ended(&mut self) -> Option<anyhow::Result<()>> {
        let ended = self.spawned.join_next().await?;
        Some(ended.context("a server task stopped early").flatten())
    }
}

/// The server with all its duties.
pub(super) struct Running {
    pub(super) tasks: Tasks,
    pub(super) webhook: Webhook,
    pub(super) election: Election,
    /// Whether the tasks remove the registration of the webhook at the end.
    pub(super) unregisters: bool,
}

impl Running {
    /// Serves until SIGTERM or SIGINT, or until a task ends early. Then the tasks end first, the webhook after them,
    /// and the leadership last.
    pub(super) async fn until_shutdown(self) -> anyhow::Result<()> {
        let Self { mut tasks, webhook: Webhook { mut server, close }, election, unregisters } = self;
        let mut failed = tokio::select! {
            () = shutdown_signal() => {
                tracing::info!(target: LOG_TARGET, "stopping");
                None
            }
            ended = &mut server => Some(ended.context("the server stopped early").and_then(|ended| Ok(ended?))),
            Some(ended) = tasks.next_ended() => Some(ended),
        };
        tasks.stop();
        // A registration by URL is removed before the server stops.
        if !unregisters {
            close.send_replace(true);
        }
        while let Some(ended) = tasks.next_ended().await {
            failed = failed.or(Some(ended).filter(Result::is_err));
        }
        close.send_replace(true);
        if !server.is_finished() {
            let ended = server.await.context("the server stopped early").and_then(|ended| Ok(ended?));
            failed = failed.or(Some(ended).filter(Result::is_err));
        }
        election.leave().await;
        tracing::info!(target: LOG_TARGET, "stopped");
        failed.unwrap_or(Ok(()))
    }
}
