//! The moves of `clusterip move`: it carries them out itself, or asks the server that leads.

use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clusterip_core::service_key::ServiceKey;
use clusterip_host::evaluator::Evaluation;
use clusterip_host::live_settings::SettingsSource;
use clusterip_leases::election::Timing;
use clusterip_leases::identity::{Identity, Role};
use clusterip_runtime::style;
use clusterip_runtime::terminal::harmless;
use futures::StreamExt;
use futures::future::{self, Either};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

use super::{Interrupt, Move};
use crate::commands::deployed::Deployed;
use crate::commands::terminal_options::{is_quiet, notice};
use crate::joined::joined;
use crate::leader::{Acquisition, Candidate};
use crate::report::columns::paint;
use crate::report::move_json::{Ended, NotMoved};
use crate::services::controller::hand_over;
use crate::services::controller::reconcile::Reconciler;
use crate::services::misplaced::Misplaced;
use crate::services::mover::journal::Journal;
use crate::services::mover::outcome::Outcome;

/// The number of Services that move at once.
const AT_ONCE: usize = 4;

/// What the moves need.
pub(super) struct Run {
    pub(super) client: Client,
    pub(super) deployed: Deployed,
    pub(super) source: SettingsSource,
    pub(super) reconciler: Arc<Reconciler>,
}

/// A Service that is going to move.
pub(super) enum Job {
    /// Moves the Service to addresses that are reserved for it.
    Move { live: Box<Value>, misplaced: Box<Misplaced>, to: Vec<IpAddr>, evaluation: Box<Evaluation> },
    /// Finishes a recorded move.
    Finish { journal: Box<Journal>, from: Vec<IpAddr> },
}

impl Job {
    pub(super) fn id(&self) -> ServiceKey {
        match self {
            Self::Move { misplaced, .. } => ServiceKey::new(misplaced.namespace.clone(), misplaced.name.clone()),
            Self::Finish { journal, .. } => ServiceKey::new(journal.namespace.clone(), journal.name.clone()),
        }
    }
}

impl Run {
    /// Checks that the server that leads uses the settings of this command. Without a server in its namespace, checks
    /// that no server leads in another namespace.
    ///
    /// # Errors
    /// If this command may not move Services.
    pub(super) async fn check(&self, by_server: bool) -> anyhow::Result<()> {
        if by_server {
            let version = self.reconciler.evaluator().settings().version.clone();
            self.deployed.check_version(&self.client, &version, &self.source).await
        } else {
            self.deployed.no_leader_elsewhere(&self.client).await
        }
    }

    /// Moves the Services, and returns the result of each move. Gives the Lease back at the end, also after a signal.
    ///
    /// # Errors
    /// If no Service may be moved. Then none was.
    pub(super) async fn carry_out(
        &self,
        command: &Move,
        jobs: Vec<Job>,
        interrupt: Interrupt,
    ) -> anyhow::Result<Ended> {
        let namespace = &self.deployed.namespace;
        let candidate = Candidate::new(self.client.clone(), namespace, Identity::new(Role::Move), Timing::default());
        let mut candidate = candidate.temporary();
        let acquisition = tokio::select! {
            biased;
            () = interrupt.clone() => {
                // The Lease may have been taken a moment ago.
                candidate.run(future::ready(())).await;
                // After a signal, no move begins.
                return Ok(self.carry_out_all(command, jobs, false, interrupt).await);
            }
            acquisition = candidate.try_acquire() => acquisition?,
        };
        let held = match acquisition {
            Acquisition::Acquired => None,
            Acquisition::HeldBy(holder) if holder.role() == Some(Role::Move) => {
                bail!("another `clusterip move` is running: {}", harmless(holder.as_str()))
            }
            Acquisition::HeldBy(holder) => Some(holder),
        };
        let (done, ended) = watch::channel(false);
        let led = held.is_none().then(|| {
            let mut ended = ended.clone();
            tokio::spawn(candidate.run(async move {
                let _ = ended.wait_for(|done| *done).await;
            }))
        });
        let may_begin = match (&held, &self.deployed.leader) {
            (None, Some(leader)) => Err(anyhow!(
                "server {} does not lead in namespace {namespace} any more: run the command again",
                harmless(leader.as_str())
            )),
            _ => tokio::select! {
                biased;
                () = interrupt.clone() => Ok(false),
                // The server may be another one than at the beginning.
                checked = self.check(held.is_some()) => checked.map(|()| true),
            },
        };
        let result = match may_begin {
            Ok(may_begin) => {
                if let Some(holder) = held.as_ref().filter(|_| may_begin) {
                    notice(&format!("handed over to {} in namespace {namespace}", holder.as_str()));
                }
                // After a signal, no move begins.
                Ok(self.carry_out_all(command, jobs, held.is_some(), interrupt).await)
            }
            Err(error) => Err(error),
        };
        done.send_replace(true);
        if let Some(led) = led {
            let _ = led.await;
        }
        result
    }

