//! IPv4, IPv6 or both: the families of the addresses of a Service that is created or updated.

use crate::support::dual_stack::{
    BOTH, CLUSTER_V4, CLUSTER_V4_V6, CLUSTER_V6_V4, V4, V6, WHY, asking, cluster, lacking, settings,
};
use crate::support::{allocated, answer, answer_of, denied, selecting, unchanged, updated, with_spec};
use serde_json::{Value, json};

const REQUIRE: &str = "RequireDualStack";
const PREFER: &str = "PreferDualStack";

/// The Service with these fields must get these addresses, in this order, and these warnings.
#[track_caller]
fn check(name: &str, fields: &Value, pool: &[&str], cluster_ranges: &[&str], addresses: &[&str], warnings: &[&str]) {
    let object = asking(fields.clone());
    let expected = allocated(&object, addresses, WHY, warnings);
    assert_eq!(answer(&object, &settings(pool, cluster_ranges), &cluster()), expected, "{name}");
}

#[test]
fn primary_family_is_that_of_the_service_then_of_the_cluster_then_ipv4() {
    let (v4, v6) = ("10.0.0.7", "fd00::7");
    for (name, fields, pool, cluster_ranges, address) in [
        ("the Service names IPv4", json!({"ipFamilies": ["IPv4"]}), BOTH, CLUSTER_V6_V4, v4),
        ("the Service names IPv6", json!({"ipFamilies": ["IPv6"]}), BOTH, CLUSTER_V4_V6, v6),
        ("the cluster begins with IPv4", json!({}), BOTH, CLUSTER_V4_V6, v4),
        ("the cluster begins with IPv6", json!({}), BOTH, CLUSTER_V6_V4, v6),
        ("an empty list of families", json!({"ipFamilies": []}), BOTH, CLUSTER_V6_V4, v6),
        ("SingleStack", json!({"ipFamilyPolicy": "SingleStack"}), BOTH, CLUSTER_V4_V6, v4),
        ("the order of the pool does not matter", json!({}), &["10.0.0.0/24", "fd00::/120"], CLUSTER_V6_V4, v6),
        ("unknown, both in the pool", json!({}), BOTH, &[], v4),
        ("unknown, IPv6 in the pool", json!({}), V6, &[], v6),
        ("unknown, IPv4 in the pool", json!({}), V4, &[], v4),
        ("two families without a policy", json!({"ipFamilies": ["IPv4", "IPv6"]}), BOTH, CLUSTER_V4_V6, v4),
    ] {
        check(name, &fields, pool, cluster_ranges, &[address], &[]);
    }
}

#[test]
fn second_address_is_assigned_if_it_is_required() {
    let (v4_v6, v6_v4) = (["10.0.0.7", "fd00::7"], ["fd00::7", "10.0.0.7"]);
    for (families, cluster_ranges, addresses) in [
        (json!(null), CLUSTER_V4_V6, v4_v6),
        (json!(null), CLUSTER_V6_V4, v6_v4),
        (json!(null), &[], v4_v6),
        (json!(["IPv6", "IPv4"]), CLUSTER_V4_V6, v6_v4),
        (json!(["IPv6"]), CLUSTER_V4_V6, v6_v4),
    ] {
        let fields = json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": families});
        check(&fields.to_string(), &fields, BOTH, cluster_ranges, &addresses, &[]);
    }
}

#[test]
fn preferred_second_address_is_assigned_if_it_is_possible() {
    let unknown = r#"PreferDualStack: no second address from pool "all": serviceCIDRs has no IPv6 range"#;
    let lacking = r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#;
    let prefer = json!({"ipFamilyPolicy": PREFER});
    check("both", &prefer, BOTH, CLUSTER_V4_V6, &["10.0.0.7", "fd00::7"], &[]);
    check("the cluster has one family", &prefer, V4, CLUSTER_V4, &["10.0.0.7"], &[]);
    check("families of the cluster unknown", &prefer, BOTH, &[], &["10.0.0.7"], &[unknown]);
    check("the pool has one family", &prefer, V4, CLUSTER_V4_V6, &["10.0.0.7"], &[lacking]);
}

