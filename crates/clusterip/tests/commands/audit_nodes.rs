//! Runs `clusterip audit` of Nodes and their blocks as a user does, on a snapshot. The whole output for the example is
//! tested in `audit.rs`.

use serde_json::{Value, json};

use crate::command::{Folder, check_fail_on};

/// Two pools for Nodes; a Service range overlaps with the pool for Linux.
const SETTINGS: &str = "
services: {serviceCIDRs: [10.0.2.0/24]}
nodes:
  pools:
  - {name: windows, cidrs: [10.1.0.0/23], match: {os: windows}}
  - {name: linux, cidrs: [10.0.0.0/21, 'fd00::/62'], exclude: [10.0.3.128/25], match: {os: linux}}
";

pub fn node(name: &str, os: &str, blocks: &[&str]) -> Value {
    let mut node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": os}}});
    if let Some(first) = blocks.first() {
        node["spec"] = json!({"podCIDR": first, "podCIDRs": blocks});
    }
    node
}

#[test]
fn each_problem_of_nodes_and_their_pools_is_a_finding() {
    let folder = Folder::new("audit-nodes");
    let nodes = [
        node("right", "linux", &["10.0.1.0/24"]),
        node("unmatched", "darwin", &["10.9.0.0/24"]),
        node("unmatched-new", "darwin", &[]),
        node("new", "linux", &[]),
        node("wrong", "linux", &["10.1.0.0/24"]),
        node("unmatched-wrong", "darwin", &["10.1.1.0/24"]),
        node("outside", "linux", &["10.9.1.0/24", "fd00::/56"]),
        node("reserved", "linux", &["10.0.2.0/24"]),
        node("excluded", "linux", &["10.0.3.0/24"]),
        node("twin-a", "linux", &["10.0.4.0/24"]),
        node("twin-b", "linux", &["10.0.4.0/24"]),
        node("twin-part", "linux", &["10.0.4.128/25"]),
        // With this one, the pool for Linux is full.
        node("wide", "linux", &["10.0.5.0/24", "10.0.6.0/23", "10.0.0.0/24"]),
    ];
    let audit = |args: &[&str]| folder.audit(SETTINGS, &nodes, args);
    let done = audit(&["-o", "json"]);
    let expected = [
        "shared-block | twin-a | 10.0.4.0/24 | linux | Node twin-a: 10.0.4.0/24 has addresses of 10.0.4.0/24 of \
         Node twin-b, 10.0.4.128/25 of Node twin-part",
        "shared-block | twin-b | 10.0.4.0/24 | linux | Node twin-b: 10.0.4.0/24 has addresses of 10.0.4.0/24 of \
         Node twin-a, 10.0.4.128/25 of Node twin-part",
        "shared-block | twin-part | 10.0.4.128/25 | linux | Node twin-part: 10.0.4.128/25 has addresses of \
         10.0.4.0/24 of Node twin-a, 10.0.4.0/24 of Node twin-b",
        "wrong-node-pool | unmatched-wrong | 10.1.1.0/24 | - | Node unmatched-wrong: 10.1.1.0/24 lies in pool \
         windows (10.1.0.0/23), and no pool of Nodes matches kubernetes.io/os=darwin",
        "wrong-node-pool | wrong | 10.1.0.0/24 | linux | Node wrong: 10.1.0.0/24 lies in pool windows \
         (10.1.0.0/23), and it belongs to pool linux (10.0.0.0/21, fd00::/62): kubernetes.io/os=linux (Node wrong)",
        "outside-node-pool | outside | 10.9.1.0/24 | linux | Node outside: 10.9.1.0/24 lies in no pool, and it \
         belongs to pool linux (10.0.0.0/21, fd00::/62): kubernetes.io/os=linux (Node outside)",
        "outside-node-pool | outside | fd00::/56 | linux | Node outside: fd00::/56 lies only partly in pool linux, \
         and it belongs to pool linux (10.0.0.0/21, fd00::/62): kubernetes.io/os=linux (Node outside)",
        "withheld-block | excluded | 10.0.3.0/24 | linux | Node excluded: 10.0.3.0/24 has addresses of \
         10.0.3.128/25, which is excluded from its pool",
        "withheld-block | reserved | 10.0.2.0/24 | linux | Node reserved: 10.0.2.0/24 has addresses of the Service \
         range 10.0.2.0/24",
        "no-block | new |  | linux | Node new: it has no block, and it belongs to pool linux (10.0.0.0/21, \
         fd00::/62): kubernetes.io/os=linux (Node new)",
        "full-node-pool | - |  | windows | node pool windows (10.1.0.0/23) is full: Nodes have all 2 blocks of /24",
        "full-node-pool | - |  | linux | node pool linux (10.0.0.0/21) is full: Nodes have all 6 blocks of /24, 2 \
         more are never handed out",
        "full-node-pool | - |  | linux | node pool linux (fd00::/62) is full: Nodes have all 4 blocks of /64",
    ];
    assert_eq!(done.findings(), expected);
    let withheld = json!([
        {"first": "10.0.2.0/24", "last": "10.0.2.0/24", "why": "serviceRange"},
        {"first": "10.0.3.0/24", "last": "10.0.3.0/24", "why": "excluded"},
    ]);
    assert_eq!(done.json()["nodes"]["pools"][1]["ranges"][0]["withheld"], withheld);
    check_fail_on(audit);
}
