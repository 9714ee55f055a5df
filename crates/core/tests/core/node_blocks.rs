//! Which block of a pool a Node gets: the next free one, as the RangeAllocator of the Kubernetes controller manager
//! assigns them.

use crate::support::{Sequence, blocks_given, node_pool};
use serde_json::{Value, json};

/// A pool of one range, cut into blocks of this length.
fn cut(cidr: &str, length: u8) -> Value {
    let size = if cidr.contains(':') { json!({"ipv6": length}) } else { json!({"ipv4": length}) };
    node_pool(json!({"cidrs": [cidr], "blockSize": size}))
}

fn slash_24_blocks(third_octets: impl Iterator<Item = u16>) -> Vec<String> {
    third_octets.map(|third| format!("127.123.{third}.0/24")).collect()
}

#[test]
fn next_block_follows_the_last_one() {
    struct Case {
        cidr: &'static str,
        length: u8,
        last: &'static str,
        expected: &'static str,
    }
    let rows = [
        Case { cidr: "127.123.0.0/16", length: 24, last: "127.123.255.0/24", expected: "127.123.0.0/24" },
        Case { cidr: "127.123.0.0/16", length: 24, last: "127.123.14.0/24", expected: "127.123.15.0/24" },
        Case { cidr: "192.168.5.208/28", length: 32, last: "192.168.5.212/32", expected: "192.168.5.213/32" },
        Case {
            cidr: "2001:db8:1234::/48",
            length: 64,
            last: "2001:db8:1234:ffff::/64",
            expected: "2001:db8:1234::/64",
        },
        Case { cidr: "2001:db8:1234::/48", length: 64, last: "2001:db8:1234:e::/64", expected: "2001:db8:1234:f::/64" },
        Case {
            cidr: "2001:db8:85a3::/50",
            length: 63,
            last: "2001:db8:85a3:3230::/63",
            expected: "2001:db8:85a3:3232::/63",
        },
        Case { cidr: "2001:db8::/32", length: 48, last: "2001:db8:ffff::/48", expected: "2001:db8::/48" },
        Case { cidr: "2001:db8::/32", length: 48, last: "2001:db8:e::/48", expected: "2001:db8:f::/48" },
        Case { cidr: "2001:db8::/32", length: 48, last: "2001:db8:1918::/48", expected: "2001:db8:1919::/48" },
        Case {
            cidr: "2001:db8:1234:ff00::/56",
            length: 72,
            last: "2001:db8:1234:ff00:e00::/72",
            expected: "2001:db8:1234:ff00:f00::/72",
        },
        Case {
            cidr: "2001:db8:1234:ff00::/56",
            length: 72,
            last: "2001:db8:1234:ff19:1800::/72",
            expected: "2001:db8:1234:ff19:1900::/72",
        },
        Case {
            cidr: "2001:db8:1234:0:1234::/80",
            length: 96,
            last: "2001:db8:1234:0:1234:e::/96",
            expected: "2001:db8:1234:0:1234:f::/96",
        },
        Case {
            cidr: "2001:db8:1234:ff00::/80",
            length: 96,
            last: "2001:db8:1234:ff00:0:1918::/96",
            expected: "2001:db8:1234:ff00:0:1919::/96",
        },
    ];
    for Case { cidr, length, last, expected } in rows {
        let allocation = json!({"held": [last], "last": [last]});
        let expected = Ok(vec![expected.to_owned()]);
        assert_eq!(blocks_given(&cut(cidr, length), &allocation), expected, "{cidr} in /{length} behind {last}");
    }
}

#[test]
fn range_of_one_block_is_assigned_once() {
    let mut sequence = Sequence::new(cut("127.123.234.0/30", 30));
    let whole = Ok(vec!["127.123.234.0/30".to_owned()]);
    assert_eq!(sequence.next(), whole);
    let full = sequence.next().unwrap_err();
    assert_eq!(
        full,
        "Node w1: pool \"a\" (127.123.234.0/30) is full: no block of /30 is free; chosen by default; add a range to the pool, or delete Nodes that no longer exist"
    );
    sequence.held.clear();
    assert_eq!(sequence.next(), whole, "again, once it is released");
}

#[test]
fn all_blocks_come_in_order_again_after_release() {
    let mut sequence = Sequence::new(cut("127.123.0.0/16", 24));
    for round in ["first", "released"] {
        assert_eq!(sequence.drain(), slash_24_blocks(0..=255), "{round}");
        sequence.held.clear();
    }
}

#[test]
fn held_blocks_parts_and_larger_ranges_are_skipped() {
    struct Case {
        name: &'static str,
        held: Vec<&'static str>,
        expected: Vec<String>,
    }
    let free = |without: &[u16]| {
        let without = without.to_vec();
        slash_24_blocks((0..=255).filter(move |third| !without.contains(third)))
    };
    let rows = [
        Case {
            name: "the last 128, one of them twice",
            held: vec!["127.123.128.0/17", "127.123.200.0/24"],
            expected: slash_24_blocks(0..=127),
        },
        Case {
            name: "blocks, and a range of four with one released",
            held: vec!["127.123.8.0/24", "127.123.10.0/23"],
            expected: free(&[8, 10, 11]),
        },
        Case { name: "the first half", held: vec!["127.123.0.0/17"], expected: slash_24_blocks(128..=255) },
        Case { name: "a part of a block", held: vec!["127.123.7.8/29", "127.123.9.1/32"], expected: free(&[7, 9]) },
        Case { name: "host bits", held: vec!["127.123.7.8/24"], expected: free(&[7]) },
        Case { name: "outside the pool", held: vec!["10.0.0.0/8", "::/0"], expected: slash_24_blocks(0..=255) },
        Case { name: "all IPv4 addresses", held: vec!["0.0.0.0/0"], expected: vec![] },
    ];
    for Case { name, held, expected } in rows {
        assert_eq!(Sequence::occupying(cut("127.123.0.0/16", 24), &held).drain(), expected, "{name}");
    }
}

#[test]
fn allocation_wraps_around_and_does_not_go_back() {
    let mut sequence = Sequence::new(cut("10.0.0.0/22", 24));
    let mut step = |release: Option<&str>| {
        sequence.held.retain(|held| Some(held.as_str()) != release);
        sequence.next().map(|blocks| blocks[0].clone()).ok()
    };
    let block = |third: u8| Some(format!("10.0.{third}.0/24"));
    let steps = [
        (None, block(0)),
        (None, block(1)),
        // The released block is not assigned again at once.
        (Some("10.0.0.0/24"), block(2)),
        (None, block(3)),
        (None, block(0)),
        (None, None),
        (Some("10.0.2.0/24"), block(2)),
        (Some("10.0.1.0/24"), block(1)),
    ];
    for (index, (release, expected)) in steps.into_iter().enumerate() {
        assert_eq!(step(release), expected, "step {index}, released {release:?}");
    }
}