#[test]
fn missing_required_family_is_named() {
    let full_v6 = || (7..=255).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("fd00::{last:x}")));
    let lacks = |family: &str| (format!(r#"pool "all" has no {family} range"#), lacking(family));
    let full = || {
        let why = r#"pool "all" (fd00::/120) is full: 249 of 249 addresses used, the first 7 of each range reserved"#;
        let remedy =
            "add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged";
        (why.to_owned(), format!("chosen by default; {remedy}"))
    };
    let (require, prefer) = (json!({"ipFamilyPolicy": REQUIRE}), json!({"ipFamilyPolicy": PREFER}));
    for (name, fields, pool, cluster_ranges, cluster, (why, remedy)) in [
        ("the only family", json!({"ipFamilies": ["IPv6"]}), V4, CLUSTER_V4_V6, cluster(), lacks("IPv6")),
        ("the cluster's primary family", json!({}), V4, CLUSTER_V6_V4, cluster(), lacks("IPv6")),
        ("the second, required", require.clone(), V4, CLUSTER_V4_V6, cluster(), lacks("IPv6")),
        ("the first, required", require.clone(), V6, CLUSTER_V4_V6, cluster(), lacks("IPv4")),
        ("the second is full", require, BOTH, CLUSTER_V4_V6, full_v6(), full()),
        ("the preferred second is full", prefer, BOTH, CLUSTER_V4_V6, full_v6(), full()),
    ] {
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

/// A Service with this address alone.
fn single(address: &str) -> Value {
    asking(json!({"clusterIP": address, "clusterIPs": [address]}))
}

fn dual(address: &str, policy: &str) -> Value {
    with_spec(single(address), json!({ "ipFamilyPolicy": policy }))
}

/// The answer to the update from `old` to `new`, both with an own address.
fn updating(old: Value, new: Value, pool: &[&str], cluster_ranges: &[&str]) -> Value {
    // Its own first address neither blocks it nor is assigned again.
    let cluster = cluster().service("shop/web", "10.0.0.99").service("shop/web", "fd00::99");
    answer_of(&updated(old, new), &settings(pool, cluster_ranges), &cluster)
}

#[test]
fn update_to_dual_stack_gets_the_missing_address() {
    for (old, policy, cluster_ranges, addresses) in [
        (single("10.0.0.99"), REQUIRE, CLUSTER_V4_V6, ["10.0.0.99", "fd00::7"]),
        (single("fd00::99"), REQUIRE, CLUSTER_V6_V4, ["fd00::99", "10.0.0.7"]),
        (single("10.0.0.99"), PREFER, CLUSTER_V4_V6, ["10.0.0.99", "fd00::7"]),
        (dual("10.0.0.99", PREFER), REQUIRE, CLUSTER_V4_V6, ["10.0.0.99", "fd00::7"]),
    ] {
        let new = dual(addresses[0], policy);
        let expected = allocated(&new, &addresses, WHY, &[]);
        assert_eq!(updating(old.clone(), new, BOTH, cluster_ranges), expected, "{old}, {policy}");
    }
}

#[test]
fn update_gets_no_second_address_if_none_is_requested_or_possible() {
    let (old, lacking_v6) = (|| single("10.0.0.99"), r#"pool "all" has no IPv6 range"#);
    let prefers = |cluster_ranges| updating(old(), dual("10.0.0.99", PREFER), V4, cluster_ranges);
    assert_eq!(prefers(CLUSTER_V4), unchanged("no second address requested", (None, None), &[]));
    let warning = format!("{lacking_v6}: Kubernetes picks the second address from any range");
    assert_eq!(prefers(CLUSTER_V4_V6), unchanged(lacking_v6, WHY, &[&warning]));
    let message = format!("Service shop/web: {lacking_v6}; {}", lacking("IPv6"));
    let required = updating(old(), dual("10.0.0.99", REQUIRE), V4, CLUSTER_V4_V6);
    assert_eq!(required, denied(500, &message, WHY, &[]));
    let families = with_spec(old(), json!({"ipFamilies": ["IPv4", "IPv6"]}));
    let without_policy = updating(old(), families, BOTH, CLUSTER_V4_V6);
    assert_eq!(without_policy, unchanged("no new address", (None, None), &[]));
}
