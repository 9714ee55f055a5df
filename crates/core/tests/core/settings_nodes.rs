//! The settings of the pod CIDRs of Nodes: their meaning and their warnings. `settings_nodes_mistakes.rs` tests their
//! mistakes.

use clusterip_core::address::Family;
use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};
use clusterip_core::settings::{BlockSize, Explicit, NodeMatch, NodePool, NodeSettings, Settings, Withheld};
use clusterip_core::{SettingsResponse, validate_settings};
use serde_json::{Value, json};

use crate::support::{net, node_pool, settings};

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
        assert_eq!(answer, SettingsResponse { valid: true, message: None, warnings }, "{name}: the answer");
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
