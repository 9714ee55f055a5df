//! IPv4, IPv6 or both: the families of a Service's addresses.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{FakeCluster, Why, allocated, answer, answer_of, denied, left, selecting, updated, with_spec};
use serde_json::{Value, json};

const V4: &[&str] = &["10.0.0.0/24"];
const V6: &[&str] = &["fd00::/120"];
const BOTH: &[&str] = &["fd00::/120", "10.0.0.0/24"];
const CLUSTER_V4: &[&str] = &["10.0.0.0/16"];
const CLUSTER_V4_V6: &[&str] = &["10.0.0.0/16", "fd00::/108"];
const CLUSTER_V6_V4: &[&str] = &["fd00::/108", "10.0.0.0/16"];

/// The pool of every row.
const WHY: Why<'static> = (Some("all"), Some(("default", &[])));

fn settings(pool: &[&str], cluster: &[&str]) -> Value {
    json!({"services": {
        "order": "lowest",
        "pools": [{"name": "all", "cidrs": pool, "reserved": 7}],
        "serviceCIDRs": cluster,
    }})
}

fn asking(fields: Value) -> Value {
    with_spec(selecting(), fields)
}

fn cluster() -> FakeCluster {
    FakeCluster::default()
}

const WHEN_FULL: &str = "chosen by default; add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged";

fn lacking(family: &str) -> String {
    format!("chosen by default; add an {family} range to the pool, or set services.whenFull: unmanaged")
}

