//! The answer of the module to payloads that no JSON reader should fail on, and to fields that it does not read. The tests
//! of `clusterip-core` have all other mistakes.

use std::sync::Arc;

use clusterip_core::Response;
use serde_json::{Value, json};

use crate::support::{NoCluster, call, payload, request, service};

fn answer(payload: &[u8]) -> Response {
    serde_json::from_slice(&call("validate", payload, Arc::new(NoCluster)).unwrap()).unwrap()
}

/// Nested lists.
fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

#[test]
fn payload_that_is_not_a_json_document_is_denied_with_the_reason() {
    for (name, payload, reason) in [
        ("half a document", payload(request(service()))[..200].to_vec(), "EOF"),
        ("not UTF-8", b"{\"request\": \"\xff\"}".to_vec(), "invalid unicode"),
        ("10,000 levels", format!("{{\"request\": {}}}", nested(10_000)).into_bytes(), "recursion limit exceeded"),
    ] {
        let answer = answer(&payload);
        let message = answer.message.clone().unwrap_or_default();
        let reason = format!("the request is not a JSON document with request and settings: {reason}");
        assert!(message.starts_with(&reason), "{name}: {message}");
        let audit = [("decision".to_owned(), "denied".to_owned()), ("reason".to_owned(), message.clone())].into();
        let denied =
            Response { message: Some(message), code: Some(400), audit_annotations: Some(audit), ..Response::default() };
        assert_eq!(answer, denied, "{name}");
    }
}

#[test]
fn unused_fields_may_have_any_value() {
    let plain = answer(&payload(request(service())));
    assert_eq!(plain.audit_annotations.as_ref().unwrap()["decision"], "allocated");
    let deep: Value = serde_json::from_str(&nested(100)).unwrap();
    for (name, pointer, value) in [
        ("a user without a name", "/userInfo", Value::Null),
        ("ports of 100 levels", "/object/spec/ports", deep),
        ("a number as the resource", "/resource", json!(5)),
    ] {
        let mut request = request(service());
        *request.pointer_mut(pointer).unwrap() = value;
        let mut object = request["object"].clone();
        object["spec"]["clusterIP"] = plain.mutated_object.as_ref().unwrap()["spec"]["clusterIP"].clone();
        let expected = Response { mutated_object: Some(object), ..plain.clone() };
        assert_eq!(answer(&payload(request)), expected, "{name}");
    }
}
