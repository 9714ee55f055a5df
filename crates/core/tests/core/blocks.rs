//! CIDRs cut into blocks: from index to block and back.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{ip, net};
use clusterip_core::address::{BlockError, Blocks};

#[track_caller]
fn blocks(cidr: &str, block_len: u8) -> Blocks {
    Blocks::new(net(cidr), block_len).unwrap()
}

#[test]
fn block_indices_match_the_kubernetes_range_allocator() {
    // The golden vectors of the Kubernetes RangeAllocator. Host bits of the CIDR do not matter.
    let rows = [
        ("127.123.3.0/16", 24, 0, "127.123.0.0/24"),
        ("127.123.0.0/16", 24, 15, "127.123.15.0/24"),
        ("192.168.5.219/28", 32, 5, "192.168.5.213/32"),
        ("2001:db8:1234:3::/48", 64, 0, "2001:db8:1234::/64"),
        ("2001:db8:1234::/48", 64, 15, "2001:db8:1234:f::/64"),
        ("2001:db8:85a3::8a2e:370:7334/50", 63, 6425, "2001:db8:85a3:3232::/63"),
        ("2001:db8::/32", 48, 0, "2001:db8::/48"),
        ("2001:db8::/32", 48, 15, "2001:db8:f::/48"),
        ("2001:db8:85a3::8a2e:370:7334/32", 48, 6425, "2001:db8:1919::/48"),
        ("2001:db8:1234:ff00::/56", 72, 15, "2001:db8:1234:ff00:f00::/72"),
        ("2001:db8:1234:ff00::/56", 72, 6425, "2001:db8:1234:ff19:1900::/72"),
        ("2001:db8:1234:0:1234::/80", 96, 15, "2001:db8:1234:0:1234:f::/96"),
        ("2001:db8:1234:ff00::370:7334/80", 96, 6425, "2001:db8:1234:ff00:0:1919::/96"),
    ];
    for (cidr, block_len, index, expected) in rows {
        let blocks = blocks(cidr, block_len);
        assert_eq!(blocks.block(index), Some(net(expected)), "{cidr} cut into /{block_len}, block {index}");
        assert_eq!(blocks.indices(net(expected)), Some(index..=index), "{cidr} cut into /{block_len}, {expected}");
    }
}

#[test]
fn block_larger_than_its_cidr_or_smaller_than_an_address_is_refused() {
    let rows = [
        (
            "larger than the CIDR",
            "10.0.0.0/16",
            15,
            "blocks of /15 can't be cut out of 10.0.0.0/16: give a length from /16 to /32",
        ),
        (
            "longer than an IPv4 address",
            "10.0.0.0/16",
            33,
            "blocks of /33 can't be cut out of 10.0.0.0/16: give a length from /16 to /32",
        ),
        (
            "longer than an IPv6 address",
            "2001:db8::/48",
            129,
            "blocks of /129 can't be cut out of 2001:db8::/48: give a length from /48 to /128",
        ),
        (
            "host bits are left out of the message",
            "10.0.1.7/16",
            8,
            "blocks of /8 can't be cut out of 10.0.0.0/16: give a length from /16 to /32",
        ),
    ];
    for (name, cidr, block_len, message) in rows {
        let error = Blocks::new(net(cidr), block_len).unwrap_err();
        assert!(matches!(error, BlockError::Length { .. }), "{name}: {error:?}");
        assert_eq!(error.to_string(), message, "{name}");
    }
}

