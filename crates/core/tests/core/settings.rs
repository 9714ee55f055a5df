//! Mistakes of a settings document: keys, names, types and choices, and all mistakes at once.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{check_mistakes, pool, pools, services};
use serde_json::{Value, json};

#[test]
fn unknown_keys_are_mistakes_that_suggest_the_nearest_known_key() {
    check_mistakes(&[
        ("top", json!({"service": {}}), &[r#"service: unknown key "service": did you mean services?"#]),
        (
            "services, nothing near",
            services(json!({"subnets": []})),
            &[
                r#"services.subnets: unknown key "subnets": known are pools, evidence, assumeOS, order, explicit, whenFull, exemptNamespaces, serviceCIDRs, unusableServiceCIDRs"#,
            ],
        ),
        (
            "services, another case",
            services(json!({"serviceCidrs": []})),
            &[r#"services.serviceCidrs: unknown key "serviceCidrs": did you mean serviceCIDRs?"#],
        ),
        (
            "pool",
            pool(json!({"reserve": 5})),
            &[r#"services.pools[0].reserve: unknown key "reserve": did you mean reserved?"#],
        ),
        (
            "match",
            pool(json!({"match": {"nodelabels": {}}})),
            &[r#"services.pools[0].match.nodelabels: unknown key "nodelabels": did you mean nodeLabels?"#],
        ),
        (
            "selector",
            pool(json!({"match": {"namespaceSelector": {"matchlabel": {}}}})),
            &[
                r#"services.pools[0].match.namespaceSelector.matchlabel: unknown key "matchlabel": did you mean matchLabels?"#,
            ],
        ),
        (
            "selector expression",
            pool(
                json!({"match": {"serviceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "value": "b"}]}}}),
            ),
            &[
                r#"services.pools[0].match.serviceSelector.matchExpressions[0].value: unknown key "value": did you mean values?"#,
            ],
        ),
        (
            "evidence",
            services(json!({"evidence": {"lookup": "cluster"}})),
            &[r#"services.evidence.lookup: unknown key "lookup": did you mean lookups?"#],
        ),
        (
            "a key with special characters",
            services(json!({"a.b c": 1})),
            &[
                r#"services["a.b c"]: unknown key "a.b c": known are pools, evidence, assumeOS, order, explicit, whenFull, exemptNamespaces, serviceCIDRs, unusableServiceCIDRs"#,
            ],
        ),
    ]);
}

#[test]
fn pool_name_must_be_a_unique_dns_label() {
    let label = "is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end";
    let name = |name: &str| pool(json!({ "name": name }));
    check_mistakes(&[
        (
            "missing",
            pools(json!([{"cidrs": ["10.0.0.0/24"]}])),
            &["services.pools[0].name: missing: every pool needs a name"],
        ),
        ("empty", name(""), &[&format!(r#"services.pools[0].name: "" {label}"#)]),
        ("upper case", name("Windows"), &[&format!(r#"services.pools[0].name: "Windows" {label}"#)]),
        ("a dot", name("a.b"), &[&format!(r#"services.pools[0].name: "a.b" {label}"#)]),
        ("begins with a hyphen", name("-a"), &[&format!(r#"services.pools[0].name: "-a" {label}"#)]),
        ("ends with a hyphen", name("a-"), &[&format!(r#"services.pools[0].name: "a-" {label}"#)]),
        ("not ASCII", name("größe"), &[&format!(r#"services.pools[0].name: "größe" {label}"#)]),
        ("63 characters", name(&"a".repeat(63)), &[]),
        (
            "64 characters",
            name(&"a".repeat(64)),
            &[&format!(r#"services.pools[0].name: "{}" {label}"#, "a".repeat(64))],
        ),
        (
            "cut in the message",
            name(&"a".repeat(81)),
            &[&format!(r#"services.pools[0].name: "{}"… {label}"#, "a".repeat(80))],
        ),
        (
            "twice",
            pools(json!([
                {"name": "a", "cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}},
                {"name": "b", "cidrs": ["10.0.1.0/24"], "match": {"os": "linux"}},
                {"name": "a", "cidrs": ["10.0.2.0/24"]},
            ])),
            &[r#"services.pools[2].name: "a" is already the name of services.pools[0]"#],
        ),
        (
            "two without a name do not conflict",
            pools(json!([
                {"cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}},
                {"cidrs": ["10.0.1.0/24"]},
            ])),
            &[
                "services.pools[0].name: missing: every pool needs a name",
                "services.pools[1].name: missing: every pool needs a name",
            ],
        ),
    ]);
}

#[test]
fn values_of_the_wrong_type_are_named() {
    let service = |key: &str, value: Value| services(json!({ key: value }));
    check_mistakes(&[
        ("document", json!([]), &["settings: expected an object, found a list"]),
        ("services", services(json!("K2s")), &[r#"services: expected an object, found the string "K2s""#]),
        ("pools", service("pools", json!({})), &["services.pools: expected a list, found an object"]),
        ("pool", service("pools", json!(["a"])), &[r#"services.pools[0]: expected an object, found the string "a""#]),
        ("name", pool(json!({"name": 7})), &["services.pools[0].name: expected a string, found the number 7"]),
        (
            "a single range",
            pool(json!({"cidrs": "10.0.0.0/24"})),
            &[r#"services.pools[0].cidrs: expected a list, found the string "10.0.0.0/24""#],
        ),
        (
            "a range",
            pool(json!({"cidrs": [7]})),
            &["services.pools[0].cidrs[0]: expected a string, found the number 7"],
        ),
        (
            "reserved in words",
            pool(json!({"reserved": "50"})),
            &[r#"services.pools[0].reserved: expected a number of addresses, 0 or more, found the string "50""#],
        ),
        (
            "reserved below zero",
            pool(json!({"reserved": -1})),
            &["services.pools[0].reserved: expected a number of addresses, 0 or more, found the number -1"],
        ),
        (
            "reserved in fractions",
            pool(json!({"reserved": 1.5})),
            &["services.pools[0].reserved: expected a number of addresses, 0 or more, found the number 1.5"],
        ),
        ("exclude", pool(json!({"exclude": [true]})), &["services.pools[0].exclude[0]: expected a string, found true"]),
        (
            "bands",
            pool(json!({"bands": "yes"})),
            &[r#"services.pools[0].bands: expected true or false, found the string "yes""#],
        ),
        ("match", pool(json!({"match": []})), &["services.pools[0].match: expected an object, found a list"]),
        (
            "match.os",
            pool(json!({"match": {"os": ["linux"]}})),
            &["services.pools[0].match.os: expected a string, found a list"],
        ),
        (
            "match.nodeLabels",
            pool(json!({"match": {"nodeLabels": ["a"]}})),
            &["services.pools[0].match.nodeLabels: expected an object, found a list"],
        ),
        (
            "the value of a label",
            pool(json!({"match": {"nodeLabels": {"a.b/c": true}}})),
            &[r#"services.pools[0].match.nodeLabels["a.b/c"]: expected a string, found true"#],
        ),
        (
            "match.namespaces",
            pool(json!({"match": {"namespaces": "shop"}})),
            &[r#"services.pools[0].match.namespaces: expected a list, found the string "shop""#],
        ),
        (
            "match.namespaceSelector",
            pool(json!({"match": {"namespaceSelector": "shop"}})),
            &[r#"services.pools[0].match.namespaceSelector: expected an object, found the string "shop""#],
        ),
        ("evidence", service("evidence", json!([])), &["services.evidence: expected an object, found a list"]),
        (
            "evidence.kinds",
            service("evidence", json!({"kinds": "Pod"})),
            &[r#"services.evidence.kinds: expected a list, found the string "Pod""#],
        ),
        ("assumeOS", service("assumeOS", json!(1)), &["services.assumeOS: expected a string, found the number 1"]),
        ("order", service("order", json!({})), &["services.order: expected a string, found an object"]),
        (
            "exemptNamespaces",
            service("exemptNamespaces", json!("kube-system")),
            &[r#"services.exemptNamespaces: expected a list, found the string "kube-system""#],
        ),
        (
            "serviceCIDRs",
            service("serviceCIDRs", json!("10.0.0.0/16")),
            &[r#"services.serviceCIDRs: expected a list, found the string "10.0.0.0/16""#],
        ),
    ]);
}

#[test]
fn unknown_choice_lists_the_known_ones() {
    let service = |key: &str, value: &str| services(json!({ key: value }));
    check_mistakes(&[
        ("order", service("order", "spred"), &[r#"services.order: unknown value "spred": did you mean spread?"#]),
        (
            "order, nothing near",
            service("order", "random"),
            &[r#"services.order: unknown value "random": known are spread, lowest"#],
        ),
        (
            "explicit",
            service("explicit", "denny"),
            &[r#"services.explicit: unknown value "denny": did you mean deny?"#],
        ),
        (
            "whenFull",
            service("whenFull", "unmanged"),
            &[r#"services.whenFull: unknown value "unmanged": did you mean unmanaged?"#],
        ),
        (
            "lookups",
            services(json!({"evidence": {"lookups": "Namespace"}})),
            &[r#"services.evidence.lookups: unknown value "Namespace": did you mean namespace?"#],
        ),
        (
            "assumeOS, empty",
            service("assumeOS", ""),
            &["services.assumeOS: empty: name an operating system, such as linux or windows"],
        ),
        (
            "exemptNamespaces",
            services(json!({"exemptNamespaces": ["kube-system", "Kube"]})),
            &[
                r#"services.exemptNamespaces[1]: "Kube" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
            ],
        ),
    ]);
}

#[test]
fn all_mistakes_of_a_document_are_reported_at_once() {
    check_mistakes(&[(
        "all of it",
        json!({
            "service": {},
            "services": {
                "pools": [
                    {"name": "windows", "cidrs": ["172.21.1.0/33"], "macth": {"os": "windows"}},
                    {"name": "windows", "cidrs": ["172.21.1.1/24", "10.0.0.0/24"], "reserved": -1, "exclude": ["10.9.0.0"]},
                    {"cidrs": ["10.0.0.0/25"], "bands": 1},
                ],
                "order": "random",
                "evidence": {"kinds": ["Pods"]},
                "serviceCIDRs": ["172.21.0.0/16"],
            },
        }),
        &[
            r#"service: unknown key "service": did you mean services?"#,
            r#"services.pools[0].macth: unknown key "macth": did you mean match?"#,
            r#"services.pools[0].cidrs[0]: "172.21.1.0/33" is not a CIDR"#,
            "services.pools[1].cidrs[0]: 172.21.1.1/24 has host bits set: did you mean 172.21.1.0/24?",
            "services.pools[1].reserved: expected a number of addresses, 0 or more, found the number -1",
            "services.pools[2].name: missing: every pool needs a name",
            "services.pools[2].bands: expected true or false, found the number 1",
            r#"services.evidence.kinds[0]: unknown kind "Pods": did you mean Pod?; write a custom resource as group/version/Kind"#,
            r#"services.order: unknown value "random": known are spread, lowest"#,
            r#"services.pools[1].name: "windows" is already the name of services.pools[0]"#,
            "services.pools[1].cidrs[1]: 10.0.0.0/24 lies outside serviceCIDRs (172.21.0.0/16): the API server would refuse its addresses",
            "services.pools[1].exclude[0]: 10.9.0.0/32 is in no range of the pool",
            r#"services.pools[2].cidrs[0]: 10.0.0.0/25 overlaps 10.0.0.0/24 of pool "windows""#,
            "services.pools[2].cidrs[0]: 10.0.0.0/25 lies outside serviceCIDRs (172.21.0.0/16): the API server would refuse its addresses",
            r#"services.pools[2].match: never used: the earlier pool "windows" matches everything that it matches"#,
        ],
    )]);
}
