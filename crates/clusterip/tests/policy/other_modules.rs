//! Other modules than the policy: those that do not follow the protocol, and that no module exceeds its limits.

use std::sync::Arc;

use crate::support::{NoCluster, request, service};
use clusterip::policy::module::{EMBEDDED, Module, ModuleError};
use clusterip_core::answer::Answer;
use serde_json::json;

/// A waPC module in WebAssembly text. `data` is its memory from address 0 on, `call` is the body of `__guest_call`,
/// whose first parameter is the length of the operation's name.
fn wat(data: &str, init: &str, call: &str) -> String {
    let data = data.replace('"', "\\22");
    format!(
        r#"(module
            (import "wapc" "__guest_response" (func $respond (param i32 i32)))
            (import "wapc" "__guest_error" (func $fail (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "{data}")
            (global $calls (mut i32) (i32.const 0))
            (func $deeper (call $deeper))
            (func (export "wapc_init") {init})
            (func (export "__guest_call") (param $operation i32) (param $payload i32) (result i32) {call}))"#
    )
}

/// A body that answers with the first `length` bytes of the memory.
fn respond(length: usize) -> String {
    format!("(call $respond (i32.const 0) (i32.const {length})) (i32.const 1)")
}

fn module(text: &str) -> Module {
    Module::new(&wat::parse_str(text).unwrap()).unwrap()
}

fn evaluate(wat: &str) -> Result<Answer, ModuleError> {
    module(wat).validate(&request(service()), &json!({}), Arc::new(NoCluster))
}

#[test]
fn misbehaving_policy_fails_within_its_limits() {
    struct Case {
        name: &'static str,
        wat: String,
        reason: &'static str,
    }
    const FOREVER: &str = "(loop $again (br $again)) (i32.const 0)";
    const GROW: &str = "(loop $again (drop (memory.grow (i32.const 16))) (br $again)) (i32.const 0)";
    let rows = [
        Case { name: "it loops for ever", wat: wat("", "", FOREVER), reason: "deadline" },
        Case { name: "it grows for ever", wat: wat("", "", GROW), reason: "deadline" },
        Case {
            name: "it loops for ever as it begins",
            wat: wat("", "(loop $again (br $again))", "(i32.const 0)"),
            reason: "deadline",
        },
        Case { name: "it traps", wat: wat("", "", "(unreachable)"), reason: "unreachable" },
        Case {
            name: "it recurses for ever",
            wat: wat("", "", "(call $deeper) (i32.const 0)"),
            reason: "call stack exhausted",
        },
        Case {
            name: "it reads outside its memory",
            wat: wat("", "", "(i32.load (i32.const -4))"),
            reason: "out of bounds memory access",
        },
        Case {
            name: "it answers from outside its memory",
            wat: wat("", "", "(call $respond (i32.const -9) (i32.const 8)) (i32.const 1)"),
            reason: "misused the waPC interface",
        },
        Case {
            name: "it gives an error",
            wat: wat("no way", "", "(call $fail (i32.const 0) (i32.const 6)) (i32.const 0)"),
            reason: "no way",
        },
        Case { name: "it gives nothing", wat: wat("", "", "(i32.const 0)"), reason: "neither an answer nor an error" },
    ];
    for Case { name, wat, reason } in rows {
        match evaluate(&wat) {
            Err(ModuleError::Call(text)) => assert!(text.contains(reason), "{name}: {text}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn invalid_answer_is_an_error() {
    for text in ["hello", "", "5", r#"{"accepted": "yes"}"#, r#"{"accepted": true"#] {
        match evaluate(&wat(text, "", &respond(text.len()))) {
            Err(ModuleError::Answer(_)) => {}
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn memory_can_not_grow_beyond_the_limit() {
    // The module starts with one page of 64 KiB. The limit is 256 MiB.
    let grow = |pages: u32| {
        let text = r#"{"message": "refused"}"#;
        let refused = respond(text.len());
        wat(
            text,
            "",
            &format!(
                "(if (result i32) (i32.eq (memory.grow (i32.const {pages})) (i32.const -1)) (then {refused}) (else (unreachable)))"
            ),
        )
    };
    let refused = Answer { message: Some("refused".to_owned()), ..Answer::default() };
    assert_eq!(evaluate(&grow(4096)).unwrap(), refused);
    match evaluate(&grow(4095)) {
        Err(ModuleError::Call(text)) => assert!(text.contains("unreachable"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn evaluation_works_after_a_failed_one() {
    // `validate` has 8 letters.
    let text = r#"{"valid": true, "message": null}"#;
    for bad in ["(loop $again (br $again))", "(unreachable)", "(call $deeper)"] {
        let body = format!("(if (i32.eq (local.get $operation) (i32.const 8)) (then {bad})) {}", respond(text.len()));
        let module = module(&wat(text, "", &body));
        for _ in 0..2 {
            let failed = module.validate(&request(service()), &json!({}), Arc::new(NoCluster));
            assert!(matches!(failed, Err(ModuleError::Call(_))), "{bad}: {failed:?}");
            assert!(module.validate_settings(&json!({})).unwrap().valid, "{bad}");
        }
    }
}

#[test]
fn every_evaluation_gets_a_fresh_instance() {
    let text = r#"{"valid": true, "message": null}"#;
    let body = format!(
        "(if (global.get $calls) (then (unreachable))) (global.set $calls (i32.const 1)) {}",
        respond(text.len())
    );
    let module = module(&wat(text, "", &body));
    for _ in 0..3 {
        assert!(module.validate_settings(&json!({})).unwrap().valid);
    }
}

#[test]
fn module_that_is_not_a_policy_is_not_loaded() {
    let rows: [(&str, &[u8]); 7] = [
        ("nothing", b""),
        ("text", b"hello"),
        ("half a module", &EMBEDDED[..EMBEDDED.len() / 2]),
        ("no WebAssembly of this version", b"\0asm\x02\0\0\0"),
        ("an import from elsewhere", br#"(module (import "env" "f" (func)) (func (export "__guest_call") (param i32 i32) (result i32) (i32.const 0)))"#),
        ("no function to call", br#"(module (memory (export "memory") 1))"#),
        ("an import of WASI", br#"(module (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))))"#),
    ];
    for (name, bytes) in rows {
        let binary = wat::parse_bytes(bytes).map_or(bytes.to_vec(), Into::into);
        match Module::new(&binary) {
            Err(ModuleError::Load(_)) => {}
            Err(other) => panic!("{name}: {other:?}"),
            Ok(_) => panic!("{name}: loaded"),
        }
    }
}
