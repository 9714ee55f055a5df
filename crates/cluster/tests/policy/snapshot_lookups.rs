//! The native host answers look-ups of a snapshot exactly as Kubewarden does.

use clusterip_cluster::policy::host_calls::HostCall;
use serde_json::{Value, json};

use crate::support::snapshots::{ask, ask_complete, complete, deployment, get, list_all, list_of, service, split};

fn list_selected(labels: Option<&str>, fields: Option<&str>) -> HostCall {
    let own = |text: Option<&str>| text.map(str::to_owned);
    let (api_version, kind) = split("apps/v1/Deployment");
    let (label_selector, field_selector) = (own(labels), own(fields));
    HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks: None }
}

#[test]
fn list_contains_the_latest_objects_of_its_kind_and_namespace_in_their_order() {
    let (b, office, of_other) = (deployment("shop", "b"), deployment("office", "z"), deployment("shop-2", "b"));
    let mut a = deployment("shop", "a");
    a["spec"] = json!({"replicas": 2});
    let other_kind =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "shop", "name": "c"}});
    let other_group =
        json!({"apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "d"}});
    let objects = [&b, &deployment("shop", "a"), &a, &of_other, &office, &other_kind, &other_group].map(Value::clone);
    for (name, call, kind, items) in [
        (
            "every namespace",
            list_all("apps/v1/Deployment", None),
            "apps/v1/Deployment",
            json!([office, a, b, of_other]),
        ),
        ("one namespace", list_of("apps/v1/Deployment", "shop"), "apps/v1/Deployment", json!([a, b])),
        ("a namespace without any", list_of("apps/v1/Deployment", "none"), "apps/v1/Deployment", json!([])),
        ("another kind", list_all("apps/v1/StatefulSet", None), "apps/v1/StatefulSet", json!([other_kind])),
        (
            "another group",
            list_all("example.com/v1/Deployment", None),
            "example.com/v1/Deployment",
            json!([other_group]),
        ),
        ("a kind without objects", list_all("batch/v1/Job", None), "batch/v1/Job", json!([])),
    ] {
        let (api_version, kind) = split(kind);
        let list = json!({"apiVersion": api_version, "kind": kind + "List", "metadata": {}, "items": items});
        assert_eq!(ask(&objects, &call), Ok(list), "{name}");
    }
}

#[test]
fn selectors_are_refused() {
    for (labels, fields) in [(Some("app=web"), None), (None, Some("metadata.name=b"))] {
        let error = ask(&[deployment("shop", "a")], &list_selected(labels, fields)).unwrap_err();
        assert_eq!(error, "look-ups with selectors are not answered");
    }
}

#[test]
fn errors_have_the_words_of_kubewarden() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let objects = [deployment("shop", "a"), node.clone()];
    for (name, call, expected) in [
        (
            "an object of another namespace",
            get("apps/v1/Deployment", Some("office"), "a", None),
            Err("Cannot find apps/v1/Deployment named 'a' inside of namespace 'Some(\"office\")'"),
        ),
        (
            "a Node that is not there",
            get("v1/Node", None, "n2", None),
            Err("Cannot find v1/Node named 'n2' inside of namespace 'None'"),
        ),
        ("a Node", get("v1/Node", None, "n1", None), Ok(node.clone())),
        ("a Node, as if it had a namespace", get("v1/Node", Some("shop"), "n1", None), Ok(node)),
        (
            "a namespaced kind without a namespace",
            get("apps/v1/Deployment", None, "a", None),
            Err("Resource apps/v1/Deployment is namespaced, but no namespace was provided"),
        ),
        (
            "a cluster-wide kind in a namespace",
            list_of("v1/Node", "shop"),
            Err("resource v1/Node is cluster wide. Cannot search for it inside of a namespace"),
        ),
    ] {
        assert_eq!(ask(&objects, &call), expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn missing_kind_fails_every_look_up() {
    for resource in ["apps/v1/Deployment", "networking.k8s.io/v1/IPAddress"] {
        for call in [
            list_all(resource, None),
            list_of(resource, "shop"),
            get(resource, None, "10.0.0.1", None),
            get(resource, Some("shop"), "a", None),
        ] {
            let mut objects = complete(&[deployment("shop", "a"), service("a", &["10.0.0.1"])]);
            let (api_version, kind) = split(resource);
            objects.remove_api(&api_version, &kind);
            let expected = Err(format!("Cannot find resource {resource}"));
            assert_eq!(ask_complete(&objects, &call), expected, "{call:?}");
        }
    }
}
