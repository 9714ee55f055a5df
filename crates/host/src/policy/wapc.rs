//! The host side of [waPC], the protocol between the policy and its host: an instance of the module fetches an
//! operation and a payload, looks objects up, and returns an answer or an error.
//!
//! [waPC]: https://wapc.io/docs/spec/

use std::sync::Arc;

use wasmtime::error::Context as _;
use wasmtime::{
    Caller, Extern, InstancePre, Linker, Memory, Module, Result, Store, StoreLimits, StoreLimitsBuilder, Trap,
    TypedFunc, format_err,
};

use super::host_calls::{HostCall, HostCalls};

const NAMESPACE: &str = "wapc";
const CALL: &str = "__guest_call";
/// What a module may export to be called once before its first operation.
const STARTS: [&str; 2] = ["_start", "wapc_init"];
const MISUSE: &str = "it misused the waPC interface";

/// The limits of one instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// In bytes.
    pub(super) memory: usize,
    /// In ticks of the engine's epoch, for the start of the instance and for each call.
    pub(super) ticks: u64,
}

/// Creates instances of one module with the same limits.
pub(super) struct InstanceFactory {
    instances: InstancePre<Exchange>,
    limits: Limits,
}

/// An instance of the module with its own memory.
pub(super) struct Guest {
    store: Store<Exchange>,
    call: TypedFunc<(i32, i32), i32>,
    ticks: u64,
}

/// What host and guest pass to each other during a call.
struct Exchange {
    calls: Option<Arc<dyn HostCalls>>,
    limits: StoreLimits,
    operation: Vec<u8>,
    payload: Vec<u8>,
    /// The result of the last look-up.
    looked_up: std::result::Result<Vec<u8>, String>,
    answer: Option<Vec<u8>>,
    error: Option<String>,
}

impl InstanceFactory {
    /// # Errors
    /// If the module imports anything other than waPC, or does not export the function that waPC calls.
    pub(super) fn new(module: &Module, limits: Limits) -> Result<Self> {
        module.get_export(CALL).and_then(|export| export.func().cloned()).context("it does not export __guest_call")?;
        Ok(Self { instances: imports(module)?.instantiate_pre(module)?, limits })
    }

    /// Creates an instance and starts it.
    ///
    /// # Errors
    /// The reason if there is no memory for the instance, or if its start traps or exceeds the limits.
    pub(super) fn instance(&self, calls: Option<Arc<dyn HostCalls>>) -> std::result::Result<Guest, String> {
        let exchange = Exchange {
            calls,
            limits: StoreLimitsBuilder::new().memory_size(self.limits.memory).build(),
            operation: Vec::new(),
            payload: Vec::new(),
            looked_up: Ok(Vec::new()),
            answer: None,
            error: None,
        };
        let mut store = Store::new(self.instances.module().engine(), exchange);
        store.limiter(|exchange| &mut exchange.limits);
        self.start(store).map_err(|error| reason(&error))
    }

    fn start(&self, mut store: Store<Exchange>) -> Result<Guest> {
        let ticks = self.limits.ticks;
        store.set_epoch_deadline(ticks);
        let instance = self.instances.instantiate(&mut store)?;
        for start in STARTS {
            if instance.get_func(&mut store, start).is_some() {
                instance.get_typed_func::<(), ()>(&mut store, start)?.call(&mut store, ())?;
            }
        }
        Ok(Guest { call: instance.get_typed_func(&mut store, CALL)?, store, ticks })
    }
}

impl Guest {
    /// Sets the time limit of each further call.
    pub(super) fn set_ticks(&mut self, ticks: u64) {
        self.ticks = ticks;
    }

    /// Sets what answers the look-ups of all further calls.
    pub(super) fn set_calls(&mut self, calls: Option<Arc<dyn HostCalls>>) {
        self.store.data_mut().calls = calls;
    }

    /// Calls an operation. After an error the instance must not be used again, because it may have been stopped
    /// halfway.
    ///
    /// # Errors
    /// The error that the guest returns, or the reason if it traps, exceeds the limits or returns nothing.
    pub(super) fn call(&mut self, operation: &str, payload: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
        let length = |bytes: &[u8]| i32::try_from(bytes.len()).map_err(|_| "the request is too large".to_owned());
        let lengths = (length(operation.as_bytes())?, length(&payload)?);
        let exchange = self.store.data_mut();
        exchange.operation = operation.as_bytes().to_vec();
        exchange.payload = payload;
        (exchange.answer, exchange.error) = (None, None);
        self.store.set_epoch_deadline(self.ticks);
        let succeeded = self.call.call(&mut self.store, lengths).map_err(|error| reason(&error))? != 0;
        let exchange = self.store.data_mut();
        match (exchange.answer.take(), exchange.error.take()) {
            (Some(answer), _) if succeeded => Ok(answer),
            (_, Some(error)) => Err(error),
            (_, None) => Err("it returned neither an answer nor an error".to_owned()),
        }
    }
}

