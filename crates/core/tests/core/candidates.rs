//! Which addresses of a pool may be handed out, and at which position. As in KEP-3070, the first addresses of a range
//! are kept for addresses set by hand.

use std::net::IpAddr;

use clusterip_core::address::{Candidates, Range, static_band_len};
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{addresses, cases, ip, net};

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

#[test]
fn static_band_length_matches_kep_3070() {
    let rows = [
        ("192.168.1.1/32", 0),
        ("192.168.1.1/30", 0),
        ("192.168.1.1/28", 0),
        ("192.168.1.1/27", 16),
        ("192.168.1.1/22", 64),
        ("192.168.1.1/8", 256),
        ("fd00::1/128", 0),
        ("fd00::1/126", 0),
        ("fd00::1/124", 0),
        ("fd00::1/122", 16),
        ("fd00::1/118", 64),
        ("fd00::1/12", 256),
        // The limits of the formula and of the arithmetic.
        ("10.96.0.0/24", 16),
        ("10.96.0.0/23", 32),
        ("10.96.0.0/20", 256),
        ("10.96.0.0/19", 256),
        ("0.0.0.0/0", 256),
        ("::/0", 256),
    ];
    for (cidr, len) in rows {
        assert_eq!(static_band_len(net(cidr)), len, "{cidr}");
    }
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
        let all = addresses(*cidr);
        for (index, address) in all.iter().enumerate() {
            let broadcast = address.is_ipv4() && index == all.len() - 1;
            let excluded = exclude.iter().any(|range| range.contains(address));
            if index == 0 || broadcast || excluded || (index as u64) < reserved {
                continue;
            }
            let list = if bands && index as u128 <= static_band_len(*cidr) { &mut fixed } else { &mut dynamic };
            list.push(*address);
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
        for address in cidrs.iter().flat_map(|cidr| addresses(*cidr)) {
            prop_assert_eq!(candidates.contains(address), known.contains(&address), "{}", address);
        }
        prop_assert_eq!(candidates.count(), known.len() as u128);
        prop_assert_eq!(enumerated(&candidates), expected);
    }
}
