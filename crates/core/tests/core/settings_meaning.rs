//! The meaning of a valid settings document, its defaults, and its warnings.

use clusterip_core::address::{Family, Order};
use clusterip_core::label_selector::Operator;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{
    AdmissionScope, Explicit, ExternalSettings, Lookups, Match, NodeSettings, Pool, Reservation, Settings, Unmatched,
    WhenFull,
};
use clusterip_core::validate_settings;
use clusterip_core::workload::WorkloadKind;
use serde_json::{Value, json};

use crate::support::{ip, labelled, labels, net, requiring, settings, warnings_of};

/// The K2s pools of the documentation, written out.
fn k2s() -> Settings {
    let pool = |os: &str, cidr: &str| Pool {
        name: os.into(),
        cidrs: vec![net(cidr)],
        reserved: 50,
        exclude: vec![],
        bands: false,
        reservations: vec![],
        when_full: None,
        matches: Match { node_labels: labels(&[("kubernetes.io/os", os)]), ..Match::default() },
    };
    Settings {
        pools: vec![pool("windows", "172.21.1.0/24"), pool("linux", "172.21.0.0/24")],
        kinds: "Deployment StatefulSet DaemonSet ReplicaSet ReplicationController Job CronJob Pod"
            .split(' ')
            .map(|name| WorkloadKind::parse(name).unwrap())
            .collect(),
        lookups: Lookups::Cluster,
        assume_os: "linux".into(),
        order: Order::Spread,
        explicit: Explicit::Warn,
        when_full: WhenFull::Deny,
        unmatched: Unmatched::Unmanaged,
        annotate_reason: false,
        exempt_namespaces: vec!["kube-system".into()],
        service_cidrs: vec![],
        unusable_service_cidrs: vec![],
        nodes: NodeSettings::default(),
        external: ExternalSettings::default(),
    }
}

#[test]
fn empty_settings_mean_the_k2s_pools() {
    for document in [
        json!({}),
        Value::Null,
        json!({"services": null}),
        json!({"services": {}}),
        json!({"services": {"pools": null, "order": null}}),
    ] {
        assert_eq!(settings(&document), k2s(), "{document}");
    }
}

#[test]
fn every_field_is_read() {
    let document = json!({"services": {
        "pools": [{
            "name": "team-a",
            "cidrs": ["10.0.0.0/24", "fd00::/112"],
            "reserved": 7,
            "exclude": ["10.0.0.99", "fd00::100/120"],
            "bands": true,
            "whenFull": "deny",
            "reservations": [{"address": "10.0.0.99", "namespace": "shop", "name": "web"}],
            "match": {
                "os": "Windows",
                "nodeLabels": {"kubernetes.io/arch": "amd64"},
                "namespaces": ["shop"],
                "namespaceSelector": {"matchLabels": {"team": "a"}},
                "serviceSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["db", ""]}]},
            },
        }],
        "evidence": {"kinds": ["Pod"], "lookups": "namespace"},
        "assumeOS": "Windows",
        "order": "lowest",
        "explicit": "deny",
        "whenFull": "unmanaged",
        "unmatched": "deny",
        "annotateReason": true,
        "exemptNamespaces": [],
        "serviceCIDRs": ["10.0.0.0/16", "fd00::/108"],
    }});
    let expected = Settings {
        pools: vec![Pool {
            name: "team-a".into(),
            cidrs: vec![net("10.0.0.0/24"), net("fd00::/112")],
            reserved: 7,
            exclude: vec![net("10.0.0.99/32"), net("fd00::100/120")],
            bands: true,
            when_full: Some(WhenFull::Deny),
            reservations: vec![Reservation { address: ip("10.0.0.99"), service: ServiceKey::new("shop", "web") }],
            matches: Match {
                node_labels: labels(&[("kubernetes.io/os", "windows"), ("kubernetes.io/arch", "amd64")]),
                scope: AdmissionScope {
                    namespaces: vec!["shop".into()],
                    namespace_selector: labelled("team", "a"),
                    service_selector: requiring("tier", Operator::NotIn, &["db", ""]),
                },
            },
        }],
        kinds: vec![WorkloadKind::parse("Pod").unwrap()],
        lookups: Lookups::Namespace,
        assume_os: "windows".into(),
        order: Order::Lowest,
        explicit: Explicit::Deny,
        when_full: WhenFull::Unmanaged,
        unmatched: Unmatched::Deny,
        annotate_reason: true,
        exempt_namespaces: vec![],
        service_cidrs: vec![net("10.0.0.0/16"), net("fd00::/108")],
        unusable_service_cidrs: vec![],
        nodes: NodeSettings::default(),
        external: ExternalSettings::default(),
    };
    let settings = settings(&document);
    assert_eq!(settings, expected);
    assert_eq!(settings.kubernetes_address(), Some(ip("10.0.0.1")));
    assert_eq!(settings.pool_of(ip("fd00::ffff")), Some(&settings.pools[0]));
    assert_eq!(settings.pool_of(ip("10.0.1.0")), None);
    for (address, inside) in [("fd00::ffff", true), ("fd00::1:0", false), ("10.0.1.0", false)] {
        assert_eq!(settings.pools[0].contains(ip(address)), inside, "{address}");
    }
    let named = [settings.pools[0].name.as_str(), "missing"].map(|name| settings.pool(name));
    assert_eq!(named, [Some(&settings.pools[0]), None]);
    assert!(settings.cluster_has(Family::V4) && settings.cluster_has(Family::V6));
    assert!(!settings.candidates(&settings.pools[0], Family::V4).contains(ip("10.0.0.99")));
}

