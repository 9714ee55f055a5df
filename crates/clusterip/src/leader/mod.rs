//! Leader election: at most one process leads, by a Lease that is kept as client-go's leader election keeps it.
//!
//! # Guarantees
//! - No clock of another process is trusted. A Lease counts as abandoned only when this process has seen it unchanged
//!   for its whole duration, on a clock that never jumps.
//! - A leader stops leading ([`Leadership`]) before another process may take the Lease. The leader counts from the
//!   moment at which it *began* to renew, the others from when they saw the result, and the renew deadline is shorter
//!   than the Lease.
//! - On an orderly stop the Lease is given back, or deleted, so that the next leader takes it at once.
//!
//! # Caveats
//! A machine that is suspended stops this process and its clock together. When it wakes up, the process believes that
//! it still leads until its next renewal. So every write must carry a precondition (`resourceVersion`).

use std::sync::Arc;

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_failover::leases::Identity;
use tokio::sync::watch;

mod candidate;
pub(crate) mod event_recorder;

pub use self::candidate::{Acquisition, Candidate, CompetingServer, Contact, MAX_SILENCE};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    Leading,
    Following { holder: Option<Identity> },
}

impl Leadership {
    pub fn leads(&self) -> bool {
        *self == Self::Leading
    }
}

/// Lets a controller work only while this process leads and the settings have work for it.
pub(crate) struct Gate {
    pub(crate) settings: watch::Receiver<Arc<LiveSettings>>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) has_work: fn(&LiveSettings) -> bool,
}

impl Gate {
    /// Closed also if a task that publishes has ended: its last value must not count for ever.
    pub(crate) fn is_open(&self) -> bool {
        let is_published = self.settings.has_changed().is_ok() && self.leadership.has_changed().is_ok();
        is_published && self.leadership.borrow().leads() && (self.has_work)(&self.settings.borrow())
    }

    /// Waits until the gate is open. `None` if a task that publishes has ended.
    pub(crate) async fn opened(&mut self) -> Option<Arc<LiveSettings>> {
        loop {
            self.leadership.mark_unchanged();
            let settings = Arc::clone(&self.settings.borrow_and_update());
            if self.is_open() {
                return Some(settings);
            }
            let changed = tokio::select! {
                changed = self.settings.changed() => changed,
                changed = self.leadership.changed() => changed,
            };
            changed.ok()?;
        }
    }

    /// Waits for other settings. `None` if the gate has closed: this process does not lead, or there is no work.
    pub(crate) async fn changed(&mut self) -> Option<Arc<LiveSettings>> {
        tokio::select! {
            biased;
            _ = self.leadership.wait_for(|leadership| !leadership.leads()) => None,
            changed = self.settings.changed() => {
                changed.ok()?;
                Some(Arc::clone(&self.settings.borrow_and_update())).filter(|settings| (self.has_work)(settings))
            }
        }
    }

    /// Waits until the gate closes, whatever the settings become meanwhile.
    pub(crate) async fn closed(&mut self) {
        while self.changed().await.is_some() {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::live_settings::check_settings;
    use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn gate_stays_closed_after_a_task_that_publishes_has_ended() {
        let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.0.9.0/24"]}]}});
        let live = Arc::new(check_settings(document, &ServiceRanges::default()).unwrap());
        for ends in ["settings", "leadership"] {
            let (of_settings, settings) = watch::channel(Arc::clone(&live));
            let (of_leadership, leadership) = watch::channel(Leadership::Leading);
            let mut gate = Gate { settings, leadership, has_work: |_| true };
            assert!(gate.is_open() && gate.opened().await.is_some(), "{ends}");
            match ends {
                "settings" => drop(of_settings),
                _ => drop(of_leadership),
            }
            assert!(!gate.is_open(), "{ends}");
            assert!(gate.changed().await.is_none() && gate.opened().await.is_none(), "{ends}");
        }
    }
}
