//! Mistakes of a settings document: keys, names, types and choices, and all mistakes at once.

use crate::support::{SettingsCase, check_mistakes, pool, pools, services};
use serde_json::{Value, json};

#[test]
fn unknown_keys_are_mistakes_that_suggest_the_nearest_known_key() {
    check_mistakes(&[
        SettingsCase {
            name: "a key of the document",
            document: json!({"service": {}}),
            mistakes: &[r#"service: unknown key "service": did you mean services?"#],
        },
        SettingsCase {
            name: "services, no similar key",
            document: services(json!({"subnets": []})),
            mistakes: &[
                r#"services.subnets: unknown key "subnets": known are pools, evidence, assumeOS, order, explicit, whenFull, unmatched, annotateReason, exemptNamespaces, serviceCIDRs, unusableServiceCIDRs"#,
            ],
        },
        SettingsCase {
            name: "services, a key in another case",
            document: services(json!({"serviceCidrs": []})),
            mistakes: &[r#"services.serviceCidrs: unknown key "serviceCidrs": did you mean serviceCIDRs?"#],
        },
        SettingsCase {
            name: "pool",
            document: pool(json!({"reserve": 5})),
            mistakes: &[r#"services.pools[0].reserve: unknown key "reserve": did you mean reserved?"#],
        },
        SettingsCase {
            name: "match",
            document: pool(json!({"match": {"nodelabels": {}}})),
            mistakes: &[r#"services.pools[0].match.nodelabels: unknown key "nodelabels": did you mean nodeLabels?"#],
        },
        SettingsCase {
            name: "selector",
            document: pool(json!({"match": {"namespaceSelector": {"matchlabel": {}}}})),
            mistakes: &[
                r#"services.pools[0].match.namespaceSelector.matchlabel: unknown key "matchlabel": did you mean matchLabels?"#,
            ],
        },
        SettingsCase {
            name: "selector expression",
            document: pool(
                json!({"match": {"serviceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "value": "b"}]}}}),
            ),
            mistakes: &[
                r#"services.pools[0].match.serviceSelector.matchExpressions[0].value: unknown key "value": did you mean values?"#,
            ],
        },
        SettingsCase {
            name: "evidence",
            document: services(json!({"evidence": {"lookup": "cluster"}})),
            mistakes: &[r#"services.evidence.lookup: unknown key "lookup": did you mean lookups?"#],
        },
        SettingsCase {
            name: "a key with special characters",
            document: services(json!({"a.b c": 1})),
            mistakes: &[
                r#"services["a.b c"]: unknown key "a.b c": known are pools, evidence, assumeOS, order, explicit, whenFull, unmatched, annotateReason, exemptNamespaces, serviceCIDRs, unusableServiceCIDRs"#,
            ],
        },
    ]);
}

#[test]
fn pool_name_must_be_a_unique_dns_label() {
    let label = "is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end";
    let name = |name: &str| pool(json!({ "name": name }));
    check_mistakes(&[
        SettingsCase {
            name: "missing",
            document: pools(json!([{"cidrs": ["10.0.0.0/24"]}])),
            mistakes: &["services.pools[0].name: missing: every pool needs a name"],
        },
        SettingsCase {
            name: "empty",
            document: name(""),
            mistakes: &[&format!(r#"services.pools[0].name: "" {label}"#)],
        },
        SettingsCase {
            name: "upper case",
            document: name("Windows"),
            mistakes: &[&format!(r#"services.pools[0].name: "Windows" {label}"#)],
        },
        SettingsCase {
            name: "a dot",
            document: name("a.b"),
            mistakes: &[&format!(r#"services.pools[0].name: "a.b" {label}"#)],
        },
        SettingsCase {
            name: "begins with a hyphen",
            document: name("-a"),
            mistakes: &[&format!(r#"services.pools[0].name: "-a" {label}"#)],
        },
        SettingsCase {
            name: "ends with a hyphen",
            document: name("a-"),
            mistakes: &[&format!(r#"services.pools[0].name: "a-" {label}"#)],
        },
        SettingsCase {
            name: "not ASCII",
            document: name("größe"),
            mistakes: &[&format!(r#"services.pools[0].name: "größe" {label}"#)],
        },
        SettingsCase { name: "63 characters", document: name(&"a".repeat(63)), mistakes: &[] },
        SettingsCase {
            name: "64 characters",
            document: name(&"a".repeat(64)),
            mistakes: &[&format!(r#"services.pools[0].name: "{}" {label}"#, "a".repeat(64))],
        },
        SettingsCase {
            name: "a long name is cut in the message",
            document: name(&"a".repeat(81)),
            mistakes: &[&format!(r#"services.pools[0].name: "{}"… {label}"#, "a".repeat(80))],
        },
        SettingsCase {
            name: "a name twice",
            document: pools(json!([
                {"name": "a", "cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}},
                {"name": "b", "cidrs": ["10.0.1.0/24"], "match": {"os": "linux"}},
                {"name": "a", "cidrs": ["10.0.2.0/24"]},
            ])),
            mistakes: &[r#"services.pools[2].name: "a" is already the name of services.pools[0]"#],
        },
        SettingsCase {
            name: "two without a name do not conflict",
            document: pools(json!([
                {"cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}},
                {"cidrs": ["10.0.1.0/24"]},
            ])),
            mistakes: &[
                "services.pools[0].name: missing: every pool needs a name",
                "services.pools[1].name: missing: every pool needs a name",
            ],
        },
    ]);
}

#[test]
fn values_of_the_wrong_type_in_pools_are_named() {
    let service = |key: &str, value: Value| services(json!({ key: value }));
    check_mistakes(&[
        SettingsCase {
            name: "document",
            document: json!([]),
            mistakes: &["settings: expected an object, found a list"],
        },
        SettingsCase {
            name: "services",
            document: services(json!("K2s")),
            mistakes: &[r#"services: expected an object, found the string "K2s""#],
        },
        SettingsCase {
            name: "pools",
            document: service("pools", json!({})),
            mistakes: &["services.pools: expected a list, found an object"],
        },
        SettingsCase {
            name: "pool",
            document: service("pools", json!(["a"])),
            mistakes: &[r#"services.pools[0]: expected an object, found the string "a""#],
        },
        SettingsCase {
            name: "name",
            document: pool(json!({"name": 7})),
            mistakes: &["services.pools[0].name: expected a string, found the number 7"],
        },
        SettingsCase {
            name: "a single range",
            document: pool(json!({"cidrs": "10.0.0.0/24"})),
            mistakes: &[r#"services.pools[0].cidrs: expected a list, found the string "10.0.0.0/24""#],
        },
        SettingsCase {
            name: "a range",
            document: pool(json!({"cidrs": [7]})),
            mistakes: &["services.pools[0].cidrs[0]: expected a string, found the number 7"],
        },
        SettingsCase {
            name: "reserved in words",
            document: pool(json!({"reserved": "50"})),
            mistakes: &[
                r#"services.pools[0].reserved: expected a number of addresses, 0 or more, found the string "50""#,
            ],
        },
        SettingsCase {
            name: "reserved below zero",
            document: pool(json!({"reserved": -1})),
            mistakes: &["services.pools[0].reserved: expected a number of addresses, 0 or more, found the number -1"],
        },
        SettingsCase {
            name: "reserved in fractions",
            document: pool(json!({"reserved": 1.5})),
            mistakes: &["services.pools[0].reserved: expected a number of addresses, 0 or more, found the number 1.5"],
        },
        SettingsCase {
            name: "exclude",
            document: pool(json!({"exclude": [true]})),
            mistakes: &["services.pools[0].exclude[0]: expected a string, found true"],
        },
        SettingsCase {
            name: "bands",
            document: pool(json!({"bands": "yes"})),
            mistakes: &[r#"services.pools[0].bands: expected true or false, found the string "yes""#],
        },
        SettingsCase {
            name: "reservations",
            document: pool(json!({"reservations": {"10.0.0.7": "shop/web"}})),
            mistakes: &["services.pools[0].reservations: expected a list, found an object"],
        },
        SettingsCase {
            name: "a reservation",
            document: pool(json!({"reservations": ["10.0.0.7"]})),
            mistakes: &[r#"services.pools[0].reservations[0]: expected an object, found the string "10.0.0.7""#],
        },
        SettingsCase {
            name: "the fields of a reservation",
            document: pool(json!({"reservations": [{"address": 7, "namespace": ["shop"], "name": true}]})),
            mistakes: &[
                "services.pools[0].reservations[0].address: expected a string, found the number 7",
                "services.pools[0].reservations[0].namespace: expected a string, found a list",
                "services.pools[0].reservations[0].name: expected a string, found true",
            ],
        },
    ]);
}

#[test]
fn values_of_the_wrong_type_in_a_match_are_named() {
    check_mistakes(&[
        SettingsCase {
            name: "match",
            document: pool(json!({"match": []})),
            mistakes: &["services.pools[0].match: expected an object, found a list"],
        },
        SettingsCase {
            name: "match.os",
            document: pool(json!({"match": {"os": ["linux"]}})),
            mistakes: &["services.pools[0].match.os: expected a string, found a list"],
        },
        SettingsCase {
            name: "match.nodeLabels",
            document: pool(json!({"match": {"nodeLabels": ["a"]}})),
            mistakes: &["services.pools[0].match.nodeLabels: expected an object, found a list"],
        },
        SettingsCase {
            name: "the value of a label",
            document: pool(json!({"match": {"nodeLabels": {"a.b/c": true}}})),
            mistakes: &[r#"services.pools[0].match.nodeLabels["a.b/c"]: expected a string, found true"#],
        },
        SettingsCase {
            name: "match.namespaces",
            document: pool(json!({"match": {"namespaces": "shop"}})),
            mistakes: &[r#"services.pools[0].match.namespaces: expected a list, found the string "shop""#],
        },
        SettingsCase {
            name: "match.namespaceSelector",
            document: pool(json!({"match": {"namespaceSelector": "shop"}})),
            mistakes: &[r#"services.pools[0].match.namespaceSelector: expected an object, found the string "shop""#],
        },
    ]);
}

#[test]
fn values_of_the_wrong_type_outside_of_pools_are_named() {
    let service = |key: &str, value: Value| services(json!({ key: value }));
    check_mistakes(&[
        SettingsCase {
            name: "evidence",
            document: service("evidence", json!([])),
            mistakes: &["services.evidence: expected an object, found a list"],
        },
        SettingsCase {
            name: "evidence.kinds",
            document: service("evidence", json!({"kinds": "Pod"})),
            mistakes: &[r#"services.evidence.kinds: expected a list, found the string "Pod""#],
        },
        SettingsCase {
            name: "assumeOS",
            document: service("assumeOS", json!(1)),
            mistakes: &["services.assumeOS: expected a string, found the number 1"],
        },
        SettingsCase {
            name: "order",
            document: service("order", json!({})),
            mistakes: &["services.order: expected a string, found an object"],
        },
        SettingsCase {
            name: "annotateReason",
            document: service("annotateReason", json!("true")),
            mistakes: &[r#"services.annotateReason: expected true or false, found the string "true""#],
        },
        SettingsCase {
            name: "exemptNamespaces",
            document: service("exemptNamespaces", json!("kube-system")),
            mistakes: &[r#"services.exemptNamespaces: expected a list, found the string "kube-system""#],
        },
        SettingsCase {
            name: "serviceCIDRs",
            document: service("serviceCIDRs", json!("10.0.0.0/16")),
            mistakes: &[r#"services.serviceCIDRs: expected a list, found the string "10.0.0.0/16""#],
        },
    ]);
}

#[test]
fn unknown_choice_lists_the_known_ones() {
    let service = |key: &str, value: &str| services(json!({ key: value }));
    check_mistakes(&[
        SettingsCase {
            name: "order",
            document: service("order", "spred"),
            mistakes: &[r#"services.order: unknown value "spred": did you mean spread?"#],
        },
        SettingsCase {
            name: "order, no similar choice",
            document: service("order", "random"),
            mistakes: &[r#"services.order: unknown value "random": known are spread, lowest"#],
        },
        SettingsCase {
            name: "explicit",
            document: service("explicit", "denny"),
            mistakes: &[r#"services.explicit: unknown value "denny": did you mean deny?"#],
        },
        SettingsCase {
            name: "whenFull",
            document: service("whenFull", "unmanged"),
            mistakes: &[r#"services.whenFull: unknown value "unmanged": did you mean unmanaged?"#],
        },
        SettingsCase {
            name: "unmatched",
            document: service("unmatched", "outsite"),
            mistakes: &[r#"services.unmatched: unknown value "outsite": did you mean outside?"#],
        },
        SettingsCase {
            name: "lookups",
            document: services(json!({"evidence": {"lookups": "Namespace"}})),
            mistakes: &[r#"services.evidence.lookups: unknown value "Namespace": did you mean namespace?"#],
        },
        SettingsCase {
            name: "assumeOS, empty",
            document: service("assumeOS", ""),
            mistakes: &["services.assumeOS: empty: name an operating system, such as linux or windows"],
        },
        SettingsCase {
            name: "exemptNamespaces",
            document: services(json!({"exemptNamespaces": ["kube-system", "Kube"]})),
            mistakes: &[
                r#"services.exemptNamespaces[1]: "Kube" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
            ],
        },
    ]);
}

#[test]
fn all_mistakes_of_a_document_are_reported_at_once() {
    check_mistakes(&[SettingsCase {
        name: "mistakes in every part",
        document: json!({
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
        mistakes: &[
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
            r#"services.pools[2].match: never used: pool "windows", which is tried first, matches the same or more"#,
        ],
    }]);
}
