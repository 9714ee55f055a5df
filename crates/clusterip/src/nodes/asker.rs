//! Asks the policy for the blocks of Nodes, one Node after the other.
//!
//! One instance of the module answers all requests. With a new instance for each request, thousands of Nodes need one
//! and a half times as much processor time.

use std::sync::Arc;

use clusterip_core::answer::Answer;
use clusterip_core::node::Allocation;
use clusterip_host::host_metrics::EvaluationMetrics;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::policy::module::{Instance, Module, ModuleError};
use serde::Serialize;

/// Asks the policy, and keeps an instance of its module. The instance can't move to another thread.
pub struct Asker {
    module: Arc<Module>,
    metrics: EvaluationMetrics,
    kept: Option<Instance>,
}

impl Asker {
    /// Asks the policy in `module`, and counts errors in `metrics`.
    pub fn new(module: Arc<Module>, metrics: EvaluationMetrics) -> Self {
        Self { module, metrics, kept: None }
    }

    /// Asks for the blocks of a Node with these settings and held blocks. Blocks the thread until the policy answers.
    ///
    /// # Errors
    /// [`ModuleError`] if the policy does not answer.
    pub fn ask(
        &mut self,
        request: &impl Serialize,
        settings: &LiveSettings,
        allocation: &Allocation,
    ) -> Result<Answer, ModuleError> {
        self.answer(request, settings, allocation).inspect_err(|_| self.metrics.error())
    }

    /// An instance that failed may have been stopped halfway, so it is not kept.
    fn answer(
        &mut self,
        request: &impl Serialize,
        settings: &LiveSettings,
        allocation: &Allocation,
    ) -> Result<Answer, ModuleError> {
        let mut instance = match self.kept.take() {
            Some(instance) => instance,
            None => self.module.assigning()?,
        };
        let answer = instance.assign(request, &settings.document, allocation)?;
        self.kept = Some(instance);
        Ok(answer)
    }
}
