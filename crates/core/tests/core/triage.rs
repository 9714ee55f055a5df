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

#[track_caller]
fn check(rows: &[(&str, Value, &str)]) {
    for (name, request, expected) in rows {
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
        (
            "default/kubernetes created",
            created(named("default", "kubernetes", json!({"clusterIP": "10.0.0.1"}))),
            kubernetes,
        ),
        (
            "default/kubernetes updated",
            updated(named("default", "kubernetes", json!({})), named("default", "kubernetes", json!({}))),
            kubernetes,
        ),
        ("another kubernetes", created(named("shop", "kubernetes", json!({}))), "allocate"),
        ("another in default", created(named("default", "web", json!({}))), "allocate"),
        (
            "an exempt namespace",
            created(named("kube-system", "dns", json!({}))),
            "leave: namespace kube-system is exempt",
        ),
        ("deletion", request("DELETE", Value::Null, service(json!({"clusterIP": "10.0.0.7"}))), foreign),
        ("CONNECT", request("CONNECT", json!({"kind": "ServiceProxyOptions"}), Value::Null), foreign),
        ("another kind", with(plain(), "kind", json!({"group": "", "version": "v1", "kind": "Endpoints"})), foreign),
        (
            "another group",
            with(plain(), "kind", json!({"group": "serving.knative.dev", "version": "v1", "kind": "Service"})),
            foreign,
        ),
        ("another version", with(plain(), "kind", json!({"group": "", "version": "v2", "kind": "Service"})), foreign),
        ("a sub-resource", with(plain(), "subResource", json!("status")), foreign),
        ("no sub-resource", with(plain(), "subResource", json!("")), "allocate"),
        ("the group left out", with(plain(), "kind", json!({"version": "v1", "kind": "Service"})), "allocate"),
    ]);
}

#[test]
fn service_that_needs_no_address_is_left() {
    let create = |spec: Value| created(service(spec));
    let unpaired = "leave: clusterIPs without clusterIP: the API server refuses it";
    check(&[
        ("headless", create(json!({"clusterIP": "None"})), "leave: headless"),
        ("headless twice", create(json!({"clusterIP": "None", "clusterIPs": ["None"]})), "leave: headless"),
        ("headless in clusterIPs alone", create(json!({"clusterIPs": ["None"]})), "leave: headless"),
        ("headless without a selector", create(json!({"clusterIP": "None", "selector": null})), "leave: headless"),
        ("ExternalName", create(json!({"type": "ExternalName"})), "leave: type ExternalName has no address"),
        (
            "update to ExternalName",
            updated(service(json!({"clusterIP": "10.0.0.7"})), service(json!({"type": "ExternalName"}))),
            "leave: type ExternalName has no address",
        ),
        ("clusterIPs without clusterIP", create(json!({"clusterIPs": ["10.0.0.7"]})), unpaired),
        (
            "clusterIPs beside an empty clusterIP",
            create(json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]})),
            unpaired,
        ),
        (
            "an empty clusterIP applied to a Service that has one",
            updated(
                service(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]})),
                service(json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]})),
            ),
            "keep",
        ),
        (
            "the same with another list",
            updated(
                service(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]})),
                service(json!({"clusterIP": "", "clusterIPs": ["10.0.0.8"]})),
            ),
            unpaired,
        ),
    ]);
}

#[test]
fn service_created_without_an_address_gets_one() {
    let create = |spec: Value| created(service(spec));
    let mut unnamed = service(json!({}));
    unnamed["metadata"] = json!({"generateName": "web-", "namespace": "shop"});
    check(&[
        ("with a selector", create(json!({"selector": {"app": "web"}})), "allocate"),
        ("without one", create(json!({})), "allocate"),
        ("without a spec", create(Value::Null), "allocate"),
        ("an empty address", create(json!({"clusterIP": ""})), "allocate"),
        ("null", create(json!({"clusterIP": null, "clusterIPs": null})), "allocate"),
        ("empty lists", create(json!({"clusterIP": "", "clusterIPs": []})), "allocate"),
        ("a list of nothing", create(json!({"clusterIPs": [""]})), "allocate"),
        ("ClusterIP", create(json!({"type": "ClusterIP"})), "allocate"),
        ("NodePort", create(json!({"type": "NodePort"})), "allocate"),
        ("LoadBalancer", create(json!({"type": "LoadBalancer"})), "allocate"),
        ("generateName", created(unnamed), "allocate"),
    ]);
}

