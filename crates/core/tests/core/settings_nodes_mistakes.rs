//! The mistakes in the settings of the pod CIDRs of Nodes, each with its path.

use crate::support::{SettingsCase, check_mistakes, node_pool, node_pools, nodes};
use serde_json::{Value, json};

#[test]
fn missing_or_unreadable_list_of_pools_is_a_mistake() {
    check_mistakes(&[
        SettingsCase {
            name: "nodes",
            document: nodes(json!("all")),
            mistakes: &[r#"nodes: expected an object, found the string "all""#],
        },
        SettingsCase {
            name: "no pools",
            document: nodes(json!({})),
            mistakes: &["nodes.pools: missing: give at least one pool, or leave `nodes` out"],
        },
        SettingsCase {
            name: "pools: null",
            document: nodes(json!({"pools": null, "explicit": "allow"})),
            mistakes: &["nodes.pools: missing: give at least one pool, or leave `nodes` out"],
        },
        SettingsCase {
            name: "empty",
            document: node_pools(json!([])),
            mistakes: &["nodes.pools: no pool: give at least one, or leave `nodes` out"],
        },
        SettingsCase {
            name: "pools is not a list",
            document: node_pools(json!({})),
            mistakes: &["nodes.pools: expected a list, found an object"],
        },
        SettingsCase {
            name: "an unknown key",
            document: nodes(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicitly": "deny"})),
            mistakes: &[r#"nodes.explicitly: unknown key "explicitly": did you mean explicit?"#],
        },
        SettingsCase {
            name: "explicit",
            document: nodes(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicit": "refuse"})),
            mistakes: &[r#"nodes.explicit: unknown value "refuse": known are allow, warn, deny"#],
        },
        SettingsCase {
            name: "mistakes about Services before mistakes about Nodes",
            document: json!({"services": {"order": 1}, "nodes": {"pools": [{"name": "a"}]}}),
            mistakes: &[
                "services.order: expected a string, found the number 1",
                "nodes.pools[0].cidrs: missing: a pool needs at least one range",
            ],
        },
    ]);
}

#[test]
fn unreadable_pools_are_mistakes_with_their_paths() {
    check_mistakes(&[
        SettingsCase {
            name: "a pool that is a name",
            document: node_pools(json!(["a"])),
            mistakes: &[r#"nodes.pools[0]: expected an object, found the string "a""#],
        },
        SettingsCase {
            name: "keys of a pool of Services",
            document: node_pool(json!({"reserved": 50, "bands": true})),
            mistakes: &[
                r#"nodes.pools[0].bands: unknown key "bands": known are name, cidrs, blockSize, exclude, match"#,
                r#"nodes.pools[0].reserved: unknown key "reserved": known are name, cidrs, blockSize, exclude, match"#,
            ],
        },
        SettingsCase {
            name: "neither name nor ranges",
            document: node_pools(json!([{}])),
            mistakes: &[
                "nodes.pools[0].name: missing: every pool needs a name",
                "nodes.pools[0].cidrs: missing: a pool needs at least one range",
            ],
        },
        SettingsCase {
            name: "a name that is not a DNS label, no range",
            document: node_pool(json!({"name": "A", "cidrs": []})),
            mistakes: &[
                r#"nodes.pools[0].name: "A" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
                "nodes.pools[0].cidrs: no range: a pool needs at least one",
            ],
        },
        SettingsCase {
            name: "host bits",
            document: node_pool(json!({"cidrs": ["10.0.0.1/16"]})),
            mistakes: &["nodes.pools[0].cidrs[0]: 10.0.0.1/16 has host bits set: did you mean 10.0.0.0/16?"],
        },
    ]);
}

#[test]
fn unreadable_block_sizes_are_mistakes_with_their_paths() {
    let size = |size: Value| node_pool(json!({ "blockSize": size }));
    check_mistakes(&[
        SettingsCase {
            name: "a size for both families",
            document: size(json!(24)),
            mistakes: &["nodes.pools[0].blockSize: expected an object, found the number 24"],
        },
        SettingsCase {
            name: "a size of an unknown family",
            document: size(json!({"v4": 24})),
            mistakes: &[r#"nodes.pools[0].blockSize.v4: unknown key "v4": did you mean ipv4?"#],
        },
        SettingsCase {
            name: "sizes out of bounds",
            document: size(json!({"ipv4": 33, "ipv6": 129})),
            mistakes: &[
                "nodes.pools[0].blockSize.ipv4: expected a prefix length from 1 to 32, found the number 33",
                "nodes.pools[0].blockSize.ipv6: expected a prefix length from 1 to 128, found the number 129",
            ],
        },
        SettingsCase {
            name: "invalid sizes",
            document: size(json!({"ipv4": 0, "ipv6": "/64"})),
            mistakes: &[
                "nodes.pools[0].blockSize.ipv4: expected a prefix length from 1 to 32, found the number 0",
                r#"nodes.pools[0].blockSize.ipv6: expected a prefix length from 1 to 128, found the string "/64""#,
            ],
        },
        SettingsCase {
            name: "a size with a fraction, a size above 255",
            document: size(json!({"ipv4": 24.5, "ipv6": 320})),
            mistakes: &[
                "nodes.pools[0].blockSize.ipv4: expected a prefix length from 1 to 32, found the number 24.5",
                "nodes.pools[0].blockSize.ipv6: expected a prefix length from 1 to 128, found the number 320",
            ],
        },
    ]);
}

#[test]
fn unreadable_matches_are_mistakes_with_their_paths() {
    let matching = |matches: Value| node_pool(json!({ "match": matches }));
    check_mistakes(&[
        SettingsCase {
            name: "a namespace, which no Node has",
            document: matching(json!({"namespaces": ["shop"]})),
            mistakes: &[
                r#"nodes.pools[0].match.namespaces: unknown key "namespaces": known are os, nodeLabels, nodeSelector"#,
            ],
        },
        SettingsCase {
            name: "an os that contradicts its label",
            document: matching(json!({"os": "linux", "nodeLabels": {"kubernetes.io/os": "Windows"}})),
            mistakes: &[r#"nodes.pools[0].match.os: contradicts nodeLabels, where kubernetes.io/os is "windows""#],
        },
        SettingsCase {
            name: "a selector",
            document: matching(json!({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}})),
            mistakes: &[
                "nodes.pools[0].match.nodeSelector.matchExpressions[0].values: missing: In and NotIn need at least one value",
            ],
        },
        SettingsCase {
            name: "a selector that is a string",
            document: matching(json!({"nodeSelector": "a=b"})),
            mistakes: &[r#"nodes.pools[0].match.nodeSelector: expected an object, found the string "a=b""#],
        },
    ]);
}

#[test]
fn ranges_must_leave_at_least_one_block() {
    let none = "has no usable block: all overlap Service ranges, pools of Services or exclude";
    let sized = |cidr: &str, v4: u8, v6: u8| node_pool(json!({"cidrs": [cidr], "blockSize": {"ipv4": v4, "ipv6": v6}}));
    let with_services = |services: Value, fields: Value| {
        let mut document = node_pool(fields);
        document["services"] = services;
        document
    };
    check_mistakes(&[
        SettingsCase { name: "a range that is one block", document: sized("10.0.0.0/24", 24, 64), mistakes: &[] },
        SettingsCase {
            name: "a range that is smaller than a block",
            document: sized("10.0.0.0/25", 24, 64),
            mistakes: &[
                "nodes.pools[0].cidrs[0]: blocks of /24 can't be cut out of 10.0.0.0/25: give a length from /25 to /32",
            ],
        },
        SettingsCase {
            name: "an IPv6 range that is smaller than a block",
            document: sized("fd00::/96", 24, 64),
            mistakes: &[
                "nodes.pools[0].cidrs[0]: blocks of /64 can't be cut out of fd00::/96: give a length from /96 to /128",
            ],
        },
        SettingsCase { name: "2^120 blocks", document: sized("fd00::/8", 24, 128), mistakes: &[] },
        SettingsCase {
            name: "all addresses of a family",
            document: node_pool(json!({"cidrs": ["::/0", "0.0.0.0/0"], "blockSize": {"ipv6": 128}})),
            mistakes: &[],
        },
        SettingsCase {
            name: "the only block is excluded by its last address",
            document: node_pool(json!({"cidrs": ["10.0.0.0/24"], "exclude": ["10.0.0.255"]})),
            mistakes: &[&format!("nodes.pools[0].cidrs[0]: 10.0.0.0/24 {none}")],
        },
        SettingsCase {
            name: "all blocks but one are excluded",
            document: node_pool(json!({"cidrs": ["10.0.0.0/23"], "exclude": ["10.0.1.255"]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "a Service range covers the pool",
            document: with_services(json!({"serviceCIDRs": ["10.0.0.0/8"]}), json!({})),
            mistakes: &[&format!("nodes.pools[0].cidrs[0]: 10.0.0.0/16 {none}")],
        },
        SettingsCase {
            name: "a Service range covers a part of the pool",
            document: with_services(json!({"serviceCIDRs": ["10.0.0.0/17"]}), json!({})),
            mistakes: &[],
        },
        SettingsCase {
            name: "excluded outside the pool",
            document: node_pool(json!({"exclude": ["10.0.0.7", "10.1.0.0/16", "fd00::/64"]})),
            mistakes: &[
                "nodes.pools[0].exclude[1]: 10.1.0.0/16 is in no range of the pool",
                "nodes.pools[0].exclude[2]: fd00::/64 is in no range of the pool",
            ],
        },
    ]);
}

#[test]
fn ranges_must_not_overlap_each_other_or_another_pool() {
    let with_services = |pools: Value, nodes: Value| json!({"services": {"pools": pools}, "nodes": {"pools": nodes}});
    let services = || json!([{"name": "s", "cidrs": ["172.16.0.0/24", "10.0.3.0/24", "10.0.4.0/24"]}]);
    check_mistakes(&[
        SettingsCase {
            name: "the same pool",
            document: node_pool(json!({"cidrs": ["10.0.0.0/16", "10.0.128.0/17"]})),
            mistakes: &["nodes.pools[0].cidrs[1]: 10.0.128.0/17 overlaps 10.0.0.0/16 of the same pool"],
        },
        SettingsCase {
            name: "another pool, and its name",
            document: node_pools(json!([
                {"name": "a", "cidrs": ["x", "10.0.0.0/16"], "match": {"os": "windows"}},
                {"name": "a", "cidrs": ["10.0.0.0/8"]},
            ])),
            mistakes: &[
                r#"nodes.pools[0].cidrs[0]: "x" is not a CIDR"#,
                "nodes.pools[1].name: \"a\" is already the name of nodes.pools[0]",
                r#"nodes.pools[1].cidrs[0]: 10.0.0.0/8 overlaps 10.0.0.0/16 of pool "a""#,
            ],
        },
        SettingsCase {
            name: "neighbours",
            document: node_pool(json!({"cidrs": ["10.0.0.0/17", "10.0.128.0/17"]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "a pool of Services inside the range",
            document: with_services(services(), json!([{"name": "a", "cidrs": ["10.0.0.0/16"]}])),
            mistakes: &[
                r#"nodes.pools[0].cidrs[0]: 10.0.0.0/16 overlaps 10.0.3.0/24 of the pool "s" of Services: exclude it"#,
            ],
        },
        SettingsCase {
            name: "one of two ranges of the pool of Services is excluded",
            document: with_services(
                services(),
                json!([{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.3.0/24"]}]),
            ),
            mistakes: &[
                r#"nodes.pools[0].cidrs[0]: 10.0.0.0/16 overlaps 10.0.4.0/24 of the pool "s" of Services: exclude it"#,
            ],
        },
        SettingsCase {
            name: "half of a range of the pool of Services is excluded",
            document: with_services(
                services(),
                json!([{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.3.0/24", "10.0.4.0/25"]}]),
            ),
            mistakes: &[
                r#"nodes.pools[0].cidrs[0]: 10.0.0.0/16 overlaps 10.0.4.0/24 of the pool "s" of Services: exclude it"#,
            ],
        },
        SettingsCase {
            name: "more than the pool of Services is excluded",
            document: with_services(
                services(),
                json!([{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.0.0/20"]}]),
            ),
            mistakes: &[],
        },
        SettingsCase {
            name: "a pool of Services that has the same name",
            document: with_services(
                json!([{"name": "a", "cidrs": ["172.16.0.0/24"]}]),
                json!([{"name": "a", "cidrs": ["10.0.0.0/16"]}]),
            ),
            mistakes: &[],
        },
    ]);
}

#[test]
fn pool_that_is_never_used_is_a_mistake() {
    let two = |first: Value, second: Value| {
        node_pools(json!([
            {"name": "a", "cidrs": ["10.0.0.0/16"], "match": first},
            {"name": "b", "cidrs": ["10.1.0.0/16"], "match": second},
        ]))
    };
    let never_used = [r#"nodes.pools[1].match: never used: pool "a", which is tried first, matches the same or more"#];
    let zone = || json!({"nodeSelector": {"matchLabels": {"zone": "a"}}});
    check_mistakes(&[
        SettingsCase {
            name: "behind a pool for every Node",
            document: two(json!({}), json!({"os": "linux"})),
            mistakes: &never_used,
        },
        SettingsCase {
            name: "the same os as a node label",
            document: two(json!({"os": "Linux"}), json!({"nodeLabels": {"kubernetes.io/os": "linux"}})),
            mistakes: &never_used,
        },
        SettingsCase {
            name: "more labels than before",
            document: two(json!({"os": "linux"}), json!({"os": "linux", "nodeLabels": {"a": "b"}})),
            mistakes: &never_used,
        },
        SettingsCase { name: "the same selector", document: two(zone(), zone()), mistakes: &never_used },
        SettingsCase {
            name: "the same selector and another condition",
            document: two(zone(), json!({"os": "linux", "nodeSelector": {"matchLabels": {"zone": "a"}}})),
            mistakes: &never_used,
        },
        SettingsCase {
            name: "a selector beside the same os",
            document: two(
                json!({"os": "linux"}),
                json!({"os": "linux", "nodeSelector": {"matchLabels": {"zone": "a"}}}),
            ),
            mistakes: &never_used,
        },
        SettingsCase {
            name: "another os",
            document: two(json!({"os": "windows"}), json!({"os": "linux"})),
            mistakes: &[],
        },
        SettingsCase {
            name: "fewer labels than before",
            document: two(json!({"os": "linux", "nodeLabels": {"a": "b"}}), json!({"os": "linux"})),
            mistakes: &[],
        },
        SettingsCase {
            name: "another selector",
            document: two(zone(), json!({"nodeSelector": {"matchLabels": {"zone": "b"}}})),
            mistakes: &[],
        },
        SettingsCase { name: "no selector", document: two(zone(), json!({})), mistakes: &[] },
        SettingsCase {
            name: "behind a pool with an invalid match",
            document: two(json!({"oss": "windows"}), json!({"os": "linux"})),
            mistakes: &[r#"nodes.pools[0].match.oss: unknown key "oss": did you mean os?"#],
        },
        SettingsCase {
            name: "a pool with an unknown key",
            document: node_pools(json!([
                {"name": "a", "cidrs": ["10.0.0.0/16"]},
                {"name": "b", "cidrs": ["10.1.0.0/16"], "matches": {"os": "linux"}},
            ])),
            mistakes: &[r#"nodes.pools[1].matches: unknown key "matches": did you mean match?"#],
        },
    ]);
}
