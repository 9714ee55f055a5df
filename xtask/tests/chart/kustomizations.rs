//! The chart renders the same objects as the kustomizations.

use crate::deploy_files::{documents, read};
use serde_json::{Value, json};

use super::support::{AGENTS, Objects, kustomized, objects, rendered};

/// Folders of `deploy`, components on top of the last folder, and the values with which the chart renders the same
/// objects.
struct Pair {
    name: &'static str,
    folders: Vec<&'static str>,
    components: Vec<&'static str>,
    values: Value,
}

impl Pair {
    fn new(name: &'static str, folders: &[&'static str], values: Value) -> Self {
        Self { name, folders: folders.to_vec(), components: Vec::new(), values }
    }
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
    let everything = json!({ "moves": { "seamless": true, "loadBalancers": true }, "replicas": 3, "claims": "lease" });
    vec![
        Pair::new("the defaults", &["deploy/api", "deploy/fence", "deploy/webhook"], json!({})),
        Pair::new(
            "several replicas",
            &["deploy/api", "deploy/fence", "deploy/replicas"],
            json!({ "replicas": 3, "claims": "lease" }),
        ),
        Pair::new("with Nodes", &["deploy/api", "deploy/fence", "deploy/nodes"], nodes),
        Pair::new("with external addresses", &["deploy/api", "deploy/fence", "deploy/external"], external),
        Pair::new("beside Kubewarden", &["deploy/kubewarden/moves"], moves),
        Pair::new("beside Kubewarden, with external addresses", &["deploy/kubewarden/external"], with_agents),
        Pair::new(
            "with monitoring",
            &["deploy/api", "deploy/fence", "deploy/webhook", "deploy/monitoring"],
            monitoring,
        ),
        Pair {
            components: vec!["deploy/seamless"],
            ..Pair::new(
                "with seamless moves",
                &["deploy/api", "deploy/fence", "deploy/webhook"],
                json!({ "moves": { "seamless": true } }),
            )
        },
        Pair {
            components: vec!["deploy/load-balancers", "deploy/seamless"],
            ..Pair::new("with all moves", &["deploy/api", "deploy/fence", "deploy/replicas"], everything)
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

/// In another namespace than that of the kustomizations, so that the test also finds places in which a template keeps the
/// namespace of the kustomizations.
#[test]
fn chart_renders_the_same_as_the_kustomizations() {
    let moved = |text: &str| {
        text.replace(AGENTS, "addresses-agents")
            .replace(r#""namespace":"clusterip-policy""#, r#""namespace":"addresses""#)
            .replace("system:serviceaccount:clusterip-policy:", "system:serviceaccount:addresses:")
            .replace("namespace('clusterip-policy')", "namespace('addresses')")
            .replace("request.namespace == 'clusterip-policy'", "request.namespace == 'addresses'")
            .replace("clusterip.clusterip-policy.svc", "clusterip.addresses.svc")
            .replace(r#"["kube-system","clusterip-policy"]"#, r#"["kube-system","addresses"]"#)
    };
    for Pair { name, folders, components, values } in pairs() {
        let expected = kustomized(&folders, &components).into_values().map(|object| moved(&object.to_string()));
        let expected = objects(&expected.collect::<Vec<_>>().join("\n---\n"));
        assert_same(name, &rendered("addresses", &values).unwrap(), &expected);
    }
}
