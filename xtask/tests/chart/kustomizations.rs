//! The chart renders the same objects as the kustomizations.

use crate::files::{documents, read};
use serde_json::{Value, json};

use super::support::{AGENTS, kustomized, objects, rendered};

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
    let objects = documents(&read(file));
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
        Pair::new("the defaults", &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/webhook"], json!({})),
        Pair::new(
            "several replicas",
            &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/replicas"],
            json!({ "replicas": 3, "claims": "lease" }),
        ),
        Pair::new("with Nodes", &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/nodes"], nodes),
        Pair::new(
            "with external addresses",
            &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/external"],
            external,
        ),
        Pair::new("beside Kubewarden", &["deploy/kubewarden/moves"], moves),
        Pair::new("beside Kubewarden, with external addresses", &["deploy/kubewarden/external"], with_agents),
        Pair::new(
            "with monitoring",
            &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/webhook", "deploy/monitoring"],
            monitoring,
        ),
        Pair {
            components: vec!["deploy/seamless"],
            ..Pair::new(
                "with seamless moves",
                &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/webhook"],
                json!({ "moves": { "seamless": true } }),
            )
        },
        Pair {
            components: vec!["deploy/seamless", "deploy/renumbering"],
            ..Pair::new(
                "during a renumbering",
                &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/webhook"],
                json!({ "moves": { "seamless": true }, "renumbering": on }),
            )
        },
        Pair {
            components: vec!["deploy/load-balancers", "deploy/seamless"],
            ..Pair::new(
                "with all moves",
                &["deploy/api", "deploy/fence", "deploy/reservations", "deploy/replicas"],
                everything,
            )
        },
    ]
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
            .replace(r#""--server-namespace","clusterip-policy""#, r#""--server-namespace","addresses""#)
            .replace(r#"["kube-system","clusterip-policy"]"#, r#"["kube-system","addresses"]"#)
    };
    for Pair { name, folders, components, values } in pairs() {
        let expected = kustomized(&folders, &components).into_values().map(|object| moved(&object.to_string()));
        let expected = objects(&expected.collect::<Vec<_>>().join("\n---\n"));
        assert!(!expected.is_empty(), "{name}: nothing to compare");
        let found = rendered("addresses", &values).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        for (key, object) in &expected {
            assert_eq!(found[key], *object, "{name}: {key}");
        }
    }
}
