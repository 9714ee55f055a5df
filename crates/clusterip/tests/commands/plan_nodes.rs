//! Runs `clusterip plan` of Nodes as a user does. The whole outputs for the example are tested in `plan.rs`.

use crate::command::{Done, Folder, snapshot_of};
use serde_json::{Value, json};

/// Two pools for Nodes, none for Services.
const SETTINGS: &str = "
services: {serviceCIDRs: [10.0.2.0/24]}
nodes:
  pools:
  - {name: windows, cidrs: [10.1.0.0/23], match: {os: windows}}
  - {name: linux, cidrs: [10.0.0.0/21], match: {os: linux}}
";

fn node(name: &str, os: &str, blocks: &[&str]) -> Value {
    let mut node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": os}}});
    if let Some(first) = blocks.first() {
        node["spec"] = json!({"podCIDR": first, "podCIDRs": blocks});
    }
    node
}

fn documents(objects: &[Value]) -> String {
    objects.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// Each Node as its name, its decision, its pool, its blocks and its messages.
fn told(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let list = |value: &Value, with: &str| value.as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(with);
    let line = |row: &Value| {
        let [name, decision, pool, message] = ["name", "decision", "pool", "message"].map(|key| text(&row[key]));
        let said = [&row["warnings"]].map(|warnings| list(warnings, "; ")).concat();
        let said = if said.is_empty() { message } else { format!("{message}; {said}") };
        format!("{name} {decision} {pool} {} | {said}", list(&row["podCIDRs"], ","))
    };
    done.json()["nodes"].as_array().unwrap_or(&Vec::new()).iter().map(line).collect()
}

struct Case {
    name: &'static str,
    settings: String,
    cluster: Vec<Value>,
    manifests: Vec<Value>,
    status: i32,
    expected: Vec<&'static str>,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    for Case { name, settings, cluster, manifests, status, expected } in rows {
        let items = snapshot_of(&cluster);
        folder.write("settings.yaml", settings).write("there.json", items).write("in.yaml", documents(&manifests));
        let args = ["plan", "in.yaml", "-s", "settings.yaml", "--snapshot", "there.json", "-o", "json"];
        let done = folder.run(&args);
        assert_eq!(told(&done), expected, "{name}: {done:?}");
        assert_eq!(done.status, status, "{name}: {}", done.stderr);
        let count = |decision: &str| expected.iter().filter(|line| line.split(' ').nth(1) == Some(decision)).count();
        let summary =
            json!({"allocated": count("allocated"), "unchanged": count("unchanged"), "denied": count("denied")});
        assert_eq!(done.json()["summary"]["nodes"], summary, "{name}");
    }
}

#[test]
fn node_gets_the_next_block_of_its_pool() {
    let dual = "nodes: {pools: [{name: all, cidrs: ['fd00::/62', 10.0.0.0/16], blockSize: {ipv4: 25}}]}";
    let cidrs = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.0.0.0/24"]}});
    check(
        "plan-nodes-free",
        vec![
            Case {
                name: "blocks in order, without those of other Nodes and of the Service range",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![
                    node("a", "linux", &[]),
                    node("b", "linux", &[]),
                    node("c", "linux", &[]),
                    node("d", "windows", &[]),
                    node("e", "linux", &["10.0.1.0/24"]),
                ],
                status: 0,
                expected: vec![
                    "a allocated linux 10.0.0.0/24 | -",
                    "b allocated linux 10.0.3.0/24 | -",
                    "c allocated linux 10.0.4.0/24 | -",
                    "d allocated windows 10.1.0.0/24 | -",
                    "e unchanged linux 10.0.1.0/24 | not set by this policy",
                ],
            },
            Case {
                name: "the Service range of a ServiceCIDR",
                settings: SETTINGS.replace("[10.0.2.0/24]", "[]"),
                cluster: vec![],
                manifests: vec![node("a", "linux", &[]), cidrs],
                status: 0,
                expected: vec!["a allocated linux 10.0.1.0/24 | -"],
            },
            Case {
                name: "no pool matches",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![node("a", "darwin", &[])],
                status: 0,
                expected: vec!["a unchanged -  | no pool of Nodes matches kubernetes.io/os=darwin"],
            },
            Case {
                name: "full",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![node("a", "windows", &[]), node("b", "windows", &[]), node("c", "windows", &[])],
                status: 1,
                expected: vec![
                    "a allocated windows 10.1.0.0/24 | -",
                    "b allocated windows 10.1.1.0/24 | -",
                    "c denied windows  | Node c: pool \"windows\" (10.1.0.0/23) is full: no block of /24 is free; \
                     chosen by kubernetes.io/os=windows (Node c); add a range to the pool, or delete Nodes that no \
                     longer exist",
                ],
            },
            Case {
                name: "two families, in the order of the ranges",
                settings: dual.to_owned(),
                cluster: vec![],
                manifests: vec![node("a", "linux", &[]), node("b", "windows", &[])],
                status: 0,
                expected: vec![
                    "a allocated all fd00::/64,10.0.0.0/25 | -",
                    "b allocated all fd00:0:0:1::/64,10.0.0.128/25 | -",
                ],
            },
        ],
    );
}

