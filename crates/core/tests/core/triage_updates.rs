//! What an update of a Service needs: a first or a second address, or nothing.

use crate::support::triage_cases::{Case, check};
use crate::support::{service, updated};
use serde_json::{Value, json};

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
            name: "RequireDualStack in a PUT without addresses",
            request: update(single(), json!({"ipFamilyPolicy": "RequireDualStack"})),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack in a PUT with empty addresses",
            request: update(single(), json!({"clusterIP": "", "clusterIPs": [], "ipFamilyPolicy": "PreferDualStack"})),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "a PUT without a policy keeps RequireDualStack",
            request: update(has(json!({"ipFamilyPolicy": "RequireDualStack"})), json!({})),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack before, and no policy now",
            request: update(has(json!({"ipFamilyPolicy": "PreferDualStack"})), has(json!({}))),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack, and another type",
            request: update(
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
                has(json!({"ipFamilyPolicy": "PreferDualStack", "type": "NodePort"})),
            ),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "PreferDualStack, and its family is not named any more",
            request: update(
                has(json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"]})),
                has(json!({"ipFamilyPolicy": "PreferDualStack"})),
            ),
            expected: "allocate beside 10.0.0.7",
        },
        Case {
            name: "two addresses, and a PUT without any",
            request: update(
                has(json!({"clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilyPolicy": "RequireDualStack"})),
                json!({"ipFamilyPolicy": "RequireDualStack"}),
            ),
            expected: no_new,
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
            name: "the same list without clusterIP",
            request: update(
                json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]}),
                json!({"clusterIP": "", "clusterIPs": ["10.0.0.7"]}),
            ),
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
