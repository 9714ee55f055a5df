//! Asks the policy for the blocks of Nodes, one after the other.
//!
//! One instance of the module answers a whole row of questions: with an instance for each, thousands of Nodes
//! at once take half as much processor time again.

use std::sync::Arc;

use clusterip_core::answer::Answer;
use clusterip_core::node::Allocation;
use serde::Serialize;

use crate::live_settings::LiveSettings;
use crate::metrics::Metrics;
use crate::policy::module::{Instance, Module, ModuleError};

/// Asks the policy. It stays in its thread, as the instance of a module does.
pub struct Asker {
    module: Arc<Module>,
    metrics: Arc<Metrics>,
    kept: Option<Instance>,
}

impl Asker {
    /// Asks this module. What goes wrong is counted in `metrics`.
    pub fn new(module: Arc<Module>, metrics: Arc<Metrics>) -> Self {
        Self { module, metrics, kept: None }
    }

    /// Asks for the blocks of a Node, by these settings, where this is held. It blocks for as long as the policy
    /// takes.
    ///
    /// # Errors
    /// [`ModuleError`] where the policy does not answer.
    pub fn ask(
        &mut self,
        request: &impl Serialize,
        settings: &LiveSettings,
        allocation: &Allocation,
    ) -> Result<Answer, ModuleError> {
        self.answer(request, settings, allocation).inspect_err(|_| self.metrics.evaluation_error())
    }

    /// One that failed may have been stopped halfway: it is not kept.
    fn answer(
        &mut self,
        request: &impl Serialize,
        settings: &LiveSettings,
        allocation: &Allocation,
    ) -> Result<Answer, ModuleError> {
        let instance = match self.kept.take() {
            Some(instance) => instance,
            None => self.module.assigning()?,
        };
        let answer = instance.assign(request, &settings.document, allocation)?;
        self.kept = Some(instance);
        Ok(answer)
    }
}