#[test]
fn nodes_of_the_cluster_keep_their_blocks() {
    check(
        "plan-nodes-cluster",
        vec![
            Case {
                name: "blocks of Nodes of the cluster are occupied, and these Nodes keep them",
                settings: SETTINGS.to_owned(),
                cluster: vec![node("there", "linux", &["10.0.0.0/24"]), node("other", "linux", &["10.0.1.0/24"])],
                manifests: vec![node("a", "linux", &[]), node("there", "linux", &[])],
                status: 0,
                expected: vec!["a allocated linux 10.0.3.0/24 | -", "there unchanged - 10.0.0.0/24 | no new pod CIDR"],
            },
            Case {
                name: "a Node of the cluster without a block gets one",
                settings: SETTINGS.to_owned(),
                cluster: vec![node("there", "linux", &[])],
                manifests: vec![node("there", "linux", &[])],
                status: 0,
                expected: vec!["there allocated linux 10.0.0.0/24 | -"],
            },
        ],
    );
}

#[test]
fn wrong_blocks_are_treated_as_explicit_says() {
    let explicit = |explicit: &str| format!("{SETTINGS}  explicit: {explicit}\n");
    check(
        "plan-nodes-explicit",
        vec![
            Case {
                name: "wrong blocks, with a warning",
                settings: SETTINGS.to_owned(),
                cluster: vec![node("there", "linux", &["10.0.5.0/24"])],
                manifests: vec![
                    node("a", "linux", &["10.1.0.0/24"]),
                    node("b", "linux", &["10.0.5.0/25"]),
                    node("c", "linux", &["10.0.2.0/24"]),
                ],
                status: 0,
                expected: vec![
                    "a unchanged linux 10.1.0.0/24 | not set by this policy; 10.1.0.0/24 lies in pool \"windows\", expected \
                     pool \"linux\": kubernetes.io/os=linux (Node a)",
                    "b unchanged linux 10.0.5.0/25 | not set by this policy; 10.0.5.0/25 overlaps 10.0.5.0/24 of Node there",
                    "c unchanged linux 10.0.2.0/24 | not set by this policy; 10.0.2.0/24 overlaps the Service range \
                     10.0.2.0/24",
                ],
            },
            Case {
                name: "wrong blocks, denied",
                settings: explicit("deny"),
                cluster: vec![],
                manifests: vec![node("a", "linux", &["10.1.0.0/24"]), node("b", "linux", &["10.0.5.0/24"])],
                status: 1,
                expected: vec![
                    "a denied linux  | Node a: 10.1.0.0/24 lies in pool \"windows\", expected pool \"linux\": \
                     kubernetes.io/os=linux (Node a); omit podCIDR and podCIDRs, or use a free block of the Node's \
                     pool",
                    "b unchanged linux 10.0.5.0/24 | not set by this policy",
                ],
            },
            Case {
                name: "wrong blocks, allowed",
                settings: explicit("allow"),
                cluster: vec![],
                manifests: vec![node("a", "linux", &["10.1.0.0/24"])],
                status: 0,
                expected: vec!["a unchanged - 10.1.0.0/24 | not set by this policy"],
            },
        ],
    );
}

