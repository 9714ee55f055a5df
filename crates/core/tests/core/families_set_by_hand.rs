//! A second address beside the first one, which the author of the request set.

use clusterip_core::lookups::LookupError;
use clusterip_core::{InUse, decide_value};
use serde_json::{Value, json};

use crate::support::{
    FakeCluster, UNASKED, Why, allocated, answer_of, created, denied, selecting, service, settings, unchanged, updated,
    with_spec,
};

/// `shop/web` belongs to the pool `shop`, which has both families. The pool `v4` is for the namespace `v4`.
fn two_pools(more: &Value) -> Value {
    let mut document = json!({"services": {
        "order": "lowest",
        "explicit": "deny",
        "serviceCIDRs": ["10.0.0.0/16", "fd00::/108"],
        "pools": [
            {"name": "shop", "cidrs": ["10.0.1.0/24", "fd00::1:0/120"], "reserved": 7, "match": {"namespaces": ["shop"]},
             "reservations": [{"address": "fd00::1:77", "namespace": "shop", "name": "kept"}]},
            {"name": "v4", "cidrs": ["10.0.2.0/24"], "match": {"namespaces": ["v4"]}},
            {"name": "v6", "cidrs": ["fd00::2:0/120"], "match": {"namespaces": ["v6"]}},
        ],
    }});
    for (key, value) in more.as_object().into_iter().flatten() {
        document["services"][key] = value.clone();
    }
    document
}

/// The Service `NAMESPACE/web` with this address and policy.
fn at(namespace: &str, address: &str, policy: &str) -> Value {
    let mut object = with_spec(selecting(), json!({"clusterIP": address, "ipFamilyPolicy": policy}));
    object["metadata"]["namespace"] = namespace.into();
    object
}

const SHOP: Why<'static> = (Some("shop"), Some(("namespace shop", &[])));
const V4: Why<'static> = (Some("v4"), Some(("namespace v4", &[])));
const REQUIRE: &str = "RequireDualStack";
const PREFER: &str = "PreferDualStack";

