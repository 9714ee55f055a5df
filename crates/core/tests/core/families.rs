//! IPv4, IPv6 or both: the families of the addresses of a new Service.

use crate::support::dual_stack::{
    BOTH, CLUSTER_V4, CLUSTER_V4_V6, CLUSTER_V6_V4, V4, V6, WHY, asking, cluster, lacking, settings,
};
use crate::support::{FakeCluster, allocated, answer, denied, selecting, unchanged};
use serde_json::{Value, json};

/// A Service, and the one address that it gets.
struct SingleCase {
    name: &'static str,
    fields: Value,
    pool: &'static [&'static str],
    cluster_ranges: &'static [&'static str],
    address: &'static str,
}

#[track_caller]
fn check_single(rows: Vec<SingleCase>) {
    for SingleCase { name, fields, pool, cluster_ranges, address } in rows {
        let object = asking(fields);
        let expected = allocated(&object, &[address], WHY, &[]);
        assert_eq!(answer(&object, &settings(pool, cluster_ranges), &cluster()), expected, "{name}");
    }
}

#[test]
fn primary_family_is_that_of_the_service_then_of_the_cluster() {
    check_single(vec![
        SingleCase {
            name: "the Service names IPv4",
            fields: json!({"ipFamilies": ["IPv4"]}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            address: "10.0.0.7",
        },
        SingleCase {
            name: "the Service names IPv6",
            fields: json!({"ipFamilies": ["IPv6"]}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            address: "fd00::7",
        },
        SingleCase {
            name: "the cluster begins with IPv4",
            fields: json!({}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            address: "10.0.0.7",
        },
        SingleCase {
            name: "the cluster begins with IPv6",
            fields: json!({}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            address: "fd00::7",
        },
        SingleCase {
            name: "an empty list of families",
            fields: json!({"ipFamilies": []}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            address: "fd00::7",
        },
        SingleCase {
            name: "SingleStack",
            fields: json!({"ipFamilyPolicy": "SingleStack"}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            address: "10.0.0.7",
        },
        SingleCase {
            name: "the order of the ranges of the pool does not matter",
            fields: json!({}),
            pool: &["10.0.0.0/24", "fd00::/120"],
            cluster_ranges: CLUSTER_V6_V4,
            address: "fd00::7",
        },
    ]);
}

#[test]
fn primary_family_is_ipv4_if_the_cluster_is_unknown_and_the_pool_has_it() {
    check_single(vec![
        SingleCase {
            name: "families unknown, both in the pool",
            fields: json!({}),
            pool: BOTH,
            cluster_ranges: &[],
            address: "10.0.0.7",
        },
        SingleCase {
            name: "families unknown, IPv6 in the pool",
            fields: json!({}),
            pool: V6,
            cluster_ranges: &[],
            address: "fd00::7",
        },
        SingleCase {
            name: "families unknown, IPv4 in the pool",
            fields: json!({}),
            pool: V4,
            cluster_ranges: &[],
            address: "10.0.0.7",
        },
    ]);
}

/// A Service, and the addresses that it gets, in this order.
struct DualCase {
    name: &'static str,
    fields: Value,
    pool: &'static [&'static str],
    cluster_ranges: &'static [&'static str],
    addresses: &'static [&'static str],
    warnings: &'static [&'static str],
}

#[track_caller]
fn check_dual(rows: Vec<DualCase>) {
    for DualCase { name, fields, pool, cluster_ranges, addresses, warnings } in rows {
        let object = asking(fields);
        let expected = allocated(&object, addresses, WHY, warnings);
        assert_eq!(answer(&object, &settings(pool, cluster_ranges), &cluster()), expected, "{name}");
    }
}

#[test]
fn second_address_is_assigned_if_it_is_required() {
    let require = || json!({"ipFamilyPolicy": "RequireDualStack"});
    let require_in = |families: Value| json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": families});
    check_dual(vec![
        DualCase {
            name: "required",
            fields: require(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7", "fd00::7"],
            warnings: &[],
        },
        DualCase {
            name: "required, IPv6 first in the cluster",
            fields: require(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            addresses: &["fd00::7", "10.0.0.7"],
            warnings: &[],
        },
        DualCase {
            name: "required, families of the cluster unknown",
            fields: require(),
            pool: BOTH,
            cluster_ranges: &[],
            addresses: &["10.0.0.7", "fd00::7"],
            warnings: &[],
        },
        DualCase {
            name: "required, in the order of the Service",
            fields: require_in(json!(["IPv6", "IPv4"])),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["fd00::7", "10.0.0.7"],
            warnings: &[],
        },
        DualCase {
            name: "required, one family named",
            fields: require_in(json!(["IPv6"])),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["fd00::7", "10.0.0.7"],
            warnings: &[],
        },
        DualCase {
            name: "two families without a policy",
            fields: json!({"ipFamilies": ["IPv4", "IPv6"]}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7"],
            warnings: &[],
        },
    ]);
}

#[test]
fn preferred_second_address_is_assigned_if_it_is_possible() {
    let prefer = || json!({"ipFamilyPolicy": "PreferDualStack"});
    check_dual(vec![
        DualCase {
            name: "preferred",
            fields: prefer(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7", "fd00::7"],
            warnings: &[],
        },
        DualCase {
            name: "preferred, the cluster has one family",
            fields: prefer(),
            pool: V4,
            cluster_ranges: CLUSTER_V4,
            addresses: &["10.0.0.7"],
            warnings: &[],
        },
        DualCase {
            name: "preferred, families of the cluster unknown",
            fields: prefer(),
            pool: BOTH,
            cluster_ranges: &[],
            addresses: &["10.0.0.7"],
            warnings: &[r#"PreferDualStack: no second address from pool "all": serviceCIDRs has no IPv6 range"#],
        },
        DualCase {
            name: "preferred, the pool has one family",
            fields: prefer(),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7"],
            warnings: &[r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#],
        },
    ]);
}

const WHEN_FULL: &str = "chosen by default; add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged";

#[test]
fn missing_required_family_is_named() {
    struct Mistake {
        why: String,
        remedy: String,
    }
    struct Case {
        name: &'static str,
        fields: Value,
        pool: &'static [&'static str],
        cluster_ranges: &'static [&'static str],
        cluster: FakeCluster,
        mistake: Mistake,
    }
    let require = || json!({"ipFamilyPolicy": "RequireDualStack"});
    let full_v6 = || (7..=255).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("fd00::{last:x}")));
    let lacks = |family: &str| Mistake { why: format!(r#"pool "all" has no {family} range"#), remedy: lacking(family) };
    let full = r#"pool "all" (fd00::/120) is full: 249 of 249 addresses used, the first 7 of each range reserved"#;
    let full = || Mistake { why: full.to_owned(), remedy: WHEN_FULL.to_owned() };
    let rows = [
        Case {
            name: "the only family",
            fields: json!({"ipFamilies": ["IPv6"]}),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            cluster: cluster(),
            mistake: lacks("IPv6"),
        },
        Case {
            name: "the cluster's primary family",
            fields: json!({}),
            pool: V4,
            cluster_ranges: CLUSTER_V6_V4,
            cluster: cluster(),
            mistake: lacks("IPv6"),
        },
        Case {
            name: "the second, required",
            fields: require(),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            cluster: cluster(),
            mistake: lacks("IPv6"),
        },
        Case {
            name: "the first, required",
            fields: require(),
            pool: V6,
            cluster_ranges: CLUSTER_V4_V6,
            cluster: cluster(),
            mistake: lacks("IPv4"),
        },
        Case {
            name: "the second is full",
            fields: require(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            cluster: full_v6(),
            mistake: full(),
        },
        Case {
            name: "the preferred second is full",
            fields: json!({"ipFamilyPolicy": "PreferDualStack"}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            cluster: full_v6(),
            mistake: full(),
        },
    ];
    for Case { name, fields, pool, cluster_ranges, cluster, mistake: Mistake { why, remedy } } in rows {
        let object = asking(fields);
        let mut settings = settings(pool, cluster_ranges);
        let message = format!("Service shop/web: {why}; {remedy}");
        assert_eq!(answer(&object, &settings, &cluster), denied(500, &message, WHY, &[]), "{name}: deny");
        settings["services"]["whenFull"] = "unmanaged".into();
        let reason = format!("{why}: Kubernetes picks the address");
        assert_eq!(answer(&object, &settings, &cluster), unchanged(&reason, WHY, &[&reason]), "{name}: unmanaged");
    }
}

#[test]
fn address_is_written_in_canonical_form() {
    let object = selecting();
    let settings = json!({"services": {"order": "lowest", "pools": [
        {"name": "all", "cidrs": ["2001:0db8:0000:0000:0001:0000:0000:0000/112"], "reserved": 171},
    ]}});
    let cluster = cluster();
    assert_eq!(answer(&object, &settings, &cluster), allocated(&object, &["2001:db8::1:0:0:ab"], WHY, &[]));
    assert_eq!(cluster.questions(), ["list Service", "get IPAddress 2001:db8::1:0:0:ab"]);
}
