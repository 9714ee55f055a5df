//! `clusterip serve` gives the same Nodes in the same order the same blocks as the controller manager of Kubernetes, on
//! the same control plane, one after the other.

use serde_json::{Value, json};

use crate::support::pod_cidr_cluster::{Nodes, pool};

/// A step of a scenario, for a Node.
enum Step {
    /// The Node exists with these blocks before the start.
    Before(&'static str, &'static [&'static str]),
    /// The Node is created, and gets these blocks.
    Gets(&'static str, &'static [&'static str]),
    /// The Node is created, and gets none, because the pool is full.
    GetsNone(&'static str),
    /// The Node gets these blocks later.
    AtLast(&'static str, &'static [&'static str]),
    /// The Node is deleted.
    Goes(&'static str),
}

use Step::{AtLast, Before, Gets, GetsNone, Goes};

/// The ranges, the prefix lengths of the blocks, and the steps of a scenario.
struct Case {
    name: &'static str,
    cidrs: &'static [&'static str],
    lengths: Lengths,
    steps: Vec<Step>,
}

/// The prefix lengths of the blocks, for IPv4 and IPv6.
type Lengths = (u8, u8);

fn cases() -> Vec<Case> {
    let case = |name, cidrs, lengths, steps| Case { name, cidrs, lengths, steps };
    vec![
        case(
            "one by one, deleted and created again, around the end, and one that waits",
            &["10.42.0.0/22"],
            (24, 64),
            vec![
                Gets("a", &["10.42.0.0/24"]),
                Gets("b", &["10.42.1.0/24"]),
                Goes("a"),
                Gets("a", &["10.42.2.0/24"]),
                Goes("b"),
                Gets("b", &["10.42.3.0/24"]),
                Gets("c", &["10.42.0.0/24"]),
                Gets("d", &["10.42.1.0/24"]),
                GetsNone("e"),
                Goes("b"),
                AtLast("e", &["10.42.3.0/24"]),
            ],
        ),
        case(
            "equal, smaller and larger blocks set by hand before the start, until the pool is full",
            &["10.42.0.0/20"],
            (24, 64),
            vec![
                Before("w", &["10.42.5.0/24"]),
                Before("x", &["10.42.9.0/26"]),
                Before("y", &["10.42.10.0/23"]),
                Before("z", &["10.42.0.0/22"]),
                Gets("a", &["10.42.4.0/24"]),
                Gets("b", &["10.42.6.0/24"]),
                Gets("c", &["10.42.7.0/24"]),
                Gets("d", &["10.42.8.0/24"]),
                Gets("e", &["10.42.12.0/24"]),
                Gets("f", &["10.42.13.0/24"]),
                Gets("g", &["10.42.14.0/24"]),
                Gets("h", &["10.42.15.0/24"]),
                GetsNone("i"),
                Goes("z"),
                AtLast("i", &["10.42.0.0/24"]),
                Gets("j", &["10.42.1.0/24"]),
            ],
        ),
        case(
            "a Service range inside the pool",
            &["172.20.0.0/14"],
            (17, 64),
            vec![
                Gets("a", &["172.20.0.0/17"]),
                Gets("b", &["172.20.128.0/17"]),
                Gets("c", &["172.22.0.0/17"]),
                Gets("d", &["172.22.128.0/17"]),
                Gets("e", &["172.23.0.0/17"]),
                Gets("f", &["172.23.128.0/17"]),
                GetsNone("g"),
            ],
        ),
        case(
            "dual stack",
            &["10.42.0.0/22", "fd00:42::/62"],
            (24, 64),
            vec![
                Before("x", &["10.42.1.0/24", "fd00:42::/64"]),
                Gets("a", &["10.42.0.0/24", "fd00:42:0:1::/64"]),
                Gets("b", &["10.42.2.0/24", "fd00:42:0:2::/64"]),
                Goes("a"),
                Gets("c", &["10.42.3.0/24", "fd00:42:0:3::/64"]),
                Goes("x"),
                Gets("d", &["10.42.0.0/24", "fd00:42::/64"]),
            ],
        ),
    ]
}

/// Executes the steps and returns the blocks of each Node, in the same format as [`expected`].
async fn taken(nodes: &Nodes, steps: &[Step]) -> Vec<String> {
    let mut got = Vec::new();
    for step in steps {
        match step {
            Before(..) => {}
            Gets(name, _) => {
                nodes.create(name, json!({}), &[]).await;
                got.push(format!("{name}: {}", nodes.given(name).await.join(", ")));
            }
            GetsNone(name) => {
                nodes.create(name, json!({}), &[]).await;
                nodes.wait_for_event(name, "CIDRNotAvailable").await;
                got.push(format!("{name}: {}", nodes.blocks(name).await.join(", ")));
            }
            AtLast(name, _) => got.push(format!("{name}: {}", nodes.given(name).await.join(", "))),
            Goes(name) => nodes.delete(name).await,
        }
    }
    got
}

fn expected(steps: &[Step]) -> Vec<String> {
    let mut expected = Vec::new();
    for step in steps {
        match step {
            Before(..) | Goes(_) => {}
            Gets(name, blocks) | AtLast(name, blocks) => expected.push(format!("{name}: {}", blocks.join(", "))),
            GetsNone(name) => expected.push(format!("{name}: ")),
        }
    }
    expected
}

/// Creates the Nodes that have blocks before the start, and deletes all others.
async fn begin(nodes: &Nodes, steps: &[Step]) {
    nodes.clear().await;
    for step in steps {
        if let Before(name, blocks) = step {
            nodes.create(name, json!({}), blocks).await;
        }
    }
}

fn masks(case: &Case) -> Vec<String> {
    let (four, six) = case.lengths;
    match case.cidrs {
        [_, _] => vec![format!("--node-cidr-mask-size-ipv4={four}"), format!("--node-cidr-mask-size-ipv6={six}")],
        _ => vec![format!("--node-cidr-mask-size={four}")],
    }
}

fn pools(case: &Case) -> Value {
    let size = json!({"blockSize": {"ipv4": case.lengths.0, "ipv6": case.lengths.1}});
    json!({"pools": [pool("all", case.cidrs, &size)]})
}

#[tokio::test]
async fn same_nodes_get_the_same_blocks() {
    let nodes = Nodes::alone().await;
    for case in cases() {
        begin(&nodes, &case.steps).await;
        let manager = nodes.controller_manager(&case.cidrs.join(","), &masks(&case));
        let theirs = taken(&nodes, &case.steps).await;
        drop(manager);

        begin(&nodes, &case.steps).await;
        let mut server = nodes.serve(&pools(&case)).await;
        let ours = taken(&nodes, &case.steps).await;
        assert_eq!(server.terminate().await, 0, "{}", case.name);

        assert_eq!(theirs, expected(&case.steps), "{}: the controller manager", case.name);
        assert_eq!(ours, theirs, "{}", case.name);
    }
}
