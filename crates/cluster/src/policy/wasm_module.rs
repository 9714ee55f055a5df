//! Runs any build of the policy module on an interpreter, as a host of [waPC] does: an instance fetches an operation
//! and a payload, looks objects up, and returns an answer or an error. A module may come from anywhere, so everything
//! that it does is limited.
//!
//! [waPC]: https://wapc.io/docs/spec/

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use clusterip_core::{Response, SettingsResponse};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use wasmi::errors::{ErrorKind, HostError, InstantiationError, LinkerError};
use wasmi::{
    Caller, Config, Engine, Extern, Linker, Memory, Module, Store, StoreLimits, StoreLimitsBuilder, TrapCode, TypedFunc,
};

use super::host_calls::{HostCall, HostCalls};

const NAMESPACE: &str = "wapc";
const CALL: &str = "__guest_call";
/// What a module may export to be called once before its operation.
const STARTS: [&str; 2] = ["_start", "wapc_init"];
/// The version of Kubewarden's protocol that this host speaks.
const PROTOCOL: &[u8] = br#""v1""#;

/// The size of the largest file that is loaded. The policy has 0.5 MB.
const MAX_FILE: u64 = 16 << 20;
/// The size of the largest text that a module may pass to the host: an answer, an error, or the request of a look-up.
const MAX_TEXT: usize = 16 << 20;
/// How many look-ups a module may make for one answer. A decision makes about 20, and one for each Node of many Pods.
const MAX_LOOKUPS: u32 = 10_000;
/// How deep functions may call each other. The policy reads JSON with up to 128 levels.
const MAX_DEPTH: usize = 10_000;
const MAX_TABLE: usize = 100_000;
/// The fuel that a call of the host costs, in addition to one unit for each byte that is copied.
const CALL_FUEL: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In bytes.
    pub memory: usize,
    /// How many steps the module may make. A step is about an instruction.
    pub fuel: u64,
}

impl Default for Limits {
    /// Enough for a request in a cluster with 100,000 Services, which takes some seconds.
    fn default() -> Self {
        Self { memory: 512 << 20, fuel: 10_000_000_000 }
    }
}

#[derive(Debug, Error)]
#[error("{0}")]
pub struct WasmError(String);

/// Ends a call of the host with this error.
impl HostError for WasmError {}

/// A policy that has been loaded. Every operation gets an instance of its own.
pub struct WasmModule {
    module: Module,
    linker: Linker<Exchange>,
    limits: Limits,
}

struct Exchange {
    calls: Option<Arc<dyn HostCalls>>,
    limits: StoreLimits,
    operation: Vec<u8>,
    payload: Vec<u8>,
    lookups: u32,
    looked_up: Result<Vec<u8>, String>,
    answer: Option<Vec<u8>>,
    error: Option<String>,
}

