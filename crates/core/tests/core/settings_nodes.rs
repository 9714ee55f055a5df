//! The settings of the pod CIDRs of Nodes: their meaning and their warnings. `settings_nodes_mistakes.rs` tests their
//! mistakes.

use clusterip_core::address::Family;
use clusterip_core::label_selector::{LabelSelector, Operator};
use clusterip_core::settings::{BlockSize, Explicit, NodeMatch, NodePool, NodeSettings, Settings, Withheld};
use serde_json::json;

use crate::support::{labels, net, requiring, settings, warnings_of};

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
                            ..requiring("gpu", Operator::DoesNotExist, &[])
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
fn default_pools_of_services_exist_only_without_pools_of_nodes() {
    let pool = json!({"name": "a", "cidrs": ["10.0.0.0/16"]});
    let services = json!({"pools": [{"name": "s", "cidrs": ["172.16.0.0/24"]}]});
    let rows = [
        (json!({}), vec!["windows", "linux"], 0),
        (json!({"nodes": null}), vec!["windows", "linux"], 0),
        (json!({"nodes": {"pools": [pool]}}), vec![], 1),
        (json!({"services": {"order": "lowest"}, "nodes": {"pools": [pool]}}), vec![], 1),
        (json!({"services": services, "nodes": {"pools": [pool]}}), vec!["s"], 1),
    ];
    for (document, service_pools, node_pool_count) in rows {
        let settings = settings(&document);
        let names: Vec<&str> = settings.pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!((names, settings.nodes.pools.len()), (service_pools, node_pool_count), "{document}");
        assert_eq!(settings.nodes.explicit, Explicit::Warn, "{document}");
    }
}

#[test]
fn service_range_inside_a_pool_is_a_warning() {
    let line = |path: &str, cidr: &str, range: &str| {
        format!("nodes.{path}: {cidr} overlaps the Service range {range}: blocks that overlap it are not assigned")
    };
    let rows = [
        (json!(["10.96.0.0/16", "fd01::/112"]), vec![]),
        (json!([]), vec![]),
        (json!(["10.1.255.0/24"]), vec![line("pools[1].cidrs[0]", "10.1.0.0/16", "10.1.255.0/24")]),
        (
            json!(["10.0.0.0/20", "fd00::/112"]),
            vec![
                line("pools[0].cidrs[0]", "fd00::/48", "fd00::/112"),
                line("pools[0].cidrs[1]", "10.0.0.0/16", "10.0.0.0/20"),
            ],
        ),
    ];
    for (cidrs, expected) in rows {
        let document = json!({
            "services": {"serviceCIDRs": cidrs},
            "nodes": {"pools": [
                {"name": "a", "cidrs": ["fd00::/48", "10.0.0.0/16"], "match": {"os": "linux"}},
                {"name": "b", "cidrs": ["10.1.0.0/16"]},
            ]},
        });
        assert_eq!(warnings_of(&document), expected, "{cidrs}");
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
