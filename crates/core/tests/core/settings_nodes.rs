//! The settings of the pod CIDRs of Nodes: their meaning, their mistakes and their warnings.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{SettingsCase, check_mistakes, net, node_pool, node_pools, nodes, settings};
use clusterip_core::address::Family;
use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};
use clusterip_core::settings::{BlockSize, Explicit, NodeMatch, NodePool, NodeSettings, Settings, Withheld};
use clusterip_core::validate::{SettingsAnswer, validate_settings};
use serde_json::{Value, json};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn every_field_is_read() {
    let document = json!({
        "services": {"serviceCIDRs": ["10.96.0.0/16"]},
        "nodes": {
            "pools": [
                {
                    "name": "windows",
                    "cidrs": ["10.0.0.0/16", "fd00::/40", "10.9.0.0/20"],
                    "blockSize": {"ipv4": 26, "ipv6": 60},
                    "exclude": ["10.0.7.0/24", "10.0.0.9", "fd00::/56"],
                    "match": {
                        "os": "Windows",
                        "nodeLabels": {"disk": "SSD"},
                        "nodeSelector": {
                            "matchLabels": {"zone": "a"},
                            "matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}],
                        },
                    },
                },
                {"name": "rest", "cidrs": ["10.1.0.0/16"]},
            ],
            "explicit": "deny",
        },
    });
    let expected = Settings {
        pools: vec![],
        service_cidrs: vec![net("10.96.0.0/16")],
        nodes: NodeSettings {
            pools: vec![
                NodePool {
                    name: "windows".into(),
                    cidrs: vec![net("10.0.0.0/16"), net("fd00::/40"), net("10.9.0.0/20")],
                    block_size: BlockSize { v4: 26, v6: 60 },
                    exclude: vec![net("10.0.7.0/24"), net("10.0.0.9/32"), net("fd00::/56")],
                    matches: NodeMatch {
                        node_labels: labels(&[("kubernetes.io/os", "windows"), ("disk", "SSD")]),
                        node_selector: LabelSelector {
                            match_labels: labels(&[("zone", "a")]),
                            match_expressions: vec![Requirement {
                                key: "gpu".into(),
                                operator: Operator::DoesNotExist,
                                values: vec![],
                            }],
                        },
                    },
                },
                NodePool {
                    name: "rest".into(),
                    cidrs: vec![net("10.1.0.0/16")],
                    block_size: BlockSize { v4: 24, v6: 64 },
                    exclude: vec![],
                    matches: NodeMatch::default(),
                },
            ],
            explicit: Explicit::Deny,
        },
        ..Settings::default()
    };
    let settings = settings(&document);
    assert_eq!(settings, expected);
    let windows = &settings.nodes.pools[0];
    assert_eq!(windows.families(), [Family::V4, Family::V6]);
    assert_eq!(windows.cidrs_of(Family::V4).collect::<Vec<_>>(), [net("10.0.0.0/16"), net("10.9.0.0/20")]);
    assert_eq!(windows.cidr_of(net("10.9.15.0/24")), Some(net("10.9.0.0/20")));
    assert_eq!(windows.cidr_of(net("10.9.0.0/19")), None, "only a part of it lies there");
    assert!(windows.meets(net("10.9.0.0/19")) && !windows.meets(net("10.9.16.0/24")));
}

#[test]
fn families_follow_the_order_of_the_ranges() {
    struct Case {
        name: &'static str,
        cidrs: Value,
        families: Vec<Family>,
    }
    let rows = [
        Case { name: "IPv4 alone", cidrs: json!(["10.0.0.0/16"]), families: vec![Family::V4] },
        Case {
            name: "IPv6 first",
            cidrs: json!(["fd00::/48", "10.0.0.0/16", "fd01::/48"]),
            families: vec![Family::V6, Family::V4],
        },
        Case {
            name: "IPv4 first",
            cidrs: json!(["10.0.0.0/16", "10.1.0.0/16", "fd00::/48"]),
            families: vec![Family::V4, Family::V6],
        },
    ];
    for Case { name, cidrs, families } in rows {
        assert_eq!(settings(&node_pool(json!({ "cidrs": cidrs }))).nodes.pools[0].families(), families, "{name}");
    }
}