#[test]
fn repeated_node_is_updated_and_generated_names_are_distinct_nodes() {
    let generated = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"generateName": "linux-", "labels": {"kubernetes.io/os": "linux"}}});
    let own_generated = {
        let mut node = generated.clone();
        node["spec"] = json!({"podCIDR": "10.0.3.0/24", "podCIDRs": ["10.0.3.0/24"]});
        node
    };
    check(
        "plan-nodes-names",
        vec![
            Case {
                name: "the same Node twice",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![node("a", "linux", &[]), node("a", "linux", &[]), node("b", "linux", &[])],
                status: 0,
                expected: vec![
                    "a allocated linux 10.0.0.0/24 | -",
                    "a unchanged - 10.0.0.0/24 | no new pod CIDR; the same Node as in in.yaml: document 1, line 1",
                    "b allocated linux 10.0.1.0/24 | -",
                ],
            },
            Case {
                name: "the same Node twice, with a block only in the first manifest",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![
                    node("a", "linux", &["10.0.0.0/24"]),
                    node("a", "linux", &[]),
                    node("b", "linux", &["10.0.0.0/24"]),
                    node("c", "linux", &[]),
                ],
                status: 0,
                expected: vec![
                    "a unchanged linux 10.0.0.0/24 | not set by this policy; 10.0.0.0/24 overlaps 10.0.0.0/24 of Node b",
                    "a unchanged - 10.0.0.0/24 | no new pod CIDR; the same Node as in in.yaml: document 1, line 1",
                    "b unchanged linux 10.0.0.0/24 | not set by this policy; 10.0.0.0/24 overlaps 10.0.0.0/24 of Node a",
                    "c allocated linux 10.0.1.0/24 | -",
                ],
            },
            Case {
                name: "generated names",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![generated.clone(), own_generated, generated],
                status: 0,
                expected: vec![
                    "linux-… allocated linux 10.0.0.0/24 | -",
                    "linux-… unchanged linux 10.0.3.0/24 | not set by this policy",
                    "linux-… allocated linux 10.0.1.0/24 | -",
                ],
            },
        ],
    );
}

#[test]
fn no_output_about_nodes_without_node_pools() {
    let folder = Folder::new("plan-nodes-none");
    folder.write("in.yaml", documents(&[node("a", "linux", &[]), node("b", "linux", &["10.0.0.0/24"])]));
    let expected = "NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE

0 Services: 0 allocated, 0 unchanged, 0 denied; windows \
                    0 of 205 used; linux 0 of 205 used
";
    assert_eq!(folder.run(&["plan", "in.yaml"]), Done::ok(expected));
    let pool = |name: &str| json!({"name": name, "family": "IPv4", "used": 0, "usable": 205});
    let expected = json!({
        "services": [],
        "pools": {"services": [pool("windows"), pool("linux")]},
        "summary": {"allocated": 0, "unchanged": 0, "denied": 0},
    });
    assert_eq!(folder.run(&["plan", "in.yaml", "-o", "json"]).json(), expected);
}

#[test]
fn table_has_only_sections_with_objects() {
    struct Case {
        name: &'static str,
        objects: Vec<Value>,
        expected: &'static str,
    }
    let folder = Folder::new("plan-nodes-table");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}});
    let rows = [
        Case {
            name: "Nodes alone",
            objects: vec![node("a", "linux", &[])],
            expected: "NODE  BELONGS TO  BLOCKS       EVIDENCE
a     linux       10.0.0.0/24  os=linux (Node a)

1 Node: 1 \
                       allocated, 0 unchanged, 0 denied; windows 0 of 2 blocks used; linux 1 of 8 blocks used
",
        },
        Case {
            name: "Services alone",
            objects: vec![service],
            expected: "NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE
default    web      -           -           unchanged: the \
                       settings have no pool for Services

1 Service: 0 allocated, 1 unchanged, 0 denied
0 Nodes: 0 \
                       allocated, 0 unchanged, 0 denied; windows 0 of 2 blocks used; linux 0 of 8 blocks used
",
        },
        Case {
            name: "neither",
            objects: vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})],
            expected: "NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE

0 Services: 0 allocated, 0 unchanged, 0 denied
",
        },
    ];
    for Case { name, objects, expected } in rows {
        let settings = SETTINGS.replace("[10.0.2.0/24]", "[]");
        folder.write("settings.yaml", settings).write("in.yaml", documents(&objects));
        assert_eq!(folder.run(&["plan", "in.yaml", "-s", "settings.yaml"]), Done::ok(expected), "{name}");
    }
}
