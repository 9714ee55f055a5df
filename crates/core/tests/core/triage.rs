//! What an admission request needs, case by case.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{created, request, service, updated};
use clusterip_core::request::Request;
use clusterip_core::settings::Settings;
use clusterip_core::triage::{Triage, triage};
use serde_json::{Value, json};

/// The verdict in a word or two, with addresses or the reason.
#[track_caller]
fn asked(request: &Value, settings: &Settings) -> String {
    let request = Request::read(request).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    match triage(&request, settings) {
        Triage::Leave(reason) => format!("leave: {reason}"),
        Triage::Keep(_) => "keep".into(),
        Triage::Allocate(_) => "allocate".into(),
        Triage::AllocateSecond(_, first) => format!("allocate beside {first}"),
        Triage::Check(_, addresses) => {
            format!("check {}", addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    }
}

struct Case {
    name: &'static str,
    request: Value,
    expected: &'static str,
}

#[track_caller]
fn check(cases: &[Case]) {
    for Case { name, request, expected } in cases {
        assert_eq!(asked(request, &Settings::default()), *expected, "{name}");
    }
}

/// The request with one field of the request itself, not of its object, changed.
fn with(mut request: Value, key: &str, value: Value) -> Value {
    request[key] = value;
    request
}

fn named(namespace: &str, name: &str, spec: Value) -> Value {
    let mut object = service(spec);
    object["metadata"] = json!({"name": name, "namespace": namespace});
    object
}

#[test]
fn request_for_another_object_or_exempt_service_is_left() {
    let plain = || created(service(json!({})));
    let foreign = "leave: not a Service that is created or updated";
    let kubernetes = "leave: default/kubernetes belongs to the API server";
    check(&[
        Case {
            name: "default/kubernetes created",
            request: created(named("default", "kubernetes", json!({"clusterIP": "10.0.0.1"}))),
            expected: kubernetes,
        },
        Case {
            name: "default/kubernetes updated",
            request: updated(named("default", "kubernetes", json!({})), named("default", "kubernetes", json!({}))),
            expected: kubernetes,
        },
        Case {
            name: "a Service kubernetes in another namespace",
            request: created(named("shop", "kubernetes", json!({}))),
            expected: "allocate",
        },
        Case {
            name: "another Service in default",
            request: created(named("default", "web", json!({}))),
            expected: "allocate",
        },
        Case {
            name: "an exempt namespace",
            request: created(named("kube-system", "dns", json!({}))),
            expected: "leave: namespace kube-system is exempt",
        },
        Case {
            name: "deletion",
            request: request("DELETE", Value::Null, service(json!({"clusterIP": "10.0.0.7"}))),
            expected: foreign,
        },
        Case {
            name: "CONNECT",
            request: request("CONNECT", json!({"kind": "ServiceProxyOptions"}), Value::Null),
            expected: foreign,
        },
        Case {
            name: "another kind",
            request: with(plain(), "kind", json!({"group": "", "version": "v1", "kind": "Endpoints"})),
            expected: foreign,
        },
        Case {
            name: "another group",
            request: with(plain(), "kind", json!({"group": "serving.knative.dev", "version": "v1", "kind": "Service"})),
            expected: foreign,
        },
        Case {
            name: "another version",
            request: with(plain(), "kind", json!({"group": "", "version": "v2", "kind": "Service"})),
            expected: foreign,
        },
        Case { name: "a sub-resource", request: with(plain(), "subResource", json!("status")), expected: foreign },
        Case { name: "an empty sub-resource", request: with(plain(), "subResource", json!("")), expected: "allocate" },
        Case {
            name: "the group left out",
            request: with(plain(), "kind", json!({"version": "v1", "kind": "Service"})),
            expected: "allocate",
        },
    ]);
}

#[test]
fn service_that_needs_no_address_is_left() {
    let create = |spec: Value| created(service(spec));
    let unpaired = "leave: clusterIPs without clusterIP: the API server refuses it";
    check(&[
        Case { name: "headless", request: create(json!({"clusterIP": "None"})), expected: "leave: headless" },
        Case {
            name: "headless twice",
            request: create(json!({"clusterIP": "None", "clusterIPs": ["None"]})),
            expected: "leave: headless",
        },
        Case {
            name: "headless in clusterIPs alone",
            request: create(json!({"clusterIPs": ["None"]})),
            expected: "leave: headless",
        },
        Case {
            name: "headless without a selector",
            request: create(json!({"clusterIP": "None", "selector": null})),
            expected: "leave: headless",
        },
        Case {
            name: "ExternalName",
            request: create(json!({"type": "ExternalName"})),
            expected: "leave: type ExternalName has no address",
        },
        Case {
            name: "update to ExternalName",
            request: updated(service(json!({"clusterIP": "10.0.0.7"})), service(json!({"type": "ExternalName"}))),
            expected: "leave: type ExternalName has no address",
        },
        Case {
            name: "clusterIPs without clusterIP",
            request: create(json!({"clusterIPs": ["10.0.0.7"]})),
            expected: unpaired,
        },
        Case {
            name: "clusterIPs beside an empty clusterIP",
            request: create(json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]})),
            expected: unpaired,
        },
        Case {
            name: "an empty clusterIP applied to a Service that has one",
            request: updated(
                service(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]})),
                service(json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]})),
            ),
            expected: "keep",
        },
        Case {
            name: "the same with another list",
            request: updated(
                service(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]})),
                service(json!({"clusterIP": "", "clusterIPs": ["10.0.0.8"]})),
            ),
            expected: unpaired,
        },
    ]);
}

