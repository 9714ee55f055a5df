//! The WebAssembly module: compiled once, instantiated for each evaluation, or for a row of them.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clusterip_core::answer::Answer;
use clusterip_core::external::Held;
use clusterip_core::node::Allocation;
use clusterip_core::validate::SettingsAnswer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use wapc::WapcHost;
use wasmtime_provider::wasmtime::{Config, Engine, Module as Compiled};
use wasmtime_provider::{EpochDeadlines, ResourceLimits, WasmtimeEngineProviderBuilder, WasmtimeEngineProviderPre};

use super::host_calls::{HostCall, HostCalls};

/// The module that this program was built with.
pub const EMBEDDED: &[u8] = include_bytes!(env!("CLUSTERIP_POLICY_MODULE"));

/// How long one evaluation may run: as long as policy-server lets it by default.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// How much memory one instance may have.
const MEMORY_LIMIT: usize = 256 << 20;
/// How exactly the time limit is kept.
const TICK: Duration = Duration::from_millis(20);

/// A policy that can't be loaded, or does not answer.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// It is no module, or none of a waPC policy.
    #[error("the policy can't be loaded: {0}")]
    Load(String),
    /// It trapped, or ran over its limits.
    #[error("the policy did not answer: {0}")]
    Call(String),
    /// Its answer is none.
    #[error("the policy's answer can't be read: {0}")]
    Answer(#[source] serde_json::Error),
}

/// What the policy is asked, as it is sent.
#[derive(Serialize)]
struct Payload<'p, R> {
    request: &'p R,
    settings: &'p Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<Value>,
}

/// The policy with a memory of its own.
pub struct Instance(WapcHost);

/// A compiled policy.
pub struct Module {
    instances: WasmtimeEngineProviderPre,
    imports: Vec<(String, String)>,
    deadlines: EpochDeadlines,
    /// Tells the clock that the module is gone.
    gone: Arc<AtomicBool>,
}

impl Module {
    /// Compiles a module.
    ///
    /// # Errors
    /// [`ModuleError::Load`] where it is not valid, or imports something else than waPC.
    pub fn new(bytes: &[u8]) -> Result<Self, ModuleError> {
        let load = |error: &dyn Display| ModuleError::Load(error.to_string());
        let mut config = Config::new();
        config.epoch_interruption(true);
        // waPC passes on the outermost words of an error alone: they are to be the trap, not its backtrace.
        config.wasm_backtrace_max_frames(None);
        let engine = Engine::new(&config).map_err(|error| load(&error))?;
        let compiled = Compiled::new(&engine, bytes).map_err(|error| load(&error))?;
        let imports = compiled.imports().map(|import| (import.module().to_owned(), import.name().to_owned())).collect();
        let ticks = (TIME_LIMIT.as_millis() / TICK.as_millis()) as u64;
        let deadlines = EpochDeadlines { wapc_init: ticks, wapc_func: ticks };
        let instances = WasmtimeEngineProviderBuilder::new()
            .engine(engine.clone())
            .module(compiled)
            .enable_epoch_interruptions(deadlines)
            .enable_resource_limits(ResourceLimits { max_memory_size: Some(MEMORY_LIMIT), ..ResourceLimits::default() })
            .build_pre()
            .map_err(|error| load(&error))?;
        let gone = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&gone);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        });
        Ok(Self { instances, imports, deadlines, gone })
    }

    /// What the module imports: module and name.
    pub fn imports(&self) -> &[(String, String)] {
        &self.imports
    }

    /// Evaluates an admission request.
    ///
    /// # Errors
    /// [`ModuleError`] where the policy traps, runs over its limits, or answers something else.
    pub fn validate(
        &self,
        request: &impl Serialize,
        settings: &Value,
        calls: Arc<dyn HostCalls>,
    ) -> Result<Answer, ModuleError> {
        self.call("validate", &Payload { request, settings, allocation: None, external: None }, Some(calls))
    }

    /// Evaluates an admission request, and tells which external addresses are held: then the policy also gives
    /// some.
    ///
    /// # Errors
    /// As [`Self::validate`].
    pub fn place(
        &self,
        request: &Value,
        settings: &Value,
        held: &Held,
        calls: Arc<dyn HostCalls>,
    ) -> Result<Answer, ModuleError> {
        let payload = Payload { request, settings, allocation: None, external: Some(held.to_value()) };
        self.call("validate", &payload, Some(calls))
    }

    /// An instance for a row of questions about the blocks of Nodes, for which nothing need be looked up: to
    /// make one takes longer than most answers do.
    ///
    /// # Errors
    /// [`ModuleError::Call`] where there is no room for it.
    pub fn assigning(&self) -> Result<Instance, ModuleError> {
        self.instance(None)
    }

    /// Checks settings.
    ///
    /// # Errors
    /// As [`Self::validate`]. Settings that are wrong are no error but an answer.
    pub fn validate_settings(&self, settings: &Value) -> Result<SettingsAnswer, ModuleError> {
        self.call("validate_settings", settings, None)
    }

    fn call<T: DeserializeOwned>(
        &self,
        operation: &str,
        payload: &impl Serialize,
        calls: Option<Arc<dyn HostCalls>>,
    ) -> Result<T, ModuleError> {
        self.instance(calls)?.call(operation, payload)
    }

    fn instance(&self, calls: Option<Arc<dyn HostCalls>>) -> Result<Instance, ModuleError> {
        let engine = self.instances.rehydrate(Some(self.deadlines)).map_err(failed)?;
        let callback = move |_: u64, binding: &str, namespace: &str, operation: &str, payload: &[u8]| {
            let calls = calls.as_ref().ok_or("no look-ups here")?;
            let call = HostCall::read(binding, namespace, operation, payload)?;
            // As policy-server words it: a denial says the same in every host.
            calls.answer(&call).map_err(|text| format!("Callback evaluation failure: {text}").into())
        };
        WapcHost::new(Box::new(engine), Some(Box::new(callback))).map(Instance).map_err(failed)
    }
}

impl Instance {
    /// Asks for the blocks of a Node. After an error it is not to be asked again: it may have been stopped
    /// halfway.
    ///
    /// # Errors
    /// As [`Module::validate`].
    pub fn assign(
        &self,
        request: &impl Serialize,
        settings: &Value,
        allocation: &Allocation,
    ) -> Result<Answer, ModuleError> {
        self.call("validate", &Payload { request, settings, allocation: Some(allocation.to_value()), external: None })
    }

    fn call<T: DeserializeOwned>(&self, operation: &str, payload: &impl Serialize) -> Result<T, ModuleError> {
        let payload = serde_json::to_vec(payload).map_err(ModuleError::Answer)?;
        // The provider panics where a guest hands it an address outside of the guest's memory.
        let answer = catch_unwind(AssertUnwindSafe(|| self.0.call(operation, &payload)))
            .map_err(|_| failed("it misused the waPC interface"))?
            .map_err(failed)?;
        serde_json::from_slice(&answer).map_err(ModuleError::Answer)
    }
}

fn failed(error: impl Display) -> ModuleError {
    ModuleError::Call(error.to_string())
}

impl Drop for Module {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}
