//! The chart renders the same objects as the kustomizations.

use deploy::{document, read};
use serde_json::{Value, json};

use super::support::{AGENTS, NAMESPACE, Objects, kustomized, objects, rendered};

/// Folders of `deploy`, and the values with which the chart renders the same objects.
struct Pair {
    name: &'static str,
    folders: Vec<&'static str>,
    values: Value,
}

fn pairs() -> Vec<Pair> {
    let settings = read("deploy/kubewarden/moves/settings.yaml").unwrap();
    let moves = json!({ "settings": document(&settings).unwrap(), "webhook": { "enabled": false } });
    let mut nodes = document(&read("deploy/nodes/settings.yaml").unwrap()).unwrap();
    // The chart adds the namespace of the release.
    nodes["services"]["exemptNamespaces"] = json!(["kube-system"]);
    let mut external = document(&read("deploy/external/settings.yaml").unwrap()).unwrap();
    // These settings have no exempt namespaces.
    external["services"] = Value::Null;
    let on = json!({ "enabled": true });
    let monitoring = json!({ "monitoring": { "podMonitor": on, "rules": on, "dashboard": on } });
    vec![
        Pair { name: "the defaults", folders: vec!["deploy/webhook"], values: json!({}) },
        Pair {
            name: "several replicas",
            folders: vec!["deploy/replicas"],
            values: json!({ "replicas": 3, "claims": "lease" }),
        },
        Pair { name: "with Nodes", folders: vec!["deploy/nodes"], values: json!({ "settings": nodes }) },
        Pair {
            name: "with external addresses",
            folders: vec!["deploy/external"],
            values: json!({ "settings": external }),
        },
        Pair { name: "beside Kubewarden", folders: vec!["deploy/kubewarden/moves"], values: moves },
        Pair { name: "with monitoring", folders: vec!["deploy/webhook", "deploy/monitoring"], values: monitoring },
    ]
}

/// The first difference, which is easier to read than both values.
fn difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    if left == right {
        return None;
    }
    match (left, right) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                difference(&format!("{path}.{key}"), &of(a), &of(b))
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(at, (a, b))| difference(&format!("{path}[{at}]"), a, b))
        }
        _ => Some(format!("{path}: helm has {left}, kustomize {right}")),
    }
}

#[track_caller]
fn assert_same(name: &str, rendered: &Objects, kustomized: &Objects) {
    assert!(!kustomized.is_empty(), "{name}: nothing to compare");
    assert_eq!(rendered.keys().collect::<Vec<_>>(), kustomized.keys().collect::<Vec<_>>(), "{name}");
    for (key, object) in kustomized {
        assert_eq!(difference(key, &rendered[key], object), None, "{name}");
    }
    assert_eq!(rendered, kustomized, "{name}");
}

#[test]
fn chart_renders_the_same_as_the_kustomizations() {
    for Pair { name, folders, values } in pairs() {
        assert_same(name, &rendered(NAMESPACE, &values).unwrap(), &kustomized(&folders));
    }
}

#[test]
fn chart_renders_the_same_in_another_namespace() {
    let moved = |text: &str| {
        text.replace(AGENTS, "addresses-agents")
            .replace(r#""namespace":"clusterip-policy""#, r#""namespace":"addresses""#)
            .replace("system:serviceaccount:clusterip-policy:", "system:serviceaccount:addresses:")
            .replace("namespace('clusterip-policy')", "namespace('addresses')")
            .replace(r#""--settings-namespace","clusterip-policy""#, r#""--settings-namespace","addresses""#)
            .replace("clusterip.clusterip-policy.svc", "clusterip.addresses.svc")
            .replace(r#"["kube-system","clusterip-policy"]"#, r#"["kube-system","addresses"]"#)
    };
    for Pair { name, folders, values } in pairs() {
        let expected = kustomized(&folders).into_values().map(|object| moved(&object.to_string()));
        let expected = objects(&expected.collect::<Vec<_>>().join("\n---\n"));
        assert_same(name, &rendered("addresses", &values).unwrap(), &expected);
    }
}