#[test]
fn service_created_without_an_address_gets_one() {
    let create = |spec: Value| created(service(spec));
    let mut unnamed = service(json!({}));
    unnamed["metadata"] = json!({"generateName": "web-", "namespace": "shop"});
    check(&[
        Case {
            name: "a Service with a selector",
            request: create(json!({"selector": {"app": "web"}})),
            expected: "allocate",
        },
        Case { name: "a Service without a selector", request: create(json!({})), expected: "allocate" },
        Case { name: "a Service without a spec", request: create(Value::Null), expected: "allocate" },
        Case { name: "an empty address", request: create(json!({"clusterIP": ""})), expected: "allocate" },
        Case { name: "null", request: create(json!({"clusterIP": null, "clusterIPs": null})), expected: "allocate" },
        Case { name: "empty lists", request: create(json!({"clusterIP": "", "clusterIPs": []})), expected: "allocate" },
        Case { name: "a list of an empty address", request: create(json!({"clusterIPs": [""]})), expected: "allocate" },
        Case { name: "ClusterIP", request: create(json!({"type": "ClusterIP"})), expected: "allocate" },
        Case { name: "NodePort", request: create(json!({"type": "NodePort"})), expected: "allocate" },
        Case { name: "LoadBalancer", request: create(json!({"type": "LoadBalancer"})), expected: "allocate" },
        Case { name: "generateName", request: created(unnamed), expected: "allocate" },
    ]);
}

#[test]
fn new_address_of_a_request_is_checked() {
    let create = |spec: Value| created(service(spec));
    let update = |old: Value, new: Value| updated(service(old), service(new));
    check(&[
        Case {
            name: "created with an address",
            request: create(json!({"clusterIP": "10.0.0.7"})),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "created with an address in both fields",
            request: create(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]})),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "created with two addresses",
            request: create(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]})),
            expected: "check 10.0.0.7, fd00::7",
        },
        Case {
            name: "created with an address that is not canonical",
            request: create(json!({"clusterIP": "fd00:0::0007"})),
            expected: "check fd00::7",
        },
        Case {
            name: "created with a text that is not an address",
            request: create(json!({"clusterIP": "web"})),
            expected: "check ",
        },
        Case {
            name: "the type changes from ExternalName, with an address",
            request: update(json!({"type": "ExternalName"}), json!({"clusterIP": "10.0.0.7"})),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "the type changes from ExternalName, with an address and RequireDualStack",
            request: update(
                json!({"type": "ExternalName"}),
                json!({"clusterIP": "10.0.0.7", "ipFamilyPolicy": "RequireDualStack"}),
            ),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "the type changes from ExternalName, with the address that the Service still had",
            request: update(json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7"})),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "a second address",
            request: update(
                json!({"clusterIP": "10.0.0.7"}),
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]}),
            ),
            expected: "check fd00::7",
        },
        Case {
            name: "another address",
            request: update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.8"})),
            expected: "check 10.0.0.8",
        },
    ]);
}

#[test]
fn update_that_leaves_external_name_gets_an_address() {
    let update = |old: Value, new: Value| updated(service(old), service(new));
    check(&[
        Case {
            name: "the type changes from ExternalName to the default",
            request: update(json!({"type": "ExternalName"}), json!({})),
            expected: "allocate",
        },
        Case {
            name: "the type changes from ExternalName to LoadBalancer",
            request: update(json!({"type": "ExternalName"}), json!({"type": "LoadBalancer", "clusterIP": ""})),
            expected: "allocate",
        },
        Case {
            name: "the type changes from ExternalName to headless",
            request: update(json!({"type": "ExternalName"}), json!({"clusterIP": "None"})),
            expected: "leave: headless",
        },
        Case {
            name: "the type stays ExternalName",
            request: update(json!({"type": "ExternalName"}), json!({"type": "ExternalName"})),
            expected: "leave: type ExternalName has no address",
        },
    ]);
}

