//! Applies the desired state of a plan to the network. A hold is released when it expires, even if no new plan arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_failover::assignments::Port;
use clusterip_failover::state::{DesiredState, Hold, ObservedState};
use clusterip_failover::timing::{ANNOUNCEMENT_PAUSES, MAX_FAILURES, RETRY_PAUSE, STEP_TIMEOUT};
use futures::{StreamExt, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::agent_metrics::{AgentMetrics, Step};

/// The network of a node. A failed call is retried. A call that takes too long is cancelled.
pub trait Network: Send + Sync + 'static {
    /// Holds the address with these ports open until `until`, or until another call extends the time or replaces the ports.
    /// Returns whether the address was added, so that neighbours do not know yet that it is at this node.
    fn hold(
        &self,
        address: IpAddr,
        ports: &Arc<[Port]>,
        until: Instant,
    ) -> impl Future<Output = anyhow::Result<bool>> + Send;

    /// Removes the address from this node, if it is there.
    fn release(&self, address: IpAddr) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Waits for what releases have left to be done later.
    fn settle(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Tells the neighbours that the address is at this node.
    fn announce(&self, address: IpAddr) -> impl Future<Output = anyhow::Result<()>> + Send;
}

const AT_ONCE: usize = 16;

/// How long additions may delay the next releases.
const ADDITIONS: Duration = Duration::from_secs(1);
/// How long releases may delay the next additions: later ones begin in the next round. Renewals are due every few seconds.
const RELEASES: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default)]
struct AddressState {
    /// The hold that is in effect; `None` if the address may not be on the network.
    held: Option<Hold>,
    announced: usize,
    /// When the next step is due: the next announcement, or without `held` the first step or its retry. `None` if the
    /// address was announced often enough.
    due: Option<Instant>,
    failures: u32,
}

impl AddressState {
    fn due(at: Instant) -> Self {
        Self { due: Some(at), ..Self::default() }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due)
    }

    /// After a failure, the address is held and announced again after a pause.
    fn failed(self) -> Self {
        Self { held: None, failures: self.failures.saturating_add(1), due: Some(Instant::now() + RETRY_PAUSE), ..self }
    }
}

pub(super) struct NetworkReconciler<'a, N> {
    network: &'a N,
    desired: watch::Receiver<DesiredState>,
    observed: watch::Sender<ObservedState>,
    metrics: &'a AgentMetrics,
    pauses: &'a [Duration],
    done: BTreeMap<IpAddr, AddressState>,
}

impl<'a, N: Network> NetworkReconciler<'a, N> {
    pub(super) fn new(
        network: &'a N,
        desired: watch::Receiver<DesiredState>,
        observed: watch::Sender<ObservedState>,
        metrics: &'a AgentMetrics,
    ) -> Self {
        Self { network, desired, observed, metrics, pauses: &ANNOUNCEMENT_PAUSES, done: BTreeMap::new() }
    }

