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
    let accepted = |name, spec| Case { name, old: None, spec, expected: None };
    let refused = |name, spec, expected| Case { expected: Some(expected), ..accepted(name, spec) };
    let at = |address: &str| json!({"clusterIP": address, "clusterIPs": [address]});
    let two = |second: &str| json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", second]});
    let external_name = || json!({"type": "ExternalName", "externalName": "example.org", "clusterIP": "10.0.0.9"});
    let cases = [
        accepted("a free address", at("10.0.0.9")),
        accepted("no address", json!({})),
        accepted("headless", at("None")),
        accepted("leading zeros", json!({"clusterIP": "010.0.0.009"})),
        refused("a word", json!({"clusterIP": "banana"}), "spec.clusterIP: \"banana\" is not an IP address"),
        refused(
            "a number",
            json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", 5]}),
            "spec.clusterIPs[1]: 5 is not an IP address",
        ),
        refused(
            "an unknown type",
            json!({"type": "Headless", "clusterIP": "10.0.0.9"}),
            "spec.type: \"Headless\" is not one of ClusterIP, NodePort, LoadBalancer, ExternalName",
        ),
        accepted("an empty type", json!({"type": ""})),
        refused(
            "outside",
            at("10.0.1.9"),
            "10.0.1.9 can't be allocated from the Service ranges (10.0.0.0/24, fd00::/112)",
        ),
        refused(
            "the broadcast address",
            at("10.0.0.255"),
            "10.0.0.255 can't be allocated from the Service ranges (10.0.0.0/24, fd00::/112)",
        ),
        refused(
            "the address of another Service",
            at("10.0.0.7"),
            "10.0.0.7 is already used by Service shop/db in the cluster",
        ),
        refused(
            "an IPAddress without a Service",
            at("10.0.0.8"),
            "10.0.0.8 is already used by IPAddress 10.0.0.8 in the cluster",
        ),
        accepted("its own IPAddress", at("10.0.0.6")),
        refused(
            "the address of an earlier manifest",
            at("10.0.0.5"),
            "10.0.0.5 is already used by Service shop/first (a.yaml: document 1, line 1)",
        ),
        Case { old: Some(at("10.0.0.9")), ..accepted("the same address", at("10.0.0.9")) },
        Case { old: Some(at("fd00::9")), ..accepted("the same address in other words", at("fd00:0::9")) },
        Case {
            old: Some(at("10.0.0.9")),
            ..refused(
                "another address",
                json!({"clusterIP": "10.0.0.10"}),
                "spec.clusterIP can't change from 10.0.0.9 to 10.0.0.10: delete the Service, and create it again",
            )
        },
        Case {
            old: Some(at("None")),
            ..refused(
                "no longer headless",
                at("10.0.0.10"),
                "spec.clusterIP can't change from None to 10.0.0.10: delete the Service, and create it again",
            )
        },
        Case {
            old: Some(two("fd00::9")),
            ..refused(
                "another second address",
                two("fd00::a"),
                "spec.clusterIPs[1] can't change from fd00::9 to fd00::a: delete the Service, and create it again",
            )
        },
        Case { old: Some(at("10.0.0.9")), ..accepted("a second address in addition", two("fd00::9")) },
        Case { old: Some(external_name()), ..accepted("from ExternalName", at("10.0.0.10")) },
        Case { old: Some(at("10.0.0.10")), ..accepted("to ExternalName", external_name()) },
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
    let origin = Origin { source: 0, file: "a.yaml".into(), document: 1, line: 1 };
    rules.add_planned(&Arc::new(owner("first")), &service("first", at("10.0.0.5")), &origin);
    for Case { name, old, spec, expected } in cases {
        let old = old.map(|spec| service("web", spec));
        let refusal = rules.refusal(&settings, &owner("web"), &service("web", spec), old.as_ref());
        assert_eq!(refusal.as_deref(), expected, "{name}");
    }
}

#[test]
fn service_with_an_invalid_name_or_in_a_missing_namespace_is_refused() {
    struct Case<'a> {
        namespace: &'a str,
        name: &'a str,
        expected: Option<&'a str>,
    }
    let long = "a123456789012345678901234567890123456789012345678901234567890123";
    let case = |namespace, name, expected| Case { namespace, name, expected };
    let no_label = format!("metadata.name: \"{long}\" is not a DNS label");
    let cases = [
        case("shop", "web-1", None),
        case("used", "web", None),
        case("planned", "web", None),
        case("kube-system", "web", None),
        case("shop", "", None),
        case("gone", "web", Some("namespaces \"gone\" not found")),
        case("shop", "Web", Some("metadata.name: \"Web\" is not a DNS label")),
        case("shop", "a.b", Some("metadata.name: \"a.b\" is not a DNS label")),
        case("shop", "a-", Some("metadata.name: \"a-\" is not a DNS label")),
        case("shop", long, Some(&no_label)),
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
