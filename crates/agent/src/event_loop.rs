//! The event loop of an agent: it passes events to `AgentState` and carries out its plans.

use std::future::Future;
use std::iter::from_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::api_error::{error_chain, error_message};
use clusterip_cluster::backoff::retry_backoff;
use clusterip_cluster::lease_writes;
use clusterip_cluster::metrics::whole;
use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_cluster::watch::stores::watch_config;
use clusterip_failover::assignments::Assignments;
use clusterip_failover::heartbeat_state::{Term, name as heartbeat_name};
use clusterip_failover::holders::Observer;
use clusterip_failover::leases::{Version, keep_used_fields};
use clusterip_failover::state::{AgentState, DesiredState, LeaseWrite, ObservedState, WriteKind, WriteOutcome};
use clusterip_failover::timing::{Failover, RELEASE_TIMEOUT, REQUEST_TIMEOUT};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Error as KubeError, ResourceExt};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::heartbeat::{Health, Heartbeat};
use super::reconciler::{Network, NetworkReconciler};
use crate::agent_metrics::AgentMetrics;

pub struct AddressAgent<N> {
    pub client: Client,
    /// Has connections of its own: the heartbeat and the watch must not wait until requests of a broken one time out.
    pub heartbeat: Client,
    pub namespace: String,
    pub node: String,
    pub failover: Failover,
    /// The first value must be complete, because the agent releases every address that it does not contain.
    pub assignments: watch::Receiver<Arc<Assignments>>,
    /// It must hold no address of an earlier process.
    pub network: N,
    pub metrics: AgentMetrics,
}

impl<N: Network> AddressAgent<N> {
    /// Runs until `shutdown` completes; then releases all addresses, so that other nodes can take them at once.
    pub async fn run(self, health: watch::Sender<Health>, shutdown: impl Future<Output = ()>) {
        let leases: Api<Lease> = Api::namespaced(self.client, &self.namespace);
        let watched: Api<Lease> = Api::namespaced(self.heartbeat, &self.namespace);
        let mut heartbeat =
            Heartbeat::new(watched.clone(), &self.node, self.failover, health.clone(), self.metrics.clone());
        let desired = watch::Sender::new(DesiredState::default());
        let (observed, observed_here) = watch::channel(ObservedState::default());
        let mut reconciler = NetworkReconciler::new(&self.network, desired.subscribe(), observed, &self.metrics);
        let mut event_loop = EventLoop {
            own: heartbeat_name(&self.node),
            state: AgentState::new(&self.node, Instant::now()),
            term: heartbeat.term.subscribe(),
            assignments: self.assignments,
            observed: observed_here,
            desired,
            health,
            metrics: self.metrics.clone(),
            listing: Vec::new(),
            watch_silence: self.failover.watch_silence(),
            own_heartbeat_seen: Instant::now(),
            leases,
            watched,
        };
        let mut reconcile = pin!(reconciler.run());
        tokio::select! {
            biased;
            () = shutdown => {}
            // The network comes first: an expired hold must be released in time.
            () = &mut reconcile => {}
            () = heartbeat.run() => {}
            () = event_loop.run() => {}
        }
        let off = timeout(RELEASE_TIMEOUT, async {
            tokio::select! {
                () = &mut reconcile => {}
                () = event_loop.drain() => {}
            }
        });
        if off.await.is_err() {
            tracing::warn!(
                "not all addresses could be released: other nodes take them over when the heartbeat expires"
            );
            return;
        }
        heartbeat.give_back().await;
        self.network.settle().await;
    }
}

type Writing = Pin<Box<dyn Future<Output = (LeaseWrite, WriteOutcome)> + Send>>;
type Events = BoxStream<'static, Vec<Result<Event<Lease>, watcher::Error>>>;

/// How many events that have arrived already are handled before the next plan, which takes longer than an event.
const EVENTS: usize = 128;

struct EventLoop {
    own: String,
    leases: Api<Lease>,
    watched: Api<Lease>,
    state: AgentState,
    term: watch::Receiver<Option<Term>>,
    assignments: watch::Receiver<Arc<Assignments>>,
    observed: watch::Receiver<ObservedState>,
    desired: watch::Sender<DesiredState>,
    health: watch::Sender<Health>,
    metrics: AgentMetrics,
    listing: Vec<Lease>,
    watch_silence: Duration,
    /// When the watch last delivered this agent's own heartbeat, or when it had no heartbeat to deliver.
    own_heartbeat_seen: Instant,
}

impl EventLoop {
    async fn run(&mut self) {
        let mut writing: FuturesUnordered<Writing> = FuturesUnordered::new();
        let mut events = self.events();
        // If the sender of the assignments is dropped, the loop continues with the last assignments.
        let mut followed = true;
        loop {
            let now = Instant::now();
            let replan_at = self.plan(now, &mut writing);
            // The heartbeat and the network share this task: they must not wait for several plans.
            yield_now().await;
            // A broken watch looks like a cluster without changes, but a working one delivers at least the own heartbeat.
            if now.saturating_duration_since(self.own_heartbeat_seen) >= self.watch_silence {
                tracing::warn!(
                    "the watch of Leases does not deliver the heartbeat of this agent: restarting the watch"
                );
                self.own_heartbeat_seen = now;
                events = self.events();
            }
            let (mut answered, mut arrived) = (None, None);
            tokio::select! {
                biased;
                Ok(()) = self.term.changed() => {}
                Ok(()) = self.observed.changed() => {}
                changed = self.assignments.changed(), if followed => followed = changed.is_ok(),
                answer = writing.next(), if !writing.is_empty() => answered = answer,
                chunk = events.next() => arrived = chunk,
                () = sleep_until(replan_at.unwrap_or(now)), if replan_at.is_some() => {}
            }
            // A plan takes longer than an answer or an event, and thousands of answers must not delay the events.
            let more = from_fn(|| writing.next().now_or_never().flatten());
            for (write, outcome) in answered.into_iter().chain(more) {
                self.state.written(&write, outcome, Instant::now());
            }
            for event in arrived.or_else(|| events.next().now_or_never().flatten()).into_iter().flatten() {
                self.handle_event(event, Instant::now());
            }
        }
    }

