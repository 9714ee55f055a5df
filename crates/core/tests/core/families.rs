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
    // Name, fields of the Service, ranges of the pool, ranges of the cluster, address.
    type Row<'a> = (&'a str, Value, &'a [&'a str], &'a [&'a str], &'a str);
    let rows: [Row<'_>; 10] = [
        ("the Service's, IPv4", json!({"ipFamilies": ["IPv4"]}), BOTH, CLUSTER_V6_V4, "10.0.0.7"),
        ("the Service's, IPv6", json!({"ipFamilies": ["IPv6"]}), BOTH, CLUSTER_V4_V6, "fd00::7"),
        ("the cluster's, IPv4", json!({}), BOTH, CLUSTER_V4_V6, "10.0.0.7"),
        ("the cluster's, IPv6", json!({}), BOTH, CLUSTER_V6_V4, "fd00::7"),
        ("no list of families", json!({"ipFamilies": []}), BOTH, CLUSTER_V6_V4, "fd00::7"),
        ("nothing known, both in the pool", json!({}), BOTH, &[], "10.0.0.7"),
        ("nothing known, IPv6 in the pool", json!({}), V6, &[], "fd00::7"),
        ("nothing known, IPv4 in the pool", json!({}), V4, &[], "10.0.0.7"),
        ("SingleStack", json!({"ipFamilyPolicy": "SingleStack"}), BOTH, CLUSTER_V4_V6, "10.0.0.7"),
        (
            "the pool's place of a range does not matter",
            json!({}),
            &["10.0.0.0/24", "fd00::/120"],
            CLUSTER_V6_V4,
            "fd00::7",
        ),
    ];
    for (name, fields, pool, ranges, address) in rows {
        let object = asking(fields);
        let expected = allocated(&object, &[address], WHY, &[]);
        assert_eq!(answer(&object, &settings(pool, ranges), &cluster()), expected, "{name}");
    }
}

