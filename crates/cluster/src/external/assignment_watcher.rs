//! Keeps the list of addresses that agents are to hold up to date with the cluster and the settings.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::send_if_changed::send_if_changed;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::assignments::Assignments;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::assignment_builder::{RefusedRecord, assignments, owners};
use super::policy_check::ExternalPolicy;
use crate::kinds::own_name;
use crate::live_settings::LiveSettings;
use crate::panics;
use crate::snapshot::{Stored, StoredService};
use crate::watch::stores::{Change, Stores};

/// How long changes are collected at least before they are handled, because many Services may change at once.
const GATHER_TIME: Duration = Duration::from_millis(100);

pub struct AssignmentWatcher {
    pub settings: watch::Receiver<Arc<LiveSettings>>,
    /// They must have synced.
    pub stores: Stores,
    /// Is notified of each change of the stores that [`matters`].
    pub changes: watch::Receiver<()>,
    pub refused: BTreeSet<RefusedRecord>,
}

impl AssignmentWatcher {
    /// Computes the addresses to hold now, and logs each new refusal. `None` if the computation fails: then the agent
    /// must keep the addresses that it holds.
    pub async fn look(&mut self) -> Option<Assignments> {
        let stores = self.stores.clone();
        let settings = Arc::clone(&self.settings.borrow_and_update());
        let computed = panics::catch_blocking(move || {
            let external = &settings.settings.external;
            let (services, nodes): (_, Vec<_>) = {
                let snapshot = stores.read_snapshot();
                (snapshot.external_services(), snapshot.nodes().cloned().collect())
            };
            let policy = ExternalPolicy::new(external);
            let admits = &mut |service: &StoredService| policy.refusal(stores.snapshot(), service);
            let (owners, refused) = owners(external, services, admits);
            (assignments(external, &owners, &nodes), refused)
        });
        let (assigned, refused) = match computed.await {
            Ok(result) => result,
            Err(error) => {
                tracing::error!(%error, "can't determine the addresses to hold, the previous ones stay");
                return None;
            }
        };
        let refused: BTreeSet<RefusedRecord> = refused.into_iter().collect();
        for RefusedRecord { service: ServiceKey { namespace, name }, address, reason } in
            refused.difference(&self.refused)
        {
            tracing::warn!(namespace, name, %address, reason, "not held");
        }
        self.refused = refused;
        Some(assigned)
    }

    pub async fn run(mut self, sender: watch::Sender<Arc<Assignments>>, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut took = Duration::ZERO;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Ok(()) = self.settings.changed() => {}
                Ok(()) = self.changes.changed() => {}
            }
            tokio::select! {
                () = &mut shutdown => return,
                // A tenant can change a Service all the time, so looks take at most a fifth of the time.
                () = sleep(GATHER_TIME.max(4 * took)) => {}
            }
            self.changes.mark_unchanged();
            let begin = Instant::now();
            let assigned = self.look().await.map(Arc::new);
            took = begin.elapsed();
            assigned.into_iter().for_each(|assigned| send_if_changed(&sender, assigned));
        }
    }
}

/// Whether a change may affect which addresses are to be held.
pub fn matters(change: &Change<'_>) -> bool {
    let recorded = |version: Option<&Stored>| matches!(version, Some(Stored::Service(of)) if !of.record().is_empty());
    own_name(change.kind) != "Service" || recorded(change.before) || recorded(change.after)
}