#[test]
fn update_to_dual_stack_gets_a_second_address() {
    let has = |more: Value| {
        let mut spec = json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let update = |old: Value, new: Value| updated(service(old), service(new));
    let single = || has(json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}));
    let no_new = "keep";
    check(&[
        Case {
            name: "RequireDualStack",
            request: update(single(), has(json!({"ipFamilyPolicy": "RequireDualStack"}))),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "RequireDualStack, and an empty clusterIP by server-side apply",
            request: update(single(), json!({"clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": "RequireDualStack"})),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack",
            request: update(single(), has(json!({"ipFamilyPolicy": "PreferDualStack"}))),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "a second family",
            request: update(
                single(),
                has(json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]})),
            ),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack before, RequireDualStack now",
            request: update(
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"ipFamilyPolicy": "RequireDualStack"})),
            ),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack before, and the second family is named now",
            request: update(
                has(json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]})),
                has(json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]})),
            ),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "the family of its address is named",
            request: update(has(json!({})), has(json!({"ipFamilies": ["IPv4"]}))),
            expected: no_new,
        },
        Case { name: "nothing changes", request: update(single(), single()), expected: no_new },
        Case {
            name: "PreferDualStack is unchanged",
            request: update(
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
            ),
            expected: no_new,
        },
        Case {
            name: "the Service has two addresses",
            request: update(
                has(json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": "RequireDualStack"})),
            ),
            expected: no_new,
        },
        Case {
            name: "RequireDualStack before, SingleStack now",
            request: update(has(json!({"ipFamilyPolicy": "RequireDualStack"})), single()),
            expected: no_new,
        },
    ]);
}

#[test]
fn any_other_update_is_left() {
    let update = |old: Value, new: Value| updated(service(old), service(new));
    let no_new = "keep";
    check(&[
        Case {
            name: "a PUT without clusterIP",
            request: update(json!({"clusterIP": "10.0.0.7"}), json!({})),
            expected: no_new,
        },
        Case {
            name: "a PUT with an empty clusterIP",
            request: update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "", "clusterIPs": []})),
            expected: no_new,
        },
        Case {
            name: "the address is unchanged",
            request: update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7"})),
            expected: no_new,
        },
        Case {
            name: "the address is unchanged but for its notation",
            request: update(json!({"clusterIP": "fd00::7"}), json!({"clusterIP": "fd00:0:0::7"})),
            expected: no_new,
        },
        Case {
            name: "the type changes",
            request: update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7", "type": "NodePort"})),
            expected: no_new,
        },
        Case {
            name: "fewer addresses",
            request: update(
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]}),
                json!({"clusterIP": "10.0.0.7"}),
            ),
            expected: no_new,
        },
    ]);
}

#[test]
fn unreadable_request_is_refused_with_the_path() {
    let plain = || created(service(json!({})));
    let rows = [
        Case { name: "no request", request: Value::Null, expected: "request: expected an object, found null" },
        Case {
            name: "no operation",
            request: with(plain(), "operation", Value::Null),
            expected: "request.operation: expected an operation, found nothing",
        },
        Case {
            name: "no kind",
            request: with(plain(), "kind", Value::Null),
            expected: "request.kind: expected a kind, found nothing",
        },
        Case {
            name: "no object",
            request: with(plain(), "object", Value::Null),
            expected: "request.object: expected a Service, found nothing",
        },
        Case {
            name: "an update without oldObject",
            request: with(plain(), "operation", json!("UPDATE")),
            expected: "request.oldObject: expected a Service, found nothing",
        },
        Case {
            name: "an object that is a string",
            request: with(plain(), "object", json!("web")),
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
            request: with(with(created(service(json!({}))), "name", Value::Null), "namespace", json!("")),
            hash_key: "shop/web",
            subject: "shop/web",
        },
        NameCase {
            name: "generateName",
            request: with(created(unnamed), "namespace", json!("shop")),
            hash_key: "shop/7f3c0e1a-uid",
            subject: "shop/(name yet to be generated)",
        },
    ];
    for NameCase { name, request, hash_key, subject } in rows {
        let request = Request::read(&request).unwrap();
        assert_eq!((request.hash_key().as_str(), request.subject().as_str()), (hash_key, subject), "{name}");
    }
}
