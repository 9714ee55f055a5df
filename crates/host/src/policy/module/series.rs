//! Evaluates requests one after the other.

use std::sync::Arc;

use clusterip_core::answer::Answer;
use serde::Serialize;
use serde_json::Value;

use super::{Instance, Module, ModuleError, Payload, instance, parse, write};
use crate::policy::host_calls::HostCalls;

/// A series of evaluations on one thread. They share an instance of the policy, because creating an instance takes
/// about as long as an answer does. The answers are those of [`Module::validate`].
///
/// If the evaluations of the module share the memory of a budget, each of them has an instance of its own. Otherwise a
/// series would keep its part of the budget between two evaluations.
pub struct Series<'m> {
    module: &'m Module,
    /// `None` before the first evaluation, and after an error.
    instance: Option<Instance>,
}

impl Module {
    /// Begins a series of evaluations.
    pub fn series(&self) -> Series<'_> {
        Series { module: self, instance: None }
    }
}

impl Series<'_> {
    /// Evaluates an admission request.
    ///
    /// # Errors
    /// As [`Module::validate`].
    pub fn validate(
        &mut self,
        request: &impl Serialize,
        settings: &Value,
        calls: Arc<dyn HostCalls>,
    ) -> Result<Answer, ModuleError> {
        if self.module.shared.is_some() {
            return self.module.validate(request, settings, calls);
        }
        let payload = write(&Payload::new(request, settings).with_prefetched(calls.as_ref()))?;
        let (mut own, is_new) = match self.instance.take() {
            Some(reused) => (reused, false),
            None => (instance(&self.module.instances, None, None)?, true),
        };
        own.guest.set_calls(Some(Arc::clone(&calls)));
        let answer = match own.call("validate", payload) {
            Ok(answer) => answer,
            Err(error) if is_new => return Err(error),
            // Earlier evaluations may have used up the memory, so a new instance tells whether this one fails.
            Err(_) => return self.module.validate(request, settings, calls),
        };
        own.guest.set_calls(None);
        self.instance = Some(own);
        parse(&answer)
    }
}
