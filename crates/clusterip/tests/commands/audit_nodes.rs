//! Runs `clusterip audit` of Nodes and their blocks as a user does, on snapshots. The whole output for the example is
//! tested in `audit.rs`.

use serde_json::{Value, json};

use crate::command::{Done, Folder, snapshot_of};

/// Two pools for Nodes; a Service range overlaps with the pool for Linux.
const SETTINGS: &str = "
services: {serviceCIDRs: [10.0.2.0/24]}
nodes:
  pools:
  - {name: windows, cidrs: [10.1.0.0/23], match: {os: windows}}
  - {name: linux, cidrs: [10.0.0.0/21, 'fd00::/62'], exclude: [10.0.3.128/25], match: {os: linux}}
";

fn node(name: &str, os: &str, blocks: &[&str]) -> Value {
    let mut node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": os}}});
    if let Some(first) = blocks.first() {
        node["spec"] = json!({"podCIDR": first, "podCIDRs": blocks});
    }
    node
}

fn audit(folder: &Folder, nodes: Vec<Value>, args: &[&str]) -> Done {
    folder.audit(SETTINGS, &nodes, args)
}

/// Each finding as its kind, its Node, its blocks, its pool and its message.
fn findings(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let line = |finding: &Value| {
        let blocks: Vec<String> = finding["blocks"].as_array().into_iter().flatten().map(text).collect();
        let [kind, node, pool, message] = ["kind", "node", "pool", "message"].map(|key| text(&finding[key]));
        format!("{kind} | {node} | {} | {pool} | {message}", blocks.join(","))
    };
    done.json()["findings"].as_array().unwrap().iter().map(line).collect()
}

struct Case {
    name: &'static str,
    nodes: Vec<Value>,
    expected: Vec<String>,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    for Case { name, nodes, expected } in rows {
        let done = audit(&folder, nodes, &["-o", "json"]);
        assert_eq!(done.status, 0, "{name}: {}", done.stderr);
        assert_eq!(findings(&done), expected, "{name}");
    }
}

/// The pool of the Linux Node `web`, and why.
const LINUX: &str = "pool linux (10.0.0.0/21, fd00::/62): kubernetes.io/os=linux (Node web)";

#[test]
fn node_without_a_block_or_with_one_outside_of_its_pool_is_a_finding() {
    check(
        "audit-nodes-places",
        vec![
            Case { name: "none", nodes: vec![], expected: vec![] },
            Case {
                name: "where it belongs",
                nodes: vec![node("web", "linux", &["10.0.1.0/24", "fd00::/64"])],
                expected: vec![],
            },
            Case {
                name: "no pool matches, and its block lies in none",
                nodes: vec![node("web", "darwin", &["10.9.0.0/24"])],
                expected: vec![],
            },
            Case {
                name: "no pool matches, and it has no block",
                nodes: vec![node("web", "darwin", &[])],
                expected: vec![],
            },
            Case {
                name: "without a block",
                nodes: vec![node("web", "linux", &[])],
                expected: vec![format!(
                    "no-block | web |  | linux | Node web: it has no block, and it belongs to {LINUX}"
                )],
            },
            Case {
                name: "in the wrong pool",
                nodes: vec![node("web", "linux", &["10.1.0.0/24"])],
                expected: vec![format!(
                    "wrong-node-pool | web | 10.1.0.0/24 | linux | Node web: 10.1.0.0/24 lies in pool windows \
                     (10.1.0.0/23), and it belongs to {LINUX}"
                )],
            },
            Case {
                name: "no pool matches, and its block lies in one",
                nodes: vec![node("web", "darwin", &["10.1.0.0/24"])],
                expected: vec![
                "wrong-node-pool | web | 10.1.0.0/24 | - | Node web: 10.1.0.0/24 lies in pool windows (10.1.0.0/23), \
                 and no pool \
                 of Nodes matches kubernetes.io/os=darwin"
                    .to_owned(),
            ],
            },
            Case {
                name: "one block outside of the pool, and one partly outside",
                nodes: vec![node("web", "linux", &["10.9.0.0/24", "fd00::/56"])],
                expected: vec![
                format!(
                    "outside-node-pool | web | 10.9.0.0/24 | linux | Node web: 10.9.0.0/24 lies in no pool, and it \
                     belongs to {LINUX}"
                ),
                format!(
                    "outside-node-pool | web | fd00::/56 | linux | Node web: fd00::/56 lies only partly in pool linux, \
                     and it belongs to {LINUX}"
                ),
                "full-node-pool | - |  | linux | node pool linux (fd00::/62) is full: Nodes have all 4 blocks of /64"
                    .to_owned(),
            ],
            },
        ],
    );
}

