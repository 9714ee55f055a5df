//! CIDRs cut into blocks: from index to block and back.

use std::ops::RangeInclusive;

use clusterip_core::address::Blocks;

use crate::support::{ip, net};

#[track_caller]
fn blocks(cidr: &str, block_len: u8) -> Blocks {
    Blocks::new(net(cidr), block_len).unwrap()
}

#[test]
fn block_indices_match_the_kubernetes_range_allocator() {
    struct Case {
        cidr: &'static str,
        block_len: u8,
        index: u128,
        expected: &'static str,
    }
    // The golden vectors of the Kubernetes RangeAllocator. Host bits of the CIDR do not matter.
    let rows = [
        Case { cidr: "127.123.3.0/16", block_len: 24, index: 0, expected: "127.123.0.0/24" },
        Case { cidr: "127.123.0.0/16", block_len: 24, index: 15, expected: "127.123.15.0/24" },
        Case { cidr: "192.168.5.219/28", block_len: 32, index: 5, expected: "192.168.5.213/32" },
        Case { cidr: "2001:db8:1234:3::/48", block_len: 64, index: 0, expected: "2001:db8:1234::/64" },
        Case { cidr: "2001:db8:1234::/48", block_len: 64, index: 15, expected: "2001:db8:1234:f::/64" },
        Case {
            cidr: "2001:db8:85a3::8a2e:370:7334/50",
            block_len: 63,
            index: 6425,
            expected: "2001:db8:85a3:3232::/63",
        },
        Case { cidr: "2001:db8::/32", block_len: 48, index: 0, expected: "2001:db8::/48" },
        Case { cidr: "2001:db8::/32", block_len: 48, index: 15, expected: "2001:db8:f::/48" },
        Case { cidr: "2001:db8:85a3::8a2e:370:7334/32", block_len: 48, index: 6425, expected: "2001:db8:1919::/48" },
        Case { cidr: "2001:db8:1234:ff00::/56", block_len: 72, index: 15, expected: "2001:db8:1234:ff00:f00::/72" },
        Case { cidr: "2001:db8:1234:ff00::/56", block_len: 72, index: 6425, expected: "2001:db8:1234:ff19:1900::/72" },
        Case { cidr: "2001:db8:1234:0:1234::/80", block_len: 96, index: 15, expected: "2001:db8:1234:0:1234:f::/96" },
        Case {
            cidr: "2001:db8:1234:ff00::370:7334/80",
            block_len: 96,
            index: 6425,
            expected: "2001:db8:1234:ff00:0:1919::/96",
        },
    ];
    for Case { cidr, block_len, index, expected } in rows {
        let blocks = blocks(cidr, block_len);
        assert_eq!(blocks.block(index), Some(net(expected)), "{cidr} cut into /{block_len}, block {index}");
        assert_eq!(blocks.indices(net(expected)), Some(index..=index), "{cidr} cut into /{block_len}, {expected}");
    }
}

#[test]
fn block_larger_than_its_cidr_or_smaller_than_an_address_is_refused() {
    struct Case {
        name: &'static str,
        cidr: &'static str,
        block_len: u8,
        message: &'static str,
    }
    let rows = [
        Case {
            name: "larger than the CIDR",
            cidr: "10.0.0.0/16",
            block_len: 15,
            message: "blocks of /15 can't be cut out of 10.0.0.0/16: give a length from /16 to /32",
        },
        Case {
            name: "longer than an IPv4 address",
            cidr: "10.0.0.0/16",
            block_len: 33,
            message: "blocks of /33 can't be cut out of 10.0.0.0/16: give a length from /16 to /32",
        },
        Case {
            name: "longer than an IPv6 address",
            cidr: "2001:db8::/48",
            block_len: 129,
            message: "blocks of /129 can't be cut out of 2001:db8::/48: give a length from /48 to /128",
        },
        Case {
            name: "host bits are left out of the message",
            cidr: "10.0.1.7/16",
            block_len: 8,
            message: "blocks of /8 can't be cut out of 10.0.0.0/16: give a length from /16 to /32",
        },
    ];
    for Case { name, cidr, block_len, message } in rows {
        let error = Blocks::new(net(cidr), block_len).unwrap_err();
        assert_eq!(error, message, "{name}");
    }
}

