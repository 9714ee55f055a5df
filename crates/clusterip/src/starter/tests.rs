//! Tests of the division of Service ranges, and of the settings that are made of it.

use std::collections::BTreeSet;

use clap::ValueEnum;
use clusterip_cluster::yaml;
use clusterip_core::address::{Family, Span, static_band_len};
use clusterip_core::settings::{Pool, Settings};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::facts::{Os, Ranges};
use super::{document, os, pools};
use crate::announcer_pools::AnnouncerPool;

const LINUX: &[Os] = &[Os::Linux];
const K2S: [&str; 1] = ["172.21.0.0/16"];
const BOTH: &[Os] = &[Os::Linux, Os::Windows];

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn divided(ranges: &[&str], systems: &[Os]) -> anyhow::Result<Vec<Pool>> {
    pools(&nets(ranges), &systems.iter().copied().collect())
}

/// A pool in a line.
fn line(pool: &Pool) -> String {
    let cidrs: Vec<String> = pool.cidrs.iter().map(ToString::to_string).collect();
    let bands = if pool.bands { " bands" } else { "" };
    let os = os(pool).map_or(String::new(), |os| format!(" for {os}"));
    format!("{}: {} reserved {}{bands}{os}", pool.name, cidrs.join(" "), pool.reserved)
}

