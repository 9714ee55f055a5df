//! What the creation of a Service needs: an address, a check of its address, or nothing. `triage_updates.rs` tests
//! updates.

use crate::support::triage_cases::{Case, check};
use crate::support::{created, request, service, updated, with_field};
use serde_json::{Value, json};

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
            request: with_field(plain(), "kind", json!({"group": "", "version": "v1", "kind": "Endpoints"})),
            expected: foreign,
        },
        Case {
            name: "another group",
            request: with_field(
                plain(),
                "kind",
                json!({"group": "serving.knative.dev", "version": "v1", "kind": "Service"}),
            ),
            expected: foreign,
        },
        Case {
            name: "another version",
            request: with_field(plain(), "kind", json!({"group": "", "version": "v2", "kind": "Service"})),
            expected: foreign,
        },
        Case {
            name: "a sub-resource",
            request: with_field(plain(), "subResource", json!("status")),
            expected: foreign,
        },
        Case {
            name: "an empty sub-resource",
            request: with_field(plain(), "subResource", json!("")),
            expected: "allocate",
        },
        Case {
            name: "the group left out",
            request: with_field(plain(), "kind", json!({"version": "v1", "kind": "Service"})),
            expected: "allocate",
        },
    ]);
}

#[test]
fn service_that_needs_no_address_is_left() {
    let create = |spec: Value| created(service(spec));
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
            name: "created with clusterIPs, without clusterIP",
            request: create(json!({"clusterIPs": ["10.0.0.7"]})),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "created with clusterIPs, and an empty clusterIP",
            request: create(json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]})),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "updated with another list, without clusterIP",
            request: update(json!({"clusterIP": "10.0.0.7"}), json!({"clusterIPs": ["10.0.0.8"]})),
            expected: "check 10.0.0.8",
        },
        Case {
            name: "updated with a second address, without clusterIP",
            request: update(
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": "SingleStack"}),
                json!({"clusterIPs": ["10.0.0.7", "fd00::8"], "ipFamilyPolicy": "RequireDualStack"}),
            ),
            expected: "check fd00::8",
        },
        Case {
            name: "updated with clusterIPs from ExternalName, without clusterIP",
            request: update(json!({"type": "ExternalName"}), json!({"clusterIPs": ["10.0.0.8"]})),
            expected: "check 10.0.0.8",
        },
        Case {
            name: "created with two addresses",
            request: create(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]})),
            expected: "check 10.0.0.7, fd00::7",
        },
        Case {
            name: "created with three addresses",
            request: create(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7", "10.0.0.8"]})),
            expected: "leave: the API server refuses more than two clusterIPs",
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
            name: "the type changes from ExternalName with clusterIP None, to another address beside the old clusterIPs",
            request: update(
                json!({"type": "ExternalName", "clusterIP": "None"}),
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["None"]}),
            ),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "the same, if the API server has stored both fields",
            request: update(
                json!({"type": "ExternalName", "clusterIP": "None", "clusterIPs": ["None"]}),
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["None"]}),
            ),
            expected: "check 10.0.0.7",
        },
        Case {
            name: "the same, without clusterIP",
            request: update(json!({"type": "ExternalName", "clusterIP": "None"}), json!({"clusterIPs": ["None"]})),
            expected: "allocate",
        },
        Case {
            name: "the type changes from ExternalName with an address, which only clusterIPs still names",
            request: update(
                json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}),
                json!({"clusterIPs": ["10.0.0.7"]}),
            ),
            expected: "allocate",
        },
        Case {
            name: "the type changes from ExternalName with an address, to another one beside the old clusterIPs",
            request: update(
                json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}),
                json!({"clusterIP": "10.0.0.8", "clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": "RequireDualStack"}),
            ),
            expected: "check 10.0.0.8",
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