    pub(super) async fn run(&mut self) {
        loop {
            let desired = self.desired.borrow_and_update().clone();
            self.reconcile(&desired).await;
            let next = self.next(&desired, Instant::now());
            tokio::select! {
                changed = self.desired.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Releases and holds the addresses that are due now. Releases come first.
    async fn reconcile(&mut self, desired: &DesiredState) {
        let now = Instant::now();
        let lasts = |address: &IpAddr| desired.held.get(address).is_some_and(|hold| now < hold.until);
        let is_going =
            |(address, done): &(&IpAddr, &AddressState)| !lasts(address) && (done.held.is_some() || done.is_due(now));
        let going: Vec<IpAddr> = self.done.iter().filter(is_going).map(|(address, _)| *address).collect();
        let (network, metrics, pauses) = (self.network, self.metrics, self.pauses);
        let releases = stream::iter(going).take_while(|_| ready(now.elapsed() < RELEASES)).map(|address| async move {
            (address, try_step(metrics, Step::Release, address, network.release(address)).await)
        });
        let released: Vec<_> = releases.buffer_unordered(AT_ONCE).collect().await;
        for (address, gone) in released {
            if gone.is_some() {
                self.done.remove(&address);
            } else if let Some(done) = self.done.get_mut(&address) {
                // The release may have succeeded nevertheless, so the address may not be on the network.
                *done = AddressState::due(Instant::now() + RETRY_PAUSE);
            }
        }
        // From now on an address that is about to be added may be on the network.
        let mut coming = Vec::new();
        for (address, hold) in desired.held.iter().filter(|(address, _)| lasts(address)) {
            let done = self.done.entry(*address).or_insert_with(|| AddressState::due(now));
            if done.is_due(now) || done.held.as_ref().is_some_and(|held| held != hold) {
                coming.push((*address, hold.clone(), done.clone()));
            }
        }
        self.publish(desired.number);
        // Renewals come first, then new addresses, then repeated announcements: none of these must wait for the ports of
        // other addresses, which their authors may change all the time. Holds that end first come before others.
        coming.sort_by_key(|(_, hold, done)| match &done.held {
            Some(held) if held.ports == hold.ports && held != hold => (0, Some(held.until)),
            None => (1, None),
            Some(held) if held == hold => (1, Some(held.until)),
            Some(held) => (2, Some(held.until)),
        });
        let additions = coming.into_iter().map(|(address, hold, done)| async move {
            (address, hold_and_announce(network, metrics, pauses, address, hold, done).await)
        });
        let mut steps = stream::iter(additions).buffer_unordered(AT_ONCE);
        // Additions that do not complete in time are repeated in the next round.
        let end = Instant::now() + ADDITIONS;
        // Steps that never wait would pass the limit.
        while Instant::now() < end
            && let Ok(Some((address, done))) = timeout_at(end, steps.next()).await
        {
            self.done.insert(address, done);
        }
        drop(steps);
        self.publish(desired.number);
    }

    /// When the next step is due if the desired state does not change.
    fn next(&self, desired: &DesiredState, now: Instant) -> Option<Instant> {
        let more = self.done.iter().filter_map(|(address, done)| {
            let hold = desired.held.get(address).filter(|hold| now < hold.until);
            // An address outside of the desired state was not released in this round, or waits for its next try.
            let behind = hold.is_none() || done.held.as_ref() != hold;
            if behind && done.held.is_some() { Some(now) } else { done.due }
        });
        let ends = self.done.keys().filter_map(|address| desired.held.get(address)).map(|hold| hold.until);
        more.chain(ends.filter(|end| *end > now)).min()
    }

    fn publish(&self, number: u64) {
        let addresses: BTreeSet<IpAddr> = self.done.keys().copied().collect();
        let failing = self.done.iter().filter(|(_, done)| done.failures >= MAX_FAILURES).map(|(address, _)| *address);
        let now = ObservedState { number, addresses, failing: failing.collect() };
        send_if_changed(&self.observed, now);
    }
}

async fn hold_and_announce<N: Network>(
    network: &N,
    metrics: &AgentMetrics,
    pauses: &[Duration],
    address: IpAddr,
    hold: Hold,
    mut done: AddressState,
) -> AddressState {
    // The hold may have expired since the round began: other addresses came first, or the process was paused.
    let lasts = || Instant::now() < hold.until;
    if done.held.as_ref() != Some(&hold) {
        let held = match lasts() {
            true => try_step(metrics, Step::Hold, address, network.hold(address, &hold.ports, hold.until)).await,
            false => None,
        };
        match held {
            Some(false) => {}
            // This also happens to an address that was held before, if another program has removed it.
            Some(true) => done = AddressState { failures: done.failures, ..AddressState::due(Instant::now()) },
            None => return done.failed(),
        }
        done.held = Some(hold.clone());
    }
    if done.is_due(Instant::now()) {
        let announced = match lasts() {
            true => try_step(metrics, Step::Announce, address, network.announce(address)).await,
            false => None,
        };
        if announced.is_none() {
            return done.failed();
        }
        metrics.announcements.inc();
        done.due = pauses.get(done.announced).map(|pause| Instant::now() + *pause);
        done.announced += 1;
    }
    done.failures = 0;
    done
}

/// Runs one step with its time limit; `None` if it failed.
async fn try_step<T>(
    metrics: &AgentMetrics,
    step: Step,
    address: IpAddr,
    work: impl Future<Output = anyhow::Result<T>>,
) -> Option<T> {
    let error = match timeout(STEP_TIMEOUT, pin!(work)).await {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no result within {STEP_TIMEOUT:?}"),
    };
    metrics.failures.get_or_create(&[("step", step)]).inc();
    tracing::warn!(%address, step = step.as_str(), error, "a step on the network failed, trying again");
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
