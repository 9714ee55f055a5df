//! What the creation or update of a Service needs: an address, a second one, a check of its address, or nothing.

use clusterip_core::request::Request;
use clusterip_core::services::{Triage, triage};
use clusterip_core::settings::Settings;
use serde_json::{Value, json};

use crate::support::{created, extended, request, service, updated, with_field};

/// Compares the verdict on the request under the default settings: a word or two, with addresses or the reason.
#[track_caller]
fn check(request: &Value, expected: &str) {
    let read = Request::read(request).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    let verdict = match triage(&read, &Settings::default()) {
        Triage::Leave(reason) => format!("leave: {reason}"),
        Triage::Keep(_) => "keep".into(),
        Triage::Allocate(_) => "allocate".into(),
        Triage::AllocateSecond(_, first) => format!("allocate beside {first}"),
        Triage::Check(_, addresses) => {
            format!("check {}", addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
        }
    };
    assert_eq!(verdict, expected, "{request}");
}

/// The verdict on a new Service with this spec.
#[track_caller]
fn check_created(rows: &[(Value, &str)]) {
    rows.iter().for_each(|(spec, expected)| check(&created(service(spec.clone())), expected));
}

/// The verdict on the update from the first to the second spec.
#[track_caller]
fn check_updated(expected: &str, rows: &[(Value, Value)]) {
    rows.iter().for_each(|(old, new)| check(&updated(service(old.clone()), service(new.clone())), expected));
}

fn named(namespace: &str, name: &str, spec: Value) -> Value {
    extended(service(spec), &json!({"metadata": {"name": name, "namespace": namespace}}))
}

#[test]
fn request_for_another_object_or_exempt_service_is_left() {
    let plain = || created(service(json!({})));
    let kubernetes = "leave: default/kubernetes belongs to the API server";
    let own = || named("default", "kubernetes", json!({"clusterIP": "10.0.0.1"}));
    check(&created(own()), kubernetes);
    check(&updated(own(), own()), kubernetes);
    check(&created(named("shop", "kubernetes", json!({}))), "allocate");
    check(&created(named("default", "web", json!({}))), "allocate");
    check(&created(named("kube-system", "dns", json!({}))), "leave: namespace kube-system is exempt");
    for request in [
        request("DELETE", Value::Null, service(json!({"clusterIP": "10.0.0.7"}))),
        request("CONNECT", json!({"kind": "ServiceProxyOptions"}), Value::Null),
        with_field(plain(), "kind", json!({"group": "", "version": "v1", "kind": "Endpoints"})),
        with_field(plain(), "kind", json!({"group": "serving.knative.dev", "version": "v1", "kind": "Service"})),
        with_field(plain(), "kind", json!({"group": "", "version": "v2", "kind": "Service"})),
        with_field(plain(), "subResource", json!("status")),
    ] {
        check(&request, "leave: not a Service that is created or updated");
    }
    check(&with_field(plain(), "subResource", json!("")), "allocate");
    check(&with_field(plain(), "kind", json!({"version": "v1", "kind": "Service"})), "allocate");
}

#[test]
fn new_service_without_an_address_gets_one_if_it_needs_one() {
    check_created(&[
        (json!({"clusterIP": "None"}), "leave: headless"),
        (json!({"clusterIP": "None", "clusterIPs": ["None"]}), "leave: headless"),
        (json!({"clusterIPs": ["None"]}), "leave: headless"),
        (json!({"clusterIP": "None", "selector": null}), "leave: headless"),
        (json!({"type": "ExternalName"}), "leave: type ExternalName has no address"),
        (json!({"selector": {"app": "web"}}), "allocate"),
        (json!({}), "allocate"),
        (Value::Null, "allocate"),
        (json!({"clusterIP": ""}), "allocate"),
        (json!({"clusterIP": null, "clusterIPs": null}), "allocate"),
        (json!({"clusterIP": "", "clusterIPs": []}), "allocate"),
        (json!({"clusterIPs": [""]}), "allocate"),
        (json!({"type": "ClusterIP"}), "allocate"),
        (json!({"type": "NodePort"}), "allocate"),
        (json!({"type": "LoadBalancer"}), "allocate"),
    ]);
    let unnamed = json!({"metadata": {"generateName": "web-", "namespace": "shop"}});
    check(&created(extended(service(json!({})), &unnamed)), "allocate");
}

#[test]
fn address_of_a_new_service_is_checked() {
    check_created(&[
        (json!({"clusterIP": "10.0.0.7"}), "check 10.0.0.7"),
        (json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]}), "check 10.0.0.7"),
        (json!({"clusterIPs": ["10.0.0.7"]}), "check 10.0.0.7"),
        (json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]}), "check 10.0.0.7"),
        (json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]}), "check 10.0.0.7, fd00::7"),
        (
            json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7", "10.0.0.8"]}),
            "leave: the API server refuses more than two clusterIPs",
        ),
        (json!({"clusterIP": "fd00:0::0007"}), "check fd00::7"),
        (json!({"clusterIP": "web"}), "check "),
    ]);
}

