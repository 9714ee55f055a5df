//! Which address a Service gets when it is updated to dual stack.

use crate::support::dual_stack::{
    BOTH, CLUSTER_V4, CLUSTER_V4_V6, CLUSTER_V6_V4, V4, WHY, asking, cluster, lacking, settings,
};
use crate::support::{allocated, answer_of, denied, unchanged, updated, with_spec};
use serde_json::{Value, json};

/// An update, and the whole answer.
struct UpdateCase {
    name: &'static str,
    request: Value,
    pool: &'static [&'static str],
    cluster_ranges: &'static [&'static str],
    expected: Value,
}

#[track_caller]
fn check_updates(rows: Vec<UpdateCase>) {
    for UpdateCase { name, request, pool, cluster_ranges, expected } in rows {
        // Its own first address neither blocks it nor is assigned again.
        let cluster = cluster().service("shop/web", "10.0.0.99").service("shop/web", "fd00::99");
        assert_eq!(answer_of(&request, &settings(pool, cluster_ranges), &cluster), expected, "{name}");
    }
}

/// A Service with this address alone.
fn single(address: &str) -> Value {
    asking(json!({"clusterIP": address, "clusterIPs": [address]}))
}

fn dual(address: &str, policy: &str) -> Value {
    with_spec(single(address), json!({"ipFamilyPolicy": policy}))
}

/// The update of a Service with this address to a policy of dual stack.
fn update(address: &str, policy: &str) -> Value {
    updated(single(address), dual(address, policy))
}

fn given(addresses: &[&str], policy: &str) -> Value {
    allocated(&dual(addresses[0], policy), addresses, WHY, &[])
}

const REQUIRE: &str = "RequireDualStack";

const PREFER: &str = "PreferDualStack";

const UNREQUESTED: &str = "no second address requested";

#[test]
fn update_to_dual_stack_gets_the_missing_address() {
    check_updates(vec![
        UpdateCase {
            name: "required",
            request: update("10.0.0.99", REQUIRE),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: given(&["10.0.0.99", "fd00::7"], REQUIRE),
        },
        UpdateCase {
            name: "required, beside an IPv6 address",
            request: update("fd00::99", REQUIRE),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            expected: given(&["fd00::99", "10.0.0.7"], REQUIRE),
        },
        UpdateCase {
            name: "preferred",
            request: update("10.0.0.99", PREFER),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: given(&["10.0.0.99", "fd00::7"], PREFER),
        },
        UpdateCase {
            name: "preferred before, required now",
            request: updated(dual("10.0.0.99", PREFER), dual("10.0.0.99", REQUIRE)),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: given(&["10.0.0.99", "fd00::7"], REQUIRE),
        },
    ]);
}

#[test]
fn update_gets_no_second_address_if_none_is_requested_or_possible() {
    let lacking_v6 = r#"pool "all" has no IPv6 range"#;
    check_updates(vec![
        UpdateCase {
            name: "preferred, the cluster has no second family",
            request: update("10.0.0.99", PREFER),
            pool: V4,
            cluster_ranges: CLUSTER_V4,
            expected: unchanged(UNREQUESTED, (None, None), &[]),
        },
        UpdateCase {
            name: "preferred, the pool has no second family",
            request: update("10.0.0.99", PREFER),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            expected: unchanged(
                lacking_v6,
                WHY,
                &[r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#],
            ),
        },
        UpdateCase {
            name: "required, the pool has no second family",
            request: update("10.0.0.99", REQUIRE),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            expected: denied(
                500,
                &format!(r#"Service shop/web: pool "all" has no IPv6 range; {}"#, lacking("IPv6")),
                WHY,
                &[],
            ),
        },
        UpdateCase {
            name: "families without a policy",
            request: updated(
                single("10.0.0.99"),
                with_spec(single("10.0.0.99"), json!({"ipFamilies": ["IPv4", "IPv6"]})),
            ),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: unchanged("no new address", (None, None), &[]),
        },
    ]);
}