#[test]
fn addresses_are_indexed_from_the_network_address_to_the_last_one() {
    let all = u128::MAX;
    let rows = [
        ("one IPv4 address", "192.168.1.1/32", 0, "192.168.1.1", "192.168.1.1"),
        ("one IPv6 address", "fd00::1/128", 0, "fd00::1", "fd00::1"),
        ("a /24 with host bits", "10.1.2.3/24", 255, "10.1.2.0", "10.1.2.255"),
        ("the whole of IPv4", "0.0.0.0/0", 0xffff_ffff, "0.0.0.0", "255.255.255.255"),
        ("the whole of IPv6", "::/0", all, "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ];
    for (name, cidr, last_index, first, last) in rows {
        let addresses = Blocks::addresses(net(cidr));
        assert_eq!(addresses.last_index(), last_index, "{name}");
        assert_eq!(addresses.address(0), Some(ip(first)), "{name}");
        assert_eq!(addresses.address(last_index), Some(ip(last)), "{name}");
        assert_eq!(addresses.index_of(ip(last)), Some(last_index), "{name}");
        assert_eq!(last_index.checked_add(1).and_then(|behind| addresses.address(behind)), None, "{name}");
        assert_eq!(last_index.checked_add(1).and_then(|behind| addresses.block(behind)), None, "{name}");
    }
}

#[test]
fn single_block_of_a_whole_family_covers_it() {
    for whole in ["0.0.0.0/0", "::/0"] {
        let blocks = blocks(whole, 0);
        assert_eq!(blocks.last_index(), 0, "{whole}");
        assert_eq!(blocks.block(0), Some(net(whole)), "{whole}");
        assert_eq!(blocks.indices(net(whole)), Some(0..=0), "{whole}");
        assert_eq!(blocks.block(1), None, "{whole}");
    }
}

#[test]
fn range_has_the_indices_of_all_overlapping_blocks() {
    let rows = [
        ("a block", "10.42.0.0/16", 24, "10.42.5.0/24", Some(5..=5)),
        ("a part of a block", "10.42.0.0/16", 24, "10.42.5.64/26", Some(5..=5)),
        ("an address", "10.42.0.0/16", 24, "10.42.255.255/32", Some(255..=255)),
        ("several blocks", "10.42.0.0/16", 24, "10.42.8.0/22", Some(8..=11)),
        ("host bits in the range", "10.42.0.0/16", 24, "10.42.9.7/22", Some(8..=11)),
        ("the CIDR itself", "10.42.0.0/16", 24, "10.42.0.0/16", Some(0..=255)),
        ("a range around the CIDR", "10.42.0.0/16", 24, "10.0.0.0/8", Some(0..=255)),
        ("the range before it", "10.42.0.0/16", 24, "10.41.0.0/16", None),
        ("the range behind it", "10.42.0.0/16", 24, "10.43.0.0/16", None),
        ("the other family", "10.42.0.0/16", 24, "::/0", None),
        ("IPv4 asked of IPv6", "::/0", 128, "10.0.0.0/8", None),
        ("IPv4's own block in IPv6 notation", "10.42.0.0/16", 24, "::ffff:10.42.5.0/120", None),
        ("golden: all of a /8", "127.0.0.0/8", 16, "127.0.0.0/8", Some(0..=255)),
        ("golden: the first /16 of a /8", "127.0.0.0/8", 16, "127.0.0.0/16", Some(0..=0)),
        ("golden: the addresses of a /16", "127.0.0.0/8", 32, "127.0.0.0/16", Some(0..=65_535)),
        ("golden: all of an IPv6 /40", "2001:beef:1200::/40", 48, "2001:beef:1200::/40", Some(0..=255)),
        ("every address there is", "::/0", 128, "::/0", Some(0..=u128::MAX)),
        ("the upper half of all addresses", "::/0", 128, "8000::/1", Some(1 << 127..=u128::MAX)),
    ];
    for (name, cidr, block_len, range, expected) in rows {
        assert_eq!(blocks(cidr, block_len).indices(net(range)), expected, "{name}");
    }
}

#[test]
fn address_has_the_index_of_its_block() {
    let rows = [
        ("the first address", "10.42.0.0", Some(0)),
        ("inside a block", "10.42.5.17", Some(5)),
        ("the last address", "10.42.255.255", Some(255)),
        ("before the CIDR", "10.41.255.255", None),
        ("behind the CIDR", "10.43.0.0", None),
        ("of the other family", "::ffff:10.42.5.17", None),
    ];
    for (name, address, expected) in rows {
        assert_eq!(blocks("10.42.0.0/16", 24).index_of(ip(address)), expected, "{name}");
    }
}