#[test]
fn new_address_of_a_request_is_checked() {
    let create = |spec: Value| created(service(spec));
    let update = |old: Value, new: Value| updated(service(old), service(new));
    check(&[
        ("created with one", create(json!({"clusterIP": "10.0.0.7"})), "check 10.0.0.7"),
        (
            "created with it in both fields",
            create(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]})),
            "check 10.0.0.7",
        ),
        (
            "created with two",
            create(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]})),
            "check 10.0.0.7, fd00::7",
        ),
        ("not canonical", create(json!({"clusterIP": "fd00:0::0007"})), "check fd00::7"),
        ("no address at all", create(json!({"clusterIP": "web"})), "check "),
        (
            "leaving ExternalName with one",
            update(json!({"type": "ExternalName"}), json!({"clusterIP": "10.0.0.7"})),
            "check 10.0.0.7",
        ),
        (
            "leaving ExternalName with one, and asking for two",
            update(
                json!({"type": "ExternalName"}),
                json!({"clusterIP": "10.0.0.7", "ipFamilyPolicy": "RequireDualStack"}),
            ),
            "check 10.0.0.7",
        ),
        (
            "leaving ExternalName with one that it still carried",
            update(json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7"})),
            "check 10.0.0.7",
        ),
        (
            "a second one",
            update(
                json!({"clusterIP": "10.0.0.7"}),
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]}),
            ),
            "check fd00::7",
        ),
        ("another one", update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.8"})), "check 10.0.0.8"),
    ]);
}

#[test]
fn update_that_leaves_external_name_gets_an_address() {
    let update = |old: Value, new: Value| updated(service(old), service(new));
    check(&[
        ("to the default type", update(json!({"type": "ExternalName"}), json!({})), "allocate"),
        (
            "to LoadBalancer",
            update(json!({"type": "ExternalName"}), json!({"type": "LoadBalancer", "clusterIP": ""})),
            "allocate",
        ),
        ("to headless", update(json!({"type": "ExternalName"}), json!({"clusterIP": "None"})), "leave: headless"),
        (
            "staying",
            update(json!({"type": "ExternalName"}), json!({"type": "ExternalName"})),
            "leave: type ExternalName has no address",
        ),
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
        (
            "RequireDualStack",
            update(single(), has(json!({"ipFamilyPolicy": "RequireDualStack"}))),
            "allocate beside 10.0.0.7",
        ),
        (
            "RequireDualStack, and an empty clusterIP by server-side apply",
            update(single(), json!({"clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": "RequireDualStack"})),
            "allocate beside 10.0.0.7",
        ),
        (
            "PreferDualStack",
            update(single(), has(json!({"ipFamilyPolicy": "PreferDualStack"}))),
            "allocate beside 10.0.0.7",
        ),
        (
            "a second family",
            update(single(), has(json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}))),
            "allocate beside 10.0.0.7",
        ),
        (
            "it preferred two before, and requires them now",
            update(
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"ipFamilyPolicy": "RequireDualStack"})),
            ),
            "allocate beside 10.0.0.7",
        ),
        (
            "it preferred two before, and names the second family now",
            update(
                has(json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]})),
                has(json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]})),
            ),
            "allocate beside 10.0.0.7",
        ),
        ("the family that it has is named now", update(has(json!({})), has(json!({"ipFamilies": ["IPv4"]}))), no_new),
        ("as before", update(single(), single()), no_new),
        (
            "it preferred two before, and the cluster had one",
            update(
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
            ),
            no_new,
        ),
        (
            "it has two",
            update(
                has(json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": "RequireDualStack"})),
            ),
            no_new,
        ),
        ("fewer than before", update(has(json!({"ipFamilyPolicy": "RequireDualStack"})), single()), no_new),
    ]);
}

