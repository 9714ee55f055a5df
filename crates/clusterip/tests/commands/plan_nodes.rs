//! Runs `clusterip plan` of Nodes as a user does. The whole outputs for the example are tested in `plan.rs`.

use crate::audit_nodes::node;
use crate::command::{Done, Folder, documents, service_cidr, snapshot_of};
use serde_json::{Value, json};

/// Two pools for Nodes, none for Services.
const SETTINGS: &str = "
services: {serviceCIDRs: []}
nodes:
  pools:
  - {name: windows, cidrs: [10.1.0.0/23], match: {os: windows}}
  - {name: linux, cidrs: [10.0.0.0/21], match: {os: linux}}
";

/// Each Node as its name, its decision, its pool, its blocks and its messages.
fn told(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let list = |value: &Value, with: &str| value.as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(with);
    let line = |row: &Value| {
        let [name, decision, pool, message] = ["name", "decision", "pool", "message"].map(|key| text(&row[key]));
        let said = [message, list(&row["warnings"], "; ")].join("; ");
        format!("{name} {decision} {pool} {} | {}", list(&row["podCIDRs"], ","), said.trim_end_matches("; "))
    };
    done.json()["nodes"].as_array().unwrap().iter().map(line).collect()
}

#[test]
fn nodes_are_planned_one_after_the_other_beside_those_of_the_cluster() {
    struct Case {
        name: &'static str,
        cluster: Vec<Value>,
        manifests: Vec<Value>,
        expected: &'static [&'static str],
    }
    let generated = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"generateName": "linux-", "labels": {"kubernetes.io/os": "linux"}}});
    let mut own_generated = generated.clone();
    own_generated["spec"] = json!({"podCIDR": "10.0.3.0/24", "podCIDRs": ["10.0.3.0/24"]});
    let new = |name, os| node(name, os, &[]);
    let cases = [
        Case {
            name: "blocks in order, without those of other Nodes and of the Service range, until the pool is full",
            cluster: vec![],
            manifests: vec![
                new("a", "linux"),
                new("b", "linux"),
                node("c", "linux", &["10.0.1.0/24"]),
                new("d", "windows"),
                new("e", "windows"),
                new("f", "windows"),
                service_cidr("kubernetes", "10.0.2.0/24", json!({})),
            ],
            expected: &[
                "a allocated linux 10.0.0.0/24 | -",
                "b allocated linux 10.0.3.0/24 | -",
                "c unchanged linux 10.0.1.0/24 | not set by this policy",
                "d allocated windows 10.1.0.0/24 | -",
                "e allocated windows 10.1.1.0/24 | -",
                "f denied windows  | Node f: pool \"windows\" (10.1.0.0/23) is full: no block of /24 is free; chosen by \
                 kubernetes.io/os=windows (Node f); add a range to the pool, or delete Nodes that no longer exist",
            ],
        },
        Case {
            name: "Nodes of the cluster keep their blocks, or get some",
            cluster: vec![
                node("there", "linux", &["10.0.0.0/24"]),
                node("other", "linux", &["10.0.1.0/24"]),
                new("without", "linux"),
            ],
            manifests: vec![new("a", "linux"), new("there", "linux"), new("without", "linux")],
            expected: &[
                "a allocated linux 10.0.2.0/24 | -",
                "there unchanged - 10.0.0.0/24 | no new pod CIDR",
                "without allocated linux 10.0.3.0/24 | -",
            ],
        },
        Case {
            name: "the same Node twice",
            cluster: vec![],
            manifests: vec![
                new("a", "linux"),
                new("a", "linux"),
                node("b", "linux", &["10.0.1.0/24"]),
                new("b", "linux"),
                node("c", "linux", &["10.0.1.0/24"]),
                new("d", "linux"),
            ],
            expected: &[
                "a allocated linux 10.0.0.0/24 | -",
                "a unchanged - 10.0.0.0/24 | no new pod CIDR; the same Node as in in.yaml: document 1, line 1",
                "b unchanged linux 10.0.1.0/24 | not set by this policy; 10.0.1.0/24 overlaps 10.0.1.0/24 of Node c",
                "b unchanged - 10.0.1.0/24 | no new pod CIDR; the same Node as in in.yaml: document 3, line 5",
                "c unchanged linux 10.0.1.0/24 | not set by this policy; 10.0.1.0/24 overlaps 10.0.1.0/24 of Node b",
                "d allocated linux 10.0.2.0/24 | -",
            ],
        },
        Case {
            name: "generated names",
            cluster: vec![],
            manifests: vec![generated.clone(), own_generated, generated],
            expected: &[
                "linux-… allocated linux 10.0.0.0/24 | -",
                "linux-… unchanged linux 10.0.3.0/24 | not set by this policy",
                "linux-… allocated linux 10.0.1.0/24 | -",
            ],
        },
    ];
    let folder = Folder::new("plan-nodes");
    folder.write("settings.yaml", SETTINGS);
    for Case { name, cluster, manifests, expected } in cases {
        folder.write("there.json", snapshot_of(&cluster)).write("in.yaml", documents(&manifests));
        let done = folder.clusterip("plan in.yaml -s settings.yaml --snapshot there.json -o json");
        assert_eq!(told(&done), expected, "{name}: {done:?}");
        let count = |decision: &str| expected.iter().filter(|line| line.split(' ').nth(1) == Some(decision)).count();
        let [allocated, unchanged, denied] = ["allocated", "unchanged", "denied"].map(count);
        let summary = json!({"allocated": allocated, "unchanged": unchanged, "denied": denied});
        assert_eq!((done.status, &done.json()["summary"]["nodes"]), (i32::from(denied > 0), &summary), "{name}");
    }
}

#[test]
fn table_has_only_sections_with_objects() {
    struct Case {
        name: &'static str,
        objects: Value,
        expected: &'static str,
    }
    let folder = Folder::new("plan-nodes-table");
    folder.write("settings.yaml", SETTINGS);
    let rows = [
        Case {
            name: "Nodes alone",
            objects: node("a", "linux", &[]),
            expected: "\
NODE  BELONGS TO  BLOCKS       EVIDENCE
a     linux       10.0.0.0/24  os=linux (Node a)

1 Node: 1 allocated, 0 unchanged, 0 denied; windows 0 of 2 blocks used; linux 1 of 8 blocks used
",
        },
        Case {
            name: "Services alone",
            objects: json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}}),
            expected: "\
NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE
default    web      -           -           unchanged: the settings have no pool for Services

1 Service: 0 allocated, 1 unchanged, 0 denied
0 Nodes: 0 allocated, 0 unchanged, 0 denied; windows 0 of 2 blocks used; linux 0 of 8 blocks used
",
        },
        Case {
            name: "neither",
            objects: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
            expected: "\
NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE

0 Services: 0 allocated, 0 unchanged, 0 denied
",
        },
    ];
    for Case { name, objects, expected } in rows {
        assert_eq!(folder.piped("plan - -s settings.yaml", &objects.to_string()), Done::ok(expected), "{name}");
    }
}
