//! The audit of a cluster that is watched.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::runtime::Handle;

use super::judge::JudgeError;
use super::matter::Matter;
use super::memory::Memory;
use super::model::Audit;
use crate::agent::holdings::Holdings;
use crate::agent::observer::Observer;
use crate::cluster::failure::words;
use crate::evaluator::Evaluator;

/// Audits what a server watches. Cheap to clone: all clones remember the same.
///
/// The first audit asks the policy about each Service. A later one asks only about those of which
/// something has changed: they themselves, something in their namespace, nodes, or the settings.
#[derive(Clone)]
pub struct LiveAudit {
    evaluator: Evaluator,
    memory: Arc<Mutex<Memory>>,
    leases: Option<Api<Lease>>,
}

impl LiveAudit {
    /// Audits with the policy, the settings, the stores and the ledger of `evaluator`.
    pub fn new(evaluator: Evaluator) -> Self {
        Self { evaluator, memory: Arc::default(), leases: None }
    }

    /// The same, that tells which nodes hold external addresses, too: where the settings have pools of them, the
    /// Leases of this namespace, that of the agents, are read for each audit.
    pub fn reading_leases(self, client: Client, namespace: &str) -> Self {
        Self { leases: Some(Api::namespaced(client, namespace)), ..self }
    }

    /// The audit of this moment. It blocks for as long as that takes, so where Leases are read, it has to be asked for
    /// where a runtime lets it block.
    ///
    /// # Errors
    /// [`JudgeError`] where the policy has no answer.
    pub fn audit(&self) -> Result<Audit, JudgeError> {
        let settings = self.evaluator.settings();
        let stores = self.evaluator.stores();
        let ranges = stores.service_cidrs().borrow().nets();
        let matter = Matter {
            module: self.evaluator.module(),
            settings: &settings,
            ranges,
            snapshot: stores.snapshot(),
            in_flight: self.evaluator.ledger().held(),
            holdings: if settings.settings.external.pools.is_empty() {
                Ok(Holdings::default())
            } else {
                self.holdings()
            },
            called: stores.control_plane_services().clone(),
            ledger: true,
            notes: stores.lagging(),
        };
        // Whoever panicked left what it had not put in yet out: that is asked for again.
        matter.audit(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// What the Leases say now, or why they say nothing.
    fn holdings(&self) -> Result<Holdings, String> {
        let Some(leases) = &self.leases else { return Err("Leases are not read here".to_owned()) };
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let of_agents = ListParams::default().labels(&Observer::labels());
        let leases = runtime.block_on(leases.list(&of_agents)).map_err(|error| words(&error))?;
        let mut holdings = Holdings::new(Some(Timestamp::now()));
        leases.items.iter().for_each(|lease| holdings.see(lease));
        Ok(holdings)
    }
}
