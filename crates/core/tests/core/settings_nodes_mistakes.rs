//! The mistakes in the settings of the pod CIDRs of Nodes, each with its path.

use crate::support::{check_mistakes, document, extended, node_pool, node_pools, nodes};
use serde_json::{Value, json};

#[test]
fn missing_or_unreadable_list_of_pools_is_a_mistake() {
    let missing = ".pools: missing: give at least one pool, or leave `nodes` out";
    let rows = [
        (json!("all"), r#": expected an object, found the string "all""#),
        (json!({}), missing),
        (json!({"pools": null, "explicit": "allow"}), missing),
        (json!({"pools": []}), ".pools: no pool: give at least one, or leave `nodes` out"),
        (json!({"pools": {}}), ".pools: expected a list, found an object"),
        (
            json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicitly": "deny"}),
            r#".explicitly: unknown key "explicitly": did you mean explicit?"#,
        ),
        (
            json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicit": "refuse"}),
            r#".explicit: unknown value "refuse": known are allow, warn, deny"#,
        ),
    ];
    check_mistakes("nodes", nodes, &rows);
    let both = json!({"services": {"order": 1}, "nodes": {"pools": [{"name": "a"}]}});
    let mistakes = "services.order: expected a string, found the number 1\n\
                    nodes.pools[0].cidrs: missing: a pool needs at least one range";
    check_mistakes("", document, &[(both, mistakes)]);
}

#[test]
fn unreadable_pools_are_mistakes_with_their_paths() {
    let rows = [
        (json!(["a"]), r#": expected an object, found the string "a""#),
        (json!([{}]), ".name: missing: every pool needs a name\n.cidrs: missing: a pool needs at least one range"),
    ];
    check_mistakes("nodes.pools[0]", node_pools, &rows);
    let known = "known are name, cidrs, blockSize, exclude, match";
    let size = "expected a prefix length from 1 to";
    let rows = [
        (
            json!({"reserved": 50, "bands": true}),
            &*format!("bands: unknown key \"bands\": {known}\nreserved: unknown key \"reserved\": {known}"),
        ),
        (
            json!({"name": "A", "cidrs": []}),
            "name: \"A\" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end\n\
             cidrs: no range: a pool needs at least one",
        ),
        (json!({"cidrs": ["10.0.0.1/16"]}), "cidrs[0]: 10.0.0.1/16 has host bits set: did you mean 10.0.0.0/16?"),
        (json!({"blockSize": 24}), "blockSize: expected an object, found the number 24"),
        (json!({"blockSize": {"v4": 24}}), r#"blockSize.v4: unknown key "v4": did you mean ipv4?"#),
        (
            json!({"blockSize": {"ipv4": 33, "ipv6": 129}}),
            &format!(
                "blockSize.ipv4: {size} 32, found the number 33\nblockSize.ipv6: {size} 128, found the number 129"
            ),
        ),
        (
            json!({"blockSize": {"ipv4": 0, "ipv6": "/64"}}),
            &format!(
                "blockSize.ipv4: {size} 32, found the number 0\nblockSize.ipv6: {size} 128, found the string \"/64\""
            ),
        ),
        (
            json!({"blockSize": {"ipv4": 24.5, "ipv6": 320}}),
            &format!(
                "blockSize.ipv4: {size} 32, found the number 24.5\nblockSize.ipv6: {size} 128, found the number 320"
            ),
        ),
        (
            json!({"match": {"namespaces": ["shop"]}}),
            r#"match.namespaces: unknown key "namespaces": known are os, nodeLabels, nodeSelector"#,
        ),
        (
            json!({"match": {"os": "linux", "nodeLabels": {"kubernetes.io/os": "Windows"}}}),
            r#"match.os: contradicts nodeLabels, where kubernetes.io/os is "windows""#,
        ),
        (
            json!({"match": {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}),
            "match.nodeSelector.matchExpressions[0].values: missing: In and NotIn need at least one value",
        ),
        (
            json!({"match": {"nodeSelector": "a=b"}}),
            r#"match.nodeSelector: expected an object, found the string "a=b""#,
        ),
    ];
    check_mistakes("nodes.pools[0].", node_pool, &rows);
}

#[test]
fn ranges_must_leave_at_least_one_block() {
    let none = "has no usable block: all overlap Service ranges, pools of Services or exclude";
    let rows = [
        (json!({"cidrs": ["10.0.0.0/24"], "blockSize": {"ipv4": 24}}), ""),
        (
            json!({"cidrs": ["10.0.0.0/25"], "blockSize": {"ipv4": 24}}),
            "cidrs[0]: blocks of /24 can't be cut out of 10.0.0.0/25: give a length from /25 to /32",
        ),
        (
            json!({"cidrs": ["fd00::/96"], "blockSize": {"ipv6": 64}}),
            "cidrs[0]: blocks of /64 can't be cut out of fd00::/96: give a length from /96 to /128",
        ),
        (json!({"cidrs": ["fd00::/8"], "blockSize": {"ipv6": 128}}), ""),
        (json!({"cidrs": ["::/0", "0.0.0.0/0"], "blockSize": {"ipv6": 128}}), ""),
        (json!({"cidrs": ["10.0.0.0/24"], "exclude": ["10.0.0.255"]}), &format!("cidrs[0]: 10.0.0.0/24 {none}")),
        (json!({"cidrs": ["10.0.0.0/23"], "exclude": ["10.0.1.255"]}), ""),
        (
            json!({"exclude": ["10.0.0.7", "10.1.0.0/16", "fd00::/64"]}),
            "exclude[1]: 10.1.0.0/16 is in no range of the pool\nexclude[2]: fd00::/64 is in no range of the pool",
        ),
    ];
    check_mistakes("nodes.pools[0].", node_pool, &rows);
    let beside = |range: Value| extended(node_pool(json!({})), &json!({"services": {"serviceCIDRs": [range]}}));
    let rows = [(json!("10.0.0.0/8"), &*format!("10.0.0.0/16 {none}")), (json!("10.0.0.0/17"), "")];
    check_mistakes("nodes.pools[0].cidrs[0]: ", beside, &rows);
}

#[test]
fn ranges_must_not_overlap_each_other_or_another_pool() {
    let rows = [
        (
            json!([{"name": "a", "cidrs": ["10.0.0.0/16", "10.0.128.0/17"]}]),
            "[0].cidrs[1]: 10.0.128.0/17 overlaps 10.0.0.0/16 of the same pool",
        ),
        (
            json!([
                {"name": "a", "cidrs": ["x", "10.0.0.0/16"], "match": {"os": "windows"}},
                {"name": "a", "cidrs": ["10.0.0.0/8"]},
            ]),
            "[0].cidrs[0]: \"x\" is not a CIDR\n\
             [1].name: \"a\" is already the name of nodes.pools[0]\n\
             [1].cidrs[0]: 10.0.0.0/8 overlaps 10.0.0.0/16 of pool \"a\"",
        ),
        (json!([{"name": "a", "cidrs": ["10.0.0.0/17", "10.0.128.0/17"]}]), ""),
    ];
    check_mistakes("nodes.pools", node_pools, &rows);
    // A pool of Services may have the same name.
    let excluding = |exclude: Value| {
        let services = json!({"pools": [{"name": "a", "cidrs": ["172.16.0.0/24", "10.0.3.0/24", "10.0.4.0/24"]}]});
        extended(node_pool(json!({ "exclude": exclude })), &json!({ "services": services }))
    };
    let exclude = |range: &str| format!(r#"10.0.0.0/16 overlaps {range} of the pool "a" of Services: exclude it"#);
    let rows = [
        (json!([]), &*exclude("10.0.3.0/24")),
        (json!(["10.0.3.0/24"]), &exclude("10.0.4.0/24")),
        (json!(["10.0.3.0/24", "10.0.4.0/25"]), &exclude("10.0.4.0/24")),
        (json!(["10.0.0.0/20"]), ""),
    ];
    check_mistakes("nodes.pools[0].cidrs[0]: ", excluding, &rows);
}

#[test]
fn pool_that_is_never_used_is_a_mistake() {
    let two = |matches: Value| {
        node_pools(json!([
            {"name": "a", "cidrs": ["10.0.0.0/16"], "match": matches[0]},
            {"name": "b", "cidrs": ["10.1.0.0/16"], "match": matches[1]},
        ]))
    };
    let never_used = r#"[1].match: never used: pool "a", which is tried first, matches the same or more"#;
    let zone = json!({"matchLabels": {"zone": "a"}});
    let rows = [
        (json!([{}, {"os": "linux"}]), never_used),
        (json!([{"os": "Linux"}, {"nodeLabels": {"kubernetes.io/os": "linux"}}]), never_used),
        (json!([{"os": "linux"}, {"os": "linux", "nodeLabels": {"a": "b"}}]), never_used),
        (json!([{"nodeSelector": zone}, {"nodeSelector": zone}]), never_used),
        (json!([{"nodeSelector": zone}, {"os": "linux", "nodeSelector": zone}]), never_used),
        (json!([{"os": "linux"}, {"os": "linux", "nodeSelector": zone}]), never_used),
        (json!([{"os": "windows"}, {"os": "linux"}]), ""),
        (json!([{"os": "linux", "nodeLabels": {"a": "b"}}, {"os": "linux"}]), ""),
        (json!([{"nodeSelector": zone}, {"nodeSelector": {"matchLabels": {"zone": "b"}}}]), ""),
        (json!([{"nodeSelector": zone}, {}]), ""),
        // Behind a pool with an invalid match.
        (json!([{"oss": "windows"}, {"os": "linux"}]), r#"[0].match.oss: unknown key "oss": did you mean os?"#),
    ];
    check_mistakes("nodes.pools", two, &rows);
    let misspelt = json!([
        {"name": "a", "cidrs": ["10.0.0.0/16"]},
        {"name": "b", "cidrs": ["10.1.0.0/16"], "matches": {"os": "linux"}},
    ]);
    let unknown = r#"[1].matches: unknown key "matches": did you mean match?"#;
    check_mistakes("nodes.pools", node_pools, &[(misspelt, unknown)]);
}
