//! Which addresses of a pool may be handed out, and at which position.

use std::net::IpAddr;

use clusterip_core::address::{Candidates, Range, static_band_len};
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{cases, ip, net};

fn candidates(cidrs: &[IpNet], reserved: u64, exclude: &[IpNet], bands: bool) -> Candidates {
    let ranges: Vec<Range<'_>> =
        cidrs.iter().map(|&cidr| Range { cidr, reserved, exclude, for_services: &[] }).collect();
    Candidates::new(&ranges, bands)
}

/// All addresses in the order of their positions, one list for each band.
fn enumerated(candidates: &Candidates) -> Vec<Vec<IpAddr>> {
    candidates
        .bands
        .iter()
        .map(|band| {
            assert_eq!(band.address(band.count()), None, "an address behind the last position");
            (0..band.count()).map(|position| band.address(position).expect("a position without an address")).collect()
        })
        .collect()
}

/// The settings of a pool, and its candidates.
struct Case {
    name: &'static str,
    cidrs: &'static [&'static str],
    reserved: u64,
    exclude: &'static [&'static str],
    expected: Vec<String>,
}

#[track_caller]
fn check(rows: Vec<Case>) {
    for Case { name, cidrs, reserved, exclude, expected } in rows {
        let cidrs: Vec<IpNet> = cidrs.iter().map(|text| net(text)).collect();
        let exclude: Vec<IpNet> = exclude.iter().map(|text| net(text)).collect();
        let candidates = candidates(&cidrs, reserved, &exclude, false);
        let expected: Vec<IpAddr> = expected.iter().map(|text| ip(text)).collect();
        assert_eq!(candidates.count(), expected.len() as u128, "{name}");
        assert_eq!(enumerated(&candidates), [expected], "{name}");
    }
}

/// The addresses with these last parts.
fn all(prefix: &str, lasts: &[u16]) -> Vec<String> {
    lasts.iter().map(|last| format!("{prefix}{last}")).collect()
}

#[test]
fn network_and_broadcast_addresses_are_never_candidates() {
    check(vec![
        Case {
            name: "a /32 is its own network address",
            cidrs: &["10.0.0.7/32"],
            reserved: 0,
            exclude: &[],
            expected: vec![],
        },
        Case {
            name: "a /31 is network and broadcast address",
            cidrs: &["10.0.0.0/31"],
            reserved: 0,
            exclude: &[],
            expected: vec![],
        },
        Case {
            name: "a /30 has two candidates",
            cidrs: &["10.0.0.0/30"],
            reserved: 0,
            exclude: &[],
            expected: all("10.0.0.", &[1, 2]),
        },
        Case {
            name: "a /29 has six candidates",
            cidrs: &["10.0.0.0/29"],
            reserved: 0,
            exclude: &[],
            expected: all("10.0.0.", &[1, 2, 3, 4, 5, 6]),
        },
        Case {
            name: "the all-ones address of IPv6 is usable",
            cidrs: &["fd00::/126"],
            reserved: 0,
            exclude: &[],
            expected: all("fd00::", &[1, 2, 3]),
        },
        Case {
            name: "an IPv6 /127 has one candidate",
            cidrs: &["fd00::/127"],
            reserved: 0,
            exclude: &[],
            expected: all("fd00::", &[1]),
        },
        Case {
            name: "an IPv6 /128 is its own network address",
            cidrs: &["fd00::7/128"],
            reserved: 0,
            exclude: &[],
            expected: vec![],
        },
    ]);
}

#[test]
fn reserved_addresses_are_never_candidates() {
    let span = |first: u16, last: u16| -> Vec<u16> { (first..=last).collect() };
    check(vec![
        Case {
            name: "one reserved is the network address",
            cidrs: &["10.0.0.0/30"],
            reserved: 1,
            exclude: &[],
            expected: all("10.0.0.", &[1, 2]),
        },
        Case {
            name: "reserved counts from the network address",
            cidrs: &["10.0.0.0/29"],
            reserved: 3,
            exclude: &[],
            expected: all("10.0.0.", &[3, 4, 5, 6]),
        },
        Case {
            name: "50 reserved: a /24 begins at .50",
            cidrs: &["172.21.0.0/24"],
            reserved: 50,
            exclude: &[],
            expected: all("172.21.0.", &span(50, 254)),
        },
        Case {
            name: "reserved addresses are withheld from each range",
            cidrs: &["10.0.0.0/29", "10.9.0.0/29"],
            reserved: 5,
            exclude: &[],
            expected: vec!["10.0.0.5".into(), "10.0.0.6".into(), "10.9.0.5".into(), "10.9.0.6".into()],
        },
        Case {
            name: "more reserved than the range has",
            cidrs: &["10.0.0.0/29"],
            reserved: u64::MAX,
            exclude: &[],
            expected: vec![],
        },
    ]);
}

#[test]
fn excluded_addresses_are_never_candidates() {
    check(vec![
        Case {
            name: "an excluded address",
            cidrs: &["10.0.0.0/29"],
            reserved: 0,
            exclude: &["10.0.0.3/32"],
            expected: all("10.0.0.", &[1, 2, 4, 5, 6]),
        },
        Case {
            name: "excluded ranges that overlap",
            cidrs: &["10.0.0.0/28"],
            reserved: 0,
            exclude: &["10.0.0.4/30", "10.0.0.6/31", "10.0.0.8/30"],
            expected: all("10.0.0.", &[1, 2, 3, 12, 13, 14]),
        },
        Case {
            name: "excluded outside the range, and of the other family",
            cidrs: &["10.0.0.0/30"],
            reserved: 0,
            exclude: &["10.0.1.0/24", "::/0"],
            expected: all("10.0.0.", &[1, 2]),
        },
        Case {
            name: "excluded around the whole range",
            cidrs: &["10.0.0.0/30", "10.9.0.0/30"],
            reserved: 0,
            exclude: &["10.0.0.0/16"],
            expected: all("10.9.0.", &[1, 2]),
        },
    ]);
}

