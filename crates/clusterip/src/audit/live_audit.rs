//! Audits a cluster that is being watched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use clusterip_api::Compilation;
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::evaluator::Evaluator;
use clusterip_failover::holders::{HolderSnapshot, Observer};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::AuditInput;
use super::model::Audit;
use super::services::AuditCache;
use super::source::AuditedCluster;

/// Audits what a server watches. Clones are cheap and share one cache.
///
/// The first audit decides about every Service. A later audit decides only about the Services for which something has
/// changed: the Service, an object in its namespace, the nodes, or the settings.
#[derive(Clone)]
pub struct LiveAudit {
    evaluator: Evaluator,
    cache: Arc<Mutex<AuditCache>>,
    leases: Option<Api<Lease>>,
    /// What the settings were compiled from; `None` if they do not come from objects.
    compilation: watch::Receiver<Option<Arc<Compilation>>>,
}

impl LiveAudit {
    /// Audits with the policy, settings, stores and ledger of `evaluator`. The settings come from the objects of
    /// `compilation`.
    pub fn new(evaluator: Evaluator, compilation: watch::Receiver<Option<Arc<Compilation>>>) -> Self {
        Self { evaluator, cache: Arc::default(), leases: None, compilation }
    }

    /// Also reports which nodes hold external addresses: if the settings have pools of external addresses, each
    /// audit reads the Leases of the agents in `namespace`.
    pub fn reading_leases(self, client: Client, namespace: &str) -> Self {
        Self { leases: Some(Api::namespaced(client, namespace)), ..self }
    }

    /// Audits the cluster as it is now. The call blocks until the audit is done, so a caller that reads Leases must
    /// call it from a thread that a runtime lets block.
    pub fn audit(&self) -> Audit {
        let settings = self.evaluator.settings();
        let stores = self.evaluator.stores();
        let holders = match settings.settings.external.pools.is_empty() {
            true => Ok(HolderSnapshot::default()),
            false => self.holders(),
        };
        let cluster = AuditedCluster {
            snapshot: Arc::clone(stores.snapshot()),
            ranges: stores.service_cidrs().borrow().clone(),
            in_flight: self.evaluator.ledger().reservations(),
            reservations: BTreeMap::new(),
            holders,
            called: stores.control_plane_services().clone(),
            notes: stores.lagging(),
        };
        let objects = self.compilation.borrow().as_ref().map(|compiled| compiled.states.clone()).unwrap_or_default();
        let input = AuditInput { settings: &settings, objects, cluster: &cluster, ledger: true, refused: false };
        // A panic while the cache was locked only loses decisions that were not stored yet.
        input.audit(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the Leases say now, or why they can't be read.
    fn holders(&self) -> Result<HolderSnapshot, String> {
        let Some(leases) = &self.leases else { return Err("Leases are not read here".to_owned()) };
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let of_agents = ListParams::default().labels(&Observer::labels());
        let leases = runtime.block_on(leases.list(&of_agents));
        let leases = leases.map_err(|error| error_message(&error))?;
        let mut holders = HolderSnapshot::new(Some(Timestamp::now()));
        leases.items.iter().for_each(|lease| holders.apply(lease));
        Ok(holders)
    }
}
