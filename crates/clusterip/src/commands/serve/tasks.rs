//! The tasks of the running server, and the order in which they end.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clusterip_cluster::shutdown::until;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::LOG_TARGET;

/// How long the tasks may take to end after the stop. Moves that have begun are finished in this time, unless the API
/// server is away. It is less than the grace period of the deployment, 60 s, so that the Lease is given back.
const MAX_STOP: Duration = Duration::from_secs(30);
/// How long tasks may take to end after they were aborted.
const MAX_ABORT: Duration = Duration::from_secs(2);
const STOPPED_EARLY: &str = "a server task stopped early";

/// Tasks that end by themselves after a common stop. They are aborted if this is dropped.
#[derive(Default)]
pub(super) struct Tasks {
    spawned: JoinSet<anyhow::Result<()>>,
    stop: watch::Sender<bool>,
}

impl Tasks {
    pub(super) fn until_stop(&self) -> impl Future<Output = ()> + Send + use<> {
        until(self.stop.subscribe())
    }

    /// Spawns a task that ends by itself after the stop.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.try_spawn(async move {
            task.await;
            Ok(())
        });
    }

    /// As [`Self::spawn`]. The task ends the server if it fails.
    pub(super) fn try_spawn(&mut self, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.spawned.spawn(task);
    }

    /// Spawns work that is dropped at the stop, and that ends the server if it ends earlier.
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

    /// Stops the tasks, and waits until all have ended. Tasks that take too long are aborted. Returns the first error.
    async fn end(&mut self) -> anyhow::Result<()> {
        self.stop();
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
        Some(ended.context(STOPPED_EARLY).flatten())
    }
}

pub(super) struct Running {
    /// All duties of the server but its webhook.
    pub(super) tasks: Tasks,
    pub(super) webhook: Tasks,
    /// The tasks that keep the leader's Lease and the Lease of this replica. They end last, because all other tasks rely
    /// on the leadership.
    pub(super) election: Tasks,
    /// Whether the tasks remove the registration of the webhook at the end.
    pub(super) unregisters: bool,
}

impl Running {
    /// Serves until `shutdown`, or until a task ends early: a leader must not keep its Lease without it. Then the tasks
    /// end first, the webhook after them, and the leadership last.
    pub(super) async fn until_shutdown(mut self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let early = tokio::select! {
            () = shutdown => {
                tracing::info!(target: LOG_TARGET, "stopping");
                None
            }
            Some(ended) = self.webhook.next_ended() => Some(ended),
            Some(ended) = self.tasks.next_ended() => Some(ended),
            Some(ended) = self.election.next_ended() => Some(ended),
        };
        self.tasks.stop();
        // A registration by URL is removed before the server stops.
        if !self.unregisters {
            self.webhook.stop();
        }
        let tasks = self.tasks.end().await;
        let webhook = self.webhook.end().await;
        let election = self.election.end().await;
        tracing::info!(target: LOG_TARGET, "stopped");
        let ended = tasks.and(webhook).and(election);
        // A task that ends early without an error may have ended because of another one.
        match early {
            Some(early) => early.and(ended).and(Err(anyhow!(STOPPED_EARLY))),
            None => ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn server_ends_if_any_of_its_tasks_ends_early() {
        for early in ["tasks", "webhook", "election"] {
            let group = |name: &str| {
                let mut group = Tasks::default();
                group.spawn_until_stop(pending());
                if name == early {
                    group.spawn_until_stop(ready(()));
                }
                group
            };
            let (tasks, webhook, election) = (group("tasks"), group("webhook"), group("election"));
            let ended = Running { tasks, webhook, election, unregisters: false }.until_shutdown(pending()).await;
            assert_eq!(ended.map_err(|error| error.to_string()), Err(STOPPED_EARLY.to_owned()), "{early}");
        }
    }
}
