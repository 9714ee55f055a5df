//! CIDRs cut into blocks: from index to block and back.

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
    let rows = [
        ("10.0.0.0/16", 15, "blocks of /15 can't be cut out of 10.0.0.0/16: give a length from /16 to /32"),
        ("10.0.0.0/16", 33, "blocks of /33 can't be cut out of 10.0.0.0/16: give a length from /16 to /32"),
        ("2001:db8::/48", 129, "blocks of /129 can't be cut out of 2001:db8::/48: give a length from /48 to /128"),
        // Host bits are left out of the message.
        ("10.0.1.7/16", 8, "blocks of /8 can't be cut out of 10.0.0.0/16: give a length from /16 to /32"),
    ];
    for (cidr, block_len, message) in rows {
        assert_eq!(Blocks::new(net(cidr), block_len).unwrap_err(), message);
    }
}

#[test]
fn addresses_are_indexed_from_the_network_address_to_the_last_one() {
    let last_of_all = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let rows = [
        ("192.168.1.1/32", "192.168.1.1", "192.168.1.1", 0),
        ("fd00::1/128", "fd00::1", "fd00::1", 0),
        ("10.1.2.3/24", "10.1.2.0", "10.1.2.255", 255),
        ("0.0.0.0/0", "0.0.0.0", "255.255.255.255", 0xffff_ffff),
        ("::/0", "::", last_of_all, u128::MAX),
    ];
    for (cidr, first, last, last_index) in rows {
        let addresses = Blocks::addresses(net(cidr));
        assert_eq!(addresses.last_index(), last_index, "{cidr}");
        assert_eq!(addresses.address(0), Some(ip(first)), "{cidr}");
        assert_eq!(addresses.address(last_index), Some(ip(last)), "{cidr}");
        assert_eq!(addresses.indices(ip(last).into()), Some(last_index..=last_index), "{cidr}");
        assert_eq!(last_index.checked_add(1).and_then(|behind| addresses.address(behind)), None, "{cidr}");
        assert_eq!(last_index.checked_add(1).and_then(|behind| addresses.block(behind)), None, "{cidr}");
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
        ("10.42.5.0/24", Some(5..=5)),
        ("10.42.5.64/26", Some(5..=5)),
        ("10.42.0.0/32", Some(0..=0)),
        ("10.42.255.255/32", Some(255..=255)),
        ("10.42.8.0/22", Some(8..=11)),
        // Host bits do not matter.
        ("10.42.9.7/22", Some(8..=11)),
        ("10.42.0.0/16", Some(0..=255)),
        ("10.0.0.0/8", Some(0..=255)),
        ("10.41.0.0/16", None),
        ("10.41.255.255/32", None),
        ("10.43.0.0/16", None),
        ("::/0", None),
        ("::ffff:10.42.5.0/120", None),
    ];
    for (range, expected) in rows {
        let blocks = blocks("10.42.0.0/16", 24);
        assert_eq!(blocks.indices(net(range)), expected, "{range}");
        let behind = expected.map(|indices| (indices.end() + 1) % 256);
        assert_eq!(blocks.index_behind(net(range)), behind, "behind {range}");
    }
}

#[test]
fn large_range_has_the_indices_of_all_its_blocks() {
    // The first four are golden vectors of the Kubernetes RangeAllocator.
    let rows = [
        ("127.0.0.0/8", 16, "127.0.0.0/8", Some(0..=255)),
        ("127.0.0.0/8", 16, "127.0.0.0/16", Some(0..=0)),
        ("127.0.0.0/8", 32, "127.0.0.0/16", Some(0..=65_535)),
        ("2001:beef:1200::/40", 48, "2001:beef:1200::/40", Some(0..=255)),
        ("::/0", 128, "::/0", Some(0..=u128::MAX)),
        ("::/0", 128, "8000::/1", Some(1 << 127..=u128::MAX)),
        ("::/0", 128, "10.0.0.0/8", None),
    ];
    for (cidr, block_len, range, expected) in rows {
        assert_eq!(blocks(cidr, block_len).indices(net(range)), expected, "{range} of {cidr} cut into /{block_len}");
    }
}
