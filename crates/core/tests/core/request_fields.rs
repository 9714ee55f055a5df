//! How the fields of an admission request are read.

use std::net::IpAddr;

use clusterip_core::request::{About, Request};
use serde_json::{Value, json};

use crate::support::{created, service, with_field};

#[test]
fn unreadable_request_is_refused_with_the_path() {
    let plain = || created(service(json!({})));
    let with_spec = |spec: Value| created(service(spec));
    for (request, expected) in [
        (Value::Null, ": expected an object, found null"),
        (with_field(plain(), "operation", Value::Null), ".operation: expected an operation, found nothing"),
        (with_field(plain(), "kind", Value::Null), ".kind: expected a kind, found nothing"),
        (with_field(plain(), "object", Value::Null), ".object: expected a Service, found nothing"),
        (with_field(plain(), "operation", json!("UPDATE")), ".oldObject: expected a Service, found nothing"),
        (with_field(plain(), "object", json!("web")), r#".object: expected an object, found the string "web""#),
        (
            created(json!({"metadata": {"labels": {"a": 1}}})),
            ".object.metadata.labels.a: expected a string, found the number 1",
        ),
        (with_spec(json!({"clusterIP": 7})), ".object.spec.clusterIP: expected a string, found the number 7"),
        (
            with_spec(json!({"ipFamilies": ["IPv4", "ipv6"]})),
            r#".object.spec.ipFamilies[1]: expected IPv4 or IPv6, found the string "ipv6""#,
        ),
        (
            with_spec(json!({"ipFamilyPolicy": "Dual"})),
            r#".object.spec.ipFamilyPolicy: expected SingleStack, PreferDualStack or RequireDualStack, found the string "Dual""#,
        ),
    ] {
        assert_eq!(Request::read(&request).unwrap_err().to_string(), format!("request{expected}"));
    }
}

#[test]
fn namespace_and_name_default_to_those_of_the_object() {
    let mut unnamed = service(json!({}));
    unnamed["metadata"] = json!({"generateName": "web-"});
    let plain = created(service(json!({})));
    let nameless = with_field(with_field(plain.clone(), "name", Value::Null), "namespace", json!(""));
    let generated = with_field(created(unnamed), "namespace", json!("shop"));
    for (request, hash_key, subject) in [
        (plain, "shop/web", "shop/web"),
        (nameless, "shop/web", "shop/web"),
        (generated, "shop/7f3c0e1a-uid", "shop/(name yet to be generated)"),
    ] {
        let request = Request::read(&request).unwrap();
        assert_eq!((request.hash_key().as_str(), request.subject().as_str()), (hash_key, subject));
    }
}

#[test]
fn update_is_completed_from_the_stored_service() {
    let stored = || json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"]});
    let other = |all: [&str; 2]| json!({"clusterIP": "10.0.0.7", "clusterIPs": all});
    for (name, spec, expected) in [
        ("no address", json!({}), &["10.0.0.5", "fd00::5"][..]),
        ("another address", json!({"clusterIP": "10.0.0.7"}), &["10.0.0.7"]),
        ("another address, the same list", other(["10.0.0.5", "fd00::5"]), &["10.0.0.7"]),
        ("another address, another list", other(["10.0.0.7", "fd00::7"]), &["10.0.0.7", "fd00::7"]),
    ] {
        let request = Request::of_service("", &service(spec), Some(&service(stored()))).unwrap();
        let About::Service(change) = request.about else { panic!("{name}: {request:?}") };
        let found: Vec<String> = change.object.addresses().iter().map(IpAddr::to_string).collect();
        assert_eq!(found, expected, "{name}");
    }
}
