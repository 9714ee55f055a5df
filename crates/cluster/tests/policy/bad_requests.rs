//! The answer of the module to invalid requests, about Services and about Nodes.

use clusterip_core::response::Response;
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
fn unreadable_request_is_denied_with_the_reason() {
    check(vec![
        Case {
            name: "no request",
            payload: b"{}".to_vec(),
            reason: "the request can't be read: request: expected an object, found null",
        },
        Case {
            name: "request: null",
            payload: payload(Value::Null),
            reason: "the request can't be read: request: expected an object, found null",
        },
        Case {
            name: "request: []",
            payload: payload(json!([])),
            reason: "the request can't be read: request: expected an object, found a list",
        },
        Case {
            name: "an empty request",
            payload: payload(json!({})),
            reason: "the request can't be read: request.operation: expected an operation, found nothing",
        },
        Case {
            name: "no kind",
            payload: payload(request_with("/kind", Value::Null)),
            reason: "the request can't be read: request.kind: expected a kind, found nothing",
        },
        Case {
            name: "operation: 5",
            payload: payload(request_with("/operation", json!(5))),
            reason: "the request can't be read: request.operation: expected a string, found the number 5",
        },
        Case {
            name: "object: null",
            payload: payload(request_with("/object", Value::Null)),
            reason: "the request can't be read: request.object: expected a Service, found nothing",
        },
        Case {
            name: "object: []",
            payload: payload(request_with("/object", json!([]))),
            reason: "the request can't be read: request.object: expected an object, found a list",
        },
        Case {
            name: "no oldObject",
            payload: payload(request_with("/operation", json!("UPDATE"))),
            reason: "the request can't be read: request.oldObject: expected a Service, found nothing",
        },
        Case {
            name: "metadata: []",
            payload: payload(request_with("/object/metadata", json!([]))),
            reason: "the request can't be read: request.object.metadata: expected an object, found a list",
        },
        Case {
            name: "spec: 5",
            payload: payload(request_with("/object/spec", json!(5))),
            reason: "the request can't be read: request.object.spec: expected an object, found the number 5",
        },
        Case {
            name: "selector: [web]",
            payload: payload(request_with("/object/spec/selector", json!(["web"]))),
            reason: "the request can't be read: request.object.spec.selector: expected an object, found a list",
        },
        Case {
            name: "selector: {app: 5}",
            payload: payload(request_with("/object/spec/selector/app", json!(5))),
            reason: "the request can't be read: request.object.spec.selector.app: expected a string, found the number \
                     5",
        },
        Case {
            name: "a selector of 100 levels",
            payload: payload(request_with("/object/spec/selector/app", serde_json::from_str(&nested(100)).unwrap())),
            reason: "the request can't be read: request.object.spec.selector.app: expected a string, found a list",
        },
    ]);
}

#[test]
fn unreadable_settings_are_denied_with_the_reason() {
    check(vec![
        Case {
            name: "settings: []",
            payload: br#"{"request": {}, "settings": []}"#.to_vec(),
            reason: "invalid settings: settings: expected an object, found a list",
        },
        Case {
            name: "settings with a mistake",
            payload: br#"{"request": {}, "settings": {"servces": {}}}"#.to_vec(),
            reason: "invalid settings: servces: unknown key \"servces\": did you mean services?",
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

#[test]
fn invalid_node_is_denied_with_the_reason() {
    struct Case {
        name: &'static str,
        payload: Vec<u8>,
        reason: &'static str,
    }
    let about = |object: Value, allocation: Value| {
        let mut request = request(object);
        request["kind"]["kind"] = "Node".into();
        let settings = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
        serde_json::to_vec(&json!({"request": request, "settings": settings, "allocation": allocation})).unwrap()
    };
    let good = || json!({"metadata": {"name": "w1"}, "spec": {}});
    let rows = [
        Case {
            name: "object: null",
            payload: about(Value::Null, Value::Null),
            reason: "request.object: expected a Node, found nothing",
        },
        Case {
            name: "labels",
            payload: about(json!({"metadata": {"labels": 5}}), Value::Null),
            reason: "request.object.metadata.labels: expected an object, found the number 5",
        },
        Case {
            name: "podCIDRs",
            payload: about(json!({"spec": {"podCIDRs": {}}}), Value::Null),
            reason: "request.object.spec.podCIDRs: expected a list, found an object",
        },
        Case {
            name: "allocation: []",
            payload: about(good(), json!([])),
            reason: "allocation: expected an object, found a list",
        },
        Case {
            name: "allocation.held",
            payload: about(good(), json!({"held": [5]})),
            reason: "allocation.held[0]: expected a string, found the number 5",
        },
        Case {
            name: "allocation.last",
            payload: about(good(), json!({"last": ["x"]})),
            reason: r#"allocation.last[0]: expected a CIDR, found the string "x""#,
        },
    ];
    for Case { name, payload, reason } in rows {
        let answer = answer(&payload);
        let expected = Some(format!("the request can't be read: {reason}"));
        assert_eq!((answer.message, answer.code), (expected, Some(400)), "{name}");
    }
    let given = answer(&about(good(), json!({"held": ["10.0.0.0/24"], "last": null})));
    let expected = json!({"metadata": {"name": "w1"}, "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}});
    assert_eq!(given.mutated_object, Some(expected));
}