#[test]
fn any_other_update_is_left() {
    let update = |old: Value, new: Value| updated(service(old), service(new));
    let no_new = "keep";
    check(&[
        ("a PUT without clusterIP", update(json!({"clusterIP": "10.0.0.7"}), json!({})), no_new),
        (
            "a PUT with an empty one",
            update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "", "clusterIPs": []})),
            no_new,
        ),
        ("the address as it is", update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7"})), no_new),
        (
            "the same address in other words",
            update(json!({"clusterIP": "fd00::7"}), json!({"clusterIP": "fd00:0:0::7"})),
            no_new,
        ),
        (
            "the type",
            update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7", "type": "NodePort"})),
            no_new,
        ),
        (
            "fewer addresses",
            update(
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]}),
                json!({"clusterIP": "10.0.0.7"}),
            ),
            no_new,
        ),
    ]);
}

#[test]
fn unreadable_request_is_refused_with_the_path() {
    let plain = || created(service(json!({})));
    let rows = [
        ("no request", Value::Null, "request: expected an object, found null"),
        (
            "no operation",
            with(plain(), "operation", Value::Null),
            "request.operation: expected an operation, found nothing",
        ),
        ("no kind", with(plain(), "kind", Value::Null), "request.kind: expected a kind, found nothing"),
        ("no object", with(plain(), "object", Value::Null), "request.object: expected a Service, found nothing"),
        (
            "an update without oldObject",
            with(plain(), "operation", json!("UPDATE")),
            "request.oldObject: expected a Service, found nothing",
        ),
        (
            "an object that is none",
            with(plain(), "object", json!("web")),
            r#"request.object: expected an object, found the string "web""#,
        ),
        (
            "a label",
            created(json!({"metadata": {"labels": {"a": 1}}})),
            "request.object.metadata.labels.a: expected a string, found the number 1",
        ),
        (
            "an address",
            created(service(json!({"clusterIP": 7}))),
            "request.object.spec.clusterIP: expected a string, found the number 7",
        ),
        (
            "a family",
            created(service(json!({"ipFamilies": ["IPv4", "ipv6"]}))),
            r#"request.object.spec.ipFamilies[1]: expected IPv4 or IPv6, found the string "ipv6""#,
        ),
        (
            "a policy",
            created(service(json!({"ipFamilyPolicy": "Dual"}))),
            r#"request.object.spec.ipFamilyPolicy: expected SingleStack, PreferDualStack or RequireDualStack, found the string "Dual""#,
        ),
    ];
    for (name, request, expected) in rows {
        assert_eq!(Request::read(&request).unwrap_err().to_string(), expected, "{name}");
    }
}

#[test]
fn namespace_and_name_default_to_those_of_the_object() {
    let mut unnamed = service(json!({}));
    unnamed["metadata"] = json!({"generateName": "web-"});
    let rows = [
        ("both", created(service(json!({}))), "shop/web", "shop/web"),
        (
            "the object's",
            with(with(created(service(json!({}))), "name", Value::Null), "namespace", json!("")),
            "shop/web",
            "shop/web",
        ),
        (
            "generateName",
            with(created(unnamed), "namespace", json!("shop")),
            "shop/7f3c0e1a-uid",
            "shop/(name yet to be generated)",
        ),
    ];
    for (name, request, hash_key, subject) in rows {
        let request = Request::read(&request).unwrap();
        assert_eq!((request.hash_key().as_str(), request.subject().as_str()), (hash_key, subject), "{name}");
    }
}