    /// Moves the Services. After SIGINT or SIGTERM no further move begins, but the moves that have begun are finished:
    /// without the rest of its move, a Service would have no address.
    async fn carry_out_all(&self, command: &Move, jobs: Vec<Job>, by_server: bool, interrupt: Interrupt) -> Ended {
        let ids: Vec<ServiceKey> = jobs.iter().map(Job::id).collect();
        let bar = bar(jobs.len() as u64);
        let moves = jobs.into_iter().map(|job| {
            let bar = bar.clone();
            async move {
                let id = job.id();
                let ended =
                    if by_server { self.hand_over(command, job).await } else { move_it(&self.reconciler, job).await };
                if !is_quiet() {
                    bar.suspend(|| print_result(&id, &ended));
                }
                bar.inc(1);
                (id, ended)
            }
        });
        let moves = futures::stream::iter(moves).take_until(interrupt.clone());
        let all = pin!(moves.buffer_unordered(AT_ONCE).collect::<Vec<_>>());
        let ended = match future::select(all, interrupt).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), rest)) => {
                bar.suspend(|| notice("interrupted: finishing the moves that have begun"));
                rest.await
            }
        };
        bar.finish_and_clear();
        let mut ended: Ended = ended.into_iter().collect();
        for id in ids {
            ended.entry(id).or_insert_with(|| Err(NotMoved::Interrupted));
        }
        ended
    }

    /// Asks the server to move a Service: returns what happened, or why the Service was not moved.
    async fn hand_over(&self, command: &Move, job: Job) -> Result<String, NotMoved> {
        let id = job.id();
        let (from, uid) = match &job {
            Job::Move { misplaced, .. } => (misplaced.from.clone(), misplaced.uid.clone()),
            Job::Finish { journal, from } => (from.clone(), journal.uid.clone()),
        };
        // Addresses that this process has reserved for the Service would get in the server's way.
        drop(job);
        let request = command.request(&id, &uid);
        let now = hand_over::hand_over(&self.client, &self.deployed.namespace, &request, &from).await?;
        Ok(format!("moved from {} to {}", joined(&from, ","), joined(&now, ",")))
    }
}

/// Moves a Service: returns what happened, or why the Service was not moved.
async fn move_it(reconciler: &Reconciler, job: Job) -> Result<String, NotMoved> {
    let ended = match job {
        Job::Move { live, misplaced, to, evaluation } => reconciler.carry_out(*live, &misplaced, to, evaluation).await,
        Job::Finish { journal, .. } => reconciler.finish(&journal).await,
    };
    match ended {
        Ok(outcome @ Outcome::Moved { .. }) => Ok(outcome.to_string()),
        Ok(outcome) => Err(NotMoved::Outcome(outcome)),
        Err(error) => Err(error.into()),
    }
}

fn print_result(ServiceKey { namespace, name }: &ServiceKey, ended: &Result<String, NotMoved>) {
    let (mark, text) = match ended {
        Ok(text) => (paint(style::GOOD, "moved"), text.clone()),
        Err(reason) => (paint(style::ERROR, "failed"), reason.to_string()),
    };
    anstream::eprintln!("{mark} {}", harmless(&format!("{namespace}/{name}: {text}")));
}

/// A progress bar, shown only on a terminal.
fn bar(count: u64) -> ProgressBar {
    let is_shown = io::stderr().is_terminal() && !is_quiet();
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(count), target);
    match ProgressStyle::with_template("{wide_bar} {pos} of {len} Services") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
