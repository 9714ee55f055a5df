//! Addresses that the author of a request set.

use clusterip_core::lookups::LookupError;
use serde_json::{Value, json};

use crate::support::{
    ASSUMED, FakeCluster, UNASKED, WINDOWS, Why, answer, answer_of, by, created, denied, selecting, service, unchanged,
    updated, with_spec,
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
    /// The expected mistakes.
    wrong: Vec<String>,
    /// The pool and its evidence, if the decision needs them.
    why: Why<'static>,
}

fn two(first: &str, second: &str) -> Value {
    with_spec(at(first), json!({"clusterIPs": [first, second]}))
}

/// A cluster in which the Service belongs to the pool `windows`.
fn windows() -> FakeCluster {
    FakeCluster::default().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}))
}

const BY_DEPLOYMENT: Why<'static> = (Some("windows"), Some(("Deployment shop/web", WINDOWS)));
const EXPECTED_LINUX: &str = r#"expected pool "linux": kubernetes.io/os=linux (setting assumeOS)"#;
const EXPECTED_WINDOWS: &str = r#"expected pool "windows": kubernetes.io/os=windows (Deployment shop/web)"#;

fn rows() -> Vec<Row> {
    // For a Service of the pool `linux`, of the pool `windows`, and one that no pool matches.
    let of_linux = |name, object, wrong: &[String]| Row {
        name,
        object,
        cluster: FakeCluster::default(),
        wrong: wrong.to_vec(),
        why: ASSUMED,
    };
    let of_windows = |name, object, wrong: &[String]| Row {
        cluster: windows(),
        why: BY_DEPLOYMENT,
        ..of_linux(name, object, wrong)
    };
    let without_pool = |name, object, wrong: &[String]| Row {
        cluster: FakeCluster::default().namespace("shop", &[], &[("clusterip-policy/os", "beos")]),
        why: (None, Some(("Namespace shop", &[("kubernetes.io/os", "beos")][..]))),
        ..of_linux(name, object, wrong)
    };
    let in_no_pool = |address: &str| [format!("{address} lies in no pool, {EXPECTED_LINUX}")];
    let in_windows = |address: &str| [format!(r#"{address} lies in pool "windows", {EXPECTED_LINUX}"#)];
    let in_linux = |address: &str| [format!(r#"{address} lies in pool "linux", {EXPECTED_WINDOWS}"#)];
    let excluded = |address: &str| [format!(r#"{address} is excluded from pool "windows""#)];
    let beos = r#"172.21.0.77 lies in pool "linux", but no pool matches: kubernetes.io/os=beos (Namespace shop)"#;
    let both = [in_linux("172.21.0.77"), in_linux("fd00::77")].concat();
    let kubernetes = ["172.21.0.1 is the address of default/kubernetes".to_owned()];
    vec![
        of_linux("in its own pool", at("172.21.0.77"), &[]),
        of_linux("in the reserved part of its pool", at("172.21.0.7"), &[]),
        of_linux("the network address of its pool", at("172.21.0.0"), &[]),
        of_windows("in its own pool, which a workload selects", at("172.21.1.77"), &[]),
        of_linux("outside every pool", at("172.21.9.7"), &in_no_pool("172.21.9.7")),
        of_linux("outside the cluster's ranges", at("10.0.0.7"), &in_no_pool("10.0.0.7")),
        without_pool("outside every pool, and no pool matches", at("172.21.9.7"), &[]),
        of_windows(
            "a second one outside every pool of a family that its pool lacks",
            two("172.21.1.77", "fd00::1:77"),
            &[],
        ),
        Row { why: UNASKED, ..of_linux("not an IP address", at("web"), &[]) },
        of_linux("in another pool", at("172.21.1.77"), &in_windows("172.21.1.77")),
        of_windows("in the reserved part of another pool", at("172.21.0.7"), &in_linux("172.21.0.7")),
        without_pool("in a pool, but no pool matches", at("172.21.0.77"), &[beos.to_owned()]),
        Row { why: UNASKED, ..of_windows("excluded", at("172.21.1.203"), &excluded("172.21.1.203")) },
        of_windows("excluded, and reserved for the Service", at("172.21.1.205"), &[]),
        of_linux("reserved for the Service in another pool", at("172.21.1.205"), &in_windows("172.21.1.205")),
        Row { why: UNASKED, ..of_linux("the address of default/kubernetes", at("172.21.0.1"), &kubernetes) },
        of_linux("two addresses in its own pool", two("172.21.0.77", "fd00::77"), &[]),
        // Before Kubernetes 1.36, the API server accepts these forms.
        of_windows("leading zeros, in another pool", at("172.021.00.0077"), &in_linux("172.21.0.77")),
        of_windows("IPv4-mapped, in another pool", at("::ffff:172.21.0.77"), &in_linux("172.21.0.77")),
        of_windows("two addresses in another pool", two("172.21.0.77", "fd00::77"), &both),
        of_linux("one excluded, one in its own pool", two("172.21.1.200", "fd00::77"), &excluded("172.21.1.200")),
    ]
}

#[test]
fn explicit_warn_accepts_with_warnings() {
    for Row { name, object, cluster, wrong, why } in rows() {
        let warnings: Vec<&str> = wrong.iter().map(String::as_str).collect();
        assert_eq!(answer(&object, &settings("warn"), &cluster), unchanged("set by hand", why, &warnings), "{name}");
    }
}

#[test]
fn explicit_deny_refuses_wrong_addresses() {
    for Row { name, object, cluster, wrong, why } in rows() {
        let message =
            format!("Service shop/web: {}; omit clusterIP, or use an address of the Service's pool", wrong.join("; "));
        let expected =
            if wrong.is_empty() { unchanged("set by hand", why, &[]) } else { denied(403, &message, why, &[]) };
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

fn external_name() -> Value {
    service(json!({"type": "ExternalName", "externalName": "example.org"}))
}

#[test]
fn update_checks_only_added_addresses() {
    for (old, new, added) in [
        (external_name(), at("172.21.0.77"), "172.21.0.77"),
        (at("172.21.0.77"), two("172.21.0.77", "fd00::77"), "fd00::77"),
    ] {
        let wrong = format!(r#"{added} lies in pool "linux", {EXPECTED_WINDOWS}"#);
        let expected = unchanged("set by hand", BY_DEPLOYMENT, &[&wrong]);
        assert_eq!(answer_of(&updated(old, new), &settings("warn"), &windows()), expected, "{added}");
    }
    let unchanging = updated(at("172.21.0.77"), at("172.21.0.77"));
    let expected = unchanged("no new address", UNASKED, &[]);
    assert_eq!(answer_of(&unchanging, &settings("warn"), &windows()), expected);
}

#[test]
fn address_reserved_for_another_service_is_always_denied() {
    let reserved_for_cart = || at("172.21.1.204");
    let with_metadata = |key: &str, value: &str| {
        let mut object = reserved_for_cart();
        object["metadata"][key] = value.into();
        object
    };
    let both = || two("172.21.1.204", "fd00::77");
    let with_port = with_spec(reserved_for_cart(), json!({"ports": [{"port": 80}]}));
    let rows = [
        ("a new Service", created(reserved_for_cart()), true),
        ("among two", created(two("fd00::77", "172.21.1.204")), true),
        ("a name yet to be generated", created(with_metadata("name", "")), true),
        ("the Service itself", created(with_metadata("name", "cart")), false),
        ("a Service of an exempt namespace", created(with_metadata("namespace", "kube-system")), false),
        ("the type changes from ExternalName", updated(external_name(), reserved_for_cart()), true),
        ("a second address is added", updated(at("fd00::77"), two("fd00::77", "172.21.1.204")), true),
        ("an update that keeps it", updated(reserved_for_cart(), with_port), false),
        ("an update that keeps it without naming it", updated(reserved_for_cart(), service(json!({}))), false),
        ("another address is added beside it", updated(reserved_for_cart(), both()), false),
    ];
    let reserved = "172.21.1.204 of pool \"windows\" is reserved for Service shop/cart; omit clusterIP, use another \
                    address, or remove the reservation from the pool";
    for (name, request, is_denied) in rows {
        for explicit in ["allow", "warn", "deny"] {
            let cluster = windows();
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
