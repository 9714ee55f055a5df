//! The settings of external addresses: their meaning and their mistakes.

use clusterip_core::address::{Family, Span};
use clusterip_core::external::Announcer;
use clusterip_core::label_selector::Operator;
use clusterip_core::settings::{AdmissionScope, ExternalPool, ExternalSettings, Settings};
use serde_json::{Value, json};

use crate::support::{check_mistakes, extended, external_pool, external_pools, ip, labelled, net, requiring, settings};

fn span(first: &str, last: &str) -> Span {
    Span::new(ip(first), ip(last)).unwrap()
}

#[test]
fn every_field_is_read() {
    let document = json!({"external": {
        "pools": [
            {
                "name": "edge",
                "cidrs": ["10.0.9.0/28", "10.0.9.20-10.0.9.40", "fd00::9:0 - fd00::9:ff"],
                "exclude": ["10.0.9.30", "10.0.9.32/30", "10.0.9.38-10.0.9.39"],
                "match": {
                    "namespaces": ["shop"],
                    "namespaceSelector": {"matchLabels": {"team": "a"}},
                    "serviceSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                },
                "nodes": {"matchLabels": {"edge": "true"}},
            },
            {"name": "rest", "cidrs": ["192.0.2.7/32"], "announcer": "metallb", "loadBalancerClass": "example.com/metal"},
        ],
        "loadBalancerClass": "example.com/lan",
        "default": true,
    }});
    let expected = Settings {
        pools: vec![],
        external: ExternalSettings {
            pools: vec![
                ExternalPool {
                    name: "edge".into(),
                    ranges: vec![
                        net("10.0.9.0/28").into(),
                        span("10.0.9.20", "10.0.9.40"),
                        span("fd00::9:0", "fd00::9:ff"),
                    ],
                    exclude: vec![ip("10.0.9.30").into(), net("10.0.9.32/30").into(), span("10.0.9.38", "10.0.9.39")],
                    scope: AdmissionScope {
                        namespaces: vec!["shop".into()],
                        namespace_selector: labelled("team", "a"),
                        service_selector: requiring("tier", Operator::Exists, &[]),
                    },
                    nodes: labelled("edge", "true"),
                    ..ExternalPool::default()
                },
                ExternalPool {
                    name: "rest".into(),
                    ranges: vec![net("192.0.2.7/32").into()],
                    announcer: Announcer::MetalLb,
                    load_balancer_class: Some("example.com/metal".into()),
                    ..ExternalPool::default()
                },
            ],
            load_balancer_class: "example.com/lan".into(),
            default: true,
        },
        ..Settings::default()
    };
    let settings = settings(&document);
    assert_eq!(settings, expected);
    let pool_of = |address: &str| settings.external.pool_of(ip(address)).map(|pool| pool.name.as_str());
    assert_eq!(pool_of("10.0.9.39"), Some("edge"), "excluded, but its own");
    assert_eq!(pool_of("10.0.9.17"), None, "between its ranges");
    assert_eq!(pool_of("192.0.2.7"), Some("rest"));
    assert!(settings.external.pools[0].has(Family::V6) && !settings.external.pools[1].has(Family::V6));
}

#[test]
fn absent_fields_have_defaults() {
    let defaults = settings(&external_pool(json!({}))).external;
    assert_eq!((defaults.load_balancer_class.as_str(), defaults.default), ("clusterip-policy/external", false));
    assert_eq!(settings(&json!({"external": null})), Settings::default());
}

#[test]
fn candidates_are_host_addresses_that_are_not_excluded() {
    let rows = [
        // A CIDR has no network and broadcast address, but a /31 and a /32 have all addresses.
        (json!({"cidrs": ["10.0.9.8/30"]}), "10.0.9.9 10.0.9.10"),
        (json!({"cidrs": ["10.0.9.8/31", "10.0.9.10/32"]}), "10.0.9.8 10.0.9.9 10.0.9.10"),
        // A range has all.
        (json!({"cidrs": ["10.0.9.254-10.0.10.1"]}), "10.0.9.254 10.0.9.255 10.0.10.0 10.0.10.1"),
        (json!({"cidrs": ["10.0.9.0-10.0.9.0"]}), "10.0.9.0"),
        (
            json!({"cidrs": ["10.0.9.0-10.0.9.9"], "exclude": ["10.0.9.0", "10.0.9.2-10.0.9.3", "10.0.9.6/31"]}),
            "10.0.9.1 10.0.9.4 10.0.9.5 10.0.9.8 10.0.9.9",
        ),
        // In the order of the ranges of this family.
        (json!({"cidrs": ["10.0.9.9/32", "fd00::/126", "10.0.8.1/32"]}), "10.0.9.9 10.0.8.1"),
    ];
    for (fields, expected) in rows {
        let pool = &settings(&external_pool(fields.clone())).external.pools[0];
        let band = &pool.candidates(Family::V4).bands[0];
        let found: Vec<String> = (0..band.count()).map(|at| band.address(at).unwrap().to_string()).collect();
        assert_eq!(found.join(" "), expected, "{fields}");
        assert_eq!(band.address(band.count()), None, "{fields}");
    }
    let six = &settings(&external_pool(json!({"cidrs": ["fd00::/126", "fd01::/64"]}))).external.pools[0];
    let candidates = six.candidates(Family::V6);
    assert_eq!(candidates.bands[0].address(0), Some(ip("fd00::1")), "the first one is that of routers");
    assert_eq!(candidates.bands[0].address(2), Some(ip("fd00::3")), "the last one is like any other");
    assert_eq!(candidates.count(), 3 + (1 << 64) - 1);
    assert!(!candidates.contains(ip("fd01::")) && candidates.contains(ip("fd01::1")));
}

#[test]
fn unreadable_pools_are_mistakes_with_their_paths() {
    let rows = [
        (json!(1), ": expected an object, found the number 1"),
        (json!({}), ".pools: missing: give at least one pool, or leave `external` out"),
        (json!({"pools": []}), ".pools: no pool: give at least one, or leave `external` out"),
        (
            json!({"pools": [{}]}),
            ".pools[0].name: missing: every pool needs a name\n\
             .pools[0].cidrs: missing: a pool needs at least one range",
        ),
    ];
    check_mistakes("external", |external| json!({ "external": external }), &rows);
    let external = |fields: Value| json!({"external": extended(json!({"pools": [{"name": "a", "cidrs": ["10.0.9.0/24"]}]}), &fields)});
    let rows = [
        (json!({"defualt": true}), "defualt: unknown key \"defualt\": did you mean default?"),
        (
            json!({"loadBalancerClass": "my class"}),
            "loadBalancerClass: \"my class\" is not a class: expected a label key such as example.com/lan",
        ),
        (json!({"default": "yes"}), "default: expected true or false, found the string \"yes\""),
    ];
    check_mistakes("external.", external, &rows);
    let rows = [
        (
            json!({"blockSize": 1, "match": {"os": "linux"}}),
            "blockSize: unknown key \"blockSize\": known are name, cidrs, exclude, match, nodes, announcer, loadBalancerClass\n\
             match.os: unknown key \"os\": known are namespaces, namespaceSelector, serviceSelector",
        ),
        (
            json!({
                "match": {"namespaces": ["Shop"], "serviceSelector": {"matchLabels": {"-": "x"}}},
                "nodes": {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            }),
            "match.namespaces[0]: \"Shop\" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end\n\
             match.serviceSelector.matchLabels.-: \"-\" is not a label key\n\
             nodes.matchExpressions[0].operator: unknown operator \"Is\": did you mean In?",
        ),
    ];
    check_mistakes("external.pools[0].", external_pool, &rows);
}

#[test]
fn unreadable_ranges_are_mistakes_with_their_paths() {
    let rows = [
        (json!({"cidrs": []}), "cidrs: no range: a pool needs at least one"),
        (json!({"cidrs": ["10.0.9.9"]}), "cidrs[0]: \"10.0.9.9\" is not a CIDR: add a prefix length such as /24"),
        (json!({"cidrs": ["10.0.9.9/24"]}), "cidrs[0]: 10.0.9.9/24 has host bits set: did you mean 10.0.9.0/24?"),
        (json!({"cidrs": ["10.0.9.1-"]}), "cidrs[0]: \"10.0.9.1-\" is not a range such as 10.0.9.10-10.0.9.40"),
        (json!({"cidrs": ["10.0.9.1-40"]}), "cidrs[0]: \"10.0.9.1-40\" is not a range such as 10.0.9.10-10.0.9.40"),
        (
            json!({"cidrs": ["10.0.9.40-10.0.9.10"]}),
            "cidrs[0]: 10.0.9.40-10.0.9.10 ends before it begins: did you mean 10.0.9.10-10.0.9.40?",
        ),
        (json!({"cidrs": ["10.0.9.1-fd00::1"]}), "cidrs[0]: 10.0.9.1-fd00::1 mixes IPv4 and IPv6"),
        (
            json!({"exclude": ["10.0.9.9-10.0.9.1", "router", 1]}),
            "exclude[0]: 10.0.9.9-10.0.9.1 ends before it begins: did you mean 10.0.9.1-10.0.9.9?\n\
             exclude[1]: \"router\" is not a CIDR\n\
             exclude[2]: expected a string, found the number 1",
        ),
    ];
    check_mistakes("external.pools[0].", external_pool, &rows);
}

#[test]
fn pools_must_not_overlap_each_other() {
    let rows = [
        (
            json!([{"name": "a", "cidrs": ["10.0.8.0/24"]}, {"name": "a", "cidrs": ["10.0.9.0/24"]}]),
            "[1].name: \"a\" is already the name of external.pools[0]",
        ),
        (
            json!([{"name": "a", "cidrs": ["10.0.9.0/24", "10.0.9.7-10.0.9.9"]}]),
            "[0].cidrs[1]: 10.0.9.7-10.0.9.9 overlaps 10.0.9.0/24 of the same pool",
        ),
        (
            json!([{"name": "a", "cidrs": ["10.0.9.8/30"], "exclude": ["10.0.8.1", "10.0.9.9-10.0.9.10"]}]),
            "[0].cidrs[0]: 10.0.9.8/30 has no usable address: all are excluded\n\
             [0].exclude[0]: 10.0.8.1 is in no range of the pool",
        ),
    ];
    check_mistakes("external.pools", external_pools, &rows);
    let two =
        |cidrs: Value| external_pools(json!([{"name": "a", "cidrs": cidrs[0]}, {"name": "b", "cidrs": cidrs[1]}]));
    let rows = [
        (json!([["10.0.9.0-10.0.9.9"], ["10.0.9.10-10.0.9.19", "fd00::/64"]]), ""),
        // The same match: Services may request addresses of the second pool.
        (json!([["10.0.8.0/24"], ["10.0.9.0/24"]]), ""),
        (
            json!([["10.0.9.0-10.0.9.10"], ["10.0.9.10-10.0.9.19"]]),
            "10.0.9.10-10.0.9.19 overlaps 10.0.9.0-10.0.9.10 of pool \"a\"",
        ),
        (json!([["10.0.9.16/28"], ["10.0.9.1-10.0.9.100"]]), "10.0.9.1-10.0.9.100 overlaps 10.0.9.16/28 of pool \"a\""),
    ];
    check_mistakes("external.pools[1].cidrs[0]: ", two, &rows);
}

#[test]
fn pools_must_not_overlap_addresses_of_services_and_nodes() {
    let beside = |mut document: Value| {
        let cidrs = document.as_object_mut().unwrap().remove("external").unwrap();
        extended(document, &external_pools(json!([{"name": "edge", "cidrs": cidrs}])))
    };
    let overlaps = |range: &str, of: &str| {
        format!("{range} overlaps {of}: an address is either inside of the cluster or external")
    };
    let services = json!({"pools": [{"name": "linux", "cidrs": ["10.0.9.0/24"]}]});
    let nodes = json!({"pools": [{"name": "w", "cidrs": ["10.0.0.0/16"]}]});
    let rows = [
        (
            json!({"services": services, "external": ["10.0.9.255-10.0.10.3"]}),
            &*overlaps("10.0.9.255-10.0.10.3", "10.0.9.0/24 of the pool \"linux\" of Services"),
        ),
        (
            json!({"services": {"serviceCIDRs": ["10.96.0.0/16"]}, "external": ["10.96.7.0/24"]}),
            &overlaps("10.96.7.0/24", "the Service range 10.96.0.0/16"),
        ),
        (
            json!({"nodes": nodes, "external": ["10.0.9.0/24"]}),
            &overlaps("10.0.9.0/24", "10.0.0.0/16 of the pool \"w\" of Nodes"),
        ),
        (json!({"services": services, "external": ["10.0.10.0/24"]}), ""),
        // Without pools of Services, there are no default pools.
        (json!({"external": ["172.21.0.0/24"]}), ""),
    ];
    check_mistakes("external.pools[0].cidrs[0]: ", beside, &rows);
}
