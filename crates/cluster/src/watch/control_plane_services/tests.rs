use clusterip_core::label_selector::MAX_LABELS;

use super::*;
use crate::watch::partial_object::PartialObject;

fn kind(name: &str) -> Kind {
    kinds::callers().find(|(_, kind)| kind == name).unwrap()
}

/// The object as the watch shows it.
fn watched(kind: &Kind, object: &Value) -> Value {
    serde_json::from_str::<PartialObject>(&object.to_string()).unwrap().value(kind).unwrap()
}

/// An index for which all kinds were listed, and are empty.
fn listed() -> ControlPlaneServices {
    let services = ControlPlaneServices::default();
    kinds::callers().for_each(|kind| services.listed(&kind));
    services
}

#[test]
fn references_to_services_are_read() {
    struct Row {
        name: &'static str,
        object: Value,
        services: &'static [(&'static str, &'static str)],
    }
    let client = |namespace: &str, name: &str| json!({"caBundle": "LS0t", "service": {"namespace": namespace, "name": name, "path": "/a", "port": 443}});
    let rows = [
        Row {
            name: "webhooks, some of them with a URL, some with the same Service",
            object: json!({"webhooks": [
                {"name": "a", "clientConfig": client("cert-manager", "webhook"), "rules": [{"operations": ["*"]}]},
                {"name": "b", "clientConfig": {"url": "https://example.org"}},
                {"name": "c", "clientConfig": client("cert-manager", "webhook")},
                {"name": "d", "clientConfig": client("other", "hook")},
            ]}),
            services: &[("cert-manager", "webhook"), ("other", "hook")],
        },
        Row { name: "no webhooks", object: json!({"webhooks": null}), services: &[] },
        Row {
            name: "an aggregated API",
            object: json!({"spec": {"group": "metrics.k8s.io", "service": {"namespace": "kube-system", "name": "metrics"}},
                           "status": {"conditions": [{"type": "Available"}]}}),
            services: &[("kube-system", "metrics")],
        },
        Row {
            name: "an API of the API server itself",
            object: json!({"spec": {"group": "apps", "service": null}}),
            services: &[],
        },
        Row {
            name: "a conversion webhook",
            object: json!({"spec": {"group": "example.org", "versions": [{"schema": {"spec": {"service": 1}}}],
                "conversion": {"strategy": "Webhook", "webhook": {
                    "clientConfig": client("shop", "convert"), "conversionReviewVersions": ["v1"]}}}}),
            services: &[("shop", "convert")],
        },
        Row { name: "no conversion", object: json!({"spec": {"conversion": {"strategy": "None"}}}), services: &[] },
        Row {
            name: "a reference without a name",
            object: json!({"spec": {"service": {"namespace": "shop"}}}),
            services: &[],
        },
        Row { name: "an empty object", object: json!({}), services: &[] },
    ];
    for mut row in rows {
        let expected = row.services.iter().map(|(namespace, name)| ServiceKey::new(*namespace, *name));
        let services: BTreeSet<ServiceKey> = Calls::of(&row.object).services.into_keys().collect();
        assert_eq!(services, expected.collect(), "{}", row.name);
        row.object["metadata"] = json!({"name": "a"});
        let object = watched(&kind("APIService"), &row.object);
        assert_eq!(Calls::of(&object).services.len(), row.services.len(), "{}: out of a watch", row.name);
    }
}

/// The webhook of `shop/hook` with these fields, as the watch shows its configuration `hooks`.
fn hooks(fields: &Value) -> Value {
    let mut webhook = json!({
        "name": "hook.example.org", "failurePolicy": "Fail",
        "clientConfig": {"caBundle": "LS0t", "service": {"namespace": "shop", "name": "hook"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["services"],
                   "scope": "*"}],
        "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "timeoutSeconds": 10,
    });
    json_patch::merge(&mut webhook, fields);
    watched(&kind(MUTATING), &json!({"metadata": {"name": "hooks"}, "webhooks": [webhook]}))
}