#[test]
fn second_address_beside_one_set_by_hand_is_of_the_services_pool() {
    struct Case {
        name: &'static str,
        settings: Value,
        object: Value,
        expected: fn(&Value) -> Value,
    }
    let case = |name, settings, object, expected| Case { name, settings, object, expected };
    let with_families = |families: Value| with_spec(at("shop", "10.0.1.9", REQUIRE), json!({ "ipFamilies": families }));
    let mut kept = at("shop", "10.0.1.9", REQUIRE);
    kept["metadata"]["name"] = "kept".into();
    let both: fn(&Value) -> Value = |object| allocated(object, &["10.0.1.9", "fd00::1:7"], SHOP, &[]);
    let cases = [
        case("required", json!({}), at("shop", "10.0.1.9", REQUIRE), both),
        case("preferred", json!({}), at("shop", "10.0.1.9", PREFER), both),
        case("single", json!({}), at("shop", "10.0.1.9", "SingleStack"), |_| unchanged("set by hand", SHOP, &[])),
        case(
            "in clusterIPs too",
            json!({}),
            with_spec(at("shop", "10.0.1.9", REQUIRE), json!({"clusterIPs": ["10.0.1.9"]})),
            both,
        ),
        case("both families named", json!({}), with_families(json!(["IPv4", "IPv6"])), both),
        case("the first family named", json!({}), with_families(json!(["IPv4"])), both),
        case("IPv6 first", json!({}), at("shop", "fd00::1:9", REQUIRE), |object| {
            allocated(object, &["fd00::1:9", "10.0.1.7"], SHOP, &[])
        }),
        case("in the reserved part", json!({}), at("shop", "10.0.1.3", REQUIRE), |object| {
            allocated(object, &["10.0.1.3", "fd00::1:7"], SHOP, &[])
        }),
        case("the second one reserved for the Service", json!({}), kept, |object| {
            allocated(object, &["10.0.1.9", "fd00::1:77"], SHOP, &[])
        }),
        case("any address is allowed", json!({"explicit": "allow"}), at("shop", "10.0.2.9", REQUIRE), |object| {
            allocated(object, &["10.0.2.9", "fd00::1:7"], SHOP, &[])
        }),
        case(
            "a wrong address causes a warning",
            json!({"explicit": "warn"}),
            at("shop", "10.0.2.9", REQUIRE),
            |object| {
                let wrong = r#"10.0.2.9 lies in pool "v4", expected pool "shop": namespace shop"#;
                allocated(object, &["10.0.2.9", "fd00::1:7"], SHOP, &[wrong])
            },
        ),
        case("a wrong address is denied", json!({}), at("shop", "10.0.2.9", REQUIRE), |_| {
            let wrong = r#"Service shop/web: 10.0.2.9 lies in pool "v4", expected pool "shop": namespace shop; omit clusterIP, or use an address of the Service's pool"#;
            denied(403, wrong, SHOP, &[])
        }),
        case("required, and the pool lacks the family", json!({}), at("v4", "10.0.2.9", REQUIRE), |_| {
            let lacking = r#"Service v4/web: pool "v4" has no IPv6 range; chosen by namespace v4; add an IPv6 range to the pool, or set services.whenFull: unmanaged"#;
            denied(500, lacking, V4, &[])
        }),
        case("the same, unmanaged", json!({"whenFull": "unmanaged"}), at("v4", "10.0.2.9", REQUIRE), |_| {
            let lacking = r#"pool "v4" has no IPv6 range: Kubernetes picks the address"#;
            unchanged(lacking, V4, &[lacking])
        }),
        case("preferred, and the pool lacks the family", json!({}), at("v4", "10.0.2.9", PREFER), |object| {
            allocated(object, &["10.0.2.9", "fd00::101"], V4, &[])
        }),
        case("no pool matches", json!({}), at("other", "10.0.9.9", REQUIRE), |object| {
            let warning = "no pool matches this Service: it gets an address outside of all pools";
            allocated(object, &["10.0.9.9", "fd00::101"], (None, None), &[warning])
        }),
        case(
            "no pool matches, and that is denied",
            json!({"unmatched": "deny"}),
            at("other", "10.0.9.9", REQUIRE),
            |_| {
                let message = "Service other/web: no pool matches this Service; add a pool that matches it, or set services.unmatched: unmanaged";
                denied(403, message, (None, None), &[])
            },
        ),
        case(
            "preferred, and the cluster has one family",
            json!({"serviceCIDRs": ["10.0.0.0/16"], "pools": [
                {"name": "shop", "cidrs": ["10.0.1.0/24"], "match": {"namespaces": ["shop"]}},
            ]}),
            at("shop", "10.0.1.9", PREFER),
            |_| unchanged("set by hand", SHOP, &[]),
        ),
        case("an exempt namespace", json!({"exemptNamespaces": ["shop"]}), at("shop", "10.0.1.9", REQUIRE), |_| {
            unchanged("namespace shop is exempt", UNASKED, &[])
        }),
    ];
    let external = service(json!({"type": "ExternalName", "externalName": "example.org"}));
    for Case { name, settings, object, expected } in cases {
        let settings = two_pools(&settings);
        for request in [created(object.clone()), updated(external.clone(), object.clone())] {
            let found = answer_of(&request, &settings, &FakeCluster::default());
            assert_eq!(found, expected(&object), "{name}, {}", request["operation"]);
        }
    }
}

#[test]
fn pool_is_looked_up_once_for_both_addresses() {
    let document = |explicit: &str| {
        two_pools(&json!({"explicit": explicit, "pools": [
            {"name": "linux", "cidrs": ["10.0.1.0/24", "fd00::1:0/120"], "match": {"os": "linux"}},
        ]}))
    };
    let object = at("shop", "10.0.1.9", REQUIRE);
    let request = created(object.clone());
    let cluster = FakeCluster::default();
    assert_eq!(answer_of(&request, &document("deny"), &cluster)["accepted"], true);
    let questions = cluster.questions();
    let lists = questions.iter().filter(|question| question.starts_with("list Deployment")).count();
    assert_eq!(lists, 1, "{questions:?}");

    let error = LookupError::Failed { resource: "v1 Pod".into(), detail: "oh".into() };
    let failing = FakeCluster::default().failing("list Pod", error);
    let reason = "looking up v1 Pod failed: oh; try again; if it still fails, see the log of the host";
    let (message, warning) = (format!("Service shop/web: {reason}"), format!("clusterIP was not checked: {reason}"));
    let expected = denied(500, &message, UNASKED, &[&warning]);
    assert_eq!(answer_of(&request, &document("warn"), &failing), expected, "the second address needs the pool");
}