    /// Stops planning, and waits until all held addresses are released.
    async fn drain(&mut self) {
        self.state.stopping = true;
        let plan = self.state.plan(Instant::now(), Timestamp::now());
        log_lost(&plan.lost);
        let number = plan.desired.number;
        self.desired.send_replace(plan.desired);
        // The network also reports the addresses that it has released.
        let left = self.observed.wait_for(|observed| observed.number >= number && observed.addresses.is_empty()).await;
        drop(left);
        self.health.send_modify(|health| health.holding.clear());
        self.metrics.held.set(0);
    }

    fn plan(&mut self, now: Instant, writing: &mut FuturesUnordered<Writing>) -> Option<Instant> {
        let term = self.term.borrow_and_update().clone();
        if term.is_none() {
            self.own_heartbeat_seen = now;
        }
        self.state.set_term(term);
        self.state.assignments = Arc::clone(&self.assignments.borrow_and_update());
        let observed = self.observed.borrow_and_update().clone();
        self.metrics.held.set(whole(observed.addresses.len()));
        self.health.send_if_modified(|health| {
            std::mem::replace(&mut health.holding, observed.addresses.clone()) != observed.addresses
        });
        self.state.observed = observed;
        let plan = self.state.plan(now, Timestamp::now());
        send_if_changed(&self.desired, plan.desired);
        log_lost(&plan.lost);
        for address in plan.given_up {
            self.metrics.given_up.inc();
            tracing::error!(%address, "this node can't hold the address: leaving it to other nodes for a while");
        }
        for write in plan.writes {
            writing.push(carry_out(self.leases.clone(), write).boxed());
        }
        plan.replan_at
    }

    fn events(&self) -> Events {
        let config = watch_config().labels(&Observer::labels());
        let events = watcher(self.watched.clone(), config).modify(keep_used_fields).backoff(retry_backoff());
        events.ready_chunks(EVENTS).boxed()
    }

    fn handle_event(&mut self, event: Result<Event<Lease>, watcher::Error>, now: Instant) {
        if let Ok(Event::InitApply(lease) | Event::Apply(lease)) = &event
            && lease.metadata.name.as_ref() == Some(&self.own)
        {
            self.own_heartbeat_seen = now;
        }
        match event {
            Ok(Event::Init) => self.listing.clear(),
            Ok(Event::InitApply(lease)) => self.listing.push(lease),
            Ok(Event::InitDone) => self.state.replace_all(&std::mem::take(&mut self.listing), now),
            Ok(Event::Apply(lease)) => self.state.apply(&lease, now),
            Ok(Event::Delete(lease)) => self.state.delete(&lease, now),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "the Leases of agents can't be watched, trying again");
            }
        }
    }
}

async fn carry_out(leases: Api<Lease>, write: LeaseWrite) -> (LeaseWrite, WriteOutcome) {
    let name = write.lease.name_any();
    let sent = async {
        if write.kind == WriteKind::Remove {
            let version = Version::of(&write.lease);
            return lease_writes::delete(&leases, &name, &version).await.map(|()| write.lease.clone());
        }
        lease_writes::write(&leases, &write.lease).await.map(Box::new)
    };
    let exists = write.lease.resource_version().is_some();
    let outcome = match timeout(REQUEST_TIMEOUT, sent).await {
        Ok(Ok(written)) => {
            let lease = &name;
            match write.kind {
                WriteKind::Claim => tracing::info!(lease, "claimed"),
                WriteKind::GiveBack => tracing::info!(lease, "released"),
                WriteKind::End => tracing::warn!(lease, "ended the heartbeat of an agent that did not renew it"),
                WriteKind::PutBack => {
                    tracing::warn!(lease, "created the missing heartbeat of an agent that holds addresses")
                }
                WriteKind::Remove => tracing::debug!(lease, "removed"),
            }
            WriteOutcome::Written(written)
        }
        Ok(Err(KubeError::Api(status))) if status.code == 409 => WriteOutcome::Changed,
        Ok(Err(KubeError::Api(status))) if status.code == 404 && exists => WriteOutcome::Gone,
        Ok(Err(error)) => {
            tracing::warn!(lease = name, kind = ?write.kind, error = error_message(&error), "a Lease can't be written");
            WriteOutcome::Unclear
        }
        Err(_) => {
            tracing::warn!(lease = name, kind = ?write.kind, "no answer to a Lease write within {REQUEST_TIMEOUT:?}");
            WriteOutcome::Unclear
        }
    };
    (write, outcome)
}

fn log_lost(addresses: &[IpAddr]) {
    for address in addresses {
        tracing::error!(%address, "another program changed the claim of this address: releasing it");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
