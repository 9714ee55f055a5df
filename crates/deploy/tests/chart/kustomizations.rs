//! The chart renders the same objects as the kustomizations.

use deploy::{documents, read};
use serde_json::{Value, json};

use super::support::{AGENTS, NAMESPACE, Objects, kustomized, objects, rendered};

/// Folders of `deploy`, and the values with which the chart renders the same objects.
struct Pair {
    name: &'static str,
    folders: Vec<&'static str>,
    values: Value,
}

/// The objects of a kind in a file, as the values of the chart describe them: the name, and the fields of the spec.
fn pools(file: &str, kind: &str) -> Value {
    let objects = documents(&read(file).unwrap()).unwrap();
    let entries = objects.into_iter().filter(|object| object["kind"] == kind).map(|mut object| {
        let mut entry = object["spec"].take();
        entry["name"] = object["metadata"]["name"].take();
        entry
    });
    let entries: Vec<Value> = entries.collect();
    assert!(!entries.is_empty(), "{file} has no {kind}");
    Value::Array(entries)
}

fn pairs() -> Vec<Pair> {
    let nodes = json!({
        "pools": { "nodes": pools("deploy/nodes/pools.yaml", "NodeBlockPool") },
        "policy": { "nodes": { "explicit": "Warn" } },
    });
    let external = json!({
        "pools": { "services": [], "external": pools("deploy/external/pools.yaml", "ExternalPool") },
    });
    let moves = json!({ "webhook": { "enabled": false }, "kubewarden": { "policy": "clusterip-policy" } });
    let mut with_agents = moves.clone();
    with_agents["kubewarden"]["external"] = json!(true);
    let on = json!({ "enabled": true });
    let monitoring = json!({ "monitoring": { "podMonitor": on, "rules": on, "dashboard": on } });
    vec![
        Pair { name: "the defaults", folders: vec!["deploy/api", "deploy/webhook"], values: json!({}) },
        Pair {
            name: "several replicas",
            folders: vec!["deploy/api", "deploy/replicas"],
            values: json!({ "replicas": 3, "claims": "lease" }),
        },
        Pair { name: "with Nodes", folders: vec!["deploy/api", "deploy/nodes"], values: nodes },
        Pair { name: "with external addresses", folders: vec!["deploy/api", "deploy/external"], values: external },
        Pair { name: "beside Kubewarden", folders: vec!["deploy/kubewarden/moves"], values: moves },
        Pair {
            name: "beside Kubewarden, with external addresses",
            folders: vec!["deploy/kubewarden/external"],
            values: with_agents,
        },
        Pair {
            name: "with monitoring",
            folders: vec!["deploy/api", "deploy/webhook", "deploy/monitoring"],
            values: monitoring,
        },
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
            .replace("clusterip.clusterip-policy.svc", "clusterip.addresses.svc")
            .replace(r#"["kube-system","clusterip-policy"]"#, r#"["kube-system","addresses"]"#)
    };
    for Pair { name, folders, values } in pairs() {
        let expected = kustomized(&folders).into_values().map(|object| moved(&object.to_string()));
        let expected = objects(&expected.collect::<Vec<_>>().join("\n---\n"));
        assert_same(name, &rendered("addresses", &values).unwrap(), &expected);
    }
}
