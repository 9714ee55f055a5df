//! The settings of external addresses: their meaning and their mistakes.

use clusterip_core::address::{Family, Span};
use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};
use clusterip_core::settings::{AdmissionScope, ExternalPool, ExternalSettings, Settings};
use serde_json::{Value, json};

use crate::support::{SettingsCase, check_mistakes, external_pool, external_pools, ip, net, settings};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn labelled(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: labels(&[(key, value)]), match_expressions: vec![] }
}

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
            {"name": "rest", "cidrs": ["192.0.2.7/32"]},
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
                        service_selector: LabelSelector {
                            match_labels: Labels::new(),
                            match_expressions: vec![Requirement {
                                key: "tier".into(),
                                operator: Operator::Exists,
                                values: vec![],
                            }],
                        },
                    },
                    nodes: labelled("edge", "true"),
                },
                ExternalPool {
                    name: "rest".into(),
                    ranges: vec![net("192.0.2.7/32").into()],
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
    struct Case {
        name: &'static str,
        cidrs: Value,
        exclude: Value,
        expected: &'static str,
    }
    let rows = [
        Case {
            name: "a CIDR has no network and broadcast address",
            cidrs: json!(["10.0.9.8/30"]),
            exclude: json!([]),
            expected: "10.0.9.9 10.0.9.10",
        },
        Case {
            name: "a /31 and a /32 have all",
            cidrs: json!(["10.0.9.8/31", "10.0.9.10/32"]),
            exclude: json!([]),
            expected: "10.0.9.8 10.0.9.9 10.0.9.10",
        },
        Case {
            name: "a range has all",
            cidrs: json!(["10.0.9.254-10.0.10.1"]),
            exclude: json!([]),
            expected: "10.0.9.254 10.0.9.255 10.0.10.0 10.0.10.1",
        },
        Case { name: "a range of one", cidrs: json!(["10.0.9.0-10.0.9.0"]), exclude: json!([]), expected: "10.0.9.0" },
        Case {
            name: "excluded: an address, a range, a CIDR",
            cidrs: json!(["10.0.9.0-10.0.9.9"]),
            exclude: json!(["10.0.9.0", "10.0.9.2-10.0.9.3", "10.0.9.6/31"]),
            expected: "10.0.9.1 10.0.9.4 10.0.9.5 10.0.9.8 10.0.9.9",
        },
        Case {
            name: "ranges in their order",
            cidrs: json!(["10.0.9.9/32", "10.0.8.1/32"]),
            exclude: json!([]),
            expected: "10.0.9.9 10.0.8.1",
        },
        Case {
            name: "ranges of the other family do not count",
            cidrs: json!(["fd00::/126", "10.0.8.1/32"]),
            exclude: json!([]),
            expected: "10.0.8.1",
        },
    ];
    for Case { name, cidrs, exclude, expected } in rows {
        let pool = &settings(&external_pool(json!({"cidrs": cidrs, "exclude": exclude}))).external.pools[0];
        let band = &pool.candidates(Family::V4).bands[0];
        let found: Vec<String> = (0..band.count()).map(|at| band.address(at).unwrap().to_string()).collect();
        assert_eq!(found.join(" "), expected, "{name}");
        assert_eq!(band.address(band.count()), None, "{name}");
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
    let external = |fields: Value| {
        let mut document = external_pool(json!({}));
        document["external"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        document
    };
    check_mistakes(&[
        SettingsCase {
            name: "external",
            document: json!({"external": 1}),
            mistakes: &["external: expected an object, found the number 1"],
        },
        SettingsCase {
            name: "no pools",
            document: json!({"external": {}}),
            mistakes: &["external.pools: missing: give at least one pool, or leave `external` out"],
        },
        SettingsCase {
            name: "empty",
            document: external_pools(json!([])),
            mistakes: &["external.pools: no pool: give at least one, or leave `external` out"],
        },
        SettingsCase {
            name: "unknown keys",
            document: external(json!({"defualt": true})),
            mistakes: &["external.defualt: unknown key \"defualt\": did you mean default?"],
        },
        SettingsCase {
            name: "unknown keys of a pool and its match",
            document: external_pool(json!({"blockSize": 1, "match": {"os": "linux"}})),
            mistakes: &[
                "external.pools[0].blockSize: unknown key \"blockSize\": known are name, cidrs, exclude, match, nodes",
                "external.pools[0].match.os: unknown key \"os\": known are namespaces, namespaceSelector, serviceSelector",
            ],
        },
        SettingsCase {
            name: "no name, no ranges",
            document: external_pools(json!([{}])),
            mistakes: &[
                "external.pools[0].name: missing: every pool needs a name",
                "external.pools[0].cidrs: missing: a pool needs at least one range",
            ],
        },
        SettingsCase {
            name: "an invalid class",
            document: external(json!({"loadBalancerClass": "my class"})),
            mistakes: &[
                "external.loadBalancerClass: \"my class\" is not a class: expected a label key such as example.com/lan",
            ],
        },
        SettingsCase {
            name: "a default that is not a boolean",
            document: external(json!({"default": "yes"})),
            mistakes: &["external.default: expected true or false, found the string \"yes\""],
        },
        SettingsCase {
            name: "selectors",
            document: external_pool(json!({
                "match": {"namespaces": ["Shop"], "serviceSelector": {"matchLabels": {"-": "x"}}},
                "nodes": {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            })),
            mistakes: &[
                "external.pools[0].match.namespaces[0]: \"Shop\" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end",
                "external.pools[0].match.serviceSelector.matchLabels.-: \"-\" is not a label key",
                "external.pools[0].nodes.matchExpressions[0].operator: unknown operator \"Is\": did you mean In?",
            ],
        },
    ]);
}

#[test]
fn unreadable_ranges_are_mistakes_with_their_paths() {
    let cidr = |cidr: Value| external_pool(json!({"cidrs": [cidr]}));
    check_mistakes(&[
        SettingsCase {
            name: "empty ranges",
            document: external_pool(json!({"cidrs": []})),
            mistakes: &["external.pools[0].cidrs: no range: a pool needs at least one"],
        },
        SettingsCase {
            name: "not a CIDR",
            document: cidr(json!("10.0.9.9")),
            mistakes: &["external.pools[0].cidrs[0]: \"10.0.9.9\" is not a CIDR: add a prefix length such as /24"],
        },
        SettingsCase {
            name: "host bits",
            document: cidr(json!("10.0.9.9/24")),
            mistakes: &["external.pools[0].cidrs[0]: 10.0.9.9/24 has host bits set: did you mean 10.0.9.0/24?"],
        },
        SettingsCase {
            name: "a range without its end",
            document: cidr(json!("10.0.9.1-")),
            mistakes: &["external.pools[0].cidrs[0]: \"10.0.9.1-\" is not a range such as 10.0.9.10-10.0.9.40"],
        },
        SettingsCase {
            name: "a range with a shortened end",
            document: cidr(json!("10.0.9.1-40")),
            mistakes: &["external.pools[0].cidrs[0]: \"10.0.9.1-40\" is not a range such as 10.0.9.10-10.0.9.40"],
        },
        SettingsCase {
            name: "a range that ends before it begins",
            document: cidr(json!("10.0.9.40-10.0.9.10")),
            mistakes: &[
                "external.pools[0].cidrs[0]: 10.0.9.40-10.0.9.10 ends before it begins: did you mean 10.0.9.10-10.0.9.40?",
            ],
        },
        SettingsCase {
            name: "a range of two families",
            document: cidr(json!("10.0.9.1-fd00::1")),
            mistakes: &["external.pools[0].cidrs[0]: 10.0.9.1-fd00::1 mixes IPv4 and IPv6"],
        },
        SettingsCase {
            name: "excluded",
            document: external_pool(json!({"exclude": ["10.0.9.9-10.0.9.1", "router", 1]})),
            mistakes: &[
                "external.pools[0].exclude[0]: 10.0.9.9-10.0.9.1 ends before it begins: did you mean 10.0.9.1-10.0.9.9?",
                "external.pools[0].exclude[1]: \"router\" is not a CIDR",
                "external.pools[0].exclude[2]: expected a string, found the number 1",
            ],
        },
    ]);
}

#[test]
fn pools_must_not_overlap_each_other() {
    let two = |first: Value, second: Value| {
        external_pools(json!([{"name": "a", "cidrs": first}, {"name": "b", "cidrs": second}]))
    };
    check_mistakes(&[
        SettingsCase {
            name: "adjacent ranges",
            document: two(json!(["10.0.9.0-10.0.9.9"]), json!(["10.0.9.10-10.0.9.19", "fd00::/64"])),
            mistakes: &[],
        },
        SettingsCase {
            name: "two pools of one name",
            document: external_pools(
                json!([{"name": "a", "cidrs": ["10.0.8.0/24"]}, {"name": "a", "cidrs": ["10.0.9.0/24"]}]),
            ),
            mistakes: &["external.pools[1].name: \"a\" is already the name of external.pools[0]"],
        },
        SettingsCase {
            name: "the same match: Services may request addresses of the second pool",
            document: two(json!(["10.0.8.0/24"]), json!(["10.0.9.0/24"])),
            mistakes: &[],
        },
        SettingsCase {
            name: "an overlap of one address",
            document: two(json!(["10.0.9.0-10.0.9.10"]), json!(["10.0.9.10-10.0.9.19"])),
            mistakes: &["external.pools[1].cidrs[0]: 10.0.9.10-10.0.9.19 overlaps 10.0.9.0-10.0.9.10 of pool \"a\""],
        },
        SettingsCase {
            name: "a range around a CIDR",
            document: two(json!(["10.0.9.16/28"]), json!(["10.0.9.1-10.0.9.100"])),
            mistakes: &["external.pools[1].cidrs[0]: 10.0.9.1-10.0.9.100 overlaps 10.0.9.16/28 of pool \"a\""],
        },
        SettingsCase {
            name: "in one pool",
            document: external_pool(json!({"cidrs": ["10.0.9.0/24", "10.0.9.7-10.0.9.9"]})),
            mistakes: &["external.pools[0].cidrs[1]: 10.0.9.7-10.0.9.9 overlaps 10.0.9.0/24 of the same pool"],
        },
        SettingsCase {
            name: "excluded outside the range, and the whole range excluded",
            document: external_pool(json!({"cidrs": ["10.0.9.8/30"], "exclude": ["10.0.8.1", "10.0.9.9-10.0.9.10"]})),
            mistakes: &[
                "external.pools[0].cidrs[0]: 10.0.9.8/30 has no usable address: all are excluded",
                "external.pools[0].exclude[0]: 10.0.8.1 is in no range of the pool",
            ],
        },
    ]);
}

#[test]
fn pools_must_not_overlap_addresses_of_services_and_nodes() {
    let beside = |mut document: Value, cidrs: Value| {
        document["external"] = json!({"pools": [{"name": "edge", "cidrs": cidrs}]});
        document
    };
    let services = || json!({"services": {"pools": [{"name": "linux", "cidrs": ["10.0.9.0/24"]}]}});
    check_mistakes(&[
        SettingsCase {
            name: "a pool of Services",
            document: beside(services(), json!(["10.0.9.255-10.0.10.3"])),
            mistakes: &[
                "external.pools[0].cidrs[0]: 10.0.9.255-10.0.10.3 overlaps 10.0.9.0/24 of the pool \"linux\" of Services: \
               an address is either inside of the cluster or external",
            ],
        },
        SettingsCase {
            name: "a Service range",
            document: beside(json!({"services": {"serviceCIDRs": ["10.96.0.0/16"]}}), json!(["10.96.7.0/24"])),
            mistakes: &["external.pools[0].cidrs[0]: 10.96.7.0/24 overlaps the Service range 10.96.0.0/16: \
               an address is either inside of the cluster or external"],
        },
        SettingsCase {
            name: "a pool of Nodes",
            document: beside(
                json!({"nodes": {"pools": [{"name": "w", "cidrs": ["10.0.0.0/16"]}]}}),
                json!(["10.0.9.0/24"]),
            ),
            mistakes: &["external.pools[0].cidrs[0]: 10.0.9.0/24 overlaps 10.0.0.0/16 of the pool \"w\" of Nodes: \
               an address is either inside of the cluster or external"],
        },
        SettingsCase {
            name: "beside a pool of Services",
            document: beside(services(), json!(["10.0.10.0/24"])),
            mistakes: &[],
        },
        SettingsCase {
            name: "the range of a default pool of Services",
            document: external_pool(json!({"cidrs": ["172.21.0.0/24"]})),
            mistakes: &[],
        },
    ]);
}
