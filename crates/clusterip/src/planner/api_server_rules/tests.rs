use serde_json::json;

use super::*;

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

#[test]
fn service_that_the_api_server_refuses_is_reported() {
    struct Case {
        name: &'static str,
        old: Option<Value>,
        spec: Value,
        expected: Option<&'static str>,
    }
    let at = |address: &str| json!({"clusterIP": address, "clusterIPs": [address]});
    let external_name = || json!({"type": "ExternalName", "externalName": "example.org", "clusterIP": "10.0.0.9"});
    let cases = [
        Case { name: "a free address", old: None, spec: at("10.0.0.9"), expected: None },
        Case { name: "no address", old: None, spec: json!({}), expected: None },
        Case { name: "headless", old: None, spec: at("None"), expected: None },
        Case { name: "leading zeros", old: None, spec: json!({"clusterIP": "010.0.0.009"}), expected: None },
        Case {
            name: "a word",
            old: None,
            spec: json!({"clusterIP": "banana"}),
            expected: Some("spec.clusterIP: \"banana\" is not an IP address"),
        },
        Case {
            name: "a number",
            old: None,
            spec: json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", 5]}),
            expected: Some("spec.clusterIPs[1]: 5 is not an IP address"),
        },
        Case {
            name: "an unknown type",
            old: None,
            spec: json!({"type": "Headless", "clusterIP": "10.0.0.9"}),
            expected: Some("spec.type: \"Headless\" is not one of ClusterIP, NodePort, LoadBalancer, ExternalName"),
        },
        Case { name: "an empty type", old: None, spec: json!({"type": ""}), expected: None },
        Case {
            name: "outside",
            old: None,
            spec: at("10.0.1.9"),
            expected: Some("10.0.1.9 can't be allocated from the Service ranges (10.0.0.0/24, fd00::/112)"),
        },
        Case {
            name: "the broadcast address",
            old: None,
            spec: at("10.0.0.255"),
            expected: Some("10.0.0.255 can't be allocated from the Service ranges (10.0.0.0/24, fd00::/112)"),
        },
        Case {
            name: "the address of another Service",
            old: None,
            spec: at("10.0.0.7"),
            expected: Some("10.0.0.7 is already used by Service shop/db in the cluster"),
        },
        Case {
            name: "an IPAddress without a Service",
            old: None,
            spec: at("10.0.0.8"),
            expected: Some("10.0.0.8 is already used by IPAddress 10.0.0.8 in the cluster"),
        },
        Case { name: "its own IPAddress", old: None, spec: at("10.0.0.6"), expected: None },
        Case {
            name: "the address of an earlier manifest",
            old: None,
            spec: at("10.0.0.5"),
            expected: Some("10.0.0.5 is already used by Service shop/first (a.yaml: document 1, line 1)"),
        },
        Case { name: "the same address", old: Some(at("10.0.0.9")), spec: at("10.0.0.9"), expected: None },
        Case {
            name: "the same address in other words",
            old: Some(at("fd00::9")),
            spec: at("fd00:0::9"),
            expected: None,
        },
        Case {
            name: "another address",
            old: Some(at("10.0.0.9")),
            spec: json!({"clusterIP": "10.0.0.10"}),
            expected: Some(
                "spec.clusterIP can't change from 10.0.0.9 to 10.0.0.10: delete the Service, and create it again",
            ),
        },
        Case {
            name: "no longer headless",
            old: Some(at("None")),
            spec: at("10.0.0.10"),
            expected: Some(
                "spec.clusterIP can't change from None to 10.0.0.10: delete the Service, and create it again",
            ),
        },
        Case {
            name: "another second address",
            old: Some(json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::9"]})),
            spec: json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::a"]}),
            expected: Some(
                "spec.clusterIPs[1] can't change from fd00::9 to fd00::a: delete the Service, and create it again",
            ),
        },
        Case {
            name: "a second address in addition",
            old: Some(at("10.0.0.9")),
            spec: json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::9"]}),
            expected: None,
        },
        Case { name: "from ExternalName", old: Some(external_name()), spec: at("10.0.0.10"), expected: None },
        Case { name: "to ExternalName", old: Some(at("10.0.0.10")), spec: external_name(), expected: None },
    ];
    let settings = Settings {
        service_cidrs: ["10.0.0.0/24", "fd00::/112"].iter().filter_map(|range| range.parse().ok()).collect(),
        ..Settings::default()
    };
    let mut rules = ApiServerRules::default();
    let ip_address = |address: &str, name: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": address},
               "spec": {"parentRef": {"resource": "services", "namespace": "shop", "name": name}}})
    };
    rules.add_existing(&ip_address("10.0.0.7", "db"));
    rules.add_existing(&service("db", at("10.0.0.7")));
    rules.add_existing(&ip_address("10.0.0.8", "gone"));
    rules.add_existing(&ip_address("10.0.0.6", "web"));
    let owner = |name: &str| ServiceKey::new("shop", name);
    rules.add_planned(&owner("first"), &service("first", at("10.0.0.5")), "a.yaml: document 1, line 1");
    for Case { name, old, spec, expected } in cases {
        let old = old.map(|spec| service("web", spec));
        let refusal = rules.refusal(&settings, &owner("web"), &service("web", spec), old.as_ref());
        assert_eq!(refusal.as_deref(), expected, "{name}");
    }
}