#[test]
fn decision_names_the_addresses_that_their_author_may_keep() {
    struct Case {
        name: &'static str,
        explicit: &'static str,
        spec: Value,
        expected: &'static [&'static str],
    }
    let case = |name, explicit, spec, expected| Case { name, explicit, spec, expected };
    let two = json!({"clusterIP": "10.0.1.9", "clusterIPs": ["10.0.1.9", "fd00::2:9"]});
    let many: Vec<String> = (0..50_000).map(|nth| format!("10.0.1.{}", nth % 250)).collect();
    let named = json!({"type": "ExternalName", "externalName": "example.org", "clusterIP": "10.0.1.9"});
    let cases = [
        case("in the pool", "deny", json!({"clusterIP": "10.0.1.9"}), &["10.0.1.9"]),
        case(
            "and a second one is given",
            "deny",
            json!({"clusterIP": "10.0.1.9", "ipFamilyPolicy": REQUIRE}),
            &["10.0.1.9"],
        ),
        case("none", "deny", json!({}), &[]),
        case("in another pool", "warn", json!({"clusterIP": "10.0.2.9"}), &[]),
        case("one in another pool", "warn", two.clone(), &["10.0.1.9"]),
        case("in another pool, allowed", "allow", json!({"clusterIP": "10.0.2.9"}), &[]),
        case("one in another pool, allowed", "allow", two, &["10.0.1.9"]),
        case("reserved for another Service", "allow", json!({"clusterIP": "fd00::1:77"}), &[]),
        case("of a pool of external addresses", "allow", json!({"clusterIP": "192.0.2.9"}), &[]),
        case("outside of all pools, allowed", "allow", json!({"clusterIP": "10.0.9.9"}), &["10.0.9.9"]),
        case("headless, and an address", "deny", json!({"clusterIP": "None", "clusterIPs": ["None", "10.0.1.9"]}), &[]),
        case("ExternalName, and an address", "deny", named, &[]),
        case("thousands", "deny", json!({"clusterIP": "10.0.1.0", "clusterIPs": many}), &[]),
        case(
            "an empty one among three",
            "deny",
            json!({"clusterIPs": ["", "10.0.1.9", "fd00::1:9", "10.0.1.8"]}),
            &["10.0.1.9", "fd00::1:9"],
        ),
    ];
    for Case { name, explicit, spec, expected } in cases {
        let mut document = two_pools(&json!({ "explicit": explicit }));
        document["external"] = json!({"pools": [{"name": "edge", "cidrs": ["192.0.2.0/24"]}]});
        let request = created(with_spec(selecting(), spec));
        let cluster = FakeCluster::default();
        let decision = decide_value(&request, &settings(&document), InUse::default(), &cluster);
        let found: Vec<String> = decision.chosen.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{name}: {decision:?}");
        assert!(explicit != "allow" || cluster.questions().is_empty(), "{name}");
    }
    // An update keeps its own address, and may add one.
    let update = updated(
        service(json!({"clusterIP": "10.0.1.9"})),
        service(json!({"clusterIP": "10.0.1.9", "clusterIPs": ["10.0.1.9", "fd00::1:9"], "ipFamilyPolicy": REQUIRE})),
    );
    let decision = decide_value(&update, &settings(&two_pools(&json!({}))), InUse::default(), &FakeCluster::default());
    assert_eq!(decision.chosen.iter().map(ToString::to_string).collect::<Vec<_>>(), ["fd00::1:9"], "{decision:?}");
}
