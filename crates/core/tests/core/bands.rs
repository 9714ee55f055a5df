//! KEP-3070: the first addresses of a range are kept for addresses set by hand.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{ip, net};
use clusterip_core::address::{Candidates, Range, static_band_len};
use ipnet::IpNet;

/// The first address, the last address and the count of each band: the dynamic one, then the static one.
#[track_caller]
fn bands(cidrs: &[&str], reserved: u64, exclude: &[&str]) -> Vec<(String, String, u128)> {
    let exclude: Vec<IpNet> = exclude.iter().map(|text| net(text)).collect();
    let ranges: Vec<Range<'_>> =
        cidrs.iter().map(|cidr| Range { cidr: net(cidr), reserved, exclude: &exclude }).collect();
    let candidates = Candidates::new(&ranges, true);
    let text = |address: Option<std::net::IpAddr>| address.map_or("none".to_owned(), |address| address.to_string());
    candidates
        .bands
        .iter()
        .map(|band| {
            (text(band.address(0)), text(band.count().checked_sub(1).and_then(|last| band.address(last))), band.count())
        })
        .collect()
}

fn band(first: &str, last: &str, count: u128) -> (String, String, u128) {
    (first.into(), last.into(), count)
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
    let rows = [
        ("/24", "10.96.0.0/24", band("10.96.0.17", "10.96.0.254", 238), band("10.96.0.1", "10.96.0.16", 16)),
        ("/20", "10.96.0.0/20", band("10.96.1.1", "10.96.15.254", 3838), band("10.96.0.1", "10.96.1.0", 256)),
        ("/16", "10.96.0.0/16", band("10.96.1.1", "10.96.255.254", 65_278), band("10.96.0.1", "10.96.1.0", 256)),
        ("IPv6 /120", "fd00::/120", band("fd00::11", "fd00::ff", 239), band("fd00::1", "fd00::10", 16)),
        ("too small for bands", "10.96.0.0/28", band("10.96.0.1", "10.96.0.14", 14), band("none", "none", 0)),
    ];
    for (name, cidr, dynamic, fixed) in rows {
        assert_eq!(bands(&[cidr], 0, &[]), [dynamic, fixed], "{name}");
    }
}

#[test]
fn reserved_and_excluded_addresses_are_in_neither_band() {
    let none = || band("none", "none", 0);
    let dynamic = |first, count| band(first, "10.96.0.254", count);
    let rows: [(&str, u64, &[&str], _, _); 6] = [
        ("reserved inside the static band", 10, &[], dynamic("10.96.0.17", 238), band("10.96.0.10", "10.96.0.16", 7)),
        ("reserved up to its end", 17, &[], dynamic("10.96.0.17", 238), none()),
        ("reserved beyond it", 50, &[], dynamic("10.96.0.50", 205), none()),
        ("reserved everything", 256, &[], none(), none()),
        (
            "excluded from the static band",
            0,
            &["10.96.0.0/29"],
            dynamic("10.96.0.17", 238),
            band("10.96.0.8", "10.96.0.16", 9),
        ),
        (
            "excluded across both",
            0,
            &["10.96.0.16/30"],
            dynamic("10.96.0.20", 235),
            band("10.96.0.1", "10.96.0.15", 15),
        ),
    ];
    for (name, reserved, exclude, dynamic, fixed) in rows {
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
    let range = [Range { cidr: net("10.96.0.0/24"), reserved: 3, exclude: &[] }];
    let (with, without) = (Candidates::new(&range, true), Candidates::new(&range, false));
    assert_eq!((with.bands.len(), without.bands.len()), (2, 1));
    assert_eq!(with.count(), without.count());
    for last in 0..=255 {
        let address = ip(&format!("10.96.0.{last}"));
        assert_eq!(with.contains(address), without.contains(address), "{address}");
    }
}