#[test]
fn shared_or_withheld_block_and_full_pool_are_findings() {
    check(
        "audit-nodes-blocks",
        vec![
            Case {
                name: "blocks with withheld addresses",
                nodes: vec![node("web", "linux", &["10.0.2.0/24"]), node("wide", "linux", &["10.0.3.0/24"])],
                expected: vec![
                "withheld-block | web | 10.0.2.0/24 | linux | Node web: 10.0.2.0/24 has addresses of the Service \
                 range 10.0.2.0/24"
                    .to_owned(),
                "withheld-block | wide | 10.0.3.0/24 | linux | Node wide: 10.0.3.0/24 has addresses of 10.0.3.128/25, \
                 which is \
                 excluded from its pool"
                    .to_owned(),
            ],
            },
            Case {
                name: "two Nodes with the same block, and one with a part of it",
                nodes: vec![
                    node("a", "linux", &["10.0.4.0/24"]),
                    node("b", "linux", &["10.0.4.0/24"]),
                    node("c", "linux", &["10.0.4.128/25"]),
                ],
                expected: vec![
                "shared-block | a | 10.0.4.0/24 | linux | Node a: 10.0.4.0/24 has addresses of 10.0.4.0/24 of Node b, \
                 10.0.4.128/25 of Node c"
                    .to_owned(),
                "shared-block | b | 10.0.4.0/24 | linux | Node b: 10.0.4.0/24 has addresses of 10.0.4.0/24 of Node a, \
                 10.0.4.128/25 of Node c"
                    .to_owned(),
                "shared-block | c | 10.0.4.128/25 | linux | Node c: 10.0.4.128/25 has addresses of 10.0.4.0/24 of \
                 Node a, 10.0.4.0/24 of Node b"
                    .to_owned(),
            ],
            },
            Case {
                name: "a full pool with a range that is partly withheld, and a Node without a block",
                nodes: vec![
                    node("a", "linux", &["10.0.0.0/23"]),
                    node("b", "linux", &["10.0.4.0/22"]),
                    node("c", "linux", &[]),
                    node("d", "windows", &["10.1.0.0/24"]),
                ],
                expected: vec![
                "no-block | c |  | linux | Node c: it has no block, and it belongs to pool linux (10.0.0.0/21, \
                 fd00::/62): \
                 kubernetes.io/os=linux (Node c)"
                    .to_owned(),
                "full-node-pool | - |  | linux | node pool linux (10.0.0.0/21) is full: Nodes have all 6 blocks of \
                 /24, 2 more are \
                 never handed out"
                    .to_owned(),
            ],
            },
        ],
    );
}