#[test]
fn new_address_of_an_update_is_checked() {
    check_updated(
        "check 10.0.0.8",
        &[
            (json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.8"})),
            (json!({"clusterIP": "10.0.0.7"}), json!({"clusterIPs": ["10.0.0.8"]})),
            (json!({"type": "ExternalName"}), json!({"clusterIPs": ["10.0.0.8"]})),
            // To another address beside the old clusterIPs.
            (
                json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}),
                json!({"clusterIP": "10.0.0.8", "clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": "RequireDualStack"}),
            ),
        ],
    );
    check_updated(
        "check 10.0.0.7",
        &[
            (json!({"type": "ExternalName"}), json!({"clusterIP": "10.0.0.7"})),
            (json!({"type": "ExternalName"}), json!({"clusterIP": "10.0.0.7", "ipFamilyPolicy": "RequireDualStack"})),
            // The address that the Service still had.
            (json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7"})),
            (
                json!({"type": "ExternalName", "clusterIP": "None"}),
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["None"]}),
            ),
            // The same, if the API server has stored both fields.
            (
                json!({"type": "ExternalName", "clusterIP": "None", "clusterIPs": ["None"]}),
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["None"]}),
            ),
        ],
    );
    check_updated(
        "check fd00::7",
        &[
            (json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]})),
            (
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": "SingleStack"}),
                json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": "RequireDualStack"}),
            ),
        ],
    );
}

#[test]
fn update_that_leaves_external_name_gets_an_address() {
    check_updated(
        "allocate",
        &[
            (json!({"type": "ExternalName"}), json!({})),
            (json!({"type": "ExternalName"}), json!({"type": "LoadBalancer", "clusterIP": ""})),
            // Only clusterIPs still names what the Service had.
            (json!({"type": "ExternalName", "clusterIP": "None"}), json!({"clusterIPs": ["None"]})),
            (json!({"type": "ExternalName", "clusterIP": "10.0.0.7"}), json!({"clusterIPs": ["10.0.0.7"]})),
        ],
    );
    check_updated("leave: headless", &[(json!({"type": "ExternalName"}), json!({"clusterIP": "None"}))]);
    check_updated(
        "leave: type ExternalName has no address",
        &[
            (json!({"type": "ExternalName"}), json!({"type": "ExternalName"})),
            (json!({"clusterIP": "10.0.0.7"}), json!({"type": "ExternalName"})),
        ],
    );
}

/// The spec of a Service with an address and these fields.
fn has(more: &Value) -> Value {
    extended(json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]}), more)
}

#[test]
fn update_to_dual_stack_gets_a_second_address() {
    let single = || has(&json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}));
    let policy = |policy: &str| has(&json!({ "ipFamilyPolicy": policy }));
    let prefer = |families: Value| has(&json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": families}));
    let (preferred, required) = ("PreferDualStack", "RequireDualStack");
    check_updated(
        "allocate beside 10.0.0.7",
        &[
            (single(), policy(required)),
            (single(), policy(preferred)),
            (single(), has(&json!({"ipFamilyPolicy": required, "ipFamilies": ["IPv4", "IPv6"]}))),
            // An empty clusterIP by server-side apply.
            (single(), json!({"clusterIPs": ["10.0.0.7"], "ipFamilyPolicy": required})),
            // A PUT without addresses, with empty ones, and without a policy, which keeps the old one.
            (single(), json!({ "ipFamilyPolicy": required })),
            (single(), json!({"clusterIP": "", "clusterIPs": [], "ipFamilyPolicy": preferred})),
            (policy(required), json!({})),
            (policy(preferred), has(&json!({}))),
            (policy(preferred), policy(required)),
            (policy(preferred), has(&json!({"ipFamilyPolicy": preferred, "type": "NodePort"}))),
            (prefer(json!(["IPv4"])), prefer(json!(["IPv4", "IPv6"]))),
            (prefer(json!(["IPv4"])), policy(preferred)),
        ],
    );
    let two = |policy: &str| has(&json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": policy}));
    check_updated(
        "keep",
        &[
            (two(required), json!({ "ipFamilyPolicy": required })),
            (two(preferred), two(required)),
            (has(&json!({})), has(&json!({"ipFamilies": ["IPv4"]}))),
            (single(), single()),
            (policy(preferred), policy(preferred)),
            (policy(required), single()),
        ],
    );
}

#[test]
fn any_other_update_is_left() {
    check_updated(
        "keep",
        &[
            (json!({"clusterIP": "10.0.0.7"}), json!({})),
            (json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "", "clusterIPs": []})),
            (json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7"})),
            (json!({"clusterIP": "fd00::7"}), json!({"clusterIP": "fd00:0:0::7"})),
            (json!({"clusterIP": "10.0.0.7"}), json!({"clusterIP": "10.0.0.7", "type": "NodePort"})),
            (has(&json!({})), json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]})),
            (has(&json!({"clusterIPs": ["10.0.0.7", "fd00::7"]})), json!({"clusterIP": "10.0.0.7"})),
        ],
    );
}