#[test]
fn addresses_are_indexed_from_the_network_address_to_the_last_one() {
    struct Case {
        name: &'static str,
        cidr: &'static str,
        last_index: u128,
        first: &'static str,
        last: &'static str,
    }
    let all = u128::MAX;
    let rows = [
        Case {
            name: "one IPv4 address",
            cidr: "192.168.1.1/32",
            last_index: 0,
            first: "192.168.1.1",
            last: "192.168.1.1",
        },
        Case { name: "one IPv6 address", cidr: "fd00::1/128", last_index: 0, first: "fd00::1", last: "fd00::1" },
        Case {
            name: "a /24 with host bits",
            cidr: "10.1.2.3/24",
            last_index: 255,
            first: "10.1.2.0",
            last: "10.1.2.255",
        },
        Case {
            name: "the whole of IPv4",
            cidr: "0.0.0.0/0",
            last_index: 0xffff_ffff,
            first: "0.0.0.0",
            last: "255.255.255.255",
        },
        Case {
            name: "the whole of IPv6",
            cidr: "::/0",
            last_index: all,
            first: "::",
            last: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        },
    ];
    for Case { name, cidr, last_index, first, last } in rows {
        let addresses = Blocks::addresses(net(cidr));
        assert_eq!(addresses.last_index(), last_index, "{name}");
        assert_eq!(addresses.address(0), Some(ip(first)), "{name}");
        assert_eq!(addresses.address(last_index), Some(ip(last)), "{name}");
        assert_eq!(addresses.indices(ip(last).into()), Some(last_index..=last_index), "{name}");
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

/// A range, and the indices of the blocks of `cidr` that it overlaps.
struct Case {
    name: &'static str,
    cidr: &'static str,
    block_len: u8,
    range: &'static str,
    expected: Option<RangeInclusive<u128>>,
}

#[track_caller]
fn check(rows: Vec<Case>) {
    for Case { name, cidr, block_len, range, expected } in rows {
        assert_eq!(blocks(cidr, block_len).indices(net(range)), expected, "{name}");
    }
}

#[test]
fn range_has_the_indices_of_all_overlapping_blocks() {
    check(vec![
        Case { name: "a block", cidr: "10.42.0.0/16", block_len: 24, range: "10.42.5.0/24", expected: Some(5..=5) },
        Case {
            name: "a part of a block",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.42.5.64/26",
            expected: Some(5..=5),
        },
        Case {
            name: "an address",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.42.255.255/32",
            expected: Some(255..=255),
        },
        Case {
            name: "several blocks",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.42.8.0/22",
            expected: Some(8..=11),
        },
        Case {
            name: "host bits in the range",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.42.9.7/22",
            expected: Some(8..=11),
        },
        Case {
            name: "the CIDR itself",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.42.0.0/16",
            expected: Some(0..=255),
        },
        Case {
            name: "a range around the CIDR",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.0.0.0/8",
            expected: Some(0..=255),
        },
    ]);
}

#[test]
fn large_range_has_the_indices_of_all_its_blocks() {
    check(vec![
        Case {
            name: "golden: all of a /8",
            cidr: "127.0.0.0/8",
            block_len: 16,
            range: "127.0.0.0/8",
            expected: Some(0..=255),
        },
        Case {
            name: "golden: the first /16 of a /8",
            cidr: "127.0.0.0/8",
            block_len: 16,
            range: "127.0.0.0/16",
            expected: Some(0..=0),
        },
        Case {
            name: "golden: the addresses of a /16",
            cidr: "127.0.0.0/8",
            block_len: 32,
            range: "127.0.0.0/16",
            expected: Some(0..=65_535),
        },
        Case {
            name: "golden: all of an IPv6 /40",
            cidr: "2001:beef:1200::/40",
            block_len: 48,
            range: "2001:beef:1200::/40",
            expected: Some(0..=255),
        },
        Case { name: "all IPv6 addresses", cidr: "::/0", block_len: 128, range: "::/0", expected: Some(0..=u128::MAX) },
        Case {
            name: "the upper half of all IPv6 addresses",
            cidr: "::/0",
            block_len: 128,
            range: "8000::/1",
            expected: Some(1 << 127..=u128::MAX),
        },
    ]);
}

#[test]
fn range_outside_of_the_cidr_or_of_another_family_has_no_index() {
    check(vec![
        Case {
            name: "a range before the CIDR",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.41.0.0/16",
            expected: None,
        },
        Case {
            name: "a range behind the CIDR",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "10.43.0.0/16",
            expected: None,
        },
        Case {
            name: "a range of the other family",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "::/0",
            expected: None,
        },
        Case {
            name: "an IPv4 range for an IPv6 CIDR",
            cidr: "::/0",
            block_len: 128,
            range: "10.0.0.0/8",
            expected: None,
        },
        Case {
            name: "an IPv4-mapped IPv6 range for an IPv4 CIDR",
            cidr: "10.42.0.0/16",
            block_len: 24,
            range: "::ffff:10.42.5.0/120",
            expected: None,
        },
    ]);
}

#[test]
fn address_has_the_index_of_its_block() {
    struct Case {
        name: &'static str,
        address: &'static str,
        expected: Option<u128>,
    }
    let rows = [
        Case { name: "the first address", address: "10.42.0.0", expected: Some(0) },
        Case { name: "inside a block", address: "10.42.5.17", expected: Some(5) },
        Case { name: "the last address", address: "10.42.255.255", expected: Some(255) },
        Case { name: "before the CIDR", address: "10.41.255.255", expected: None },
        Case { name: "behind the CIDR", address: "10.43.0.0", expected: None },
        Case { name: "an IPv4-mapped IPv6 address", address: "::ffff:10.42.5.17", expected: None },
    ];
    for Case { name, address, expected } in rows {
        assert_eq!(
            blocks("10.42.0.0/16", 24).indices(ip(address).into()),
            expected.map(|index| index..=index),
            "{name}"
        );
    }
}