#[test]
fn second_address_is_assigned_if_required_or_preferred_and_possible() {
    let (prefer, require) =
        (json!({"ipFamilyPolicy": "PreferDualStack"}), json!({"ipFamilyPolicy": "RequireDualStack"}));
    let with_families = |mut fields: Value, families: Value| {
        fields["ipFamilies"] = families;
        fields
    };
    type Row<'a> = (&'a str, Value, &'a [&'a str], &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let rows: [Row<'_>; 10] = [
        ("required", require.clone(), BOTH, CLUSTER_V4_V6, &["10.0.0.7", "fd00::7"], &[]),
        ("required, IPv6 first in the cluster", require.clone(), BOTH, CLUSTER_V6_V4, &["fd00::7", "10.0.0.7"], &[]),
        ("required, nothing known of the cluster", require.clone(), BOTH, &[], &["10.0.0.7", "fd00::7"], &[]),
        (
            "required, in the Service's order",
            with_families(require.clone(), json!(["IPv6", "IPv4"])),
            BOTH,
            CLUSTER_V4_V6,
            &["fd00::7", "10.0.0.7"],
            &[],
        ),
        (
            "required, one family named",
            with_families(require, json!(["IPv6"])),
            BOTH,
            CLUSTER_V4_V6,
            &["fd00::7", "10.0.0.7"],
            &[],
        ),
        ("preferred", prefer.clone(), BOTH, CLUSTER_V4_V6, &["10.0.0.7", "fd00::7"], &[]),
        ("preferred, the cluster has one family", prefer.clone(), V4, CLUSTER_V4, &["10.0.0.7"], &[]),
        (
            "preferred, nothing known of the cluster",
            prefer.clone(),
            BOTH,
            &[],
            &["10.0.0.7"],
            &[r#"PreferDualStack: no second address from pool "all": serviceCIDRs has no IPv6 range"#],
        ),
        (
            "preferred, the pool has one family",
            prefer,
            V4,
            CLUSTER_V4_V6,
            &["10.0.0.7"],
            &[r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#],
        ),
        (
            "two families without a policy",
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            BOTH,
            CLUSTER_V4_V6,
            &["10.0.0.7"],
            &[],
        ),
    ];
    for (name, fields, pool, ranges, addresses, warnings) in rows {
        let object = asking(fields);
        let expected = allocated(&object, addresses, WHY, warnings);
        assert_eq!(answer(&object, &settings(pool, ranges), &cluster()), expected, "{name}");
    }
}

#[test]
fn missing_required_family_is_named() {
    let require = || json!({"ipFamilyPolicy": "RequireDualStack"});
    let full_v6 = || (7..=255).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("fd00::{last:x}")));
    let lacks = |family: &str| (format!(r#"pool "all" has no {family} range"#), lacking(family));
    let full = r#"pool "all" (fd00::/120) is full: 249 of 249 addresses used, the first 7 of each range reserved"#;
    let full = || (full.to_owned(), WHEN_FULL.to_owned());
    let rows = [
        ("the only family", json!({"ipFamilies": ["IPv6"]}), V4, CLUSTER_V4_V6, cluster(), lacks("IPv6")),
        ("the cluster's primary family", json!({}), V4, CLUSTER_V6_V4, cluster(), lacks("IPv6")),
        ("the second, required", require(), V4, CLUSTER_V4_V6, cluster(), lacks("IPv6")),
        ("the first, required", require(), V6, CLUSTER_V4_V6, cluster(), lacks("IPv4")),
        ("the second is full", require(), BOTH, CLUSTER_V4_V6, full_v6(), full()),
        (
            "the preferred second is full",
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            BOTH,
            CLUSTER_V4_V6,
            full_v6(),
            full(),
        ),
    ];
    for (name, fields, pool, ranges, cluster, (why, remedy)) in rows {
        let object = asking(fields);
        let mut settings = settings(pool, ranges);
        let message = format!("Service shop/web: {why}; {remedy}");
        assert_eq!(answer(&object, &settings, &cluster), denied(500, &message, WHY, &[]), "{name}: deny");
        settings["services"]["whenFull"] = "unmanaged".into();
        let reason = format!("{why}: Kubernetes picks the address");
        assert_eq!(answer(&object, &settings, &cluster), left(&reason, WHY, &[&reason]), "{name}: unmanaged");
    }
}

#[test]
fn update_to_dual_stack_gets_the_missing_address() {
    let single = |address: &str| asking(json!({"clusterIP": address, "clusterIPs": [address]}));
    let dual = |address: &str, policy: &str| with_spec(single(address), json!({"ipFamilyPolicy": policy}));
    let update = |address: &str, policy: &str| updated(single(address), dual(address, policy));
    let (require, prefer) = ("RequireDualStack", "PreferDualStack");
    let given = |addresses: &[&str], policy: &str| allocated(&dual(addresses[0], policy), addresses, WHY, &[]);
    let nothing = "no second address requested";
    let lacking_v6 = r#"pool "all" has no IPv6 range"#;
    let rows = [
        ("required", update("10.0.0.99", require), BOTH, CLUSTER_V4_V6, given(&["10.0.0.99", "fd00::7"], require)),
        (
            "required, beside IPv6",
            update("fd00::99", require),
            BOTH,
            CLUSTER_V6_V4,
            given(&["fd00::99", "10.0.0.7"], require),
        ),
        ("preferred", update("10.0.0.99", prefer), BOTH, CLUSTER_V4_V6, given(&["10.0.0.99", "fd00::7"], prefer)),
        (
            "preferred, the cluster has none",
            update("10.0.0.99", prefer),
            V4,
            CLUSTER_V4,
            left(nothing, (None, None), &[]),
        ),
        (
            "preferred, the pool has none",
            update("10.0.0.99", prefer),
            V4,
            CLUSTER_V4_V6,
            left(
                lacking_v6,
                WHY,
                &[r#"pool "all" has no IPv6 range: Kubernetes picks the second address from any range"#],
            ),
        ),
        (
            "required, the pool has none",
            update("10.0.0.99", require),
            V4,
            CLUSTER_V4_V6,
            denied(500, &format!(r#"Service shop/web: pool "all" has no IPv6 range; {}"#, lacking("IPv6")), WHY, &[]),
        ),
        (
            "families without a policy",
            updated(single("10.0.0.99"), with_spec(single("10.0.0.99"), json!({"ipFamilies": ["IPv4", "IPv6"]}))),
            BOTH,
            CLUSTER_V4_V6,
            left(nothing, (None, None), &[]),
        ),
        (
            "preferred before, required now",
            updated(dual("10.0.0.99", prefer), dual("10.0.0.99", require)),
            BOTH,
            CLUSTER_V4_V6,
            given(&["10.0.0.99", "fd00::7"], require),
        ),
    ];
    for (name, request, pool, ranges, expected) in rows {
        // Its own first address neither blocks it nor is assigned again.
        let cluster = cluster().service("shop/web", "10.0.0.99").service("shop/web", "fd00::99");
        assert_eq!(answer_of(&request, &settings(pool, ranges), &cluster), expected, "{name}");
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