#[test]
fn primary_family_is_that_of_the_service_then_of_the_cluster_then_ipv4() {
    struct Case {
        name: &'static str,
        fields: Value,
        pool: &'static [&'static str],
        cluster_ranges: &'static [&'static str],
        address: &'static str,
    }
    let rows = [
        Case {
            name: "the Service names IPv4",
            fields: json!({"ipFamilies": ["IPv4"]}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            address: "10.0.0.7",
        },
        Case {
            name: "the Service names IPv6",
            fields: json!({"ipFamilies": ["IPv6"]}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            address: "fd00::7",
        },
        Case {
            name: "the cluster begins with IPv4",
            fields: json!({}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            address: "10.0.0.7",
        },
        Case {
            name: "the cluster begins with IPv6",
            fields: json!({}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            address: "fd00::7",
        },
        Case {
            name: "an empty list of families",
            fields: json!({"ipFamilies": []}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            address: "fd00::7",
        },
        Case {
            name: "families unknown, both in the pool",
            fields: json!({}),
            pool: BOTH,
            cluster_ranges: &[],
            address: "10.0.0.7",
        },
        Case {
            name: "families unknown, IPv6 in the pool",
            fields: json!({}),
            pool: V6,
            cluster_ranges: &[],
            address: "fd00::7",
        },
        Case {
            name: "families unknown, IPv4 in the pool",
            fields: json!({}),
            pool: V4,
            cluster_ranges: &[],
            address: "10.0.0.7",
        },
        Case {
            name: "SingleStack",
            fields: json!({"ipFamilyPolicy": "SingleStack"}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            address: "10.0.0.7",
        },
        Case {
            name: "the order of the ranges of the pool does not matter",
            fields: json!({}),
            pool: &["10.0.0.0/24", "fd00::/120"],
            cluster_ranges: CLUSTER_V6_V4,
            address: "fd00::7",
        },
    ];
    for Case { name, fields, pool, cluster_ranges, address } in rows {
        let object = asking(fields);
        let expected = allocated(&object, &[address], WHY, &[]);
        assert_eq!(answer(&object, &settings(pool, cluster_ranges), &cluster()), expected, "{name}");
    }
}

#[test]
fn second_address_is_assigned_if_required_or_preferred_and_possible() {
    struct Case {
        name: &'static str,
        fields: Value,
        pool: &'static [&'static str],
        cluster_ranges: &'static [&'static str],
        addresses: &'static [&'static str],
        warnings: &'static [&'static str],
    }
    let (prefer, require) =
        (json!({"ipFamilyPolicy": "PreferDualStack"}), json!({"ipFamilyPolicy": "RequireDualStack"}));
    let with_families = |mut fields: Value, families: Value| {
        fields["ipFamilies"] = families;
        fields
    };
    let rows = [
        Case {
            name: "required",
            fields: require.clone(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7", "fd00::7"],
            warnings: &[],
        },
        Case {
            name: "required, IPv6 first in the cluster",
            fields: require.clone(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            addresses: &["fd00::7", "10.0.0.7"],
            warnings: &[],
        },
        Case {
            name: "required, families of the cluster unknown",
            fields: require.clone(),
            pool: BOTH,
            cluster_ranges: &[],
            addresses: &["10.0.0.7", "fd00::7"],
            warnings: &[],
        },
        Case {
            name: "required, in the order of the Service",
            fields: with_families(require.clone(), json!(["IPv6", "IPv4"])),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["fd00::7", "10.0.0.7"],
            warnings: &[],
        },
        Case {
            name: "required, one family named",
            fields: with_families(require, json!(["IPv6"])),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["fd00::7", "10.0.0.7"],
            warnings: &[],
        },
        Case {
            name: "preferred",
            fields: prefer.clone(),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7", "fd00::7"],
            warnings: &[],
        },
        Case {
            name: "preferred, the cluster has one family",
            fields: prefer.clone(),
            pool: V4,
            cluster_ranges: CLUSTER_V4,
            addresses: &["10.0.0.7"],
            warnings: &[],
        },
        Case {
            name: "preferred, families of the cluster unknown",
            fields: prefer.clone(),
            pool: BOTH,
            cluster_ranges: &[],
            addresses: &["10.0.0.7"],
            warnings: &[r#"PreferDualStack: no second address from pool "all": serviceCIDRs has no IPv6 range"#],
        },
        Case {
            name: "preferred, the pool has one family",
            fields: prefer,
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7"],
            warnings: &[r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#],
        },
        Case {
            name: "two families without a policy",
            fields: json!({"ipFamilies": ["IPv4", "IPv6"]}),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            addresses: &["10.0.0.7"],
            warnings: &[],
        },
    ];
    for Case { name, fields, pool, cluster_ranges, addresses, warnings } in rows {
        let object = asking(fields);
        let expected = allocated(&object, addresses, WHY, warnings);
        assert_eq!(answer(&object, &settings(pool, cluster_ranges), &cluster()), expected, "{name}");
    }
}

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
        assert_eq!(answer(&object, &settings, &cluster), left(&reason, WHY, &[&reason]), "{name}: unmanaged");
    }
}

#[test]
fn update_to_dual_stack_gets_the_missing_address() {
    struct Case {
        name: &'static str,
        request: Value,
        pool: &'static [&'static str],
        cluster_ranges: &'static [&'static str],
        expected: Value,
    }
    let single = |address: &str| asking(json!({"clusterIP": address, "clusterIPs": [address]}));
    let dual = |address: &str, policy: &str| with_spec(single(address), json!({"ipFamilyPolicy": policy}));
    let update = |address: &str, policy: &str| updated(single(address), dual(address, policy));
    let (require, prefer) = ("RequireDualStack", "PreferDualStack");
    let given = |addresses: &[&str], policy: &str| allocated(&dual(addresses[0], policy), addresses, WHY, &[]);
    let nothing = "no second address requested";
    let lacking_v6 = r#"pool "all" has no IPv6 range"#;
    let rows = [
        Case {
            name: "required",
            request: update("10.0.0.99", require),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: given(&["10.0.0.99", "fd00::7"], require),
        },
        Case {
            name: "required, beside an IPv6 address",
            request: update("fd00::99", require),
            pool: BOTH,
            cluster_ranges: CLUSTER_V6_V4,
            expected: given(&["fd00::99", "10.0.0.7"], require),
        },
        Case {
            name: "preferred",
            request: update("10.0.0.99", prefer),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: given(&["10.0.0.99", "fd00::7"], prefer),
        },
        Case {
            name: "preferred, the cluster has no second family",
            request: update("10.0.0.99", prefer),
            pool: V4,
            cluster_ranges: CLUSTER_V4,
            expected: left(nothing, (None, None), &[]),
        },
        Case {
            name: "preferred, the pool has no second family",
            request: update("10.0.0.99", prefer),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            expected: left(
                lacking_v6,
                WHY,
                &[r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#],
            ),
        },
        Case {
            name: "required, the pool has no second family",
            request: update("10.0.0.99", require),
            pool: V4,
            cluster_ranges: CLUSTER_V4_V6,
            expected: denied(
                500,
                &format!(r#"Service shop/web: pool "all" has no IPv6 range; {}"#, lacking("IPv6")),
                WHY,
                &[],
            ),
        },
        Case {
            name: "families without a policy",
            request: updated(
                single("10.0.0.99"),
                with_spec(single("10.0.0.99"), json!({"ipFamilies": ["IPv4", "IPv6"]})),
            ),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: left(nothing, (None, None), &[]),
        },
        Case {
            name: "preferred before, required now",
            request: updated(dual("10.0.0.99", prefer), dual("10.0.0.99", require)),
            pool: BOTH,
            cluster_ranges: CLUSTER_V4_V6,
            expected: given(&["10.0.0.99", "fd00::7"], require),
        },
    ];
    for Case { name, request, pool, cluster_ranges, expected } in rows {
        // Its own first address neither blocks it nor is assigned again.
        let cluster = cluster().service("shop/web", "10.0.0.99").service("shop/web", "fd00::99");
        assert_eq!(answer_of(&request, &settings(pool, cluster_ranges), &cluster), expected, "{name}");
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
