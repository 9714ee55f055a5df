//! How the allocation state, the held and the last blocks, determines the next block of each range.

use crate::support::{assigned_of, blocks_given, node_created, node_of, node_pool, node_unchanged, two_pools};
use serde_json::{Value, json};

fn held(held: &[&str]) -> Value {
    json!({ "held": held })
}

/// The blocks, or the message of the refusal.
type Given<'a> = Result<Vec<&'a str>, String>;

/// Settings with one pool, the allocation state, and the expected answer.
struct Case {
    name: &'static str,
    settings: Value,
    allocation: Value,
    expected: Given<'static>,
}

#[track_caller]
fn check(rows: Vec<Case>) {
    for Case { name, settings, allocation, expected } in rows {
        let expected = expected.map(|blocks| blocks.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(blocks_given(&settings, &allocation), expected, "{name}");
    }
}

/// Settings with one pool of three ranges.
fn three_ranges() -> Value {
    node_pool(json!({"cidrs": ["10.0.0.0/23", "10.9.0.0/24", "fd00::/63"]}))
}

#[test]
fn each_range_continues_behind_its_own_last_block() {
    check(vec![
        Case {
            name: "nothing held",
            settings: three_ranges(),
            allocation: json!({}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "both lists null",
            settings: three_ranges(),
            allocation: json!({"held": null, "last": null}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "the first range is full: a block of the second range",
            settings: three_ranges(),
            allocation: held(&["10.0.0.0/23"]),
            expected: Ok(vec!["10.9.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "each range continues behind its own last block",
            settings: three_ranges(),
            allocation: json!({"held": ["fd00::/64"], "last": ["fd00::/64", "10.0.0.0/24", "10.9.0.0/24"]}),
            expected: Ok(vec!["10.0.1.0/24", "fd00:0:0:1::/64"]),
        },
        Case {
            name: "the first range is full and has the last block",
            settings: three_ranges(),
            allocation: json!({"held": ["10.0.0.0/23"], "last": ["10.0.1.0/24"]}),
            expected: Ok(vec!["10.9.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "the last block is released",
            settings: three_ranges(),
            allocation: json!({"held": [], "last": ["10.0.1.0/24", "fd00:0:0:1::/64"]}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "the last block is outside the pool",
            settings: three_ranges(),
            allocation: json!({"last": ["192.168.0.0/24", "fd01::/64"]}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
    ]);
}

#[test]
fn node_gets_a_block_of_each_family_or_none() {
    let full = |ranges: &str, length: u8| {
        format!(
            "Node w1: pool \"a\" ({ranges}) is full: no block of /{length} is free; chosen by default; add a range to the pool, or delete Nodes that no longer exist"
        )
    };
    check(vec![
        Case {
            name: "IPv4 is full: no IPv6 block either",
            settings: three_ranges(),
            allocation: held(&["10.0.0.0/23", "10.9.0.0/16"]),
            expected: Err(full("10.0.0.0/23, 10.9.0.0/24", 24)),
        },
        Case {
            name: "IPv6 is full: no IPv4 block either",
            settings: three_ranges(),
            allocation: held(&["fd00::/16"]),
            expected: Err(full("fd00::/63", 64)),
        },
        Case {
            name: "IPv6 first",
            settings: node_pool(json!({"cidrs": ["fd00::/48", "10.0.0.0/16"]})),
            allocation: json!({}),
            expected: Ok(vec!["fd00::/64", "10.0.0.0/24"]),
        },
        Case {
            name: "blocks of other sizes",
            settings: node_pool(json!({"cidrs": ["10.0.0.0/16", "fd00::/48"], "blockSize": {"ipv4": 26, "ipv6": 56}})),
            allocation: held(&["10.0.0.0/26", "fd00::/60"]),
            expected: Ok(vec!["10.0.0.64/26", "fd00:0:0:100::/56"]),
        },
        Case {
            name: "2^120 IPv6 blocks, half of them held",
            settings: node_pool(json!({"cidrs": ["fd00::/8"], "blockSize": {"ipv6": 128}})),
            allocation: held(&["fd00::/9"]),
            expected: Ok(vec!["fd80::/128"]),
        },
    ]);
}

#[test]
fn blocks_with_excluded_or_service_addresses_are_never_assigned() {
    let with_services = |services: Value, exclude: Value| {
        let mut settings = node_pool(json!({"cidrs": ["10.0.0.0/22"], "exclude": exclude}));
        settings["services"] = services;
        settings
    };
    let service_range = |cidrs: Value| with_services(json!({ "serviceCIDRs": cidrs }), json!([]));
    check(vec![
        Case {
            name: "excluded",
            settings: node_pool(
                json!({"cidrs": ["10.0.0.0/22"], "exclude": ["10.0.0.0/25", "10.0.1.255", "10.0.2.0/24"]}),
            ),
            allocation: json!({}),
            expected: Ok(vec!["10.0.3.0/24"]),
        },
        Case {
            name: "a Service range at the start of the pool",
            settings: service_range(json!(["10.0.0.0/23"])),
            allocation: json!({}),
            expected: Ok(vec!["10.0.2.0/24"]),
        },
        Case {
            name: "Service ranges inside blocks",
            settings: service_range(json!(["10.0.0.128/25", "10.0.1.0/29"])),
            allocation: json!({}),
            expected: Ok(vec!["10.0.2.0/24"]),
        },
        Case {
            name: "Service ranges outside the pool",
            settings: service_range(json!(["172.16.0.0/16", "fd00::/112"])),
            allocation: json!({}),
            expected: Ok(vec!["10.0.0.0/24"]),
        },
        Case {
            name: "a pool of Services that is excluded",
            settings: with_services(
                json!({"pools": [{"name": "s", "cidrs": ["10.0.1.0/24"]}]}),
                json!(["10.0.0.0/23"]),
            ),
            allocation: json!({}),
            expected: Ok(vec!["10.0.2.0/24"]),
        },
    ]);
}

#[test]
fn without_allocation_state_no_block_is_assigned() {
    let request = node_created(&node_of("linux", json!({})));
    let expected = node_unchanged("pod CIDRs are assigned by the controller of `clusterip serve`, not in admission");
    assert_eq!(assigned_of(&request, &two_pools(), &Value::Null), expected);
}
