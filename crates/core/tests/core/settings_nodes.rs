//! The settings of the pod CIDRs of Nodes: their meaning, their mistakes and their warnings.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{check_mistakes, net, node_pool, node_pools, nodes, settings};
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
    let rows = [
        ("IPv4 alone", json!(["10.0.0.0/16"]), vec![Family::V4]),
        ("IPv6 first", json!(["fd00::/48", "10.0.0.0/16", "fd01::/48"]), vec![Family::V6, Family::V4]),
        ("IPv4 first", json!(["10.0.0.0/16", "10.1.0.0/16", "fd00::/48"]), vec![Family::V4, Family::V6]),
    ];
    for (name, cidrs, families) in rows {
        assert_eq!(settings(&node_pool(json!({ "cidrs": cidrs }))).nodes.pools[0].families(), families, "{name}");
    }
}

#[test]
fn default_pools_of_services_exist_only_without_pools_of_nodes() {
    let pool = json!({"name": "a", "cidrs": ["10.0.0.0/16"]});
    let services = json!({"pools": [{"name": "s", "cidrs": ["172.16.0.0/24"]}]});
    let rows = [
        ("nothing", json!({}), vec!["windows", "linux"], 0),
        ("nodes: null", json!({"nodes": null}), vec!["windows", "linux"], 0),
        ("Nodes alone", json!({"nodes": {"pools": [pool]}}), vec![], 1),
        (
            "Nodes, and services without pools",
            json!({"services": {"order": "lowest"}, "nodes": {"pools": [pool]}}),
            vec![],
            1,
        ),
        ("both", json!({"services": services, "nodes": {"pools": [pool]}}), vec!["s"], 1),
    ];
    for (name, document, of_services, of_nodes) in rows {
        let settings = settings(&document);
        let names: Vec<&str> = settings.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!((names, settings.nodes.pools.len()), (of_services, of_nodes), "{name}");
        assert_eq!(settings.nodes.explicit, Explicit::Warn, "{name}");
    }
}

