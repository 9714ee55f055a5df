//! The meaning of a valid settings document, its defaults, and its warnings.

use clusterip_core::address::{Family, Order};
use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{
    AdmissionScope, Explicit, ExternalSettings, Lookups, Match, NodeSettings, Pool, Reservation, Settings, Unmatched,
    WhenFull,
};
use clusterip_core::workload::WorkloadKind;
use clusterip_core::{SettingsResponse, validate_settings};
use serde_json::{Value, json};

use crate::support::{ip, net, settings};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The K2s pools of the documentation, written out.
fn k2s() -> Settings {
    let pool = |os: &str, cidr: &str| Pool {
        name: os.into(),
        cidrs: vec![net(cidr)],
        reserved: 50,
        exclude: vec![],
        bands: false,
        reservations: vec![],
        matches: Match { node_labels: labels(&[("kubernetes.io/os", os)]), ..Match::default() },
    };
    let kind = |name: &str| WorkloadKind::parse(name).unwrap();
    Settings {
        pools: vec![pool("windows", "172.21.1.0/24"), pool("linux", "172.21.0.0/24")],
        kinds: [
            "Deployment",
            "StatefulSet",
            "DaemonSet",
            "ReplicaSet",
            "ReplicationController",
            "Job",
            "CronJob",
            "Pod",
        ]
        .map(kind)
        .to_vec(),
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
            reservations: vec![Reservation { address: ip("10.0.0.99"), service: ServiceKey::new("shop", "web") }],
            matches: Match {
                node_labels: labels(&[("kubernetes.io/os", "windows"), ("kubernetes.io/arch", "amd64")]),
                scope: AdmissionScope {
                    namespaces: vec!["shop".into()],
                    namespace_selector: LabelSelector {
                        match_labels: labels(&[("team", "a")]),
                        match_expressions: vec![],
                    },
                    service_selector: LabelSelector {
                        match_labels: Labels::new(),
                        match_expressions: vec![Requirement {
                            key: "tier".into(),
                            operator: Operator::NotIn,
                            values: vec!["db".into(), "".into()],
                        }],
                    },
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
    struct Case {
        services: Value,
        expected: Unmatched,
    }
    let rows = [
        Case { services: json!({}), expected: Unmatched::Unmanaged },
        Case { services: json!({"explicit": "allow"}), expected: Unmatched::Unmanaged },
        Case { services: json!({"explicit": "deny"}), expected: Unmatched::Outside },
        Case { services: json!({"explicit": "deny", "unmatched": "unmanaged"}), expected: Unmatched::Unmanaged },
        Case { services: json!({"explicit": "deny", "unmatched": "deny"}), expected: Unmatched::Deny },
        Case { services: json!({"unmatched": "outside"}), expected: Unmatched::Outside },
    ];
    for Case { services, expected } in rows {
        assert_eq!(settings(&json!({ "services": services })).unmatched, expected, "{services}");
    }
}

#[test]
fn warnings_name_settings_that_are_probably_not_intended() {
    struct Case {
        name: &'static str,
        services: Value,
        expected: Vec<String>,
    }
    const UNMANAGED: &str = "services.whenFull: unmanaged with pools by os: Kubernetes may pick an address of any pool";
    let rest = |os: &str| {
        format!(
            "services.pools: no pool matches Services without evidence (assumeOS {os:?}): Kubernetes may pick an address of any pool"
        )
    };
    let pool = |name: &str, third: u8, matches: Value| json!({"name": name, "cidrs": [format!("10.0.{third}.0/24")], "match": matches});
    let windows = || pool("windows", 1, json!({"os": "windows"}));
    let rows = [
        Case { name: "the defaults", services: json!({}), expected: vec![] },
        Case {
            name: "unmanaged with the default pools",
            services: json!({"whenFull": "unmanaged"}),
            expected: vec![UNMANAGED.to_owned()],
        },
        Case {
            name: "unmanaged without OS pools",
            services: json!({"whenFull": "unmanaged", "pools": [pool("a", 0, json!({}))]}),
            expected: vec![],
        },
        Case {
            name: "only a pool for Windows",
            services: json!({"pools": [windows()]}),
            expected: vec![rest("linux")],
        },
        Case {
            name: "only a pool for Windows, and other Services get addresses of no pool",
            services: json!({"pools": [windows()], "explicit": "deny"}),
            expected: vec![],
        },
        Case {
            name: "only a pool for Windows, and Windows is assumed",
            services: json!({"pools": [windows()], "assumeOS": "windows"}),
            expected: vec![],
        },
        Case {
            name: "the default pools, another os assumed",
            services: json!({"assumeOS": "Plan9"}),
            expected: vec![rest("plan9")],
        },
        Case {
            name: "a pool for Windows and a pool for all Services",
            services: json!({"pools": [windows(), pool("rest", 0, json!({}))]}),
            expected: vec![],
        },
        Case {
            name: "a pool for Windows and a pool for Linux in one namespace",
            services: json!({"pools": [windows(), pool("linux", 0, json!({"os": "linux", "namespaces": ["shop"]}))]}),
            expected: vec![rest("linux")],
        },
        Case {
            name: "only pools of teams",
            services: json!({"pools": [pool("a", 0, json!({"namespaces": ["a"]}))]}),
            expected: vec![],
        },
        Case {
            name: "both warnings",
            services: json!({"whenFull": "unmanaged", "pools": [windows()]}),
            expected: vec![UNMANAGED.to_owned(), rest("linux")],
        },
    ];
    for Case { name, services, expected } in rows {
        let document = json!({ "services": services });
        let warnings: Vec<String> = settings(&document).warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, expected, "{name}");
        let answer = validate_settings(document.to_string().as_bytes());
        assert_eq!(answer, SettingsResponse { valid: true, message: None, warnings }, "{name}: the answer");
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
