//! Guests that misbehave: no guest exceeds its limits, and a module that is not a policy is not loaded.

use std::sync::Arc;

use clusterip_core::answer::Answer;
use clusterip_host::policy::module::{Module, ModuleError};
use serde_json::json;

use crate::support::{NoCluster, guest, request, service};

fn evaluate(name: &str) -> Result<Answer, ModuleError> {
    Module::new(guest(name)).unwrap().validate(&request(service()), &json!({}), Arc::new(NoCluster))
}

#[test]
fn misbehaving_policy_fails_within_its_limits() {
    struct Case {
        guest: &'static str,
        reason: &'static str,
    }
    let rows = [
        Case { guest: "loops for ever", reason: "deadline" },
        Case { guest: "grows for ever", reason: "deadline" },
        Case { guest: "loops for ever as it begins", reason: "deadline" },
        Case { guest: "traps", reason: "unreachable" },
        Case { guest: "recurses for ever", reason: "call stack exhausted" },
        Case { guest: "reads outside its memory", reason: "out of bounds memory access" },
        Case { guest: "answers from outside its memory", reason: "misused the waPC interface" },
        Case { guest: "gives an error", reason: "no way" },
        Case { guest: "gives nothing", reason: "neither an answer nor an error" },
    ];
    for Case { guest, reason } in rows {
        match evaluate(guest) {
            Err(ModuleError::Call(text)) => assert!(text.contains(reason), "{guest}: {text}"),
            other => panic!("{guest}: {other:?}"),
        }
    }
}

#[test]
fn invalid_answer_is_an_error() {
    for text in ["hello", "", "5", r#"{"accepted": "yes"}"#, r#"{"accepted": true"#] {
        match evaluate(&format!("answers {text}")) {
            Err(ModuleError::Answer(_)) => {}
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn memory_can_not_grow_beyond_the_limit() {
    // The guests start with one page of 64 KiB. The limit is 256 MiB.
    let refused = Answer { message: Some("refused".to_owned()), ..Answer::default() };
    assert_eq!(evaluate("traps with 4096 more pages").unwrap(), refused);
    match evaluate("traps with 4095 more pages") {
        Err(ModuleError::Call(text)) => assert!(text.contains("unreachable"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn evaluation_works_after_a_failed_one() {
    for bad in ["loops for ever in validate", "traps in validate", "recurses for ever in validate"] {
        let module = Module::new(guest(bad)).unwrap();
        for _ in 0..2 {
            let failed = module.validate(&request(service()), &json!({}), Arc::new(NoCluster));
            assert!(matches!(failed, Err(ModuleError::Call(_))), "{bad}: {failed:?}");
            assert!(module.validate_settings(&json!({})).unwrap().valid, "{bad}");
        }
    }
}

#[test]
fn every_evaluation_gets_a_fresh_instance() {
    let module = Module::new(guest("answers once")).unwrap();
    for _ in 0..3 {
        assert!(module.validate_settings(&json!({})).unwrap().valid);
    }
}

/// The second evaluation in an instance of this guest traps.
#[test]
fn series_evaluates_again_after_an_error_in_a_used_instance() {
    let module = Module::new(guest("answers once")).unwrap();
    let mut series = module.series();
    for number in 1..=4 {
        let answer = series.validate(&request(service()), &json!({}), Arc::new(NoCluster));
        assert_eq!(answer.unwrap(), Answer::default(), "evaluation {number}");
    }
}

#[test]
fn module_that_is_not_a_policy_is_not_loaded() {
    for name in ["an import from elsewhere", "no function to call", "an import of WASI"] {
        match Module::new(guest(name)) {
            Err(ModuleError::Load(_)) => {}
            Err(other) => panic!("{name}: {other:?}"),
            Ok(_) => panic!("{name}: loaded"),
        }
    }
}
