//! KEP-3070: the first addresses of a range are kept for addresses set by hand.

use clusterip_core::address::{Candidates, Range, static_band_len};
use ipnet::IpNet;

use crate::support::{ip, net};

/// The first address of a band, the last one and how many there are.
#[derive(Debug, PartialEq)]
struct Band {
    first: String,
    last: String,
    count: u128,
}

/// The bands of a pool: the dynamic one, then the static one.
#[track_caller]
fn bands(cidrs: &[&str], reserved: u64, exclude: &[&str]) -> Vec<Band> {
    let exclude: Vec<IpNet> = exclude.iter().map(|text| net(text)).collect();
    let ranges: Vec<Range<'_>> =
        cidrs.iter().map(|cidr| Range { cidr: net(cidr), reserved, exclude: &exclude, for_services: &[] }).collect();
    let candidates = Candidates::new(&ranges, true);
    let text = |address: Option<std::net::IpAddr>| address.map_or("none".to_owned(), |address| address.to_string());
    candidates
        .bands
        .iter()
        .map(|band| Band {
            first: text(band.address(0)),
            last: text(band.count().checked_sub(1).and_then(|last| band.address(last))),
            count: band.count(),
        })
        .collect()
}

fn band(first: &str, last: &str, count: u128) -> Band {
    Band { first: first.into(), last: last.into(), count }
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
fn dynamic_band_is_used_before_the_static_band() {
    struct Case {
        name: &'static str,
        cidr: &'static str,
        dynamic: Band,
        fixed: Band,
    }
    let rows = [
        Case {
            name: "/24",
            cidr: "10.96.0.0/24",
            dynamic: band("10.96.0.17", "10.96.0.254", 238),
            fixed: band("10.96.0.1", "10.96.0.16", 16),
        },
        Case {
            name: "/20",
            cidr: "10.96.0.0/20",
            dynamic: band("10.96.1.1", "10.96.15.254", 3838),
            fixed: band("10.96.0.1", "10.96.1.0", 256),
        },
        Case {
            name: "/16",
            cidr: "10.96.0.0/16",
            dynamic: band("10.96.1.1", "10.96.255.254", 65_278),
            fixed: band("10.96.0.1", "10.96.1.0", 256),
        },
        Case {
            name: "IPv6 /120",
            cidr: "fd00::/120",
            dynamic: band("fd00::11", "fd00::ff", 239),
            fixed: band("fd00::1", "fd00::10", 16),
        },
        Case {
            name: "too small for bands",
            cidr: "10.96.0.0/28",
            dynamic: band("10.96.0.1", "10.96.0.14", 14),
            fixed: band("none", "none", 0),
        },
    ];
    for Case { name, cidr, dynamic, fixed } in rows {
        assert_eq!(bands(&[cidr], 0, &[]), [dynamic, fixed], "{name}");
    }
}

#[test]
fn reserved_and_excluded_addresses_are_in_neither_band() {
    struct Case {
        name: &'static str,
        reserved: u64,
        exclude: &'static [&'static str],
        dynamic: Band,
        fixed: Band,
    }
    let none = || band("none", "none", 0);
    let dynamic = |first, count| band(first, "10.96.0.254", count);
    let rows = [
        Case {
            name: "reserved inside the static band",
            reserved: 10,
            exclude: &[],
            dynamic: dynamic("10.96.0.17", 238),
            fixed: band("10.96.0.10", "10.96.0.16", 7),
        },
        Case {
            name: "reserved: the whole static band",
            reserved: 17,
            exclude: &[],
            dynamic: dynamic("10.96.0.17", 238),
            fixed: none(),
        },
        Case {
            name: "reserved: more than the static band",
            reserved: 50,
            exclude: &[],
            dynamic: dynamic("10.96.0.50", 205),
            fixed: none(),
        },
        Case { name: "reserved: the whole range", reserved: 256, exclude: &[], dynamic: none(), fixed: none() },
        Case {
            name: "excluded from the static band",
            reserved: 0,
            exclude: &["10.96.0.0/29"],
            dynamic: dynamic("10.96.0.17", 238),
            fixed: band("10.96.0.8", "10.96.0.16", 9),
        },
        Case {
            name: "excluded from both bands",
            reserved: 0,
            exclude: &["10.96.0.16/30"],
            dynamic: dynamic("10.96.0.20", 235),
            fixed: band("10.96.0.1", "10.96.0.15", 15),
        },
    ];
    for Case { name, reserved, exclude, dynamic, fixed } in rows {
        assert_eq!(bands(&["10.96.0.0/24"], reserved, exclude), [dynamic, fixed], "{name}");
    }
}

#[test]
fn each_range_of_a_pool_has_its_own_static_band() {
    assert_eq!(
        bands(&["10.96.0.0/24", "10.97.0.0/27"], 0, &[]),
        [band("10.96.0.17", "10.97.0.30", 238 + 14), band("10.96.0.1", "10.97.0.16", 16 + 16)]
    );
}

#[test]
fn bands_change_only_the_order_of_addresses() {
    let range = [Range { cidr: net("10.96.0.0/24"), reserved: 3, exclude: &[], for_services: &[] }];
    let (with, without) = (Candidates::new(&range, true), Candidates::new(&range, false));
    assert_eq!((with.bands.len(), without.bands.len()), (2, 1));
    assert_eq!(with.count(), without.count());
    for last in 0..=255 {
        let address = ip(&format!("10.96.0.{last}"));
        assert_eq!(with.contains(address), without.contains(address), "{address}");
    }
}