impl WasmModule {
    pub fn load(file: &Path, limits: Limits) -> Result<Self, WasmError> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(file)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| WasmError(format!("{error}: `make policy.wasm` builds the module")))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(invalid(format!("it has more than {} MiB", MAX_FILE >> 20)));
        }
        Self::new(&bytes, limits)
    }

    pub fn new(bytes: &[u8], limits: Limits) -> Result<Self, WasmError> {
        let mut config = Config::default();
        config.consume_fuel(true).wasm_multi_memory(false).set_max_recursion_depth(MAX_DEPTH);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, bytes).map_err(invalid)?;
        let loaded = Self { module, linker: imports(&engine).map_err(invalid)?, limits };
        let protocol = loaded.call("protocol_version", b"", None)?;
        if protocol != PROTOCOL {
            let protocol = String::from_utf8_lossy(&protocol);
            return Err(not_wapc(format!("it speaks version {protocol} of the protocol, expected \"v1\"")));
        }
        Ok(loaded)
    }

    pub fn validate(
        &self,
        request: &Value,
        settings: &Value,
        calls: Arc<dyn HostCalls>,
    ) -> Result<Response, WasmError> {
        let payload = format!("{{\"request\":{request},\"settings\":{settings}}}");
        answer(&self.call("validate", payload.as_bytes(), Some(calls))?)
    }

    pub fn validate_settings(&self, settings: &Value) -> Result<SettingsResponse, WasmError> {
        answer(&self.call("validate_settings", settings.to_string().as_bytes(), None)?)
    }

    /// Calls an operation of a new instance with the bytes of its payload. Without `calls`, every look-up fails.
    pub fn call(
        &self,
        operation: &str,
        payload: &[u8],
        calls: Option<Arc<dyn HostCalls>>,
    ) -> Result<Vec<u8>, WasmError> {
        let Limits { memory, fuel } = self.limits;
        let limits = StoreLimitsBuilder::new().memory_size(memory).table_elements(MAX_TABLE).trap_on_grow_failure(true);
        let exchange = Exchange {
            calls,
            limits: limits.build(),
            operation: operation.as_bytes().to_vec(),
            payload: payload.to_vec(),
            lookups: 0,
            looked_up: Ok(Vec::new()),
            answer: None,
            error: None,
        };
        let mut store = Store::new(self.module.engine(), exchange);
        store.limiter(|exchange| &mut exchange.limits);
        let mut run = || -> Result<bool, wasmi::Error> {
            store.set_fuel(fuel)?;
            let instance = self.linker.instantiate_and_start(&mut store, &self.module)?;
            for start in STARTS {
                if instance.get_func(&store, start).is_some() {
                    instance.get_typed_func::<(), ()>(&store, start)?.call(&mut store, ())?;
                }
            }
            let call: TypedFunc<(u32, u32), i32> = instance.get_typed_func(&store, CALL)?;
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| misuse("the request is too large"));
            let lengths = (length(operation.as_bytes())?, length(payload)?);
            Ok(call.call(&mut store, lengths)? != 0)
        };
        let succeeded = run().map_err(|error| self.reason(error))?;
        match store.into_data() {
            Exchange { answer: Some(answer), .. } if succeeded => Ok(answer),
            Exchange { error: Some(error), .. } => Err(WasmError(format!("it returned an error: {error}"))),
            _ => Err(not_wapc("it returned neither an answer nor an error")),
        }
    }

    fn reason(&self, error: wasmi::Error) -> WasmError {
        let Limits { memory, fuel } = self.limits;
        WasmError(match (error.as_trap_code(), error.kind()) {
            (Some(TrapCode::OutOfFuel), _) => format!("it gave no answer within {fuel} steps"),
            (Some(TrapCode::StackOverflow), _) => "its calls are nested too deep".to_owned(),
            (Some(TrapCode::GrowthOperationLimited), _)
            | (
                None,
                ErrorKind::Memory(_) | ErrorKind::Instantiation(InstantiationError::FailedToInstantiateMemory(_)),
            ) => format!("it needs more than {} MiB of memory", memory >> 20),
            (Some(trap), _) => format!("it stopped: {trap}"),
            (None, ErrorKind::Linker(LinkerError::MissingDefinition { name, .. })) => {
                return not_wapc(format!("it imports {}.{}", name.module(), name.name()));
            }
            (None, ErrorKind::Host(_)) => match error.downcast() {
                Some(error) => return error,
                None => "it stopped: a call of the host failed".to_owned(),
            },
            (None, _) => return not_wapc(error),
        })
    }
}

fn invalid(reason: impl Display) -> WasmError {
    WasmError(format!("it is not a WebAssembly module that can be run: {reason}"))
}

fn not_wapc(reason: impl Display) -> WasmError {
    WasmError(format!("it is not a waPC policy: {reason}"))
}

fn answer<T: DeserializeOwned>(answer: &[u8]) -> Result<T, WasmError> {
    serde_json::from_slice(answer).map_err(|error| WasmError(format!("its answer can't be read: {error}")))
}

fn misuse(what: &str) -> wasmi::Error {
    wasmi::Error::host(not_wapc(what))
}

