//! The WebAssembly module of the policy. It is compiled when the program is built, loaded once, and instantiated for
//! each evaluation or for a series of them.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clusterip_core::answer::Answer;
use clusterip_core::external::Held;
use clusterip_core::node::Allocation;
use clusterip_core::prefetched::Prefetched;
use clusterip_core::validate::SettingsAnswer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use wasmtime::Engine;

use super::budget::{Budget, Exhausted, Part};
pub use super::compiled_module::{CompiledModule, EMBEDDED, WASM_SIZE};
use super::engine_config;
use super::host_calls::HostCalls;
use super::wapc::{Guest, InstanceFactory, Limits};

mod series;

pub use self::series::Series;

/// The time limit for one evaluation: the default of policy-server.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// The time limit for a check of settings, for which no request waits. Hundreds of large pools take seconds.
const CHECK_TIME_LIMIT: Duration = Duration::from_secs(30);
/// The memory limit of an instance that does not share memory.
const MEMORY_LIMIT: usize = 256 << 20;
/// The memory that the evaluations of a server share by default.
pub const SHARED_MEMORY: usize = 128 << 20;
/// The memory limits of instances that share memory: an evaluation gets the first one that is large enough.
const SIZES: [usize; 5] = [8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20];
/// The memory that every evaluation needs.
const NEEDED: usize = 4 << 20;
/// The additional memory for each byte of the request and the settings, which are parsed into values and copied.
const NEEDED_PER_BYTE: usize = 24;
/// The additional memory for each Service in the cluster, if the policy lists them: a list of 10,000 needs less than 8
/// MiB.
const NEEDED_PER_SERVICE: usize = 1 << 10;
/// The precision of the time limit.
const TICK: Duration = Duration::from_millis(20);

/// A policy that can't be loaded or asked, or does not answer.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// The module was compiled for another machine, or is not that of a waPC policy.
    #[error("the policy can't be loaded: {0}")]
    Load(String),
    /// The policy trapped or exceeded its limits.
    #[error("the policy did not answer: {0}")]
    Call(String),
    /// The memory that the evaluation needs is in use by others.
    #[error("the policy was not asked: {0}")]
    Exhausted(#[from] Exhausted),
    /// The request can't be written as JSON.
    #[error("the request can't be written: {0}")]
    Request(#[source] serde_json::Error),
    /// The answer of the policy can't be parsed.
    #[error("the policy's answer can't be read: {0}")]
    Answer(#[source] serde_json::Error),
}

/// The input of the policy.
#[derive(Serialize)]
struct Payload<'p, R> {
    request: &'p R,
    settings: &'p Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefetched: Option<Value>,
}

impl<'p, R> Payload<'p, R> {
    fn new(request: &'p R, settings: &'p Value) -> Self {
        Self { request, settings, allocation: None, external: None, prefetched: None }
    }

    /// The payload with the answers that `calls` sends in advance.
    fn with_prefetched(self, calls: &dyn HostCalls) -> Self {
        let prefetched = calls.prefetched();
        let prefetched = (prefetched != Prefetched::default()).then(|| prefetched.to_value());
        Self { prefetched, ..self }
    }
}

/// An instance of the policy with its own memory.
pub struct Instance {
    guest: Guest,
    /// Returned to the budget after the instance is gone.
    _memory: Option<Part>,
}

/// The configuration of instances that share memory.
struct Shared {
    budget: Budget,
    /// The memory limits, each with the factory of its instances.
    sizes: Vec<(usize, InstanceFactory)>,
}

/// A policy that is ready to be evaluated.
pub struct Module {
    instances: InstanceFactory,
    shared: Option<Shared>,
    imports: Vec<(String, String)>,
    /// Stops the clock thread when the module is dropped.
    gone: Arc<AtomicBool>,
}

impl Module {
    /// Loads a module.
    ///
    /// # Errors
    /// [`ModuleError::Load`] if the module was compiled for another machine, or imports anything other than waPC.
    pub fn new(compiled: CompiledModule) -> Result<Self, ModuleError> {
        Self::load(compiled, None)
    }

    /// Loads a module whose evaluations share the memory of a budget: they wait for each other if it is used up.
    /// [`Self::assigning`] does not use the budget, because there is only one such instance and its input comes from
    /// Nodes.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn sharing(compiled: CompiledModule, budget: Budget) -> Result<Self, ModuleError> {
        Self::load(compiled, Some(budget))
    }

    fn load(compiled: CompiledModule, budget: Option<Budget>) -> Result<Self, ModuleError> {
        let load = |error: &dyn Display| ModuleError::Load(error.to_string());
        let engine = Engine::new(&engine_config::new()).map_err(|error| load(&error))?;
        let module = compiled.load(&engine).map_err(|error| load(&error.root_cause()))?;
        let imports = module.imports().map(|import| (import.module().to_owned(), import.name().to_owned())).collect();
        let ticks = ticks(TIME_LIMIT);
        let with_memory = |memory: usize| {
            InstanceFactory::new(&module, Limits { memory, ticks }).map_err(|error| load(&error.root_cause()))
        };
        let instances = with_memory(MEMORY_LIMIT)?;
        let shared = match budget {
            None => None,
            Some(budget) => {
                let sizes = SIZES.into_iter().filter(|size| *size <= budget.total());
                let sizes = sizes.map(|size| Ok((size, with_memory(size)?))).collect::<Result<_, ModuleError>>()?;
                Some(Shared { budget, sizes })
            }
        };
        let gone = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&gone);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        });
        Ok(Self { instances, shared, imports, gone })
    }

    /// The imports of the module, as module and name.
    pub fn imports(&self) -> &[(String, String)] {
        &self.imports
    }

    /// Evaluates an admission request.
    ///
    /// # Errors
    /// [`ModuleError`] if the policy traps, exceeds its limits, or gives an answer that can't be parsed.
    pub fn validate(
        &self,
        request: &impl Serialize,
        settings: &Value,
        calls: Arc<dyn HostCalls>,
    ) -> Result<Answer, ModuleError> {
        let payload = Payload::new(request, settings).with_prefetched(calls.as_ref());
        self.ask("validate", &payload, Some(calls))
    }

    /// Evaluates an admission request with the external addresses that are reserved. With this input the policy also
    /// assigns external addresses.
    ///
    /// # Errors
    /// As [`Self::validate`].
    pub fn evaluate_with_held(
        &self,
        request: &impl Serialize,
        settings: &Value,
        held: &Held,
        calls: Arc<dyn HostCalls>,
    ) -> Result<Answer, ModuleError> {
        let payload = Payload::new(request, settings).with_prefetched(calls.as_ref());
        let payload = Payload { external: Some(held.to_value()), ..payload };
        self.ask("validate", &payload, Some(calls))
    }

    /// An instance for a series of questions about the blocks of Nodes, which need no look-ups. Creating an instance
    /// takes longer than most answers do.
    ///
    /// # Errors
    /// [`ModuleError::Call`] if there is no memory for the instance.
    pub fn assigning(&self) -> Result<Instance, ModuleError> {
        instance(&self.instances, None, None)
    }

    /// Checks settings.
    ///
    /// # Errors
    /// As [`Self::validate`]. Invalid settings are an answer, not an error.
    pub fn validate_settings(&self, settings: &Value) -> Result<SettingsAnswer, ModuleError> {
        let payload = write(settings)?;
        let mut instance = self.instance(payload.len(), None)?;
        instance.guest.set_ticks(ticks(CHECK_TIME_LIMIT));
        parse(&instance.call("validate_settings", payload)?)
    }

    /// Calls an operation of a new instance with the bytes of its payload.
    ///
    /// # Errors
    /// [`ModuleError`] if the policy returns an error, traps or exceeds its limits.
    pub fn call(
        &self,
        operation: &str,
        payload: Vec<u8>,
        calls: Option<Arc<dyn HostCalls>>,
    ) -> Result<Vec<u8>, ModuleError> {
        self.instance(payload.len(), calls)?.call(operation, payload)
    }

    /// An instance for a payload of this many bytes.
    fn instance(&self, payload: usize, calls: Option<Arc<dyn HostCalls>>) -> Result<Instance, ModuleError> {
        let services = calls.as_ref().map_or(0, |calls| calls.services());
        let (instances, memory) = match &self.shared {
            None => (&self.instances, None),
            Some(shared) => shared.take(payload, services)?,
        };
        instance(instances, memory, calls)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        operation: &str,
        payload: &impl Serialize,
        calls: Option<Arc<dyn HostCalls>>,
    ) -> Result<T, ModuleError> {
        parse(&self.call(operation, write(payload)?, calls)?)
    }
}