#[test]
fn services_that_no_pool_matches_stay_out_of_pools_if_addresses_set_by_hand_do() {
    let rows = [
        (json!({}), Unmatched::Unmanaged),
        (json!({"explicit": "allow"}), Unmatched::Unmanaged),
        (json!({"explicit": "deny"}), Unmatched::Outside),
        (json!({"explicit": "deny", "unmatched": "unmanaged"}), Unmatched::Unmanaged),
        (json!({"explicit": "deny", "unmatched": "deny"}), Unmatched::Deny),
        (json!({"unmatched": "outside"}), Unmatched::Outside),
    ];
    for (services, expected) in rows {
        assert_eq!(settings(&json!({ "services": services })).unmatched, expected, "{services}");
    }
}

#[test]
fn warnings_name_settings_that_are_probably_not_intended() {
    const UNMANAGED: &str = "services.whenFull: unmanaged with pools by os: Kubernetes may pick an address of any pool";
    let rest = |os: &str| {
        format!(
            "services.pools: no pool matches Services without evidence (assumeOS {os:?}): Kubernetes may pick an address of any pool"
        )
    };
    let pool = |name: &str, third: u8, matches: Value| json!({"name": name, "cidrs": [format!("10.0.{third}.0/24")], "match": matches});
    let windows = || pool("windows", 1, json!({"os": "windows"}));
    let rows = [
        (json!({}), vec![]),
        (json!({"whenFull": "unmanaged"}), vec![UNMANAGED.to_owned()]),
        (json!({"whenFull": "unmanaged", "pools": [pool("a", 0, json!({}))]}), vec![]),
        (json!({"pools": [windows()]}), vec![rest("linux")]),
        // Other Services get addresses of no pool.
        (json!({"pools": [windows()], "explicit": "deny"}), vec![]),
        (json!({"pools": [windows()], "assumeOS": "windows"}), vec![]),
        (json!({"assumeOS": "Plan9"}), vec![rest("plan9")]),
        (json!({"pools": [windows(), pool("rest", 0, json!({}))]}), vec![]),
        (
            json!({"pools": [windows(), pool("linux", 0, json!({"os": "linux", "namespaces": ["shop"]}))]}),
            vec![rest("linux")],
        ),
        (json!({"pools": [pool("a", 0, json!({"namespaces": ["a"]}))]}), vec![]),
        (json!({"whenFull": "unmanaged", "pools": [windows()]}), vec![UNMANAGED.to_owned(), rest("linux")]),
    ];
    for (services, expected) in rows {
        assert_eq!(warnings_of(&json!({ "services": services })), expected, "{services}");
    }
}

#[test]
fn answer_about_invalid_settings_has_one_mistake_on_each_line() {
    let answer = |document: &str| serde_json::to_value(validate_settings(document.as_bytes())).unwrap();
    assert_eq!(
        answer(r#"{"services": {"order": 1, "pool": []}}"#),
        json!({
            "valid": false,
            "message": "services.pool: unknown key \"pool\": did you mean pools?\nservices.order: expected a string, found the number 1",
        })
    );
    assert_eq!(answer("{}"), json!({"valid": true, "message": null}));
    let broken = answer("{");
    assert_eq!(broken["valid"], false);
    assert!(broken["message"].as_str().unwrap().starts_with("the settings are not a JSON document: "), "{broken}");
}