/// The functions that a waPC module may import.
fn imports(module: &Module) -> Result<Linker<Exchange>> {
    let mut linker = Linker::new(module.engine());
    linker.func_wrap(
        NAMESPACE,
        "__guest_request",
        |mut guest: Caller<'_, Exchange>, operation: i32, payload: i32| -> Result<()> {
            write(&mut guest, operation, |exchange| &exchange.operation)?;
            write(&mut guest, payload, |exchange| &exchange.payload)
        },
    )?;
    linker.func_wrap(
        NAMESPACE,
        "__guest_response",
        |mut guest: Caller<'_, Exchange>, address: i32, length: i32| -> Result<()> {
            guest.data_mut().answer = Some(read(&mut guest, address, length)?);
            Ok(())
        },
    )?;
    linker.func_wrap(
        NAMESPACE,
        "__guest_error",
        |mut guest: Caller<'_, Exchange>, address: i32, length: i32| -> Result<()> {
            guest.data_mut().error = Some(read_text(&mut guest, address, length)?);
            Ok(())
        },
    )?;
    linker.func_wrap(NAMESPACE, "__host_call", look_up)?;
    linker.func_wrap(NAMESPACE, "__host_response", |mut guest: Caller<'_, Exchange>, address: i32| -> Result<()> {
        write(&mut guest, address, response)
    })?;
    linker.func_wrap(NAMESPACE, "__host_response_len", |guest: Caller<'_, Exchange>| -> Result<i32> {
        Ok(i32::try_from(response(guest.data()).len())?)
    })?;
    linker.func_wrap(NAMESPACE, "__host_error", |mut guest: Caller<'_, Exchange>, address: i32| -> Result<()> {
        write(&mut guest, address, error)
    })?;
    linker.func_wrap(NAMESPACE, "__host_error_len", |guest: Caller<'_, Exchange>| -> Result<i32> {
        Ok(i32::try_from(error(guest.data()).len())?)
    })?;
    linker.func_wrap(
        NAMESPACE,
        "__console_log",
        |mut guest: Caller<'_, Exchange>, address: i32, length: i32| -> Result<()> {
            let text = read_text(&mut guest, address, length)?;
            tracing::debug!("the policy logged: {text}");
            Ok(())
        },
    )?;
    Ok(linker)
}

/// Answers a look-up of the guest. Returns 1 for a response and 0 for an error; the guest fetches either one.
#[expect(clippy::too_many_arguments, reason = "waPC passes four texts, each as an address and a length")]
fn look_up(
    mut guest: Caller<'_, Exchange>,
    binding: i32,
    binding_length: i32,
    namespace: i32,
    namespace_length: i32,
    operation: i32,
    operation_length: i32,
    payload: i32,
    payload_length: i32,
) -> Result<i32> {
    let binding = read_text(&mut guest, binding, binding_length)?;
    let namespace = read_text(&mut guest, namespace, namespace_length)?;
    let operation = read_text(&mut guest, operation, operation_length)?;
    let payload = read(&mut guest, payload, payload_length)?;
    let exchange = guest.data_mut();
    exchange.looked_up = match &exchange.calls {
        None => Err("no look-ups here".to_owned()),
        Some(calls) => HostCall::read(&binding, &namespace, &operation, &payload)
            .map_err(|error| error.to_string())
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

fn memory(guest: &mut Caller<'_, Exchange>) -> Result<Memory> {
    guest.get_export("memory").and_then(Extern::into_memory).context("it does not export its memory")
}

/// Copies bytes out of the guest's memory.
fn read(guest: &mut Caller<'_, Exchange>, address: i32, length: i32) -> Result<Vec<u8>> {
    let memory = memory(guest)?;
    // Addresses are unsigned in WebAssembly.
    let (begin, length) = (address.cast_unsigned() as usize, length.cast_unsigned() as usize);
    let bytes = begin.checked_add(length).and_then(|end| memory.data(&*guest).get(begin..end));
    Ok(bytes.context(MISUSE)?.to_vec())
}

fn read_text(guest: &mut Caller<'_, Exchange>, address: i32, length: i32) -> Result<String> {
    String::from_utf8(read(guest, address, length)?).map_err(|_| format_err!("{MISUSE}: a text is not in UTF-8"))
}

/// Copies bytes of the exchange into the guest's memory.
fn write(guest: &mut Caller<'_, Exchange>, address: i32, bytes: impl Fn(&Exchange) -> &[u8]) -> Result<()> {
    let memory = memory(guest)?;
    let (data, exchange) = memory.data_and_store_mut(&mut *guest);
    let (bytes, begin) = (bytes(exchange), address.cast_unsigned() as usize);
    let end = begin.checked_add(bytes.len());
    end.and_then(|end| data.get_mut(begin..end)).context(MISUSE)?.copy_from_slice(bytes);
    Ok(())
}

/// The reason why a call ended: the innermost error, without the module's backtrace.
fn reason(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => "it exceeded its deadline".to_owned(),
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    }
}
