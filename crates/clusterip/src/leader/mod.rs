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
//!
//! # Modules
//! - [`Candidate`] takes part in the election, and tells whether this process leads.
//! - `Gate` lets a controller work only while this process leads and the settings have work for it.
//! - `readiness` finds out from the leader's Lease whether the API server answers, and whether another server runs.
//! - `event_recorder` writes the Events of all controllers.

use std::sync::Arc;

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_failover::leases::Identity;
use tokio::sync::watch;
use tokio::task::JoinSet;

mod candidate;
pub(crate) mod event_recorder;
pub(crate) mod readiness;

pub use self::candidate::{Acquisition, Candidate};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    Leading,
    Following {
        /// The process that leads, as far as this process knows.
        holder: Option<Identity>,
    },
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

/// What has changed while a [`Gate`] was open.
pub(crate) enum GateChange {
    /// Other settings are in force, which have work, too.
    Settings(Arc<LiveSettings>),
    NoWork,
    NotLeading,
}

impl Gate {
    /// Waits until the gate is open, and returns the settings. `None` if it never opens again, because the task that
    /// publishes the settings or the leadership has ended. Then the last value must not count for ever.
    pub(crate) async fn opened(&mut self) -> Option<Arc<LiveSettings>> {
        loop {
            let settings = Arc::clone(&self.settings.borrow_and_update());
            let leads = self.leadership.borrow_and_update().leads();
            if self.settings.has_changed().is_err() || self.leadership.has_changed().is_err() {
                return None;
            }
            if leads && (self.has_work)(&settings) {
                return Some(settings);
            }
            let changed = tokio::select! {
                changed = self.settings.changed() => changed,
                changed = self.leadership.changed() => changed,
            };
            changed.ok()?;
        }
    }

    pub(crate) async fn changed(&mut self) -> GateChange {
        loop {
            tokio::select! {
                biased;
                changed = self.leadership.changed() => {
                    if changed.is_err() || !self.leadership.borrow_and_update().leads() {
                        return GateChange::NotLeading;
                    }
                }
                changed = self.settings.changed() => {
                    let settings = Arc::clone(&self.settings.borrow_and_update());
                    return match (changed, (self.has_work)(&settings)) {
                        (Err(_), _) => GateChange::NotLeading,
                        (Ok(()), false) => GateChange::NoWork,
                        (Ok(()), true) => GateChange::Settings(settings),
                    };
                }
            }
        }
    }

    /// Waits until the gate closes, whatever the settings become meanwhile.
    pub(crate) async fn closed(&mut self) {
        while let GateChange::Settings(_) = self.changed().await {}
    }
}

/// The result of the next task that ends. If it panicked, so does the controller, which ends the process: a leader that
/// has lost a task must not keep its Lease.
pub(crate) async fn joined_task<T: 'static>(tasks: &mut JoinSet<T>) -> T {
    match tasks.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(error)) => match error.try_into_panic() {
            Ok(cause) => std::panic::resume_unwind(cause),
            // No task is cancelled before the controller ends.
            Err(_) => std::future::pending().await,
        },
        // There is nothing to wait for.
        None => std::future::pending().await,
    }
}
