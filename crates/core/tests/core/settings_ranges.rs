//! Mistakes in the ranges of a settings document: CIDRs, overlaps, places, pools that are never used.

use clusterip_core::address::overlap;
use clusterip_core::settings::Settings;
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{SettingsCase, cases, check_mistakes, net, pool, pools, services};
use serde_json::{Value, json};

#[test]
fn ranges_are_cidrs_without_host_bits() {
    let cidr = |cidr: &str| pool(json!({ "cidrs": [cidr] }));
    check_mistakes(&[
        SettingsCase {
            name: "missing",
            document: pools(json!([{"name": "a"}])),
            mistakes: &["services.pools[0].cidrs: missing: a pool needs at least one range"],
        },
        SettingsCase {
            name: "empty",
            document: pool(json!({"cidrs": []})),
            mistakes: &["services.pools[0].cidrs: no range: a pool needs at least one"],
        },
        SettingsCase { name: "no pools", document: pools(json!([])), mistakes: &[] },
        SettingsCase {
            name: "too long",
            document: cidr("172.21.1.0/33"),
            mistakes: &[r#"services.pools[0].cidrs[0]: "172.21.1.0/33" is not a CIDR"#],
        },
        SettingsCase {
            name: "an octet too large",
            document: cidr("10.0.256.0/24"),
            mistakes: &[r#"services.pools[0].cidrs[0]: "10.0.256.0/24" is not a CIDR"#],
        },
        SettingsCase {
            name: "an empty text",
            document: cidr(""),
            mistakes: &[r#"services.pools[0].cidrs[0]: "" is not a CIDR"#],
        },
        SettingsCase {
            name: "a text with a space",
            document: cidr(" 10.0.0.0/24"),
            mistakes: &[r#"services.pools[0].cidrs[0]: " 10.0.0.0/24" is not a CIDR"#],
        },
        SettingsCase {
            name: "an address without a length",
            document: cidr("10.0.0.0"),
            mistakes: &[r#"services.pools[0].cidrs[0]: "10.0.0.0" is not a CIDR: add a prefix length such as /24"#],
        },
        SettingsCase {
            name: "host bits",
            document: cidr("10.0.0.7/24"),
            mistakes: &["services.pools[0].cidrs[0]: 10.0.0.7/24 has host bits set: did you mean 10.0.0.0/24?"],
        },
        SettingsCase {
            name: "host bits of IPv6",
            document: cidr("fd00::1/112"),
            mistakes: &["services.pools[0].cidrs[0]: fd00::1/112 has host bits set: did you mean fd00::/112?"],
        },
        SettingsCase {
            name: "an invalid range between valid ones",
            document: pool(json!({"cidrs": ["10.0.0.0/24", "x", "10.0.1.0/24"]})),
            mistakes: &[r#"services.pools[0].cidrs[1]: "x" is not a CIDR"#],
        },
    ]);
}

#[test]
fn ranges_must_not_overlap_each_other_or_another_pool() {
    check_mistakes(&[
        SettingsCase {
            name: "same pool",
            document: pool(json!({"cidrs": ["10.0.0.0/24", "10.0.0.128/25"]})),
            mistakes: &["services.pools[0].cidrs[1]: 10.0.0.128/25 overlaps 10.0.0.0/24 of the same pool"],
        },
        SettingsCase {
            name: "a range around another of the same pool",
            document: pool(json!({"cidrs": ["10.0.0.128/25", "10.0.0.0/24"]})),
            mistakes: &["services.pools[0].cidrs[1]: 10.0.0.0/24 overlaps 10.0.0.128/25 of the same pool"],
        },
        SettingsCase {
            name: "a range of another pool, behind an invalid range",
            document: pools(json!([
                {"name": "a", "cidrs": ["x", "10.0.0.0/16"], "match": {"os": "windows"}},
                {"name": "b", "cidrs": ["y", "10.0.7.0/24"]},
            ])),
            mistakes: &[
                r#"services.pools[0].cidrs[0]: "x" is not a CIDR"#,
                r#"services.pools[1].cidrs[0]: "y" is not a CIDR"#,
                r#"services.pools[1].cidrs[1]: 10.0.7.0/24 overlaps 10.0.0.0/16 of pool "a""#,
            ],
        },
        SettingsCase {
            name: "neighbours",
            document: pool(json!({"cidrs": ["10.0.0.0/25", "10.0.0.128/25"]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "the same bits in the other family",
            document: pool(json!({"cidrs": ["0.0.0.0/24", "::/120"]})),
            mistakes: &[],
        },
    ]);
}

#[test]
fn every_range_needs_a_usable_address() {
    let none = "has no usable address: all are network or broadcast address, reserved or excluded";
    let line = |cidr: &str| format!("services.pools[0].cidrs[0]: {cidr} {none}");
    check_mistakes(&[
        SettingsCase {
            name: "a /32",
            document: pool(json!({"cidrs": ["10.0.0.0/32"]})),
            mistakes: &[&line("10.0.0.0/32")],
        },
        SettingsCase {
            name: "a /31",
            document: pool(json!({"cidrs": ["10.0.0.0/31"]})),
            mistakes: &[&line("10.0.0.0/31")],
        },
        SettingsCase {
            name: "a /128",
            document: pool(json!({"cidrs": ["fd00::/128"]})),
            mistakes: &[&line("fd00::/128")],
        },
        SettingsCase { name: "a /30", document: pool(json!({"cidrs": ["10.0.0.0/30"]})), mistakes: &[] },
        SettingsCase {
            name: "all addresses are reserved",
            document: pool(json!({"reserved": 255})),
            mistakes: &[&line("10.0.0.0/24")],
        },
        SettingsCase {
            name: "all addresses but one are reserved",
            document: pool(json!({"reserved": 254})),
            mistakes: &[],
        },
        SettingsCase {
            name: "more addresses are reserved than the range has",
            document: pool(json!({"reserved": u64::MAX})),
            mistakes: &[&line("10.0.0.0/24")],
        },
        SettingsCase {
            name: "excluded",
            document: pool(json!({"exclude": ["10.0.0.0/25", "10.0.0.128/25"]})),
            mistakes: &[&line("10.0.0.0/24")],
        },
        SettingsCase {
            name: "only the address of default/kubernetes is usable",
            document: services(
                json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/30"], "exclude": ["10.0.0.2"]}], "serviceCIDRs": ["10.0.0.0/16"]}),
            ),
            mistakes: &[&line("10.0.0.0/30")],
        },
    ]);
}

#[test]
fn pools_must_be_inside_service_cidrs_of_sufficient_size() {
    let document =
        |cidrs: Value| services(json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/24"]}], "serviceCIDRs": cidrs}));
    check_mistakes(&[
        SettingsCase { name: "inside", document: document(json!(["172.16.0.0/16", "10.0.0.0/16"])), mistakes: &[] },
        SettingsCase {
            name: "equal to the range of the cluster",
            document: document(json!(["10.0.0.0/24"])),
            mistakes: &[],
        },
        SettingsCase {
            name: "outside of serviceCIDRs",
            document: document(json!(["172.16.0.0/16", "fd00::/112"])),
            mistakes: &[
                "services.pools[0].cidrs[0]: 10.0.0.0/24 lies outside serviceCIDRs (172.16.0.0/16, fd00::/112): the API server would refuse its addresses",
            ],
        },
        SettingsCase {
            name: "larger than the range of the cluster",
            document: document(json!(["10.0.0.0/25"])),
            mistakes: &[
                "services.pools[0].cidrs[0]: 10.0.0.0/24 lies outside serviceCIDRs (10.0.0.0/25): the API server would refuse its addresses",
            ],
        },
        SettingsCase {
            name: "a default pool outside of serviceCIDRs",
            document: services(json!({"serviceCIDRs": ["172.21.0.0/24"]})),
            mistakes: &[
                "services.pools[0].cidrs[0]: 172.21.1.0/24 lies outside serviceCIDRs (172.21.0.0/24): the API server would refuse its addresses",
            ],
        },
        SettingsCase {
            name: "eight addresses",
            document: services(
                json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/30"]}], "serviceCIDRs": ["10.0.0.0/29"]}),
            ),
            mistakes: &[],
        },
        SettingsCase {
            name: "four addresses",
            document: services(
                json!({"pools": [{"name": "a", "cidrs": ["10.0.0.0/30"]}], "serviceCIDRs": ["10.0.0.0/30", "fd00::/126"]}),
            ),
            mistakes: &[
                "services.serviceCIDRs[0]: 10.0.0.0/30 has fewer than 8 addresses: too small for a Service range",
                "services.serviceCIDRs[1]: fd00::/126 has fewer than 8 addresses: too small for a Service range",
            ],
        },
        SettingsCase {
            name: "not a CIDR",
            document: document(json!(["10.0.0.0"])),
            mistakes: &[r#"services.serviceCIDRs[0]: "10.0.0.0" is not a CIDR: add a prefix length such as /24"#],
        },
    ]);
}

#[test]
fn exclude_must_be_an_address_or_range_of_the_pool() {
    check_mistakes(&[
        SettingsCase {
            name: "an address and a range",
            document: pool(json!({"exclude": ["10.0.0.7", "10.0.0.8/29"]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "around the range",
            document: pool(json!({"cidrs": ["10.0.0.0/24", "10.1.0.0/24"], "exclude": ["10.1.0.128/25"]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "outside the pool",
            document: pool(json!({"exclude": ["10.0.0.7", "10.0.1.7", "fd00::/64"]})),
            mistakes: &[
                "services.pools[0].exclude[1]: 10.0.1.7/32 is in no range of the pool",
                "services.pools[0].exclude[2]: fd00::/64 is in no range of the pool",
            ],
        },
        SettingsCase {
            name: "an invalid text, and host bits",
            document: pool(json!({"exclude": ["10.0.0", "10.0.0.9/29"]})),
            mistakes: &[
                r#"services.pools[0].exclude[0]: "10.0.0" is not a CIDR"#,
                "services.pools[0].exclude[1]: 10.0.0.9/29 has host bits set: did you mean 10.0.0.8/29?",
            ],
        },
    ]);
}

#[test]
fn pool_that_is_never_used_is_a_mistake() {
    let two = |first: Value, second: Value| {
        pools(json!([
            {"name": "a", "cidrs": ["10.0.0.0/24"], "match": first},
            {"name": "b", "cidrs": ["10.0.1.0/24"], "match": second},
        ]))
    };
    let never_used =
        [r#"services.pools[1].match: never used: pool "a", which is tried first, matches the same or more"#];
    check_mistakes(&[
        SettingsCase {
            name: "behind a pool for all Services",
            document: two(json!({}), json!({"os": "linux"})),
            mistakes: &never_used,
        },
        SettingsCase {
            name: "two pools for all Services",
            document: two(Value::Null, Value::Null),
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
        SettingsCase {
            name: "fewer namespaces",
            document: two(json!({"namespaces": ["x", "y"]}), json!({"namespaces": ["y"]})),
            mistakes: &never_used,
        },
        SettingsCase {
            name: "the same selector and another condition",
            document: two(
                json!({"serviceSelector": {"matchLabels": {"a": "b"}}}),
                json!({"os": "linux", "serviceSelector": {"matchLabels": {"a": "b"}}}),
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
            name: "more namespaces",
            document: two(json!({"namespaces": ["x"]}), json!({"namespaces": ["x", "y"]})),
            mistakes: &[],
        },
        SettingsCase { name: "any namespace", document: two(json!({"namespaces": ["x"]}), json!({})), mistakes: &[] },
        SettingsCase {
            name: "another selector",
            document: two(
                json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}),
                json!({"namespaceSelector": {"matchLabels": {"a": "c"}}}),
            ),
            mistakes: &[],
        },
        SettingsCase {
            name: "behind a pool with an invalid match",
            document: two(json!({"oss": "windows"}), json!({"os": "linux"})),
            mistakes: &[r#"services.pools[0].match.oss: unknown key "oss": did you mean os?"#],
        },
    ]);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn same_names_and_overlaps_are_found_as_by_comparing_each_pair(
        written in prop::collection::vec(
            (0_u8..12, prop::collection::vec(prop::sample::select(vec![
                "10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/25", "10.0.2.128/25", "10.0.0.0/23", "10.1.0.0/16", "10.2.0.0/16",
                "fd00::/120", "fd00::100/120", "fd00::/64", "fd01::/64", "::/0", "0.0.0.0/0", "11.0.0.0/8", "12.0.0.0/8",
            ]), 1..3)),
            1..5,
        ),
    ) {
        let mut expected: Vec<String> = Vec::new();
        let mut earlier: Vec<(usize, IpNet)> = Vec::new();
        for (index, (name, cidrs)) in written.iter().enumerate() {
            if let Some(other) = written[..index].iter().position(|(other, _)| other == name) {
                let path = format!("services.pools[{index}].name");
                expected.push(format!("{path}: \"p{name}\" is already the name of services.pools[{other}]"));
            }
            for (position, cidr) in cidrs.iter().map(|cidr| net(cidr)).enumerate() {
                let overlapping = |(_, other): &&(usize, IpNet)| overlap(*other, cidr);
                let of_same_pool = earlier.iter().filter(|(pool, _)| *pool == index).find(overlapping);
                if let Some((pool, other)) = of_same_pool.or_else(|| earlier.iter().find(overlapping)) {
                    let of = match *pool {
                        same if same == index => "the same pool".to_owned(),
                        other => format!("pool \"p{}\"", written[other].0),
                    };
                    expected.push(format!("services.pools[{index}].cidrs[{position}]: {cidr} overlaps {other} of {of}"));
                }
                earlier.push((index, cidr));
            }
        }
        let pool = |(index, (name, cidrs)): (usize, &(u8, Vec<&str>))| {
            json!({"name": format!("p{name}"), "cidrs": cidrs, "match": {"namespaces": [format!("n{index}")]}})
        };
        let document = pools(written.iter().enumerate().map(pool).collect());
        let found = Settings::from_value(&document).map_or_else(|mistakes| mistakes.to_string(), |_| String::new());
        prop_assert_eq!(found.lines().map(str::to_owned).collect::<Vec<_>>(), expected);
    }
}