#[test]
fn unreadable_values_are_mistakes_with_their_paths() {
    let matching = |matches: Value| node_pool(json!({ "match": matches }));
    let size = |size: Value| node_pool(json!({ "blockSize": size }));
    check_mistakes(&[
        ("nodes", nodes(json!("all")), &[r#"nodes: expected an object, found the string "all""#]),
        ("no pools", nodes(json!({})), &["nodes.pools: missing: give at least one pool, or leave `nodes` out"]),
        (
            "pools: null",
            nodes(json!({"pools": null, "explicit": "allow"})),
            &["nodes.pools: missing: give at least one pool, or leave `nodes` out"],
        ),
        ("empty", node_pools(json!([])), &["nodes.pools: no pool: give at least one, or leave `nodes` out"]),
        ("pools is not a list", node_pools(json!({})), &["nodes.pools: expected a list, found an object"]),
        (
            "a pool that is a name",
            node_pools(json!(["a"])),
            &[r#"nodes.pools[0]: expected an object, found the string "a""#],
        ),
        (
            "an unknown key",
            nodes(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicitly": "deny"})),
            &[r#"nodes.explicitly: unknown key "explicitly": did you mean explicit?"#],
        ),
        (
            "keys of a pool of Services",
            node_pool(json!({"reserved": 50, "bands": true})),
            &[
                r#"nodes.pools[0].bands: unknown key "bands": known are name, cidrs, blockSize, exclude, match"#,
                r#"nodes.pools[0].reserved: unknown key "reserved": known are name, cidrs, blockSize, exclude, match"#,
            ],
        ),
        (
            "a namespace, which no Node has",
            matching(json!({"namespaces": ["shop"]})),
            &[r#"nodes.pools[0].match.namespaces: unknown key "namespaces": known are os, nodeLabels, nodeSelector"#],
        ),
        (
            "neither name nor ranges",
            node_pools(json!([{}])),
            &[
                "nodes.pools[0].name: missing: every pool needs a name",
                "nodes.pools[0].cidrs: missing: a pool needs at least one range",
            ],
        ),
        (
            "a name that is not a DNS label, no range",
            node_pool(json!({"name": "A", "cidrs": []})),
            &[
                r#"nodes.pools[0].name: "A" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
                "nodes.pools[0].cidrs: no range: a pool needs at least one",
            ],
        ),
        (
            "host bits",
            node_pool(json!({"cidrs": ["10.0.0.1/16"]})),
            &["nodes.pools[0].cidrs[0]: 10.0.0.1/16 has host bits set: did you mean 10.0.0.0/16?"],
        ),
        (
            "explicit",
            nodes(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/16"]}], "explicit": "refuse"})),
            &[r#"nodes.explicit: unknown value "refuse": known are allow, warn, deny"#],
        ),
        (
            "a size for both families",
            size(json!(24)),
            &["nodes.pools[0].blockSize: expected an object, found the number 24"],
        ),
        (
            "a size of an unknown family",
            size(json!({"v4": 24})),
            &[r#"nodes.pools[0].blockSize.v4: unknown key "v4": did you mean ipv4?"#],
        ),
        (
            "sizes out of bounds",
            size(json!({"ipv4": 33, "ipv6": 129})),
            &[
                "nodes.pools[0].blockSize.ipv4: expected a prefix length from 1 to 32, found the number 33",
                "nodes.pools[0].blockSize.ipv6: expected a prefix length from 1 to 128, found the number 129",
            ],
        ),
        (
            "sizes that are none",
            size(json!({"ipv4": 0, "ipv6": "/64"})),
            &[
                "nodes.pools[0].blockSize.ipv4: expected a prefix length from 1 to 32, found the number 0",
                r#"nodes.pools[0].blockSize.ipv6: expected a prefix length from 1 to 128, found the string "/64""#,
            ],
        ),
        (
            "a size with a fraction, a size above 255",
            size(json!({"ipv4": 24.5, "ipv6": 320})),
            &[
                "nodes.pools[0].blockSize.ipv4: expected a prefix length from 1 to 32, found the number 24.5",
                "nodes.pools[0].blockSize.ipv6: expected a prefix length from 1 to 128, found the number 320",
            ],
        ),
        (
            "an os that contradicts its label",
            matching(json!({"os": "linux", "nodeLabels": {"kubernetes.io/os": "Windows"}})),
            &[r#"nodes.pools[0].match.os: contradicts nodeLabels, where kubernetes.io/os is "windows""#],
        ),
        (
            "a selector",
            matching(json!({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}})),
            &[
                "nodes.pools[0].match.nodeSelector.matchExpressions[0].values: missing: In and NotIn need at least one value",
            ],
        ),
        (
            "a selector that is a word",
            matching(json!({"nodeSelector": "a=b"})),
            &[r#"nodes.pools[0].match.nodeSelector: expected an object, found the string "a=b""#],
        ),
        (
            "mistakes about Services and Nodes, each kind in its order",
            json!({"services": {"order": 1}, "nodes": {"pools": [{"name": "a"}]}}),
            &[
                "services.order: expected a string, found the number 1",
                "nodes.pools[0].cidrs: missing: a pool needs at least one range",
            ],
        ),
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
        ("a range that is one block", sized("10.0.0.0/24", 24, 64), &[]),
        (
            "a range that is smaller than a block",
            sized("10.0.0.0/25", 24, 64),
            &["nodes.pools[0].cidrs[0]: blocks of /24 can't be cut out of 10.0.0.0/25: give a length from /25 to /32"],
        ),
        (
            "of IPv6",
            sized("fd00::/96", 24, 64),
            &["nodes.pools[0].cidrs[0]: blocks of /64 can't be cut out of fd00::/96: give a length from /96 to /128"],
        ),
        ("more blocks than memory could name", sized("fd00::/8", 24, 128), &[]),
        ("every address", node_pool(json!({"cidrs": ["::/0", "0.0.0.0/0"], "blockSize": {"ipv6": 128}})), &[]),
        (
            "all excluded, by its last address",
            node_pool(json!({"cidrs": ["10.0.0.0/24"], "exclude": ["10.0.0.255"]})),
            &[&format!("nodes.pools[0].cidrs[0]: 10.0.0.0/24 {none}")],
        ),
        ("all but one excluded", node_pool(json!({"cidrs": ["10.0.0.0/23"], "exclude": ["10.0.1.255"]})), &[]),
        (
            "a Service range takes it all",
            with_services(json!({"serviceCIDRs": ["10.0.0.0/8"]}), json!({})),
            &[&format!("nodes.pools[0].cidrs[0]: 10.0.0.0/16 {none}")],
        ),
        ("a Service range takes a part of it", with_services(json!({"serviceCIDRs": ["10.0.0.0/17"]}), json!({})), &[]),
        (
            "excluded elsewhere",
            node_pool(json!({"exclude": ["10.0.0.7", "10.1.0.0/16", "fd00::/64"]})),
            &[
                "nodes.pools[0].exclude[1]: 10.1.0.0/16 is in no range of the pool",
                "nodes.pools[0].exclude[2]: fd00::/64 is in no range of the pool",
            ],
        ),
    ]);
}

#[test]
fn ranges_must_not_overlap_each_other_or_another_pool() {
    let with_services = |pools: Value, nodes: Value| json!({"services": {"pools": pools}, "nodes": {"pools": nodes}});
    let services = || json!([{"name": "s", "cidrs": ["172.16.0.0/24", "10.0.3.0/24", "10.0.4.0/24"]}]);
    check_mistakes(&[
        (
            "the same pool",
            node_pool(json!({"cidrs": ["10.0.0.0/16", "10.0.128.0/17"]})),
            &["nodes.pools[0].cidrs[1]: 10.0.128.0/17 overlaps 10.0.0.0/16 of the same pool"],
        ),
        (
            "another pool, and its name",
            node_pools(json!([
                {"name": "a", "cidrs": ["x", "10.0.0.0/16"], "match": {"os": "windows"}},
                {"name": "a", "cidrs": ["10.0.0.0/8"]},
            ])),
            &[
                r#"nodes.pools[0].cidrs[0]: "x" is not a CIDR"#,
                "nodes.pools[1].name: \"a\" is already the name of nodes.pools[0]",
                r#"nodes.pools[1].cidrs[0]: 10.0.0.0/8 overlaps 10.0.0.0/16 of pool "a""#,
            ],
        ),
        ("neighbours", node_pool(json!({"cidrs": ["10.0.0.0/17", "10.0.128.0/17"]})), &[]),
        (
            "a pool of Services inside",
            with_services(services(), json!([{"name": "a", "cidrs": ["10.0.0.0/16"]}])),
            &[r#"nodes.pools[0].cidrs[0]: 10.0.0.0/16 overlaps 10.0.3.0/24 of the pool "s" of Services: exclude it"#],
        ),
        (
            "one range of it excluded, the other not",
            with_services(services(), json!([{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.3.0/24"]}])),
            &[r#"nodes.pools[0].cidrs[0]: 10.0.0.0/16 overlaps 10.0.4.0/24 of the pool "s" of Services: exclude it"#],
        ),
        (
            "half of it excluded",
            with_services(
                services(),
                json!([{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.3.0/24", "10.0.4.0/25"]}]),
            ),
            &[r#"nodes.pools[0].cidrs[0]: 10.0.0.0/16 overlaps 10.0.4.0/24 of the pool "s" of Services: exclude it"#],
        ),
        (
            "excluded, and more",
            with_services(services(), json!([{"name": "a", "cidrs": ["10.0.0.0/16"], "exclude": ["10.0.0.0/20"]}])),
            &[],
        ),
        (
            "a pool of Services that has the same name",
            with_services(
                json!([{"name": "a", "cidrs": ["172.16.0.0/24"]}]),
                json!([{"name": "a", "cidrs": ["10.0.0.0/16"]}]),
            ),
            &[],
        ),
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
        ("behind one for every Node", two(json!({}), json!({"os": "linux"})), &never_used),
        (
            "the same os in other words",
            two(json!({"os": "Linux"}), json!({"nodeLabels": {"kubernetes.io/os": "linux"}})),
            &never_used,
        ),
        (
            "more labels than before",
            two(json!({"os": "linux"}), json!({"os": "linux", "nodeLabels": {"a": "b"}})),
            &never_used,
        ),
        ("the same selector", two(zone(), zone()), &never_used),
        (
            "the same selector, and more",
            two(zone(), json!({"os": "linux", "nodeSelector": {"matchLabels": {"zone": "a"}}})),
            &never_used,
        ),
        (
            "a selector beside the same os",
            two(json!({"os": "linux"}), json!({"os": "linux", "nodeSelector": {"matchLabels": {"zone": "a"}}})),
            &never_used,
        ),
        ("another os", two(json!({"os": "windows"}), json!({"os": "linux"})), &[]),
        (
            "fewer labels than before",
            two(json!({"os": "linux", "nodeLabels": {"a": "b"}}), json!({"os": "linux"})),
            &[],
        ),
        ("another selector", two(zone(), json!({"nodeSelector": {"matchLabels": {"zone": "b"}}})), &[]),
        ("no selector", two(zone(), json!({})), &[]),
        (
            "behind one whose match could not be read",
            two(json!({"oss": "windows"}), json!({"os": "linux"})),
            &[r#"nodes.pools[0].match.oss: unknown key "oss": did you mean os?"#],
        ),
        (
            "one whose own key could not be read",
            node_pools(json!([
                {"name": "a", "cidrs": ["10.0.0.0/16"]},
                {"name": "b", "cidrs": ["10.1.0.0/16"], "matches": {"os": "linux"}},
            ])),
            &[r#"nodes.pools[1].matches: unknown key "matches": did you mean match?"#],
        ),
    ]);
}

#[test]
fn service_range_inside_a_pool_is_a_warning() {
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
        ("elsewhere", json!(["10.96.0.0/16", "fd01::/112"]), vec![]),
        ("none known", json!([]), vec![]),
        ("inside", json!(["10.1.255.0/24"]), vec![line("pools[1].cidrs[0]", "10.1.0.0/16", "10.1.255.0/24")]),
        (
            "one in each family",
            json!(["10.0.0.0/20", "fd00::/112"]),
            vec![
                line("pools[0].cidrs[0]", "fd00::/48", "fd00::/112"),
                line("pools[0].cidrs[1]", "10.0.0.0/16", "10.0.0.0/20"),
            ],
        ),
    ];
    for (name, cidrs, expected) in rows {
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
