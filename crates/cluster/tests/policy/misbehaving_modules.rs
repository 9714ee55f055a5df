//! Modules that misbehave: each ends within its limits, with an error that says how. And modules that are no policies.

use std::fs;
use std::sync::Arc;

use clusterip_cluster::policy::wasm_module::{Limits, WasmError, WasmModule};
use clusterip_core::Response;
use serde_json::json;

use crate::support::{NoCluster, request, service};

/// Small limits, which end a loop early: 4 MiB, and about a tenth of a second.
const LIMITS: Limits = Limits { memory: 4 << 20, fuel: 50_000_000 };

/// A module whose functions have these bodies. `call` answers requests; it is not called for the version of the
/// protocol, whose name has 16 letters.
fn module(data: &str, start: &str, call: &str) -> String {
    let data = data.replace('"', "\\22");
    format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (import "wapc" "__guest_error" (func $fail (param i32 i32)))
            (import "wapc" "__guest_request" (func $fetch (param i32 i32)))
            (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
            (import "wapc" "__console_log" (func $log (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "\22v1\22")
            (data (i32.const 16) "{data}")
            (func $deeper (param i64) (result i64) (i64.add (call $deeper (local.get 0)) (local.get 0)))
            (func (export "wapc_init") {start})
            (func (export "__guest_call") (param $operation i32) (param $payload i32) (result i32)
                (if (i32.eq (local.get $operation) (i32.const 16))
                    (then (call $respond (i32.const 0) (i32.const 4)) (return (i32.const 1))))
                {call}))"#
    )
}

/// Evaluates a request with a module in WebAssembly text.
fn evaluate(text: &str) -> Result<Response, WasmError> {
    let module = WasmModule::new(&wat::parse_str(text).unwrap(), LIMITS)?;
    module.validate(&request(service()), &json!({}), Arc::new(NoCluster))
}

/// A body that answers with the text at address 16.
fn respond(length: usize) -> String {
    format!("(call $respond (i32.const 16) (i32.const {length})) (i32.const 1)")
}

#[test]
fn misbehaving_module_ends_within_its_limits_with_an_error() {
    const NO_ANSWER: &str = "it gave no answer within 50000000 steps";
    const OUTSIDE: &str = "it is not a waPC policy: it passed an address outside of its memory";
    const NOTHING: &str = "(i32.const 0)";
    let forever = |body: &str| format!("(loop $again {body} (br $again)) {NOTHING}");
    let ask = format!("(drop (call $ask {}))", [NOTHING; 8].join(" "));
    const GROWS: &str = "(drop (memory.grow (i32.const 1)))";
    const LARGE: &str = "(call $respond (i32.const 0) (i32.const 0x1000001)) (i32.const 1)";
    let nothing_after = |body: &str| format!("{body} {NOTHING}");
    for (name, call, message) in [
        ("loops", forever(""), NO_ANSWER),
        ("grows its memory", forever(GROWS), "it needs more than 4 MiB of memory"),
        ("calls itself", nothing_after("(drop (call $deeper (i64.const 1)))"), "its calls are nested too deep"),
        ("traps", "(unreachable)".to_owned(), "it stopped: wasm `unreachable` instruction executed"),
        ("reads outside", "(i32.load (i32.const -4))".to_owned(), "it stopped: out of bounds memory access"),
        ("calls the host without end", forever(&ask), "it made more than 10000 look-ups"),
        ("logs without end", forever("(call $log (i32.const 0) (i32.const 0))"), NO_ANSWER),
        ("fetches its request without end", forever("(call $fetch (i32.const 64) (i32.const 128))"), NO_ANSWER),
        ("fetches its request to outside", nothing_after("(call $fetch (i32.const -1) (i32.const -1))"), OUTSIDE),
        ("answers from outside", "(call $respond (i32.const -9) (i32.const 8)) (i32.const 1)".to_owned(), OUTSIDE),
        (
            "answers with more than it may",
            LARGE.to_owned(),
            "it is not a waPC policy: it passed a text of more than 16 MiB",
        ),
        ("says nothing", NOTHING.to_owned(), "it is not a waPC policy: it returned neither an answer nor an error"),
        ("fails", nothing_after("(call $fail (i32.const 0) (i32.const 4))"), "it returned an error: \"v1\""),
    ] {
        assert_eq!(evaluate(&module("", "", &call)).expect_err(name).to_string(), message, "{name}");
    }
    let at_start = evaluate(&module("", "(loop $again (br $again))", NOTHING));
    assert_eq!(at_start.unwrap_err().to_string(), NO_ANSWER, "loops as it begins");
}

#[test]
fn answer_that_is_not_one_of_a_policy_is_an_error() {
    let deep = "[".repeat(2_000);
    for text in ["hello", "", "5", r#"{"accepted": "yes"}"#, r#"{"accepted": true"#, &deep] {
        match evaluate(&module(text, "", &respond(text.len()))) {
            Err(error) if error.to_string().starts_with("its answer can't be read: ") => {}
            other => panic!("{text:?}: {other:?}"),
        }
    }
    let text = r#"{"accepted": false, "message": "it is taken", "code": 403}"#;
    let denied = Response { message: Some("it is taken".to_owned()), code: Some(403), ..Response::default() };
    assert_eq!(evaluate(&module(text, "", &respond(text.len()))).unwrap(), denied);
}

/// A module that has trapped must not leave anything to the next request.
#[test]
fn every_operation_gets_an_instance_of_its_own() {
    let text = r#"{"valid": true, "message": null}"#;
    // Address 8 counts the operations of this instance.
    let once = "(if (i32.load (i32.const 8)) (then (unreachable))) (i32.store (i32.const 8) (i32.const 1))";
    let is_validate = "(if (i32.eq (local.get $operation) (i32.const 8)) (then (unreachable)))";
    let text = module(text, "", &format!("{once} {is_validate} {}", respond(text.len())));
    let module = WasmModule::new(&wat::parse_str(text).unwrap(), LIMITS).unwrap();
    for _ in 0..3 {
        let failed = module.validate(&request(service()), &json!({}), Arc::new(NoCluster));
        assert!(failed.unwrap_err().to_string().starts_with("it stopped: "));
        assert!(module.validate_settings(&json!({})).unwrap().valid);
    }
}

#[test]
fn module_that_is_no_policy_is_not_loaded() {
    const NO_MODULE: &str = "it is not a WebAssembly module that can be run: ";
    const NO_POLICY: &str = "it is not a waPC policy: ";
    let text = |text: &str| wat::parse_str(text).unwrap();
    let without_memory = r#"(module (import "wapc" "__guest_response" (func $respond (param i32 i32)))
        (func (export "__guest_call") (param i32 i32) (result i32)
            (call $respond (i32.const 0) (i32.const 0)) (i32.const 1)))"#;
    let working = module("", "", "(i32.const 0)");
    for (name, bytes, message) in [
        ("text", b"hello".to_vec(), NO_MODULE),
        ("half a module", text(&working)[..100].to_vec(), NO_MODULE),
        (
            "a module for WASI",
            text(r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))))"#),
            "it is not a waPC policy: it imports wasi_snapshot_preview1.proc_exit",
        ),
        (
            "another function of waPC",
            text(r#"(module (import "wapc" "__host_exec" (func)))"#),
            "it is not a waPC policy: it imports wapc.__host_exec",
        ),
        ("other parameters", text(r#"(module (import "wapc" "__guest_error" (func)))"#), NO_POLICY),
        ("nothing to call", text(r#"(module (memory (export "memory") 1))"#), NO_POLICY),
        ("no memory", text(without_memory), "it is not a waPC policy: it does not export its memory"),
        (
            "a memory that begins above the limit",
            text(r#"(module (memory (export "memory") 65))"#),
            "it needs more than 4 MiB of memory",
        ),
        (
            "another protocol",
            text(&working.replace("v1", "v2")),
            "it is not a waPC policy: it speaks version \"v2\" of the protocol, expected \"v1\"",
        ),
    ] {
        match WasmModule::new(&bytes, LIMITS) {
            Err(error) => assert!(error.to_string().starts_with(message), "{name}: {error}"),
            Ok(_) => panic!("{name}: loaded"),
        }
    }
    let large = std::env::temp_dir().join(format!("clusterip-large-{}.wasm", std::process::id()));
    fs::write(&large, vec![0; (16 << 20) + 1]).unwrap();
    let error = WasmModule::load(&large, LIMITS).err().unwrap();
    fs::remove_file(&large).unwrap();
    assert_eq!(error.to_string(), "it is not a WebAssembly module that can be run: it has more than 16 MiB");
}