/// A time limit in ticks of the engine's epoch.
fn ticks(limit: Duration) -> u64 {
    (limit.as_millis() / TICK.as_millis()) as u64
}

fn write(payload: &impl Serialize) -> Result<Vec<u8>, ModuleError> {
    serde_json::to_vec(payload).map_err(ModuleError::Request)
}

fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, ModuleError> {
    serde_json::from_slice(answer).map_err(ModuleError::Answer)
}

fn instance(
    instances: &InstanceFactory,
    memory: Option<Part>,
    calls: Option<Arc<dyn HostCalls>>,
) -> Result<Instance, ModuleError> {
    Ok(Instance { guest: instances.instance(calls).map_err(ModuleError::Call)?, _memory: memory })
}

impl Shared {
    /// Takes the memory for an evaluation with a payload of this many bytes in a cluster with this many Services.
    /// Returns the memory and the factory of the instance.
    fn take(&self, payload: usize, services: usize) -> Result<(&InstanceFactory, Option<Part>), ModuleError> {
        let needed = needed(payload, services);
        let (size, instances) = self
            .sizes
            .iter()
            .find(|(size, _)| *size >= needed)
            .or(self.sizes.last())
            .ok_or_else(|| ModuleError::Load("the memory for evaluations is too small".to_owned()))?;
        Ok((instances, Some(self.budget.take(*size)?)))
    }
}

/// An estimate of the memory that an evaluation needs, in bytes.
fn needed(payload: usize, services: usize) -> usize {
    let of_payload = payload.saturating_mul(NEEDED_PER_BYTE);
    NEEDED.saturating_add(of_payload).saturating_add(services.saturating_mul(NEEDED_PER_SERVICE))
}

impl Instance {
    /// Asks for the blocks of a Node. After an error the instance must not be used again, because it may have been
    /// stopped halfway.
    ///
    /// # Errors
    /// As [`Module::validate`].
    pub fn assign(
        &mut self,
        request: &impl Serialize,
        settings: &Value,
        allocation: &Allocation,
    ) -> Result<Answer, ModuleError> {
        let payload = Payload { allocation: Some(allocation.to_value()), ..Payload::new(request, settings) };
        parse(&self.call("validate", write(&payload)?)?)
    }

    fn call(&mut self, operation: &str, payload: Vec<u8>) -> Result<Vec<u8>, ModuleError> {
        self.guest.call(operation, payload).map_err(ModuleError::Call)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