fn imports(engine: &Engine) -> Result<Linker<Exchange>, wasmi::Error> {
    type Guest<'g> = Caller<'g, Exchange>;
    let mut linker = Linker::new(engine);
    linker.func_wrap(NAMESPACE, "__guest_request", |mut guest: Guest<'_>, operation: u32, payload: u32| {
        write(&mut guest, operation, |exchange| &exchange.operation)?;
        write(&mut guest, payload, |exchange| &exchange.payload)
    })?;
    linker.func_wrap(NAMESPACE, "__guest_response", |mut guest: Guest<'_>, address: u32, length: u32| {
        guest.data_mut().answer = Some(read(&mut guest, address, length)?);
        Ok(())
    })?;
    linker.func_wrap(NAMESPACE, "__guest_error", |mut guest: Guest<'_>, address: u32, length: u32| {
        guest.data_mut().error = Some(read_text(&mut guest, address, length)?);
        Ok(())
    })?;
    linker.func_wrap(NAMESPACE, "__host_call", look_up)?;
    linker.func_wrap(NAMESPACE, "__host_response", |mut guest: Guest<'_>, address: u32| {
        write(&mut guest, address, response)
    })?;
    linker.func_wrap(NAMESPACE, "__host_response_len", |guest: Guest<'_>| response(guest.data()).len() as u32)?;
    linker
        .func_wrap(NAMESPACE, "__host_error", |mut guest: Guest<'_>, address: u32| write(&mut guest, address, error))?;
    linker.func_wrap(NAMESPACE, "__host_error_len", |guest: Guest<'_>| error(guest.data()).len() as u32)?;
    linker.func_wrap(NAMESPACE, "__console_log", |mut guest: Guest<'_>, address: u32, length: u32| {
        let text = read_text(&mut guest, address, length)?;
        tracing::debug!("the policy logged: {text}");
        Ok(())
    })?;
    Ok(linker)
}

/// Answers a look-up of the module. Returns 1 for a response and 0 for an error; the module fetches either one.
#[expect(clippy::too_many_arguments, reason = "waPC passes four texts, each as an address and a length")]
fn look_up(
    mut guest: Caller<'_, Exchange>,
    binding: u32,
    binding_length: u32,
    namespace: u32,
    namespace_length: u32,
    operation: u32,
    operation_length: u32,
    payload: u32,
    payload_length: u32,
) -> Result<i32, wasmi::Error> {
    let binding = read_text(&mut guest, binding, binding_length)?;
    let namespace = read_text(&mut guest, namespace, namespace_length)?;
    let operation = read_text(&mut guest, operation, operation_length)?;
    let payload = read(&mut guest, payload, payload_length)?;
    let exchange = guest.data_mut();
    exchange.lookups += 1;
    if exchange.lookups > MAX_LOOKUPS {
        return Err(wasmi::Error::host(WasmError(format!("it made more than {MAX_LOOKUPS} look-ups"))));
    }
    exchange.looked_up = match &exchange.calls {
        None => Err("no look-ups here".to_owned()),
        Some(calls) => HostCall::read(&binding, &namespace, &operation, &payload)
            // In the words of policy-server, so that a denial has the same text in every host.
            .and_then(|call| calls.answer(&call).map_err(|text| format!("Callback evaluation failure: {text}"))),
    };
    Ok(i32::from(exchange.looked_up.is_ok()))
}

fn response(exchange: &Exchange) -> &[u8] {
    exchange.looked_up.as_deref().unwrap_or_default()
}

fn error(exchange: &Exchange) -> &[u8] {
    exchange.looked_up.as_ref().err().map_or(&[], String::as_bytes)
}

/// The memory of a module that calls the host, after it has paid for copying this many bytes.
fn memory(guest: &mut Caller<'_, Exchange>, bytes: usize) -> Result<Memory, wasmi::Error> {
    let fuel = guest.get_fuel()?.checked_sub(CALL_FUEL + bytes as u64).ok_or(TrapCode::OutOfFuel)?;
    guest.set_fuel(fuel)?;
    guest.get_export("memory").and_then(Extern::into_memory).ok_or_else(|| misuse("it does not export its memory"))
}

fn read(guest: &mut Caller<'_, Exchange>, address: u32, length: u32) -> Result<Vec<u8>, wasmi::Error> {
    let (begin, length) = (address as usize, length as usize);
    if length > MAX_TEXT {
        return Err(misuse("it passed a text of more than 16 MiB"));
    }
    let memory = memory(guest, length)?;
    let bytes = memory.data(&*guest).get(begin..begin + length);
    Ok(bytes.ok_or_else(|| misuse("it passed an address outside of its memory"))?.to_vec())
}

fn read_text(guest: &mut Caller<'_, Exchange>, address: u32, length: u32) -> Result<String, wasmi::Error> {
    String::from_utf8(read(guest, address, length)?).map_err(|_| misuse("it passed a text that is not in UTF-8"))
}

fn write(
    guest: &mut Caller<'_, Exchange>,
    address: u32,
    bytes: impl Fn(&Exchange) -> &[u8],
) -> Result<(), wasmi::Error> {
    let memory = memory(guest, bytes(guest.data()).len())?;
    let (data, exchange) = memory.data_and_store_mut(&mut *guest);
    let (bytes, begin) = (bytes(exchange), address as usize);
    let place = begin.checked_add(bytes.len()).and_then(|end| data.get_mut(begin..end));
    place.ok_or_else(|| misuse("it passed an address outside of its memory"))?.copy_from_slice(bytes);
    Ok(())
}
