//! How the fields of an admission request are read.

use clusterip_core::request::Request;
use serde_json::{Value, json};

use crate::support::{created, service, with_field};

#[test]
fn unreadable_request_is_refused_with_the_path() {
    struct Case {
        name: &'static str,
        request: Value,
        expected: &'static str,
    }
    let plain = || created(service(json!({})));
    let rows = [
        Case { name: "no request", request: Value::Null, expected: "request: expected an object, found null" },
        Case {
            name: "no operation",
            request: with_field(plain(), "operation", Value::Null),
            expected: "request.operation: expected an operation, found nothing",
        },
        Case {
            name: "no kind",
            request: with_field(plain(), "kind", Value::Null),
            expected: "request.kind: expected a kind, found nothing",
        },
        Case {
            name: "no object",
            request: with_field(plain(), "object", Value::Null),
            expected: "request.object: expected a Service, found nothing",
        },
        Case {
            name: "an update without oldObject",
            request: with_field(plain(), "operation", json!("UPDATE")),
            expected: "request.oldObject: expected a Service, found nothing",
        },
        Case {
            name: "an object that is a string",
            request: with_field(plain(), "object", json!("web")),
            expected: r#"request.object: expected an object, found the string "web""#,
        },
        Case {
            name: "a label",
            request: created(json!({"metadata": {"labels": {"a": 1}}})),
            expected: "request.object.metadata.labels.a: expected a string, found the number 1",
        },
        Case {
            name: "an address",
            request: created(service(json!({"clusterIP": 7}))),
            expected: "request.object.spec.clusterIP: expected a string, found the number 7",
        },
        Case {
            name: "a family",
            request: created(service(json!({"ipFamilies": ["IPv4", "ipv6"]}))),
            expected: r#"request.object.spec.ipFamilies[1]: expected IPv4 or IPv6, found the string "ipv6""#,
        },
        Case {
            name: "a policy",
            request: created(service(json!({"ipFamilyPolicy": "Dual"}))),
            expected: r#"request.object.spec.ipFamilyPolicy: expected SingleStack, PreferDualStack or RequireDualStack, found the string "Dual""#,
        },
    ];
    for Case { name, request, expected } in rows {
        assert_eq!(Request::read(&request).unwrap_err().to_string(), expected, "{name}");
    }
}

#[test]
fn namespace_and_name_default_to_those_of_the_object() {
    struct NameCase {
        name: &'static str,
        request: Value,
        hash_key: &'static str,
        subject: &'static str,
    }
    let mut unnamed = service(json!({}));
    unnamed["metadata"] = json!({"generateName": "web-"});
    let rows = [
        NameCase { name: "both", request: created(service(json!({}))), hash_key: "shop/web", subject: "shop/web" },
        NameCase {
            name: "from the object",
            request: with_field(with_field(created(service(json!({}))), "name", Value::Null), "namespace", json!("")),
            hash_key: "shop/web",
            subject: "shop/web",
        },
        NameCase {
            name: "generateName",
            request: with_field(created(unnamed), "namespace", json!("shop")),
            hash_key: "shop/7f3c0e1a-uid",
            subject: "shop/(name yet to be generated)",
        },
    ];
    for NameCase { name, request, hash_key, subject } in rows {
        let request = Request::read(&request).unwrap();
        assert_eq!((request.hash_key().as_str(), request.subject().as_str()), (hash_key, subject), "{name}");
    }
}
