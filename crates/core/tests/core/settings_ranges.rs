//! Mistakes in the ranges of a settings document: CIDRs, overlaps, places, pools that are never used.

use clusterip_core::address::overlap;
use clusterip_core::settings::Settings;
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{cases, check_mistakes, net, pool, pools, services};
use serde_json::{Value, json};

#[test]
fn ranges_are_cidrs_without_host_bits() {
    let cidrs = |cidrs: Value| pool(json!({ "cidrs": cidrs }));
    let rows = [
        (json!(null), ": missing: a pool needs at least one range"),
        (json!([]), ": no range: a pool needs at least one"),
        (json!(["172.21.1.0/33"]), r#"[0]: "172.21.1.0/33" is not a CIDR"#),
        (json!(["10.0.256.0/24"]), r#"[0]: "10.0.256.0/24" is not a CIDR"#),
        (json!([""]), r#"[0]: "" is not a CIDR"#),
        (json!([" 10.0.0.0/24"]), r#"[0]: " 10.0.0.0/24" is not a CIDR"#),
        (json!(["10.0.0.0"]), r#"[0]: "10.0.0.0" is not a CIDR: add a prefix length such as /24"#),
        (json!(["10.0.0.7/24"]), "[0]: 10.0.0.7/24 has host bits set: did you mean 10.0.0.0/24?"),
        (json!(["fd00::1/112"]), "[0]: fd00::1/112 has host bits set: did you mean fd00::/112?"),
        (json!(["10.0.0.0/24", "x", "10.0.1.0/24"]), r#"[1]: "x" is not a CIDR"#),
    ];
    check_mistakes("services.pools[0].cidrs", cidrs, &rows);
    let behind_invalid_ranges = json!([
        {"name": "a", "cidrs": ["x", "10.0.0.0/16"], "match": {"os": "windows"}},
        {"name": "b", "cidrs": ["y", "10.0.7.0/24"]},
    ]);
    let overlap = "[0].cidrs[0]: \"x\" is not a CIDR\n\
                   [1].cidrs[0]: \"y\" is not a CIDR\n\
                   [1].cidrs[1]: 10.0.7.0/24 overlaps 10.0.0.0/16 of pool \"a\"";
    check_mistakes("services.pools", pools, &[(json!([]), ""), (behind_invalid_ranges, overlap)]);
}

#[test]
fn every_range_needs_a_usable_address() {
    let none = |cidr: &str| {
        format!("{cidr} has no usable address: all are network or broadcast address, reserved or excluded")
    };
    let whole = none("10.0.0.0/24");
    let rows = [
        (json!({"cidrs": ["10.0.0.0/32"]}), none("10.0.0.0/32")),
        (json!({"cidrs": ["10.0.0.0/31"]}), none("10.0.0.0/31")),
        (json!({"cidrs": ["fd00::/128"]}), none("fd00::/128")),
        (json!({"cidrs": ["10.0.0.0/30"]}), String::new()),
        (json!({"reserved": 254}), String::new()),
        (json!({"reserved": 255}), whole.clone()),
        (json!({"reserved": u64::MAX}), whole.clone()),
        (json!({"exclude": ["10.0.0.0/25", "10.0.0.128/25"]}), whole),
    ];
    let rows = rows.each_ref().map(|(fields, mistake)| (fields.clone(), mistake.as_str()));
    check_mistakes("services.pools[0].cidrs[0]: ", pool, &rows);
    // The other address is that of default/kubernetes.
    let pool = json!({"name": "a", "cidrs": ["10.0.0.0/30"], "exclude": ["10.0.0.2"]});
    let fields = json!({"pools": [pool], "serviceCIDRs": ["10.0.0.0/16"]});
    check_mistakes("services.pools[0].cidrs[0]: ", services, &[(fields, &none("10.0.0.0/30"))]);
}

#[test]
fn pools_must_be_inside_service_cidrs_of_sufficient_size() {
    let outside = |cidr: &str, ranges: &str| {
        format!(
            "pools[0].cidrs[0]: {cidr} lies outside serviceCIDRs ({ranges}): the API server would refuse its addresses"
        )
    };
    let with_pool =
        |cidr: &str, ranges: &[&str]| json!({"pools": [{"name": "a", "cidrs": [cidr]}], "serviceCIDRs": ranges});
    let too_small = "serviceCIDRs[0]: 10.0.0.0/30 has fewer than 8 addresses: too small for a Service range\n\
                     serviceCIDRs[1]: fd00::/126 has fewer than 8 addresses: too small for a Service range";
    let rows = [
        (with_pool("10.0.0.0/24", &["172.16.0.0/16", "10.0.0.0/16"]), ""),
        (with_pool("10.0.0.0/24", &["10.0.0.0/24"]), ""),
        (
            with_pool("10.0.0.0/24", &["172.16.0.0/16", "fd00::/112"]),
            &outside("10.0.0.0/24", "172.16.0.0/16, fd00::/112"),
        ),
        (with_pool("10.0.0.0/24", &["10.0.0.0/25"]), &outside("10.0.0.0/24", "10.0.0.0/25")),
        // The default pools.
        (json!({"serviceCIDRs": ["172.21.0.0/24"]}), &outside("172.21.1.0/24", "172.21.0.0/24")),
        (with_pool("10.0.0.0/30", &["10.0.0.0/29"]), ""),
        (with_pool("10.0.0.0/30", &["10.0.0.0/30", "fd00::/126"]), too_small),
        (
            with_pool("10.0.0.0/24", &["10.0.0.0"]),
            r#"serviceCIDRs[0]: "10.0.0.0" is not a CIDR: add a prefix length such as /24"#,
        ),
    ];
    check_mistakes("services.", services, &rows);
}

#[test]
fn exclude_must_be_an_address_or_range_of_the_pool() {
    let outside =
        "exclude[1]: 10.0.1.7/32 is in no range of the pool\nexclude[2]: fd00::/64 is in no range of the pool";
    let unreadable = "exclude[0]: \"10.0.0\" is not a CIDR\n\
                      exclude[1]: 10.0.0.9/29 has host bits set: did you mean 10.0.0.8/29?";
    let rows = [
        (json!({"exclude": ["10.0.0.7", "10.0.0.8/29"]}), ""),
        (json!({"cidrs": ["10.0.0.0/24", "10.1.0.0/24"], "exclude": ["10.1.0.128/25"]}), ""),
        (json!({"exclude": ["10.0.0.7", "10.0.1.7", "fd00::/64"]}), outside),
        (json!({"exclude": ["10.0.0", "10.0.0.9/29"]}), unreadable),
    ];
    check_mistakes("services.pools[0].", pool, &rows);
}

#[test]
fn pool_that_is_never_used_is_a_mistake() {
    let two = |matches: Value| {
        pools(json!([
            {"name": "a", "cidrs": ["10.0.0.0/24"], "match": matches[0]},
            {"name": "b", "cidrs": ["10.0.1.0/24"], "match": matches[1]},
        ]))
    };
    let labelled = |value: &str| json!({"matchLabels": {"a": value}});
    let never_used = r#"[1].match: never used: pool "a", which is tried first, matches the same or more"#;
    let rows = [
        (json!([{}, {"os": "linux"}]), never_used),
        (json!([null, null]), never_used),
        (json!([{"os": "Linux"}, {"nodeLabels": {"kubernetes.io/os": "linux"}}]), never_used),
        (json!([{"os": "linux"}, {"os": "linux", "nodeLabels": {"a": "b"}}]), never_used),
        (json!([{"namespaces": ["x", "y"]}, {"namespaces": ["y"]}]), never_used),
        (json!([{"serviceSelector": labelled("b")}, {"os": "linux", "serviceSelector": labelled("b")}]), never_used),
        (json!([{"os": "windows"}, {"os": "linux"}]), ""),
        (json!([{"os": "linux", "nodeLabels": {"a": "b"}}, {"os": "linux"}]), ""),
        (json!([{"namespaces": ["x"]}, {"namespaces": ["x", "y"]}]), ""),
        (json!([{"namespaces": ["x"]}, {}]), ""),
        (json!([{"namespaceSelector": labelled("b")}, {"namespaceSelector": labelled("c")}]), ""),
        // Behind a pool with an invalid match.
        (json!([{"oss": "windows"}, {"os": "linux"}]), r#"[0].match.oss: unknown key "oss": did you mean os?"#),
    ];
    check_mistakes("services.pools", two, &rows);
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
