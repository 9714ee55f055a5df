//! The answer of the module to payloads that are not JSON documents, and to fields that it does not read. The tests of
//! `clusterip-core` have the mistakes in the fields that it reads.

use clusterip_core::Response;
use serde_json::{Value, json};

use crate::support::{answer, nested, payload, request, request_with, service};

struct Case {
    name: &'static str,
    payload: Vec<u8>,
    reason: &'static str,
}

/// Every payload must be denied with a message that begins with the reason.
#[track_caller]
fn check(rows: Vec<Case>) {
    for Case { name, payload, reason } in rows {
        let answer = answer(&payload);
        let message = answer.message.clone().unwrap_or_default();
        assert!(message.starts_with(reason), "{name}: {message}");
        let audit = [("decision".to_owned(), "denied".to_owned()), ("reason".to_owned(), message.clone())].into();
        let denied =
            Response { message: Some(message), code: Some(400), audit_annotations: Some(audit), ..Response::default() };
        assert_eq!(answer, denied, "{name}");
    }
}

#[test]
fn payload_that_is_not_a_json_document_is_denied_with_the_reason() {
    check(vec![
        Case {
            name: "nothing",
            payload: b"".to_vec(),
            reason: "the request is not a JSON document with request and settings: EOF",
        },
        Case {
            name: "no JSON",
            payload: b"hello".to_vec(),
            reason: "the request is not a JSON document with request and settings: expected value",
        },
        Case {
            name: "not UTF-8",
            payload: b"{\"request\": \"\xff\"}".to_vec(),
            reason: "the request is not a JSON document with request and settings: invalid unicode",
        },
        Case {
            name: "half a document",
            payload: payload(request(service()))[..200].to_vec(),
            reason: "the request is not a JSON document with request and settings: EOF",
        },
        Case {
            name: "more than a document",
            payload: b"{} {}".to_vec(),
            reason: "the request is not a JSON document with request and settings: trailing characters",
        },
        Case {
            name: "a number",
            payload: b"5".to_vec(),
            reason: "the request is not a JSON document with request and settings: found the number 5",
        },
        Case {
            name: "a list",
            payload: b"[{}, {}]".to_vec(),
            reason: "the request is not a JSON document with request and settings: found a list",
        },
        Case {
            name: "10,000 levels",
            payload: format!("{{\"request\": {}}}", nested(10_000)).into_bytes(),
            reason: "the request is not a JSON document with request and settings: recursion limit exceeded",
        },
    ]);
}

#[test]
fn unused_fields_may_have_any_value() {
    struct Case {
        name: &'static str,
        pointer: &'static str,
        value: Value,
    }
    let plain = answer(&payload(request(service())));
    assert_eq!(plain.audit_annotations.as_ref().unwrap()["decision"], "allocated");
    let deep: Value = serde_json::from_str(&nested(100)).unwrap();
    for Case { name, pointer, value } in [
        Case { name: "a user without a name", pointer: "/userInfo", value: Value::Null },
        Case { name: "ports of 100 levels", pointer: "/object/spec/ports", value: deep.clone() },
        Case { name: "a number as the resource", pointer: "/resource", value: json!(5) },
    ] {
        let request = request_with(pointer, value);
        let mut expected = plain.clone();
        let mut object = request["object"].clone();
        object["spec"]["clusterIP"] = plain.mutated_object.as_ref().unwrap()["spec"]["clusterIP"].clone();
        expected.mutated_object = Some(object);
        assert_eq!(answer(&payload(request)), expected, "{name}");
    }
}