#[test]
fn default_pools_of_services_exist_only_without_pools_of_nodes() {
    struct Case {
        name: &'static str,
        document: Value,
        service_pools: Vec<&'static str>,
        node_pool_count: usize,
    }
    let pool = json!({"name": "a", "cidrs": ["10.0.0.0/16"]});
    let services = json!({"pools": [{"name": "s", "cidrs": ["172.16.0.0/24"]}]});
    let rows = [
        Case {
            name: "empty settings",
            document: json!({}),
            service_pools: vec!["windows", "linux"],
            node_pool_count: 0,
        },
        Case {
            name: "nodes: null",
            document: json!({"nodes": null}),
            service_pools: vec!["windows", "linux"],
            node_pool_count: 0,
        },
        Case {
            name: "only pools of Nodes",
            document: json!({"nodes": {"pools": [pool]}}),
            service_pools: vec![],
            node_pool_count: 1,
        },
        Case {
            name: "pools of Nodes, and services without pools",
            document: json!({"services": {"order": "lowest"}, "nodes": {"pools": [pool]}}),
            service_pools: vec![],
            node_pool_count: 1,
        },
        Case {
            name: "pools of Services and of Nodes",
            document: json!({"services": services, "nodes": {"pools": [pool]}}),
            service_pools: vec!["s"],
            node_pool_count: 1,
        },
    ];
    for Case { name, document, service_pools, node_pool_count } in rows {
        let settings = settings(&document);
        let names: Vec<&str> = settings.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!((names, settings.nodes.pools.len()), (service_pools, node_pool_count), "{name}");
        assert_eq!(settings.nodes.explicit, Explicit::Warn, "{name}");
    }
}

#[test]
fn unreadable_values_are_mistakes_with_their_paths() {
    let matching = |matches: Value| node_pool(json!({ "match": matches }));
    let size = |size: Value| node_pool(json!({ "blockSize": size }));
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
            name: "a pool that is a name",
            document: node_pools(json!(["a"])),
            mistakes: &[r#"nodes.pools[0]: expected an object, found the string "a""#],
        },
        SettingsCase {
            name: "an unknown key",
            document: nodes(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicitly": "deny"})),
            mistakes: &[r#"nodes.explicitly: unknown key "explicitly": did you mean explicit?"#],
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
            name: "a namespace, which no Node has",
            document: matching(json!({"namespaces": ["shop"]})),
            mistakes: &[
                r#"nodes.pools[0].match.namespaces: unknown key "namespaces": known are os, nodeLabels, nodeSelector"#,
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
        SettingsCase {
            name: "explicit",
            document: nodes(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicit": "refuse"})),
            mistakes: &[r#"nodes.explicit: unknown value "refuse": known are allow, warn, deny"#],
        },
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
    let never_used = [r#"nodes.pools[1].match: never used: the earlier pool "a" matches everything that it matches"#];
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

#[test]
fn service_range_inside_a_pool_is_a_warning() {
    struct Case {
        name: &'static str,
        cidrs: Value,
        expected: Vec<String>,
    }
    let document = |cidrs: Value| {
        json!({
            "services": {"serviceCIDRs": cidrs},
            "nodes": {"pools": [
                {"name": "a", "cidrs": ["fd00::/48", "10.0.0.0/16"], "match": {"os": "linux"}},
                {"name": "b", "cidrs": ["10.1.0.0/16"]},
            ]},
        })
    };
    let line = |path: &str, cidr: &str, range: &str| {
        format!("nodes.{path}: {cidr} overlaps the Service range {range}: blocks that overlap it are not assigned")
    };
    let rows = [
        Case { name: "outside the pools", cidrs: json!(["10.96.0.0/16", "fd01::/112"]), expected: vec![] },
        Case { name: "no Service range", cidrs: json!([]), expected: vec![] },
        Case {
            name: "inside a pool",
            cidrs: json!(["10.1.255.0/24"]),
            expected: vec![line("pools[1].cidrs[0]", "10.1.0.0/16", "10.1.255.0/24")],
        },
        Case {
            name: "a Service range of each family",
            cidrs: json!(["10.0.0.0/20", "fd00::/112"]),
            expected: vec![
                line("pools[0].cidrs[0]", "fd00::/48", "fd00::/112"),
                line("pools[0].cidrs[1]", "10.0.0.0/16", "10.0.0.0/20"),
            ],
        },
    ];
    for Case { name, cidrs, expected } in rows {
        let document = document(cidrs);
        let warnings: Vec<String> = settings(&document).warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, expected, "{name}");
        let answer = validate_settings(document.to_string().as_bytes());
        assert_eq!(answer, SettingsAnswer { valid: true, message: None, warnings }, "{name}: the answer");
    }
}

#[test]
fn withheld_ranges_have_a_reason() {
    let settings = settings(&json!({
        "services": {
            "pools": [{"name": "s", "cidrs": ["172.16.0.0/24", "172.16.1.0/24"]}],
            "serviceCIDRs": ["172.16.0.0/16", "fd00::/112"],
        },
        "nodes": {"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.0.0/24"]}]},
    }));
    let withheld: Vec<(String, Withheld<'_>)> =
        settings.withheld_from(&settings.nodes.pools[0]).map(|(range, why)| (range.to_string(), why)).collect();
    let expected = [
        ("172.16.0.0/16", Withheld::ServiceRange),
        ("fd00::/112", Withheld::ServiceRange),
        ("172.16.0.0/24", Withheld::ServicePool("s")),
        ("172.16.1.0/24", Withheld::ServicePool("s")),
        ("10.0.0.0/24", Withheld::Excluded),
    ];
    assert_eq!(withheld, expected.map(|(range, why)| (range.to_owned(), why)));
}