#[test]
fn pool_as_large_as_a_family_is_counted_without_enumeration() {
    let all = candidates(&[net("::/0")], 0, &[], false);
    let band = &all.bands[0];
    assert_eq!(all.count(), u128::MAX);
    assert_eq!(band.address(0), Some(ip("::1")));
    assert_eq!(band.address(u128::MAX - 1), Some(ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
    assert_eq!(band.address(u128::MAX), None);
    assert!(all.contains(ip("8000::1")));
    assert!(!all.contains(ip("::")));
    assert!(!all.contains(ip("0.0.0.1")), "the number of an IPv6 candidate, but of the other family");
}

#[test]
fn pool_without_ranges_has_no_candidates() {
    let none = candidates(&[], 0, &[], true);
    assert_eq!(none.count(), 0);
    assert_eq!(enumerated(&none), [Vec::<IpAddr>::new(), Vec::new()]);
}

/// Dynamic and static addresses, found by checking every address of every range.
fn naive(cidrs: &[IpNet], reserved: u64, exclude: &[IpNet], bands: bool) -> Vec<Vec<IpAddr>> {
    let (mut dynamic, mut fixed) = (Vec::new(), Vec::new());
    for cidr in cidrs {
        let count = 1_u128 << (cidr.max_prefix_len() - cidr.prefix_len());
        for index in 0..count {
            let address: IpAddr = match cidr.network() {
                IpAddr::V4(network) => std::net::Ipv4Addr::from(u32::from(network) + index as u32).into(),
                IpAddr::V6(network) => std::net::Ipv6Addr::from(u128::from(network) + index).into(),
            };
            let broadcast = address.is_ipv4() && index == count - 1;
            let excluded = exclude.iter().any(|range| range.contains(&address));
            if index == 0 || broadcast || excluded || index < u128::from(reserved) {
                continue;
            }
            let list = if bands && index <= static_band_len(*cidr) { &mut fixed } else { &mut dynamic };
            list.push(address);
        }
    }
    if bands { vec![dynamic, fixed] } else { vec![dynamic] }
}

fn small_cidr() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<u16>(), 22_u8..=32)
        .prop_map(|(low, len)| IpNet::new(IpAddr::from([10, 0, (low >> 8) as u8, low as u8]), len));
    let v6 = (any::<u16>(), 118_u8..=128)
        .prop_map(|(low, len)| IpNet::new(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, low]), len));
    prop_oneof![v4, v6].prop_map(|cidr| cidr.expect("the length fits the family").trunc())
}

/// Excluded ranges that probably overlap `cidrs`.
fn exclude(cidrs: &[IpNet]) -> impl Strategy<Value = Vec<IpNet>> + use<> {
    let near = (prop::sample::select(cidrs.to_vec()), any::<u16>(), 0_u8..8).prop_map(|(cidr, low, longer)| {
        let len = (cidr.prefix_len() + longer).min(cidr.max_prefix_len());
        let address: IpAddr = match cidr.addr() {
            IpAddr::V4(network) => std::net::Ipv4Addr::from(u32::from(network) | u32::from(low) & 0x3ff).into(),
            IpAddr::V6(network) => std::net::Ipv6Addr::from(u128::from(network) | u128::from(low) & 0x3ff).into(),
        };
        IpNet::new(address, len).expect("no longer than the family")
    });
    prop::collection::vec(near, 0..4)
}

fn ranges() -> impl Strategy<Value = (Vec<IpNet>, Vec<IpNet>)> {
    prop::collection::vec(small_cidr(), 1..4).prop_flat_map(|mut cidrs| {
        // The settings allow no overlap, so ranges that overlap an earlier one are dropped.
        let mut apart: Vec<IpNet> = Vec::new();
        cidrs.retain(|cidr| {
            let free = !apart.iter().any(|other| other.contains(cidr) || cidr.contains(other));
            if free {
                apart.push(*cidr);
            }
            free
        });
        let exclude = exclude(&cidrs);
        (Just(cidrs), exclude)
    })
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn candidates_match_a_check_of_every_address(
        (cidrs, exclude) in ranges(),
        reserved in 0_u64..300,
        bands: bool,
    ) {
        let candidates = candidates(&cidrs, reserved, &exclude, bands);
        let expected = naive(&cidrs, reserved, &exclude, bands);
        let known: std::collections::BTreeSet<&IpAddr> = expected.iter().flatten().collect();
        for range in &cidrs {
            let IpNet::V4(range) = range else { continue };
            for address in range.hosts().map(IpAddr::V4) {
                prop_assert_eq!(candidates.contains(address), known.contains(&address), "{}", address);
            }
        }
        for address in expected.iter().flatten() {
            prop_assert!(candidates.contains(*address), "{} is missing", address);
        }
        prop_assert_eq!(candidates.count(), known.len() as u128);
        prop_assert_eq!(enumerated(&candidates), expected);
    }
}