#[test]
fn service_ranges_are_divided_by_operating_system() {
    struct Case {
        name: &'static str,
        ranges: &'static [&'static str],
        systems: &'static [Os],
        expected: &'static [&'static str],
    }
    let case = |name, ranges, systems, expected| Case { name, ranges, systems, expected };
    let cases = [
        Case {
            name: "kubeadm",
            ranges: &["10.96.0.0/12"],
            systems: BOTH,
            expected: &[
                "linux: 10.96.0.0/13 reserved 11 bands for linux",
                "windows: 10.104.0.0/13 reserved 0 bands for windows",
            ],
        },
        Case {
            name: "K2s",
            ranges: &K2S,
            systems: BOTH,
            expected: &["windows: 172.21.1.0/24 reserved 50 for windows", "linux: 172.21.0.0/24 reserved 50 for linux"],
        },
        Case {
            name: "K2s with another family",
            ranges: &["172.21.0.0/16", "fd00::/112"],
            systems: BOTH,
            expected: &[
                "linux: 172.21.0.0/17 fd00::/113 reserved 11 bands for linux",
                "windows: 172.21.128.0/17 fd00::8000/113 reserved 0 bands for windows",
            ],
        },
        case("only Linux", &["10.96.0.0/12"], LINUX, &["all: 10.96.0.0/12 reserved 11 bands"]),
        case("only Linux, with the range of K2s", &K2S, LINUX, &["all: 172.21.0.0/16 reserved 11 bands"]),
        case("only Windows", &["10.96.0.0/12"], &[Os::Windows], &["all: 10.96.0.0/12 reserved 11 bands"]),
        case("no Nodes yet", &["10.96.0.0/12"], &[], &["all: 10.96.0.0/12 reserved 11 bands"]),
        Case {
            name: "dual stack",
            ranges: &["fd00:10:96::/112", "10.96.0.0/16"],
            systems: BOTH,
            expected: &[
                "linux: fd00:10:96::/113 10.96.0.0/17 reserved 11 bands for linux",
                "windows: fd00:10:96::8000/113 10.96.128.0/17 reserved 0 bands for windows",
            ],
        },
        Case {
            name: "a half whose static band is as large as that of the range",
            ranges: &["10.0.0.0/19"],
            systems: BOTH,
            expected: &[
                "linux: 10.0.0.0/20 reserved 11 bands for linux",
                "windows: 10.0.16.0/20 reserved 0 bands for windows",
            ],
        },
        Case {
            name: "a half whose static band is smaller: 128 instead of 256 addresses",
            ranges: &["10.0.0.0/20"],
            systems: BOTH,
            expected: &[
                "linux: 10.0.0.0/21 reserved 257 bands for linux",
                "windows: 10.0.8.0/21 reserved 0 bands for windows",
            ],
        },
        Case {
            name: "the smallest range that is divided",
            ranges: &["10.0.0.0/26"],
            systems: BOTH,
            expected: &[
                "linux: 10.0.0.0/27 reserved 11 bands for linux",
                "windows: 10.0.0.32/27 reserved 0 bands for windows",
            ],
        },
        case("a tenth address", &["10.0.0.0/28"], LINUX, &["all: 10.0.0.0/28 reserved 11 bands"]),
        case("the smallest Service range", &["10.0.0.0/29"], LINUX, &["all: 10.0.0.0/29 reserved 0 bands"]),
    ];
    for Case { name, ranges, systems, expected } in cases {
        let found: Vec<String> = divided(ranges, systems).unwrap().iter().map(line).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn range_with_too_few_addresses_is_refused() {
    let rows = [
        (&["10.0.0.0/30"][..], LINUX, "10.0.0.0/30 has only 4 addresses: too few for one pool"),
        (&["10.0.0.0/27"], BOTH, "10.0.0.0/27 has only 32 addresses: too few for two pools"),
        // Fewer than what is reserved for the other family.
        (&["10.0.0.0/20", "fd00::/119"], BOTH, "fd00::/119 has only 512 addresses: too few for two pools"),
    ];
    for (ranges, systems, expected) in rows {
        let expected = format!("the Service range {expected}; write the pools by hand");
        assert_eq!(divided(ranges, systems).unwrap_err().to_string(), expected);
    }
}

#[test]
fn settings_name_the_reason_for_one_pool() {
    let ranges = nets(&["10.96.0.0/12"]);
    for (systems, reason) in [(&[][..], "no Node has a known"), (LINUX, "all Nodes have the same")] {
        let pools = divided(&["10.96.0.0/12"], systems).unwrap();
        let ranges = Ranges { all: ranges.clone(), chosen: ranges.clone(), origin: " (as given)" };
        let text = document(&ranges, &systems.iter().copied().collect(), &pools, &[]).unwrap();
        let head = format!("# Starter settings of clusterip: one pool for all Services, because {reason} ");
        assert!(text.starts_with(&head), "{text}");
    }
}

#[test]
fn settings_show_pools_of_external_addresses_for_the_announcer_of_the_cluster() {
    let pool = |object: Value| AnnouncerPool::read(&object).unwrap();
    let announcers = [
        pool(json!({
            "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
            "metadata": {"namespace": "metallb-system", "name": "lan"},
            "spec": {"addresses": ["192.0.2.16/28", "192.0.2.40-192.0.2.49"]},
        })),
        pool(json!({
            "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
            "metadata": {"namespace": "metallb-system", "name": "six"}, "spec": {"addresses": ["2001:db8::/64"]},
        })),
    ];
    let ranges = nets(&["10.96.0.0/12"]);
    let ranges = Ranges { all: ranges.clone(), chosen: ranges, origin: "" };
    let systems = LINUX.iter().copied().collect();
    let text = document(&ranges, &systems, &divided(&["10.96.0.0/12"], LINUX).unwrap(), &announcers).unwrap();
    let (_, shown) = text.split_once("docs/external.md, \"Other announcers\".\n").unwrap();
    let shown = shown.lines().map(|line| format!("{}\n", line.strip_prefix("# ").unwrap())).collect::<String>();
    assert_eq!(
        shown,
        "external:\n  default: true\n  pools:\n\
         \x20 # IPAddressPool metallb-system/lan\n\
         \x20 - name: external-1\n    cidrs: [192.0.2.16/28, 192.0.2.40-192.0.2.49]\n    announcer: metallb\n\
         \x20 # IPAddressPool metallb-system/six\n\
         \x20 - name: external-2\n    cidrs: [2001:db8::/64]\n    announcer: metallb\n"
    );
    assert_eq!(Settings::from_value(&yaml::single(&shown).unwrap()).unwrap().external.pools.len(), 2);
}

/// The settings as the program reads them, with the Service ranges.
fn settings(ranges: &[IpNet], pools: &[Pool], origin: &'static str) -> Settings {
    let ranges = Ranges { all: ranges.to_vec(), chosen: ranges.to_vec(), origin };
    let systems: BTreeSet<Os> = pools.iter().filter_map(|pool| Os::from_str(os(pool)?, true).ok()).collect();
    let text = document(&ranges, &systems, pools, &[]).unwrap();
    let mut document: Value = yaml::single(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let written = document["services"].get("serviceCIDRs").is_some();
    assert_eq!(written, !origin.is_empty(), "{text}");
    document["services"]["serviceCIDRs"] = json!(ranges.all);
    // A line with two IPv6 ranges is longer than the others.
    assert!(text.lines().all(|line| line.len() <= 150), "{text}");
    Settings::from_value(&document).unwrap_or_else(|invalid| panic!("{invalid}\n{text}"))
}

fn v4() -> impl Strategy<Value = IpNet> {
    (any::<u32>(), 4_u8..=30)
        .prop_map(|(address, length)| IpNet::from(Ipv4Net::new_assert(address.into(), length)).trunc())
}

fn v6() -> impl Strategy<Value = IpNet> {
    (any::<u128>(), 48_u8..=126)
        .prop_map(|(address, length)| IpNet::from(Ipv6Net::new_assert(address.into(), length)).trunc())
}

fn some_ranges() -> impl Strategy<Value = Vec<IpNet>> {
    prop_oneof![
        v4().prop_map(|range| vec![range]),
        v6().prop_map(|range| vec![range]),
        (v4(), v6()).prop_map(|(first, second)| vec![first, second]),
        (v6(), v4()).prop_map(|(first, second)| vec![first, second]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The settings are valid without a warning, so the pools lie inside of the ranges and do not overlap. They leave
    /// out no address of the ranges, and keep the static band and the usual address of the cluster's DNS.
    #[test]
    fn starter_settings_of_any_ranges_are_valid(
        ranges in some_ranges(),
        systems in prop::sample::subsequence(BOTH, 0..=2),
        origin in prop::sample::select(vec!["", " (as given)"]),
    ) {
        let systems: BTreeSet<Os> = systems.into_iter().collect();
        let count = |range: &IpNet| Span::from(*range).count();
        let starter = match pools(&ranges, &systems) {
            Ok(starter) => starter,
            Err(error) => {
                let fewest = if systems.len() > 1 { 64 } else { 8 };
                let is_alone = ranges.len() == 1;
                let text = error.to_string();
                let small = ranges.iter().find(|range| text.contains(&format!("range {range} ")));
                prop_assert!(small.is_some_and(|range| count(range) < if is_alone { fewest } else { 1024 }), "{}", text);
                return Ok(());
            }
        };
        let settings = settings(&ranges, &starter, origin);
        prop_assert_eq!(settings.warnings(), vec![]);
        prop_assert_eq!(settings.pools.len(), systems.len().max(1));
        for range in &ranges {
            let family = Family::of(range.addr());
            let cidrs = settings.pools.iter().flat_map(|pool| pool.cidrs_of(family));
            let covered: u128 = cidrs.map(|cidr| count(&cidr)).sum();
            prop_assert_eq!(covered, count(range), "{}", range);
            let first = &settings.pools[0];
            let candidates = settings.candidates(first, family);
            if let Some(lowest) = candidates.bands[0].address(0) {
                let index = Span::new(range.network(), lowest).unwrap().count() - 1;
                prop_assert!(index > static_band_len(*range), "{} of {}", lowest, range);
            }
        }
        if count(&ranges[0]) >= 16 {
            prop_assert_eq!(settings.pool_with_dns_address(), None);
        }
    }
}

#[test]
fn starter_settings_of_k2s_are_the_default_pools() {
    let settings = settings(&nets(&K2S), &divided(&K2S, BOTH).unwrap(), "");
    assert_eq!(settings.pools, Settings::default().pools);
}
