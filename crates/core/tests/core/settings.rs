//! Mistakes of a settings document: keys, names, types and choices, and all mistakes at once.

use crate::support::{check_mistakes, document, pool, pools, services};
use serde_json::json;

/// What a DNS label is.
const LABEL: &str = "is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end";

#[test]
fn unknown_keys_are_mistakes_that_suggest_the_nearest_known_key() {
    let known = "known are pools, evidence, assumeOS, order, explicit, whenFull, unmatched, annotateReason, \
                 exemptNamespaces, serviceCIDRs, unusableServiceCIDRs";
    let rows = [
        (json!({"service": {}}), r#"service: unknown key "service": did you mean services?"#),
        (json!({"services": {"subnets": []}}), &format!(r#"services.subnets: unknown key "subnets": {known}"#)),
        (json!({"services": {"a.b c": 1}}), &format!(r#"services["a.b c"]: unknown key "a.b c": {known}"#)),
    ];
    check_mistakes("", document, &rows);
    let rows = [
        (json!({"serviceCidrs": []}), r#"serviceCidrs: unknown key "serviceCidrs": did you mean serviceCIDRs?"#),
        (json!({"evidence": {"lookup": "cluster"}}), r#"evidence.lookup: unknown key "lookup": did you mean lookups?"#),
    ];
    check_mistakes("services.", services, &rows);
    let rows = [
        (json!({"reserve": 5}), r#"reserve: unknown key "reserve": did you mean reserved?"#),
        (
            json!({"match": {"nodelabels": {}}}),
            r#"match.nodelabels: unknown key "nodelabels": did you mean nodeLabels?"#,
        ),
        (
            json!({"match": {"namespaceSelector": {"matchlabel": {}}}}),
            r#"match.namespaceSelector.matchlabel: unknown key "matchlabel": did you mean matchLabels?"#,
        ),
        (
            json!({"match": {"serviceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "value": "b"}]}}}),
            r#"match.serviceSelector.matchExpressions[0].value: unknown key "value": did you mean values?"#,
        ),
    ];
    check_mistakes("services.pools[0].", pool, &rows);
}

#[test]
fn pool_name_must_be_a_unique_dns_label() {
    let (longest, longer, long) = ("a".repeat(63), "a".repeat(64), "a".repeat(80));
    for name in ["", "Windows", "a.b", "-a", "a-", "größe", &longer] {
        check_mistakes("services.pools[0].name: ", pool, &[(json!({ "name": name }), &format!("{name:?} {LABEL}"))]);
    }
    let cut = format!("{long:?}… {LABEL}");
    let rows = [(json!({ "name": longest }), ""), (json!({"name": format!("{long}a")}), &cut)];
    check_mistakes("services.pools[0].name: ", pool, &rows);
    let rows = [
        (
            json!([
                {"name": "a", "cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}},
                {"name": "b", "cidrs": ["10.0.1.0/24"], "match": {"os": "linux"}},
                {"name": "a", "cidrs": ["10.0.2.0/24"]},
            ]),
            r#"[2].name: "a" is already the name of services.pools[0]"#,
        ),
        (
            json!([{"cidrs": ["10.0.0.0/24"], "match": {"os": "windows"}}, {"cidrs": ["10.0.1.0/24"]}]),
            "[0].name: missing: every pool needs a name\n[1].name: missing: every pool needs a name",
        ),
    ];
    check_mistakes("services.pools", pools, &rows);
}

#[test]
fn values_of_the_wrong_type_are_named() {
    let rows = [
        (json!([]), "settings: expected an object, found a list"),
        (json!({"services": "K2s"}), r#"services: expected an object, found the string "K2s""#),
    ];
    check_mistakes("", document, &rows);
    let rows = [
        (json!({"pools": {}}), "pools: expected a list, found an object"),
        (json!({"pools": ["a"]}), r#"pools[0]: expected an object, found the string "a""#),
        (json!({"evidence": []}), "evidence: expected an object, found a list"),
        (json!({"evidence": {"kinds": "Pod"}}), r#"evidence.kinds: expected a list, found the string "Pod""#),
        (json!({"assumeOS": 1}), "assumeOS: expected a string, found the number 1"),
        (json!({"order": {}}), "order: expected a string, found an object"),
        (json!({"annotateReason": "true"}), r#"annotateReason: expected true or false, found the string "true""#),
        (json!({"exemptNamespaces": "a"}), r#"exemptNamespaces: expected a list, found the string "a""#),
        (json!({"serviceCIDRs": "10.0.0.0/16"}), r#"serviceCIDRs: expected a list, found the string "10.0.0.0/16""#),
    ];
    check_mistakes("services.", services, &rows);
    let reserved = "reserved: expected a number of addresses, 0 or more, found the";
    let rows = [
        (json!({"name": 7}), "name: expected a string, found the number 7"),
        (json!({"cidrs": "10.0.0.0/24"}), r#"cidrs: expected a list, found the string "10.0.0.0/24""#),
        (json!({"cidrs": [7]}), "cidrs[0]: expected a string, found the number 7"),
        (json!({"reserved": "50"}), &format!(r#"{reserved} string "50""#)),
        (json!({"reserved": -1}), &format!("{reserved} number -1")),
        (json!({"reserved": 1.5}), &format!("{reserved} number 1.5")),
        (json!({"exclude": [true]}), "exclude[0]: expected a string, found true"),
        (json!({"bands": "yes"}), r#"bands: expected true or false, found the string "yes""#),
        (json!({"reservations": {"10.0.0.7": "shop/web"}}), "reservations: expected a list, found an object"),
        (json!({"reservations": ["10.0.0.7"]}), r#"reservations[0]: expected an object, found the string "10.0.0.7""#),
        (
            json!({"reservations": [{"address": 7, "namespace": ["shop"], "name": true}]}),
            "reservations[0].address: expected a string, found the number 7\n\
             reservations[0].namespace: expected a string, found a list\n\
             reservations[0].name: expected a string, found true",
        ),
        (json!({"match": []}), "match: expected an object, found a list"),
        (json!({"match": {"os": ["linux"]}}), "match.os: expected a string, found a list"),
        (json!({"match": {"nodeLabels": ["a"]}}), "match.nodeLabels: expected an object, found a list"),
        (
            json!({"match": {"nodeLabels": {"a.b/c": true}}}),
            r#"match.nodeLabels["a.b/c"]: expected a string, found true"#,
        ),
        (json!({"match": {"namespaces": "a"}}), r#"match.namespaces: expected a list, found the string "a""#),
        (
            json!({"match": {"namespaceSelector": "a"}}),
            r#"match.namespaceSelector: expected an object, found the string "a""#,
        ),
    ];
    check_mistakes("services.pools[0].", pool, &rows);
}

#[test]
fn unknown_choice_lists_the_known_ones() {
    let rows = [
        (json!({"order": "spred"}), r#"order: unknown value "spred": did you mean spread?"#),
        (json!({"order": "random"}), r#"order: unknown value "random": known are spread, lowest"#),
        (json!({"explicit": "denny"}), r#"explicit: unknown value "denny": did you mean deny?"#),
        (json!({"whenFull": "unmanged"}), r#"whenFull: unknown value "unmanged": did you mean unmanaged?"#),
        (json!({"unmatched": "outsite"}), r#"unmatched: unknown value "outsite": did you mean outside?"#),
        (
            json!({"evidence": {"lookups": "Namespace"}}),
            r#"evidence.lookups: unknown value "Namespace": did you mean namespace?"#,
        ),
        (json!({"assumeOS": ""}), "assumeOS: empty: name an operating system, such as linux or windows"),
        (json!({"exemptNamespaces": ["kube-system", "Kube"]}), &format!(r#"exemptNamespaces[1]: "Kube" {LABEL}"#)),
    ];
    check_mistakes("services.", services, &rows);
}

#[test]
fn all_mistakes_of_a_document_are_reported_at_once() {
    let broken = json!({
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
    });
    let mistakes = [
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
    ];
    check_mistakes("", document, &[(broken, &mistakes.join("\n"))]);
}
