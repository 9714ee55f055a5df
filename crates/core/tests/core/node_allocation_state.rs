//! How the allocation state, the held and the last blocks, determines the next block of each range.

use crate::support::{
    assigned_of, blocks_given, extended, node_created, node_of, node_pool, node_unchanged, two_pools,
};
use serde_json::{Value, json};

fn held(held: &[&str]) -> Value {
    json!({ "held": held })
}

/// The blocks of each answer.
#[track_caller]
fn check(rows: &[(Value, Value, &[&str])]) {
    for (settings, allocation, expected) in rows {
        let expected = expected.iter().map(|&block| block.to_owned()).collect();
        assert_eq!(blocks_given(settings, allocation), Ok(expected), "{settings}, {allocation}");
    }
}

/// Settings with one pool of three ranges.
fn three_ranges() -> Value {
    node_pool(json!({"cidrs": ["10.0.0.0/23", "10.9.0.0/24", "fd00::/63"]}))
}

#[test]
fn each_range_continues_behind_its_own_last_block() {
    let first: &[&str] = &["10.0.0.0/24", "fd00::/64"];
    check(&[
        (three_ranges(), json!({}), first),
        (three_ranges(), json!({"held": null, "last": null}), first),
        // The first range is full.
        (three_ranges(), held(&["10.0.0.0/23"]), &["10.9.0.0/24", "fd00::/64"]),
        (
            three_ranges(),
            json!({"held": ["fd00::/64"], "last": ["fd00::/64", "10.0.0.0/24", "10.9.0.0/24"]}),
            &["10.0.1.0/24", "fd00:0:0:1::/64"],
        ),
        (three_ranges(), json!({"held": ["10.0.0.0/23"], "last": ["10.0.1.0/24"]}), &["10.9.0.0/24", "fd00::/64"]),
        // The last block is released, or outside of the pool.
        (three_ranges(), json!({"held": [], "last": ["10.0.1.0/24", "fd00:0:0:1::/64"]}), first),
        (three_ranges(), json!({"last": ["192.168.0.0/24", "fd01::/64"]}), first),
    ]);
}

#[test]
fn node_gets_a_block_of_each_family_or_none() {
    let other_sizes = json!({"cidrs": ["10.0.0.0/16", "fd00::/48"], "blockSize": {"ipv4": 26, "ipv6": 56}});
    let many = json!({"cidrs": ["fd00::/8"], "blockSize": {"ipv6": 128}});
    check(&[
        (node_pool(json!({"cidrs": ["fd00::/48", "10.0.0.0/16"]})), json!({}), &["fd00::/64", "10.0.0.0/24"]),
        (node_pool(other_sizes), held(&["10.0.0.0/26", "fd00::/60"]), &["10.0.0.64/26", "fd00:0:0:100::/56"]),
        // Half of 2^120 blocks are held.
        (node_pool(many), held(&["fd00::/9"]), &["fd80::/128"]),
    ]);
    for (held_blocks, ranges, length) in [
        (["10.0.0.0/23", "10.9.0.0/16"], "10.0.0.0/23, 10.9.0.0/24", 24),
        (["fd00::/16", "fd01::/16"], "fd00::/63", 64),
    ] {
        let message = format!(
            "Node w1: pool \"a\" ({ranges}) is full: no block of /{length} is free; chosen by default; add a range to the pool, or delete Nodes that no longer exist"
        );
        assert_eq!(blocks_given(&three_ranges(), &held(&held_blocks)), Err(message));
    }
}

#[test]
fn blocks_with_excluded_or_service_addresses_are_never_assigned() {
    let pool = |exclude: Value, services: Value| {
        extended(node_pool(json!({"cidrs": ["10.0.0.0/22"], "exclude": exclude})), &json!({ "services": services }))
    };
    let ranges = |cidrs: Value| pool(json!([]), json!({ "serviceCIDRs": cidrs }));
    let service_pool = json!({"pools": [{"name": "s", "cidrs": ["10.0.1.0/24"]}]});
    check(&[
        (pool(json!(["10.0.0.0/25", "10.0.1.255", "10.0.2.0/24"]), Value::Null), json!({}), &["10.0.3.0/24"]),
        (ranges(json!(["10.0.0.0/23"])), json!({}), &["10.0.2.0/24"]),
        (ranges(json!(["10.0.0.128/25", "10.0.1.0/29"])), json!({}), &["10.0.2.0/24"]),
        (ranges(json!(["172.16.0.0/16", "fd00::/112"])), json!({}), &["10.0.0.0/24"]),
        (pool(json!(["10.0.0.0/23"]), service_pool), json!({}), &["10.0.2.0/24"]),
    ]);
}

#[test]
fn without_allocation_state_no_block_is_assigned() {
    let request = node_created(&node_of("linux", json!({})));
    let expected = node_unchanged("pod CIDRs are assigned by the controller of `clusterip serve`, not in admission");
    assert_eq!(assigned_of(&request, &two_pools(), &Value::Null), expected);
}