#[test]
fn service_with_an_invalid_name_or_in_a_missing_namespace_is_refused() {
    struct Case {
        namespace: &'static str,
        name: &'static str,
        expected: Option<&'static str>,
    }
    let long = "a123456789012345678901234567890123456789012345678901234567890123";
    let cases = [
        Case { namespace: "shop", name: "web-1", expected: None },
        Case { namespace: "used", name: "web", expected: None },
        Case { namespace: "planned", name: "web", expected: None },
        Case { namespace: "kube-system", name: "web", expected: None },
        Case { namespace: "shop", name: "", expected: None },
        Case { namespace: "gone", name: "web", expected: Some("namespaces \"gone\" not found") },
        Case { namespace: "shop", name: "Web", expected: Some("metadata.name: \"Web\" is not a DNS label") },
        Case { namespace: "shop", name: "a.b", expected: Some("metadata.name: \"a.b\" is not a DNS label") },
        Case { namespace: "shop", name: "a-", expected: Some("metadata.name: \"a-\" is not a DNS label") },
        Case {
            namespace: "shop",
            name: long,
            expected: Some(
                "metadata.name: \"a123456789012345678901234567890123456789012345678901234567890123\" is not a DNS \
                 label",
            ),
        },
    ];
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let mut rules = ApiServerRules::default();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "used", "name": "a"}});
    rules.add_existing(&namespace("shop"));
    rules.add_existing(&pod);
    rules.add_namespace("planned");
    for Case { namespace, name, expected } in cases {
        for kind in ["ClusterIP", "ExternalName"] {
            let metadata = json!({"namespace": namespace, "name": name});
            let service = json!({"metadata": metadata, "spec": {"type": kind}});
            let refusal = rules.refusal(&Settings::default(), &ServiceKey::new(namespace, name), &service, None);
            assert_eq!(refusal.as_deref(), expected, "{namespace}/{name} of type {kind}");
        }
    }
    for (namespace, expected) in [("gone", None), ("Shop", Some("metadata.namespace: \"Shop\" is not a DNS label"))] {
        let nowhere = json!({"metadata": {"namespace": namespace, "name": "web"}, "spec": {}});
        let key = ServiceKey::new(namespace, "web");
        let refusal = ApiServerRules::default().refusal(&Settings::default(), &key, &nowhere, None);
        assert_eq!(refusal.as_deref(), expected, "{namespace} without Namespaces");
    }
}

#[test]
fn fields_for_addresses_in_the_wrong_case_give_a_warning() {
    let cases = [
        (json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": []}), vec![]),
        (json!({"clusterip": "None"}), vec!["unknown field spec.clusterip: did you mean clusterIP?"]),
        (json!({"clusterIps": ["None"]}), vec!["unknown field spec.clusterIps: did you mean clusterIPs?"]),
    ];
    for (spec, expected) in cases {
        let warnings: Vec<String> = misspelled_fields(&service("web", spec.clone())).collect();
        assert_eq!(warnings, expected, "{spec}");
    }
}
