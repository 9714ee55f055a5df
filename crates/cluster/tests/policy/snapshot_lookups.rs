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
fn list_contains_objects_ordered_by_namespace_and_name() {
    let (b, a, office) = (deployment("shop", "b"), deployment("shop", "a"), deployment("office", "z"));
    let expected = json!({
        "apiVersion": "apps/v1",
        "kind": "DeploymentList",
        "metadata": {},
        "items": [office.clone(), a.clone(), b.clone()],
    });
    assert_eq!(ask(&[b, a, office], &list_all("apps/v1/Deployment", None)), Ok(expected));
}

#[test]
fn list_contains_only_its_kind_and_namespace() {
    struct Case {
        name: &'static str,
        call: HostCall,
        items: Vec<Value>,
    }
    let other_kind =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "shop", "name": "c"}});
    let other_group =
        json!({"apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "d"}});
    let (a, b) = (deployment("shop", "a"), deployment("shop-2", "b"));
    let objects = [a.clone(), b.clone(), other_kind.clone(), other_group.clone()];
    let rows = [
        Case { name: "every namespace", call: list_all("apps/v1/Deployment", None), items: vec![a.clone(), b.clone()] },
        Case { name: "one namespace", call: list_of("apps/v1/Deployment", "shop"), items: vec![a.clone()] },
        Case {
            name: "a namespace with the same prefix",
            call: list_of("apps/v1/Deployment", "shop-2"),
            items: vec![b],
        },
        Case { name: "a namespace without any", call: list_of("apps/v1/Deployment", "office"), items: vec![] },
        Case { name: "another kind", call: list_all("apps/v1/StatefulSet", None), items: vec![other_kind] },
        Case {
            name: "the kind of another group",
            call: list_all("example.com/v1/Deployment", None),
            items: vec![other_group],
        },
        Case { name: "a kind without objects", call: list_all("batch/v1/Job", None), items: vec![] },
    ];
    for Case { name, call, items } in rows {
        assert_eq!(ask(&objects, &call).unwrap()["items"], Value::from(items), "{name}");
    }
}

#[test]
fn inserting_an_object_again_replaces_it() {
    let mut newer = deployment("shop", "a");
    newer["spec"] = json!({"replicas": 2});
    let answer = ask(&[deployment("shop", "a"), newer.clone()], &list_all("apps/v1/Deployment", None)).unwrap();
    assert_eq!(answer["items"], json!([newer]));
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
    struct Case {
        name: &'static str,
        call: HostCall,
        expected: Result<Value, &'static str>,
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let objects = [deployment("shop", "a"), node.clone()];
    let rows = [
        Case {
            name: "an object that is not there",
            call: get("apps/v1/Deployment", Some("shop"), "b", None),
            expected: Err("Cannot find apps/v1/Deployment named 'b' inside of namespace 'Some(\"shop\")'"),
        },
        Case {
            name: "an object of another namespace",
            call: get("apps/v1/Deployment", Some("office"), "a", None),
            expected: Err("Cannot find apps/v1/Deployment named 'a' inside of namespace 'Some(\"office\")'"),
        },
        Case {
            name: "a Node that is not there",
            call: get("v1/Node", None, "n2", None),
            expected: Err("Cannot find v1/Node named 'n2' inside of namespace 'None'"),
        },
        Case { name: "a Node", call: get("v1/Node", None, "n1", None), expected: Ok(node.clone()) },
        Case {
            name: "a Node, as if it had a namespace",
            call: get("v1/Node", Some("shop"), "n1", None),
            expected: Ok(node.clone()),
        },
        Case {
            name: "a namespaced kind without a namespace",
            call: get("apps/v1/Deployment", None, "a", None),
            expected: Err("Resource apps/v1/Deployment is namespaced, but no namespace was provided"),
        },
        Case {
            name: "a cluster-wide kind in a namespace",
            call: list_of("v1/Node", "shop"),
            expected: Err("resource v1/Node is cluster wide. Cannot search for it inside of a namespace"),
        },
    ];
    for Case { name, call, expected } in rows {
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
