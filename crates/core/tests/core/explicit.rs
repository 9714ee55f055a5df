//! Addresses that the author of a request set.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{
    ASSUMED, FakeCluster, UNASKED, WINDOWS, Why, answer, answer_of, by, by_os, denied, left, selecting, service,
    updated, with_spec,
};
use clusterip_core::cluster::LookupError;
use serde_json::{Value, json};

fn settings(explicit: &str) -> Value {
    json!({"services": {
        "explicit": explicit,
        "serviceCIDRs": ["172.21.0.0/16", "fd00::/108"],
        "pools": [
            {"name": "windows", "cidrs": ["172.21.1.0/24"], "reserved": 50, "exclude": ["172.21.1.200/29"], "match": {"os": "windows"}},
            {"name": "linux", "cidrs": ["172.21.0.0/24", "fd00::/120"], "reserved": 50, "bands": true, "match": {"os": "linux"}},
            {"name": "team", "cidrs": ["172.21.2.0/24"], "match": {"namespaces": ["a"], "os": "plan9"}},
        ],
    }})
}

fn at(address: &str) -> Value {
    with_spec(selecting(), json!({ "clusterIP": address }))
}

/// Name, Service, cluster; the expected mistake, and pool and evidence if they were needed.
struct Row(&'static str, Value, FakeCluster, Option<&'static str>, Why<'static>);

fn rows() -> Vec<Row> {
    let cluster = FakeCluster::default;
    let windows = || cluster().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
    let by_deployment = by_os("windows", "Deployment shop/web", WINDOWS);
    let no_pool = (None, Some(("Namespace shop", &[("kubernetes.io/os", "beos")][..])));
    let two = |first: &str, second: &str| with_spec(at(first), json!({"clusterIPs": [first, second]}));
    vec![
        Row("in its own pool", at("172.21.0.77"), cluster(), None, ASSUMED),
        Row("in the reserved part of its pool", at("172.21.0.7"), cluster(), None, ASSUMED),
        Row("the network address of its pool", at("172.21.0.0"), cluster(), None, ASSUMED),
        Row("in its own pool, by a workload", at("172.21.1.77"), windows(), None, by_deployment),
        Row("outside every pool", at("172.21.9.7"), cluster(), None, UNASKED),
        Row("outside the cluster's ranges", at("10.0.0.7"), cluster(), None, UNASKED),
        Row("no address", at("web"), cluster(), None, UNASKED),
        Row(
            "in another pool",
            at("172.21.1.77"),
            cluster(),
            Some(r#"172.21.1.77 lies in pool "windows", expected pool "linux": kubernetes.io/os=linux (assumption)"#),
            ASSUMED,
        ),
        Row(
            "in the reserved part of another pool",
            at("172.21.0.7"),
            windows(),
            Some(
                r#"172.21.0.7 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#,
            ),
            by_deployment,
        ),
        Row(
            "in a pool, but but no pool matches",
            at("172.21.0.77"),
            cluster().namespace("shop", &[], &[("clusterip-policy/os", "beos")]),
            Some(r#"172.21.0.77 lies in pool "linux", but no pool matches: kubernetes.io/os=beos (Namespace shop)"#),
            no_pool,
        ),
        Row(
            "excluded",
            at("172.21.1.203"),
            windows(),
            Some(r#"172.21.1.203 is excluded from pool "windows""#),
            UNASKED,
        ),
        Row(
            "the address of default/kubernetes",
            at("172.21.0.1"),
            cluster(),
            Some("172.21.0.1 is the address of default/kubernetes"),
            UNASKED,
        ),
        Row("two in its own pool", two("172.21.0.77", "fd00::77"), cluster(), None, ASSUMED),
        Row(
            "two in another pool",
            two("172.21.0.77", "fd00::77"),
            windows(),
            Some(concat!(
                r#"172.21.0.77 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)|"#,
                r#"fd00::77 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#,
            )),
            by_deployment,
        ),
        Row(
            "one excluded, one in its own pool",
            two("172.21.1.200", "fd00::77"),
            cluster(),
            Some(r#"172.21.1.200 is excluded from pool "windows""#),
            ASSUMED,
        ),
    ]
}

#[test]
fn explicit_warn_accepts_with_warnings() {
    for Row(name, object, cluster, wrong, why) in rows() {
        let warnings: Vec<&str> = wrong.iter().flat_map(|wrong| wrong.split('|')).collect();
        assert_eq!(answer(&object, &settings("warn"), &cluster), left("set by hand", why, &warnings), "{name}");
    }
}

#[test]
fn explicit_deny_refuses_wrong_addresses() {
    for Row(name, object, cluster, wrong, why) in rows() {
        let expected = match wrong {
            None => left("set by hand", why, &[]),
            Some(wrong) => {
                let wrong = wrong.replace('|', "; ");
                let remedy = "omit clusterIP, or use an address of the Service's pool";
                denied(403, &format!("Service shop/web: {wrong}; {remedy}"), why, &[])
            }
        };
        assert_eq!(answer(&object, &settings("deny"), &cluster), expected, "{name}");
    }
}

#[test]
fn explicit_allow_accepts_without_look_ups() {
    for Row(name, object, cluster, ..) in rows() {
        assert_eq!(answer(&object, &settings("allow"), &cluster), left("set by hand", UNASKED, &[]), "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn update_checks_only_added_addresses() {
    let two = |first: &str, second: &str| with_spec(at(first), json!({"clusterIPs": [first, second]}));
    let wrong = |address: &str| {
        let wrong = format!(
            r#"{address} lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#
        );
        left("set by hand", by_os("windows", "Deployment shop/web", WINDOWS), &[&wrong])
    };
    let external = || service(json!({"type": "ExternalName", "externalName": "example.org"}));
    let rows = [
        ("leaving ExternalName", updated(external(), at("172.21.0.77")), wrong("172.21.0.77")),
        ("the second address alone", updated(at("172.21.0.77"), two("172.21.0.77", "fd00::77")), wrong("fd00::77")),
        ("nothing new", updated(at("172.21.0.77"), at("172.21.0.77")), left("no new address", UNASKED, &[])),
    ];
    for (name, request, expected) in rows {
        let cluster = FakeCluster::default().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
        assert_eq!(answer_of(&request, &settings("warn"), &cluster), expected, "{name}");
    }
}

#[test]
fn failed_look_up_denies_only_with_explicit_deny() {
    let failing = || {
        let error = LookupError::Failed { resource: "v1 Pod".into(), detail: "oh".into() };
        FakeCluster::default().failing("list Pod", error)
    };
    let reason = "looking up v1 Pod failed: oh; try again; if it still fails, see the log of the host";
    let object = at("172.21.0.77");
    let warning = format!("clusterIP was not checked: {reason}");
    assert_eq!(answer(&object, &settings("warn"), &failing()), left("set by hand", UNASKED, &[&warning]));
    assert_eq!(
        answer(&object, &settings("deny"), &failing()),
        denied(500, &format!("Service shop/web: {reason}"), UNASKED, &[])
    );
    assert_eq!(answer(&object, &settings("allow"), &failing()), left("set by hand", UNASKED, &[]));
}

#[test]
fn annotated_pool_counts_as_the_services_own() {
    let mut object = at("172.21.1.77");
    object["metadata"]["annotations"] = json!({"clusterip-policy/pool": "windows"});
    let cluster = FakeCluster::default;
    let own = left("set by hand", by("windows", "annotation clusterip-policy/pool"), &[]);
    assert_eq!(answer(&object, &settings("deny"), &cluster()), own);

    object["spec"]["clusterIP"] = "172.21.0.77".into();
    let wrong = r#"172.21.0.77 lies in pool "linux", expected pool "windows": annotation clusterip-policy/pool"#;
    assert_eq!(
        answer(&object, &settings("warn"), &cluster()),
        left("set by hand", by("windows", "annotation clusterip-policy/pool"), &[wrong])
    );
}