#[test]
fn blocks_and_nodes_are_counted_and_listed() {
    let folder = Folder::new("audit-nodes-counted");
    let nodes = vec![
        node("a", "linux", &["10.0.1.0/24", "fd00:0:0:1::/64"]),
        node("b", "windows", &["10.0.0.0/24"]),
        node("c", "linux", &["10.0.2.0/24"]),
        node("d", "darwin", &["10.9.0.0/24"]),
        node("e", "linux", &[]),
    ];
    let block = |block: &str, state: &str, node: &str, os: &str| json!({"block": block, "state": state, "node": node, "pool": os, "evidence": format!("kubernetes.io/os={os} (Node {node})")});
    let expected = json!({
        "pools": [
            {"name": "windows", "ranges": [{
                "cidr": "10.1.0.0/23",
                "blockLength": 24,
                "counts": {"usable": 2, "used": 0, "free": 2, "withheld": 0, "usedAnyway": 0},
                "withheld": [],
                "blocks": [],
            }]},
            {"name": "linux", "ranges": [
                {
                    "cidr": "10.0.0.0/21",
                    "blockLength": 24,
                    "counts": {"usable": 6, "used": 2, "free": 4, "withheld": 2, "usedAnyway": 1},
                    "withheld": [
                        {"first": "10.0.2.0/24", "last": "10.0.2.0/24", "why": "serviceRange"},
                        {"first": "10.0.3.0/24", "last": "10.0.3.0/24", "why": "excluded"},
                    ],
                    "blocks": [
                        block("10.0.0.0/24", "misplaced", "b", "windows"),
                        block("10.0.1.0/24", "used", "a", "linux"),
                        block("10.0.2.0/24", "misplaced", "c", "linux"),
                    ],
                },
                {
                    "cidr": "fd00::/62",
                    "blockLength": 64,
                    "counts": {"usable": 4, "used": 1, "free": 3, "withheld": 0, "usedAnyway": 0},
                    "withheld": [],
                    "blocks": [block("fd00:0:0:1::/64", "used", "a", "linux")],
                },
            ]},
        ],
        "count": 5,
        "withBlocks": 4,
    });
    assert_eq!(audit(&folder, nodes, &["-o", "json"]).json()["nodes"], expected);
}

#[test]
fn audit_fails_only_for_the_selected_findings() {
    let folder = Folder::new("audit-nodes-fails");
    let rows = [
        ("shared-block", vec![node("a", "linux", &["10.0.0.0/24"]), node("b", "linux", &["10.0.0.0/24"])]),
        ("wrong-node-pool", vec![node("a", "linux", &["10.1.0.0/24"])]),
        ("outside-node-pool", vec![node("a", "linux", &["10.9.0.0/24"])]),
        ("withheld-block", vec![node("a", "linux", &["10.0.2.0/24"])]),
        ("no-block", vec![node("a", "linux", &[])]),
        ("full-node-pool", vec![node("a", "windows", &["10.1.0.0/24"]), node("b", "windows", &["10.1.1.0/24"])]),
    ];
    for (kind, nodes) in &rows {
        for (other, _) in &rows {
            let status = audit(&folder, nodes.clone(), &["--fail-on", other]).status;
            assert_eq!(status, i32::from(kind == other), "{kind}, on {other}");
        }
        assert_eq!(audit(&folder, nodes.clone(), &["--fail-on", "any"]).status, 1, "{kind}");
    }
}

#[test]
fn no_output_about_nodes_without_node_pools() {
    let folder = Folder::new("audit-nodes-none");
    let some =
        vec![node("a", "linux", &[]), node("b", "linux", &["172.21.0.0/24"]), node("c", "linux", &["172.21.0.0/24"])];
    let run = |nodes: Vec<Value>, output: &str| {
        folder.write("snapshot.json", snapshot_of(&nodes));
        folder.run(&["audit", "--snapshot", "snapshot.json", "-o", output])
    };
    // The map names the time of the audit.
    let undated = |done: Done| {
        let (before, after) = done.stdout.split_once(" · Audited: ").unwrap_or((done.stdout.as_str(), ""));
        let after = after.split_once(" UTC").map_or(after, |(_, after)| after);
        Done { stdout: format!("{before}{after}"), ..done.clone() }
    };
    for output in ["table", "wide", "name", "json", "html", "junit", "markdown"] {
        let one = run(vec![node("d", "linux", &[])], output);
        assert_eq!(undated(run(some.clone(), output)), undated(one), "-o {output}");
        assert!(!run(some.clone(), output).stdout.contains("\"nodes\""), "-o {output}");
    }
}
