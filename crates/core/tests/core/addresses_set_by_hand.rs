//! Addresses that the author of a request set.

use clusterip_core::lookups::LookupError;
use serde_json::{Value, json};

use crate::support::{
    ASSUMED, FakeCluster, UNASKED, WINDOWS, Why, answer, answer_of, by, by_os, created, denied, selecting, service,
    unchanged, updated, with_spec,
};

fn settings(explicit: &str) -> Value {
    json!({"services": {
        "explicit": explicit,
        "serviceCIDRs": ["172.21.0.0/16", "fd00::/108"],
        "pools": [
            {"name": "windows", "cidrs": ["172.21.1.0/24"], "reserved": 50, "exclude": ["172.21.1.200/29"], "match": {"os": "windows"},
             "reservations": [
                {"address": "172.21.1.205", "namespace": "shop", "name": "web"},
                {"address": "172.21.1.204", "namespace": "shop", "name": "cart"},
             ]},
            {"name": "linux", "cidrs": ["172.21.0.0/24", "fd00::/120"], "reserved": 50, "bands": true, "match": {"os": "linux"}},
            {"name": "team", "cidrs": ["172.21.2.0/24"], "match": {"namespaces": ["a"], "os": "plan9"}},
        ],
    }})
}

fn at(address: &str) -> Value {
    with_spec(selecting(), json!({ "clusterIP": address }))
}

struct Row {
    name: &'static str,
    object: Value,
    cluster: FakeCluster,
    /// The expected mistakes, separated by `|`.
    wrong: Option<&'static str>,
    /// The pool and its evidence, if the decision needs them.
    why: Why<'static>,
}

