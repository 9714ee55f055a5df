//! Blocks of Nodes that another program or a person set.

use clusterip_core::lookups::LookupError;
use serde_json::{Value, json};

use crate::support::{
    FakeCluster, LINUX, UNASKED, WINDOWS, Why, about_node, answer_of, assigned_of, by_os, denied, node, node_created,
    node_of, unchanged, with_blocks,
};

const LEFT: &str = "not set by this policy";

fn settings(explicit: &str) -> Value {
    json!({
        "services": {
            "pools": [{"name": "services", "cidrs": ["10.0.3.0/24"]}],
            "serviceCIDRs": ["10.0.2.0/23", "fd00:0:0:2::/112"],
        },
        "nodes": {
            "explicit": explicit,
            "pools": [
                {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
                {
                    "name": "linux",
                    "cidrs": ["10.0.0.0/16", "fd00::/48", "10.2.0.0/24"],
                    "exclude": ["10.0.3.0/24", "10.0.7.9"],
                    "match": {"os": "linux"},
                },
            ],
        },
    })
}

/// The expected mistakes, the pool and its evidence, and what the Node can have instead.
struct Row {
    name: &'static str,
    object: Value,
    wrong: Vec<&'static str>,
    why: Why<'static>,
    instead: &'static str,
    /// Whether the decision needs a list of the Nodes.
    listed: bool,
}

const OWN: &str = "a free block of the Node's pool";

fn rows() -> Vec<Row> {
    let of_linux = by_os("linux", "Node w1", LINUX);
    let of_windows = by_os("windows", "Node w1", WINDOWS);
    let linux = |name, blocks: &[&str], wrong: &[&'static str]| Row {
        name,
        object: node_of("linux", with_blocks(blocks)),
        wrong: wrong.to_vec(),
        why: of_linux,
        instead: OWN,
        listed: true,
    };
    let without_pool = |name, blocks: &[&str], wrong: &[&'static str], listed| Row {
        name,
        object: node_of("beos", with_blocks(blocks)),
        wrong: wrong.to_vec(),
        why: UNASKED,
        instead: "a block outside all pools",
        listed,
    };
    vec![
        linux("in its own pool", &["10.0.0.0/24"], &[]),
        linux("one of each family", &["10.0.0.0/24", "fd00::/64"], &[]),
        linux("the families in another order", &["fd00::/64", "10.0.0.0/24"], &[]),
        linux("a block of another size", &["10.0.16.0/20"], &[]),
        linux("host bits", &["10.0.0.9/24"], &[]),
        linux(
            "in no pool",
            &["192.168.0.0/24"],
            &[r#"192.168.0.0/24 lies in no pool, expected pool "linux": kubernetes.io/os=linux (Node w1)"#],
        ),
        linux(
            "in another pool",
            &["10.1.0.0/24"],
            &[r#"10.1.0.0/24 lies in pool "windows", expected pool "linux": kubernetes.io/os=linux (Node w1)"#],
        ),
        linux(
            "partly in its own pool",
            &["10.2.0.0/23"],
            &[r#"10.2.0.0/23 lies only partly in the Node's pool "linux""#],
        ),
        linux(
            "partly in two pools",
            &["10.0.0.0/15"],
            &[
                r#"10.0.0.0/15 lies only partly in pool "windows", expected pool "linux": kubernetes.io/os=linux (Node w1)"#,
                "10.0.0.0/15 overlaps 10.0.9.0/24 of Node w2",
                "10.0.0.0/15 overlaps 10.1.9.0/24 of Node w3",
            ],
        ),
        linux(
            "around a Service range",
            &["fd00:0:0:2::/64"],
            &["fd00:0:0:2::/64 overlaps the Service range fd00:0:0:2::/112"],
        ),
        linux("in a Service range", &["10.0.2.0/24"], &["10.0.2.0/24 overlaps the Service range 10.0.2.0/23"]),
        linux(
            "excluded",
            &["10.0.7.0/24"],
            &[r#"10.0.7.0/24 overlaps 10.0.7.9/32, which is excluded from pool "linux""#],
        ),
        linux("the block of another Node", &["10.0.9.0/24"], &["10.0.9.0/24 overlaps 10.0.9.0/24 of Node w2"]),
        linux(
            "a part of the block of another Node",
            &["10.0.9.128/25"],
            &["10.0.9.128/25 overlaps 10.0.9.0/24 of Node w2"],
        ),
        linux(
            "around the block of another Node, and another block in no pool",
            &["10.0.8.0/22", "fd01::/64"],
            &[
                r#"fd01::/64 lies in no pool, expected pool "linux": kubernetes.io/os=linux (Node w1)"#,
                "10.0.8.0/22 overlaps 10.0.9.0/24 of Node w2",
            ],
        ),
        linux(
            "around the blocks of many Nodes",
            &["fd00:0:0:a0::/60"],
            &[
                "fd00:0:0:a0::/60 overlaps fd00:0:0:a0::/64 of Node x0",
                "fd00:0:0:a0::/60 overlaps fd00:0:0:a1::/64 of Node x1",
                "fd00:0:0:a0::/60 overlaps fd00:0:0:a2::/64 of Node x2",
                "and 2 more",
            ],
        ),
        linux("its own block in the list of Nodes", &["10.0.11.0/24"], &[]),
        Row {
            object: node_of("windows", with_blocks(&["10.1.0.0/24"])),
            why: of_windows,
            ..linux("in its own pool, of a Windows Node", &["x"], &[])
        },
        Row {
            object: node_of("windows", with_blocks(&["10.0.2.0/24"])),
            wrong: vec![
                r#"10.0.2.0/24 lies in pool "linux", expected pool "windows": kubernetes.io/os=windows (Node w1)"#,
            ],
            why: of_windows,
            ..linux("in another pool, and in a Service range there", &["x"], &[])
        },
        Row {
            object: node_of("windows", with_blocks(&["10.0.0.0/15"])),
            wrong: vec![
                r#"10.0.0.0/15 lies only partly in pool "linux", expected pool "windows": kubernetes.io/os=windows (Node w1)"#,
                "10.0.0.0/15 overlaps 10.0.9.0/24 of Node w2",
                "10.0.0.0/15 overlaps 10.1.9.0/24 of Node w3",
            ],
            why: of_windows,
            ..linux("partly in two pools, of which its own is the first", &["x"], &[])
        },
        without_pool("in no pool, of a Node that no pool matches", &["192.168.0.0/24"], &[], false),
        without_pool(
            "in a pool, of a Node that no pool matches",
            &["10.0.0.0/24"],
            &[r#"10.0.0.0/24 lies in pool "linux", no pool of Nodes matches kubernetes.io/os=beos"#],
            true,
        ),
        without_pool(
            "partly in a pool, of a Node that no pool matches",
            &["0.0.0.0/1"],
            &[
                r#"0.0.0.0/1 lies only partly in pool "windows", no pool of Nodes matches kubernetes.io/os=beos"#,
                "0.0.0.0/1 overlaps 10.0.9.0/24 of Node w2",
                "0.0.0.0/1 overlaps 10.1.9.0/24 of Node w3",
            ],
            true,
        ),
        Row {
            object: node(json!({}), with_blocks(&["fd00::/64"])),
            wrong: vec![r#"fd00::/64 lies in pool "linux", no pool of Nodes matches a Node without their labels"#],
            ..without_pool("in a pool, of a Node without labels", &["x"], &[], true)
        },
    ]
}

/// The Nodes `w2` and `w3` with a block each, `w1` itself, and five Nodes that share a larger range. Some are listed
/// twice, and the order is arbitrary.
fn cluster() -> FakeCluster {
    let mut cluster = FakeCluster::default();
    for index in [3, 1, 4, 0, 2, 1] {
        cluster = cluster.node_block(&format!("x{index}"), &format!("fd00:0:0:a{index}::/64"));
    }
    let nodes = [("w3", "10.1.9.0/24"), ("w2", "10.0.9.0/24"), ("w1", "10.0.11.0/24"), ("w2", "10.0.9.0/24")];
    nodes.iter().fold(cluster, |cluster, (name, block)| cluster.node_block(name, block))
}

#[test]
fn explicit_warn_accepts_with_warnings() {
    for Row { name, object, wrong, why, listed, .. } in rows() {
        let cluster = cluster();
        let answer = answer_of(&node_created(&object), &settings("warn"), &cluster);
        assert_eq!(answer, unchanged(LEFT, why, &wrong), "{name}");
        assert_eq!(cluster.questions(), vec!["list Node"; usize::from(listed)], "{name}");
    }
}

#[test]
fn explicit_deny_refuses_wrong_blocks() {
    for Row { name, object, wrong, why, instead, .. } in rows() {
        let expected = match wrong[..] {
            [] => unchanged(LEFT, why, &[]),
            _ => {
                let remedy = format!("omit podCIDR and podCIDRs, or use {instead}");
                denied(403, &format!("Node w1: {}; {remedy}", wrong.join("; ")), why, &[])
            }
        };
        assert_eq!(answer_of(&node_created(&object), &settings("deny"), &cluster()), expected, "{name}");
    }
}

#[test]
fn explicit_allow_accepts_without_look_ups() {
    for Row { name, object, .. } in rows() {
        let cluster = cluster();
        assert_eq!(
            answer_of(&node_created(&object), &settings("allow"), &cluster),
            unchanged(LEFT, UNASKED, &[]),
            "{name}"
        );
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn blocks_are_read_from_both_fields_without_duplicates() {
    for (spec, blocks) in [
        (json!({"podCIDR": "10.9.0.0/24"}), &["10.9.0.0/24"][..]),
        (json!({"podCIDRs": ["10.9.0.0/24", "fd09::/64"]}), &["10.9.0.0/24", "fd09::/64"]),
        (json!({"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.8.0.0/24"]}), &["10.9.0.0/24", "10.8.0.0/24"]),
        (json!({"podCIDR": "10.9.0.7/24", "podCIDRs": ["10.9.0.0/24"]}), &["10.9.0.0/24"]),
        (json!({"podCIDR": "10.9.0.0/24", "podCIDRs": ["x", ""]}), &["10.9.0.0/24"]),
    ] {
        let answer = answer_of(&node_created(&node_of("linux", spec.clone())), &settings("warn"), &cluster());
        assert_eq!(answer, outside_of_pools(blocks), "{spec}");
    }
}

/// The answer that warns of these blocks.
fn outside_of_pools(blocks: &[&str]) -> Value {
    let wrong =
        |block: &&str| format!(r#"{block} lies in no pool, expected pool "linux": kubernetes.io/os=linux (Node w1)"#);
    let wrong: Vec<String> = blocks.iter().map(wrong).collect();
    let warnings: Vec<&str> = wrong.iter().map(String::as_str).collect();
    unchanged(LEFT, by_os("linux", "Node w1", LINUX), &warnings)
}

#[test]
fn update_checks_only_added_blocks() {
    let old = || with_blocks(&["192.168.0.0/24"]);
    for (old, new, wrong) in [
        (json!({}), old(), &["192.168.0.0/24"][..]),
        (json!({}), with_blocks(&["10.0.0.0/24"]), &[]),
        (old(), with_blocks(&["192.168.0.0/24", "fd09::/64"]), &["fd09::/64"]),
        (old(), with_blocks(&["192.168.1.0/24"]), &["192.168.1.0/24"]),
    ] {
        let request = about_node("UPDATE", node_of("linux", new), node_of("linux", old));
        assert_eq!(answer_of(&request, &settings("warn"), &cluster()), outside_of_pools(wrong), "{request}");
    }
}

#[test]
fn failed_look_up_denies_only_with_explicit_deny() {
    let failing = || {
        let error = LookupError::NotGranted { resource: "v1/Node".into(), detail: "oh".into() };
        FakeCluster::default().failing("list Node", error)
    };
    let why = by_os("linux", "Node w1", LINUX);
    let request = |blocks: &[&str]| node_created(&node_of("linux", with_blocks(blocks)));
    let unknown = "unknown whether another Node has 10.0.0.0/24, fd00::/64: no permission to read v1/Node: oh";
    let good = request(&["10.0.0.0/24", "fd00::/64"]);
    let refused = format!("Node w1: {unknown}; grant the policy and its host read access");
    assert_eq!(answer_of(&good, &settings("allow"), &failing()), unchanged(LEFT, UNASKED, &[]));
    assert_eq!(answer_of(&good, &settings("warn"), &failing()), unchanged(LEFT, why, &[unknown]));
    assert_eq!(answer_of(&good, &settings("deny"), &failing()), denied(500, &refused, why, &[]));

    // The request is refused for this reason already.
    let wrong = r#"192.168.0.0/24 lies in no pool, expected pool "linux": kubernetes.io/os=linux (Node w1)"#;
    let unknown = "unknown whether another Node has 192.168.0.0/24: no permission to read v1/Node: oh";
    let refused = format!("Node w1: {wrong}; {unknown}; omit podCIDR and podCIDRs, or use {OWN}");
    let bad = request(&["192.168.0.0/24"]);
    assert_eq!(answer_of(&bad, &settings("warn"), &failing()), unchanged(LEFT, why, &[wrong, unknown]));
    assert_eq!(answer_of(&bad, &settings("deny"), &failing()), denied(403, &refused, why, &[]));
}

#[test]
fn node_keeps_its_blocks_with_allocation_state() {
    let object = node_of("windows", with_blocks(&["10.0.5.0/24"]));
    let allowed = assigned_of(&node_created(&object), &settings("allow"), &json!({}));
    assert_eq!(allowed, unchanged(LEFT, UNASKED, &[]));
    let kept = assigned_of(&about_node("UPDATE", object.clone(), object), &settings("deny"), &json!({}));
    assert_eq!(kept, unchanged("no new pod CIDR", UNASKED, &[]));
}

#[test]
fn overlapping_pool_of_services_is_named() {
    let mut settings = settings("warn");
    settings["services"] = json!({"pools": [{"name": "services", "cidrs": ["10.0.3.0/24"]}]});
    let object = node_of("linux", with_blocks(&["10.0.3.128/25"]));
    let wrong = r#"10.0.3.128/25 overlaps 10.0.3.0/24 of the pool "services" of Services"#;
    let expected = unchanged(LEFT, by_os("linux", "Node w1", LINUX), &[wrong]);
    assert_eq!(answer_of(&node_created(&object), &settings, &cluster()), expected);
}
