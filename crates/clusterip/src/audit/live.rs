//! The audit of a cluster that is watched.

use std::sync::{Arc, Mutex, PoisonError};

use super::build::Matter;
use super::judge::{JudgeError, Memory};
use super::model::Audit;
use crate::evaluator::Evaluator;

/// Audits what a server watches. Cheap to clone: all clones remember the same.
///
/// The first audit asks the policy about each Service. A later one asks only about those of which
/// something has changed: they themselves, something in their namespace, nodes, or the settings.
#[derive(Clone)]
pub struct LiveAudit {
    evaluator: Evaluator,
    memory: Arc<Mutex<Memory>>,
}

impl LiveAudit {
    /// Audits with the policy, the settings, the stores and the ledger of `evaluator`.
    pub fn new(evaluator: Evaluator) -> Self {
        Self { evaluator, memory: Arc::default() }
    }

    /// The audit of this moment. It blocks for as long as that takes.
    ///
    /// # Errors
    /// [`JudgeError`] where the policy has no answer.
    pub fn audit(&self) -> Result<Audit, JudgeError> {
        let settings = self.evaluator.settings();
        let stores = self.evaluator.stores();
        let ranges = stores.service_cidrs().borrow().iter().filter_map(|range| range.parse().ok()).collect();
        let matter = Matter {
            module: self.evaluator.module(),
            settings: &settings,
            ranges,
            snapshot: stores.snapshot(),
            in_flight: self.evaluator.ledger().held(),
            ledger: true,
            notes: stores.lagging(),
        };
        // Whoever panicked left what it had not put in yet out: that is asked for again.
        matter.audit(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