fn rows() -> Vec<Row> {
    let cluster = FakeCluster::default;
    let windows = || cluster().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
    let by_deployment = by_os("windows", "Deployment shop/web", WINDOWS);
    let no_pool = (None, Some(("Namespace shop", &[("kubernetes.io/os", "beos")][..])));
    let two = |first: &str, second: &str| with_spec(at(first), json!({"clusterIPs": [first, second]}));
    vec![
        Row { name: "in its own pool", object: at("172.21.0.77"), cluster: cluster(), wrong: None, why: ASSUMED },
        Row {
            name: "in the reserved part of its pool",
            object: at("172.21.0.7"),
            cluster: cluster(),
            wrong: None,
            why: ASSUMED,
        },
        Row {
            name: "the network address of its pool",
            object: at("172.21.0.0"),
            cluster: cluster(),
            wrong: None,
            why: ASSUMED,
        },
        Row {
            name: "in its own pool, which a workload selects",
            object: at("172.21.1.77"),
            cluster: windows(),
            wrong: None,
            why: by_deployment,
        },
        Row {
            name: "outside every pool",
            object: at("172.21.9.7"),
            cluster: cluster(),
            wrong: Some(
                r#"172.21.9.7 lies in no pool, expected pool "linux": kubernetes.io/os=linux (setting assumeOS)"#,
            ),
            why: ASSUMED,
        },
        Row {
            name: "outside the cluster's ranges",
            object: at("10.0.0.7"),
            cluster: cluster(),
            wrong: Some(
                r#"10.0.0.7 lies in no pool, expected pool "linux": kubernetes.io/os=linux (setting assumeOS)"#,
            ),
            why: ASSUMED,
        },
        Row {
            name: "outside every pool, and no pool matches",
            object: at("172.21.9.7"),
            cluster: cluster().namespace("shop", &[], &[("clusterip-policy/os", "beos")]),
            wrong: None,
            why: no_pool,
        },
        Row {
            name: "one in its own pool, one outside every pool of a family that its pool lacks",
            object: two("172.21.1.77", "fd00::1:77"),
            cluster: windows(),
            wrong: None,
            why: by_deployment,
        },
        Row { name: "not an IP address", object: at("web"), cluster: cluster(), wrong: None, why: UNASKED },
        Row {
            name: "in another pool",
            object: at("172.21.1.77"),
            cluster: cluster(),
            wrong: Some(
                r#"172.21.1.77 lies in pool "windows", expected pool "linux": kubernetes.io/os=linux (setting assumeOS)"#,
            ),
            why: ASSUMED,
        },
        Row {
            name: "in the reserved part of another pool",
            object: at("172.21.0.7"),
            cluster: windows(),
            wrong: Some(
                r#"172.21.0.7 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#,
            ),
            why: by_deployment,
        },
        Row {
            name: "in a pool, but no pool matches",
            object: at("172.21.0.77"),
            cluster: cluster().namespace("shop", &[], &[("clusterip-policy/os", "beos")]),
            wrong: Some(
                r#"172.21.0.77 lies in pool "linux", but no pool matches: kubernetes.io/os=beos (Namespace shop)"#,
            ),
            why: no_pool,
        },
        Row {
            name: "excluded",
            object: at("172.21.1.203"),
            cluster: windows(),
            wrong: Some(r#"172.21.1.203 is excluded from pool "windows""#),
            why: UNASKED,
        },
        Row {
            name: "excluded, and reserved for the Service",
            object: at("172.21.1.205"),
            cluster: windows(),
            wrong: None,
            why: by_deployment,
        },
        Row {
            name: "reserved for the Service in another pool",
            object: at("172.21.1.205"),
            cluster: cluster(),
            wrong: Some(
                r#"172.21.1.205 lies in pool "windows", expected pool "linux": kubernetes.io/os=linux (setting assumeOS)"#,
            ),
            why: ASSUMED,
        },
        Row {
            name: "the address of default/kubernetes",
            object: at("172.21.0.1"),
            cluster: cluster(),
            wrong: Some("172.21.0.1 is the address of default/kubernetes"),
            why: UNASKED,
        },
        Row {
            name: "two addresses in its own pool",
            object: two("172.21.0.77", "fd00::77"),
            cluster: cluster(),
            wrong: None,
            why: ASSUMED,
        },
        // Before Kubernetes 1.36, the API server accepts these forms.
        Row {
            name: "leading zeros, in another pool",
            object: at("172.021.00.0077"),
            cluster: windows(),
            wrong: Some(
                r#"172.21.0.77 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#,
            ),
            why: by_deployment,
        },
        Row {
            name: "an IPv4-mapped IPv6 address, in another pool",
            object: at("::ffff:172.21.0.77"),
            cluster: windows(),
            wrong: Some(
                r#"172.21.0.77 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#,
            ),
            why: by_deployment,
        },
        Row {
            name: "two addresses in another pool",
            object: two("172.21.0.77", "fd00::77"),
            cluster: windows(),
            wrong: Some(concat!(
                r#"172.21.0.77 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)|"#,
                r#"fd00::77 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#,
            )),
            why: by_deployment,
        },
        Row {
            name: "one excluded, one in its own pool",
            object: two("172.21.1.200", "fd00::77"),
            cluster: cluster(),
            wrong: Some(r#"172.21.1.200 is excluded from pool "windows""#),
            why: ASSUMED,
        },
    ]
}

#[test]
fn explicit_warn_accepts_with_warnings() {
    for Row { name, object, cluster, wrong, why } in rows() {
        let warnings: Vec<&str> = wrong.iter().flat_map(|wrong| wrong.split('|')).collect();
        assert_eq!(answer(&object, &settings("warn"), &cluster), unchanged("set by hand", why, &warnings), "{name}");
    }
}

#[test]
fn explicit_deny_refuses_wrong_addresses() {
    for Row { name, object, cluster, wrong, why } in rows() {
        let expected = match wrong {
            None => unchanged("set by hand", why, &[]),
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
    for Row { name, object, cluster, .. } in rows() {
        assert_eq!(answer(&object, &settings("allow"), &cluster), unchanged("set by hand", UNASKED, &[]), "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn update_checks_only_added_addresses() {
    struct Case {
        name: &'static str,
        request: Value,
        expected: Value,
    }
    let two = |first: &str, second: &str| with_spec(at(first), json!({"clusterIPs": [first, second]}));
    let wrong = |address: &str| {
        let wrong = format!(
            r#"{address} lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#
        );
        unchanged("set by hand", by_os("windows", "Deployment shop/web", WINDOWS), &[&wrong])
    };
    let external = || service(json!({"type": "ExternalName", "externalName": "example.org"}));
    let rows = [
        Case {
            name: "the type changes from ExternalName",
            request: updated(external(), at("172.21.0.77")),
            expected: wrong("172.21.0.77"),
        },
        Case {
            name: "a second address is added",
            request: updated(at("172.21.0.77"), two("172.21.0.77", "fd00::77")),
            expected: wrong("fd00::77"),
        },
        Case {
            name: "no new address",
            request: updated(at("172.21.0.77"), at("172.21.0.77")),
            expected: unchanged("no new address", UNASKED, &[]),
        },
    ];
    for Case { name, request, expected } in rows {
        let cluster = FakeCluster::default().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
        assert_eq!(answer_of(&request, &settings("warn"), &cluster), expected, "{name}");
    }
}

#[test]
fn address_reserved_for_another_service_is_always_denied() {
    struct Case {
        name: &'static str,
        request: Value,
        is_denied: bool,
    }
    let external = || service(json!({"type": "ExternalName", "externalName": "example.org"}));
    let two = |first: &str, second: &str| with_spec(at(first), json!({"clusterIPs": [first, second]}));
    let named = |name: &str| {
        let mut object = at("172.21.1.204");
        object["metadata"]["name"] = name.into();
        object
    };
    let mut exempt = at("172.21.1.204");
    exempt["metadata"]["namespace"] = "kube-system".into();
    let rows = [
        Case { name: "a new Service", request: created(at("172.21.1.204")), is_denied: true },
        Case { name: "among two", request: created(two("fd00::77", "172.21.1.204")), is_denied: true },
        Case { name: "a name yet to be generated", request: created(named("")), is_denied: true },
        Case { name: "the Service itself", request: created(named("cart")), is_denied: false },
        Case { name: "a Service of an exempt namespace", request: created(exempt), is_denied: false },
        Case {
            name: "the type changes from ExternalName",
            request: updated(external(), at("172.21.1.204")),
            is_denied: true,
        },
        Case {
            name: "a second address is added",
            request: updated(at("fd00::77"), two("fd00::77", "172.21.1.204")),
            is_denied: true,
        },
        Case {
            name: "an update that keeps it",
            request: updated(at("172.21.1.204"), with_spec(at("172.21.1.204"), json!({"ports": [{"port": 80}]}))),
            is_denied: false,
        },
        Case {
            name: "an update that keeps it without naming it",
            request: updated(at("172.21.1.204"), service(json!({}))),
            is_denied: false,
        },
        Case {
            name: "another address is added beside it",
            request: updated(at("172.21.1.204"), two("172.21.1.204", "fd00::77")),
            is_denied: false,
        },
    ];
    let reserved = "172.21.1.204 of pool \"windows\" is reserved for Service shop/cart; omit clusterIP, use another \
                    address, or remove the reservation from the pool";
    for Case { name, request, is_denied } in rows {
        for explicit in ["allow", "warn", "deny"] {
            let cluster = FakeCluster::default().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
            // A second address outside of the Service's own pool is another matter.
            let explicit = if is_denied { explicit } else { "allow" };
            let answer = answer_of(&request, &settings(explicit), &cluster);
            if is_denied {
                let subject =
                    if request["object"]["metadata"]["name"] == "" { "(name yet to be generated)" } else { "web" };
                let message = format!("Service shop/{subject}: {reserved}");
                assert_eq!(answer, denied(403, &message, UNASKED, &[]), "{name}, {explicit}");
                assert_eq!(cluster.questions(), [""; 0], "{name}: questions");
            } else {
                assert_eq!(answer["accepted"], true, "{name}: {answer}");
            }
        }
    }
}

#[test]
fn failed_look_up_denies_only_with_explicit_deny() {
    let failing = || {
        let error = LookupError::Failed { resource: "v1 Pod".into(), detail: "oh".into() };
        FakeCluster::default().failing("list Pod", error)
    };
    let reason = "looking up v1 Pod failed: oh; try again; if it still fails, see the log of the host";
    for object in [at("172.21.0.77"), at("172.21.9.7")] {
        let warning = format!("clusterIP was not checked: {reason}");
        assert_eq!(answer(&object, &settings("warn"), &failing()), unchanged("set by hand", UNASKED, &[&warning]));
        assert_eq!(
            answer(&object, &settings("deny"), &failing()),
            denied(500, &format!("Service shop/web: {reason}"), UNASKED, &[])
        );
        assert_eq!(answer(&object, &settings("allow"), &failing()), unchanged("set by hand", UNASKED, &[]));
    }
}

#[test]
fn annotated_pool_counts_as_the_services_own() {
    let mut object = at("172.21.1.77");
    object["metadata"]["annotations"] = json!({"clusterip-policy/pool": "windows"});
    let cluster = FakeCluster::default;
    let own = unchanged("set by hand", by("windows", "annotation clusterip-policy/pool"), &[]);
    assert_eq!(answer(&object, &settings("deny"), &cluster()), own);

    object["spec"]["clusterIP"] = "172.21.0.77".into();
    let wrong = r#"172.21.0.77 lies in pool "linux", expected pool "windows": annotation clusterip-policy/pool"#;
    assert_eq!(
        answer(&object, &settings("warn"), &cluster()),
        unchanged("set by hand", by("windows", "annotation clusterip-policy/pool"), &[wrong])
    );
}
