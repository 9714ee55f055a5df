//! The loop that renews the heartbeat of an agent. [`HeartbeatState`] decides what to write and what an answer means.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Error, anyhow};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::backoff::with_jitter;
use clusterip_cluster::connect::answer;
use clusterip_cluster::lease_writes;
use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_cluster::watch::stores::Stores;
use clusterip_failover::heartbeat_state::{HeartbeatState, NextAction, Term, name};
use clusterip_failover::leases::{Identity, Role};
use clusterip_failover::timing::{Failover, STALLED};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Error as KubeError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::agent_metrics::{AgentMetrics, Renewal};

/// The number of requests that a renewal may take: after a conflicting write the Lease is read again.
const TRIES: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The addresses that may be on the network of its node.
    pub holding: BTreeSet<IpAddr>,
    /// Whether the agent's heartbeat is renewed, so that it may hold addresses.
    pub alive: bool,
    /// When the loop that renews the heartbeat last began a round; `None` until the objects of the cluster are known.
    pub beat: Option<Instant>,
}

impl Health {
    /// Why the liveness probe fails; `None` if the agent is alive, even if it may hold no address.
    pub(crate) fn liveness_error(&self, now: Instant) -> Option<String> {
        let still = now.saturating_duration_since(self.beat?);
        (still >= STALLED).then(|| format!("the loop of the agent has been stalled for {} s", still.as_secs()))
    }

    /// Why the agent may hold no address; `None` if it may.
    pub(crate) fn readiness_error(&self) -> Option<String> {
        (!self.alive).then(|| "the heartbeat is not renewed: no address may be held".to_owned())
    }
}

/// Why the agent never gets an address: there is no Node of this name. `None` as long as the Nodes are not known.
pub fn unknown_node(node: &str, stores: &Stores) -> Option<String> {
    if !stores.complete() {
        return None;
    }
    let is_unknown = stores.read_snapshot().node(node).is_none();
    is_unknown.then(|| format!("there is no Node {node:?}: --node must be the name of the Node that the agent runs on"))
}

pub(super) struct Heartbeat {
    leases: Api<Lease>,
    name: String,
    failover: Failover,
    heartbeat_state: HeartbeatState,
    pub(super) term: watch::Sender<Option<Term>>,
    health: watch::Sender<Health>,
    metrics: AgentMetrics,
    stops: bool,
}

impl Heartbeat {
    pub(super) fn new(
        leases: Api<Lease>,
        node: &str,
        failover: Failover,
        health: watch::Sender<Health>,
        metrics: AgentMetrics,
    ) -> Self {
        let term = watch::Sender::new(None);
        let host = node.to_owned();
        let heartbeat_state = HeartbeatState::new(node, failover, move || Identity::on(&host, Role::Agent));
        Self { leases, name: name(node), failover, heartbeat_state, term, health, metrics, stops: false }
    }

    pub(super) async fn run(&mut self) {
        let (jitter, retry_pause) = (self.failover.jitter(), self.failover.retry_pause());
        loop {
            let begin = Instant::now();
            self.health.send_modify(|health| health.beat = Some(begin));
            self.heartbeat_state.lapse_if_over(begin);
            let renewed = match self.heartbeat_state.until() {
                // A renewal that is answered after the end of the term is useless.
                Some(until) => timeout_at(until, self.renew()).await.unwrap_or_else(|_| {
                    self.heartbeat_state.forget();
                    Err(anyhow!("no answer before the term ended"))
                }),
                None => self.renew().await,
            };
            self.publish();
            let result = if matches!(renewed, Ok(true)) { Renewal::Renewed } else { Renewal::Failed };
            self.metrics.renewals.get_or_create(&[("result", result)]).inc();
            let next = match renewed {
                // Up to `jitter` earlier.
                Ok(true) => begin + (self.failover.heartbeat().retry - 2 * jitter) + with_jitter(jitter),
                Ok(false) => begin + retry_pause,
                Err(error) => {
                    tracing::warn!(lease = self.name, %error, "the heartbeat of this agent can't be renewed");
                    Instant::now() + retry_pause
                }
            };
            match self.heartbeat_state.until() {
                Some(until) if until < next => {
                    sleep_until(until).await;
                    self.publish();
                }
                _ => sleep_until(next).await,
            }
        }
    }

    /// Gives the heartbeat back, so that other agents need not wait until it expires. No address may be held any more.
    pub(super) async fn give_back(&mut self) {
        self.stops = true;
        self.heartbeat_state.lapse();
        self.publish();
        for _ in 0..TRIES {
            if self.heartbeat_state.is_unclear() && self.read().await.is_err() {
                continue;
            }
            let Some(lease) = self.heartbeat_state.give_back(Timestamp::now()) else { return };
            let written = timeout(self.failover.request_timeout(), lease_writes::write(&self.leases, &lease)).await;
            if matches!(written, Ok(Ok(_))) {
                tracing::info!(lease = self.name, "released the heartbeat of this agent");
                return;
            }
            self.heartbeat_state.forget();
        }
        tracing::warn!(
            lease = self.name,
            "the heartbeat of this agent can't be given back: other agents wait until it expires"
        );
    }

    /// Whether the heartbeat was renewed; `false` if another agent of this node may be alive.
    async fn renew(&mut self) -> anyhow::Result<bool> {
        for _ in 0..TRIES {
            match self.heartbeat_state.next(Instant::now(), Timestamp::now()) {
                NextAction::Wait => {
                    self.heartbeat_state.forget();
                    return Ok(false);
                }
                NextAction::Read => {
                    self.read().await?;
                    // If other agents have ended the term, it is over at once.
                    self.publish();
                }
                NextAction::Write(lease) => {
                    let sent = Instant::now();
                    // Until the write is answered, the state of the Lease is unknown.
                    self.heartbeat_state.forget();
                    match answer(self.failover.request_timeout(), lease_writes::write(&self.leases, &lease)).await {
                        Ok(lease) => {
                            self.heartbeat_state.wrote(lease, sent, Instant::now());
                            if self.heartbeat_state.until().is_some() {
                                return Ok(true);
                            }
                        }
                        // Another writer was faster, an earlier request has succeeded after all, or the Lease is gone.
                        Err(KubeError::Api(status))
                            if status.code == 409 || lease_writes::is_missing(&status, &self.name) => {}
                        Err(error) => return Err(Error::msg(error_message(&error))),
                    }
                }
            }
        }
        Err(anyhow!("other writers keep changing it"))
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        let read = answer(self.failover.request_timeout(), self.leases.get_opt(&self.name)).await;
        let lease = read.map_err(|error| Error::msg(error_message(&error)))?;
        self.heartbeat_state.read(lease, Instant::now());
        Ok(())
    }

    fn publish(&self) {
        let term = self.heartbeat_state.term(Instant::now());
        let (alive, was_alive) = (term.is_some(), self.term.borrow().is_some());
        if let Some(term) = term.as_ref().filter(|_| !was_alive) {
            tracing::info!(identity = %term.identity, "the heartbeat of this agent is renewed");
        } else if was_alive && !alive && !self.stops {
            tracing::warn!("this agent may hold no address until its heartbeat is renewed");
        }
        send_if_changed(&self.term, term);
        self.metrics.alive.set(i64::from(alive));
        self.health.send_if_modified(|health| std::mem::replace(&mut health.alive, alive) != alive);
    }
}

#[cfg(test)]
mod tests;