#[test]
fn webhook_blocks_the_move_of_its_own_service_if_it_may_receive_a_request_of_the_move() {
    struct Case {
        name: &'static str,
        /// The fields of the webhook that differ.
        webhook: Value,
        /// Whether it blocks a move that writes the Service alone, and one that also writes a temporary Service.
        expected: [bool; 2],
    }
    let always = [true, true];
    let rule = |group: &str, resource: &str, operation: &str| {
        json!({"rules": [
            {"apiGroups": ["apps"], "operations": ["*"], "resources": ["*"]},
            {"apiGroups": [group], "operations": [operation], "resources": ["pods", resource]},
        ]})
    };
    let condition = |expression: &str| json!({"matchConditions": [{"name": "a", "expression": expression}]});
    let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let of_namespaces = |selector: Value| json!({"namespaceSelector": selector});
    let of_objects = |selector: Value| json!({"objectSelector": selector});
    let name = "kubernetes.io/metadata.name";
    let outside = || of_namespaces(expression(name, "NotIn", json!(["shop", "own"])));
    let with_rule = |mut webhook: Value, rule: Value| {
        json_patch::merge(&mut webhook, &rule);
        webhook
    };
    let cases = [
        Case { name: "updates", webhook: json!({}), expected: always },
        Case { name: "by default", webhook: json!({"failurePolicy": null}), expected: always },
        Case { name: "fails open", webhook: json!({"failurePolicy": "Ignore"}), expected: [false, false] },
        Case { name: "without rules", webhook: json!({"rules": null}), expected: [false, false] },
        Case { name: "creates", webhook: rule("", "services", "CREATE"), expected: always },
        Case { name: "deletes", webhook: rule("*", "*", "DELETE"), expected: always },
        Case { name: "all", webhook: rule("*", "*/*", "*"), expected: always },
        Case { name: "with subresources", webhook: rule("", "services/*", "*"), expected: always },
        Case { name: "a subresource", webhook: rule("", "services/status", "*"), expected: [false, false] },
        Case { name: "connections", webhook: rule("", "services", "CONNECT"), expected: [false, false] },
        Case { name: "of Knative", webhook: rule("serving.knative.dev", "services", "*"), expected: [false, false] },
        Case { name: "a condition", webhook: condition("object.metadata.name != 'hook'"), expected: always },
        Case { name: "never", webhook: condition("false"), expected: [false, false] },
        Case { name: "its namespace is excluded", webhook: outside(), expected: [false, false] },
        Case {
            name: "only its namespace is excluded",
            webhook: of_namespaces(expression(name, "NotIn", json!(["shop"]))),
            expected: [false, true],
        },
        Case {
            name: "an unreadable selector",
            webhook: of_namespaces(expression(name, "Near", json!(["own"]))),
            expected: always,
        },
        Case {
            name: "its labels are excluded",
            webhook: of_objects(expression("app", "DoesNotExist", Value::Null)),
            expected: [false, true],
        },
        Case {
            name: "its labels",
            webhook: of_objects(json!({"matchLabels": {"app": "hook"}})),
            expected: [true, true],
        },
        Case {
            name: "labels that neither has",
            webhook: of_objects(json!({"matchLabels": {"app": "other"}})),
            expected: [false, false],
        },
        Case {
            name: "addresses, whatever its selectors exclude",
            webhook: with_rule(outside(), rule("networking.k8s.io", "ipaddresses", "CREATE")),
            expected: always,
        },
        Case {
            name: "other addresses",
            webhook: with_rule(outside(), rule("example.org", "ipaddresses", "CREATE")),
            expected: [false, false],
        },
    ];
    let mut snapshot = Snapshot::default();
    for name in ["shop", "own"] {
        let metadata = json!({"name": name, "labels": {"kubernetes.io/metadata.name": name}});
        snapshot.insert(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }
    let service = |labels: Value| {
        StoredService::read(&json!({"metadata": {"namespace": "shop", "name": "hook", "labels": labels}}))
    };
    let temporary = [("own", [("temporary".to_owned(), "new".to_owned())].into())];
    let expected = |blocks: bool| {
        if blocks { vec![format!("webhook hook.example.org of {MUTATING} hooks")] } else { vec![] }
    };
    let services = listed();
    for Case { name, webhook, expected: [alone, with_temporary] } in cases {
        services.take(&kind(MUTATING), &hooks(&webhook));
        let blocking =
            |others| services.blocking_webhooks(&service(json!({"app": "hook"})), &snapshot, others).unwrap();
        assert_eq!(blocking(&[]), expected(alone), "{name}");
        assert_eq!(blocking(&temporary), expected(with_temporary), "{name}, with a temporary Service");
    }

    // What is not known counts as matching.
    let many: std::collections::BTreeMap<String, &str> = (0..MAX_LABELS).map(|at| (format!("a{at}"), "b")).collect();
    services.take(&kind(MUTATING), &hooks(&of_objects(json!({"matchLabels": {"z": "b"}}))));
    assert_eq!(
        services.blocking_webhooks(&service(json!(many)), &snapshot, &[]),
        Ok(expected(true)),
        "labels that were cut"
    );
    services.take(&kind(MUTATING), &hooks(&outside()));
    let empty = Snapshot::default();
    assert_eq!(
        services.blocking_webhooks(&service(json!({})), &empty, &[]),
        Ok(expected(true)),
        "an unknown Namespace"
    );
    services.failed(&kind("APIService"), "forbidden".to_owned());
    assert_eq!(services.blocking_webhooks(&service(json!({})), &snapshot, &[]), Ok(expected(false)), "no webhooks");
    services.failed(&kind(MUTATING), "forbidden".to_owned());
    let unknown = format!("it is not known whether the control plane calls it: {MUTATING} can't be read: forbidden");
    assert_eq!(services.blocking_webhooks(&service(json!({})), &snapshot, &[]), Err(unknown));
}

#[test]
fn webhooks_of_k2s_are_recognized_by_their_names() {
    let never = json!({"name": "never", "expression": " false\n"});
    let maybe = json!({"name": "maybe", "expression": "object.metadata.name != 'web'"});
    for (name, webhook, conditions, expected) in [
        ("of Services", "clusterip.k2s.io", json!([]), true),
        ("of workloads", "workload.clusterip.k2s.io", json!([]), true),
        ("with a condition", "clusterip.k2s.io", json!([maybe]), true),
        ("that is never called", "clusterip.k2s.io", json!([maybe, never]), false),
        ("of another domain", "myclusterip.k2s.io", json!([]), false),
        ("of this program", "services.clusterip-policy.io", json!([]), false),
        ("without a name", "", json!([]), false),
    ] {
        let object = json!({"metadata": {"name": "a"}, "webhooks": [{"name": webhook, "matchConditions": conditions}]});
        assert_eq!(Calls::of(&watched(&kind(MUTATING), &object)).chooses_addresses, expected, "{name}");
    }
}

#[test]
fn callers_are_found_until_their_references_are_gone() {
    let services = listed();
    let (validating, api) = (kind("ValidatingWebhookConfiguration"), kind("APIService"));
    let webhook = |name: &str, services: &[&str]| {
        let webhooks =
            services.iter().map(|service| json!({"clientConfig": {"service": {"namespace": "a", "name": service}}}));
        json!({"metadata": {"name": name}, "webhooks": webhooks.collect::<Vec<_>>()})
    };
    let called = |name: &str| {
        let callers = services.callers("a", name).unwrap();
        callers.iter().map(Caller::to_string).collect::<Vec<_>>().join(", ")
    };
    services.take(&validating, &webhook("one", &["hook", "other"]));
    services.take(&validating, &webhook("two", &["hook"]));
    services
        .take(&api, &json!({"metadata": {"name": "v1.x"}, "spec": {"service": {"namespace": "a", "name": "hook"}}}));
    let both = "ValidatingWebhookConfiguration one, ValidatingWebhookConfiguration two";
    assert_eq!(called("hook"), format!("APIService v1.x, {both}"));
    assert_eq!(called("other"), "ValidatingWebhookConfiguration one");
    assert_eq!(services.callers("b", "hook"), Ok(Vec::new()), "the name in another namespace");

    services.take(&validating, &webhook("one", &["other"]));
    assert_eq!(called("hook"), "APIService v1.x, ValidatingWebhookConfiguration two", "after a change");
    services.retain(&validating, |name| name == "one");
    assert_eq!(called("hook"), "APIService v1.x", "after a list without it");
    services.take(&api, &json!({"metadata": {"name": "v1.x"}}));
    services.take(&validating, &webhook("one", &[]));
    assert_eq!((called("hook").as_str(), called("other").as_str()), ("", ""));
    assert!(services.0.callers.lock().is_empty(), "nothing is left behind");
}

#[test]
fn webhooks_of_other_programs_are_known_until_they_are_gone_or_never_called() {
    let services = listed();
    let names = services.other_webhooks();
    let (mutating, validating) = (kind(MUTATING), kind("ValidatingWebhookConfiguration"));
    let configuration = |name: &str, expression: &str| {
        json!({"metadata": {"name": name}, "webhooks": [
            {"name": "other.example.com", "clientConfig": {"url": "https://example.com"}},
            {"name": "clusterip.k2s.io", "matchConditions": [{"name": "a", "expression": expression}]},
        ]})
    };
    let known = || names.borrow().iter().cloned().collect::<Vec<_>>().join(" ");
    services.take(&validating, &configuration("validating", "true"));
    assert_eq!(known(), "", "a webhook that changes nothing");
    services.take(&mutating, &configuration("k2s-webhook", "true"));
    services.take(&mutating, &configuration("k2s", "true"));
    services.take(&mutating, &configuration("never", "false"));
    assert_eq!(known(), "k2s k2s-webhook");
    services.take(&mutating, &configuration("k2s", "false"));
    assert_eq!(known(), "k2s-webhook", "after a change");
    services.retain(&validating, |_| false);
    assert_eq!(known(), "k2s-webhook", "after a list of another kind");
    services.retain(&mutating, |name| name == "k2s");
    assert_eq!(known(), "", "after a list without it");

    assert_eq!(services.unknown_webhooks(), None);
    services.failed(&validating, "forbidden".to_owned());
    assert_eq!(services.unknown_webhooks(), None, "of another kind");
    services.failed(&mutating, "forbidden".to_owned());
    assert_eq!(services.unknown_webhooks().as_deref(), Some("forbidden"));
    assert_eq!(ControlPlaneServices::default().unknown_webhooks(), None, "not requested");
}

#[test]
fn callers_are_unknown_until_every_kind_is_listed() {
    let services = ControlPlaneServices::default();
    let reason = |services: &ControlPlaneServices| services.callers("a", "b").unwrap_err();
    assert!(reason(&services).ends_with("APIService was not listed; CustomResourceDefinition was not listed"));
    let crds = kind("CustomResourceDefinition");
    kinds::callers().filter(|kind| *kind != crds).for_each(|kind| services.listed(&kind));
    let expected = "it is not known whether the control plane calls it: CustomResourceDefinition was not listed";
    assert_eq!(reason(&services), expected);
    services.failed(&crds, "forbidden".to_owned());
    assert!(reason(&services).ends_with("CustomResourceDefinition can't be read: forbidden"));
    assert!(!services.complete());
    services.listed(&crds);
    assert_eq!(services.callers("a", "b"), Ok(Vec::new()));
    assert!(services.complete());
}

#[test]
fn a_message_names_at_most_three_callers() {
    let callers = |count: usize| {
        let caller = |number: usize| Caller { kind: "APIService".to_owned(), name: format!("v{number}.x") };
        (1..=count).map(caller).collect::<Vec<_>>()
    };
    let rows = [
        (1, "called by APIService v1.x"),
        (3, "called by APIService v1.x, APIService v2.x, APIService v3.x"),
        (60, "called by APIService v1.x, APIService v2.x, APIService v3.x and 57 more"),
    ];
    for (count, expected) in rows {
        assert_eq!(called_by(&callers(count)), expected);
    }
}
