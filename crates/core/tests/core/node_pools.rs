//! From which pool a Node gets its blocks, and which Nodes are left unchanged.

use crate::support;
use crate::support::{
    FakeCluster, Why, about_node, answer_of, assigned_of, by, by_os, denied, node, node_created, node_of, node_pool,
    node_unchanged, two_pools, unchanged, with_blocks,
};
use serde_json::{Value, json};

fn held(held: &[&str]) -> Value {
    json!({ "held": held })
}

/// A block with its pool and evidence, or the reason why the Node is left unchanged.
type Chosen<'a> = Result<(&'a str, Why<'a>), &'a str>;

/// The answer that assigns these blocks to `object`.
fn assigned(object: &Value, blocks: &[&str], why: Why<'_>) -> Value {
    let mut answer = support::allocated(object, &["10.0.0.1"], why, &[]);
    let mut object = object.clone();
    if object["spec"].is_null() {
        object["spec"] = json!({});
    }
    object["spec"]["podCIDR"] = blocks[0].into();
    object["spec"]["podCIDRs"] = json!(blocks);
    answer["mutated_object"] = object;
    answer
}

#[test]
fn first_pool_that_matches_the_node_labels_is_chosen() {
    struct Case<'a> {
        name: &'static str,
        labels: Value,
        expected: Chosen<'a>,
    }
    const OS: &str = "kubernetes.io/os";
    let gpu: &[(&str, &str)] = &[("disk", "ssd"), ("gpu", "h100"), (OS, "linux")];
    let beos = format!("no pool of Nodes matches {OS}=beos");
    let rows = [
        Case {
            name: "by the os",
            labels: json!({OS: "windows"}),
            expected: Ok(("10.1.0.0/24", by_os("windows", "Node w1", &[(OS, "windows")]))),
        },
        Case {
            name: "by the os in another case",
            labels: json!({OS: "Windows"}),
            expected: Ok(("10.1.0.0/24", by_os("windows", "Node w1", &[(OS, "windows")]))),
        },
        Case {
            name: "by the old label",
            labels: json!({"beta.kubernetes.io/os": "windows"}),
            expected: Ok(("10.1.0.0/24", by_os("windows", "Node w1", &[(OS, "windows")]))),
        },
        Case {
            name: "every condition",
            labels: json!({OS: "linux", "disk": "ssd", "gpu": "h100", "zone": "a"}),
            expected: Ok(("10.2.0.0/24", by_os("gpu", "Node w1", gpu))),
        },
        Case {
            name: "a label that differs",
            labels: json!({OS: "linux", "disk": "hdd", "gpu": "h100"}),
            expected: Ok(("10.0.0.0/24", by_os("linux", "Node w1", &[(OS, "linux")]))),
        },
        Case {
            name: "a selector that does not match",
            labels: json!({OS: "linux", "disk": "ssd", "gpu": "t4"}),
            expected: Ok(("10.0.0.0/24", by_os("linux", "Node w1", &[(OS, "linux")]))),
        },
        Case { name: "no pool matches", labels: json!({OS: "beos", "zone": "a"}), expected: Err(&beos) },
        Case {
            name: "no pool matches the labels that pools match on",
            labels: json!({OS: "be os", "disk": "", "gpu": "h100"}),
            expected: Err(r#"no pool of Nodes matches disk="", gpu=h100, kubernetes.io/os="be os""#),
        },
        Case {
            name: "no label",
            labels: json!({}),
            expected: Err("no pool of Nodes matches a Node without their labels"),
        },
        Case {
            name: "no labels",
            labels: Value::Null,
            expected: Err("no pool of Nodes matches a Node without their labels"),
        },
    ];
    for Case { name, labels, expected } in rows {
        let object = node(labels, json!({}));
        let expected = match expected {
            Ok((block, why)) => assigned(&object, &[block], why),
            Err(reason) => node_unchanged(reason),
        };
        assert_eq!(assigned_of(&node_created(&object), &two_pools(), &json!({})), expected, "{name}");
    }
}

#[test]
fn full_pool_is_refused_with_its_ranges_and_evidence() {
    let object = node_of("windows", json!({}));
    let message = concat!(
        r#"Node w1: pool "windows" (10.1.0.0/16) is full: no block of /24 is free; chosen by "#,
        "kubernetes.io/os=windows (Node w1); add a range to the pool, or delete Nodes that no longer exist",
    );
    let expected = denied(500, message, by_os("windows", "Node w1", &[("kubernetes.io/os", "windows")]), &[]);
    assert_eq!(assigned_of(&node_created(&object), &two_pools(), &held(&["10.0.0.0/8"])), expected);
}

#[test]
fn only_the_blocks_of_a_node_change() {
    let settings = node_pool(json!({"cidrs": ["10.0.0.0/16", "fd00::/48"]}));
    let why = by("a", "default");
    let mut unlike =
        node(json!({"a": "b"}), json!({"taints": [{"key": "x", "effect": "NoSchedule"}], "providerID": "y"}));
    unlike["metadata"]["managedFields"] = json!([{"manager": "kubelet", "fieldsV1": {"f:spec": {}}}]);
    unlike["status"] = json!({"capacity": {"pods": "110"}});
    let rows = [
        ("a Node with other fields", unlike),
        ("an empty spec", node(json!({}), json!({}))),
        ("no spec", node(json!({}), Value::Null)),
        ("blocks that are null", node(json!({}), json!({"podCIDR": null, "podCIDRs": null}))),
        ("blocks that are empty", node(json!({}), json!({"podCIDR": "", "podCIDRs": []}))),
        ("blocks that are not CIDRs", node(json!({}), json!({"podCIDR": "10.0.0.0", "podCIDRs": ["x"]}))),
    ];
    for (name, object) in rows {
        let expected = assigned(&object, &["10.0.0.0/24", "fd00::/64"], why);
        assert_eq!(assigned_of(&node_created(&object), &settings, &json!({})), expected, "{name}");
    }
}

#[test]
fn node_is_left_without_allocation_state_or_without_work() {
    struct Case {
        name: &'static str,
        request: Value,
        settings: Value,
        reason: &'static str,
    }
    let bare = || node_of("linux", json!({}));
    let with = |blocks: &[&str]| node_of("linux", with_blocks(blocks));
    let not_here = "pod CIDRs are assigned by the controller of `clusterip serve`, not in admission";
    let mut status = about_node("UPDATE", with(&["10.0.0.0/24"]), bare());
    status["subResource"] = "status".into();
    let mut other_group = node_created(&bare());
    other_group["kind"]["group"] = "example.org".into();
    let none = json!({"services": {}});
    let rows = [
        Case { name: "a creation", request: node_created(&bare()), settings: two_pools(), reason: not_here },
        Case {
            name: "a Node that no pool matches",
            request: node_created(&node(json!({}), json!({}))),
            settings: two_pools(),
            reason: not_here,
        },
        Case {
            name: "an update",
            request: about_node("UPDATE", bare(), bare()),
            settings: two_pools(),
            reason: not_here,
        },
        Case {
            name: "no pools of Nodes",
            request: node_created(&bare()),
            settings: none.clone(),
            reason: "the settings have no pool for Nodes",
        },
        Case {
            name: "blocks, and no pools of Nodes",
            request: node_created(&with(&["10.0.0.0/24"])),
            settings: none,
            reason: "the settings have no pool for Nodes",
        },
        Case {
            name: "an update that keeps the blocks",
            request: about_node("UPDATE", with(&["192.168.0.0/24"]), with(&["192.168.0.0/24"])),
            settings: two_pools(),
            reason: "no new pod CIDR",
        },
        Case {
            name: "an update that removes a block",
            request: about_node("UPDATE", with(&["192.168.0.0/24"]), with(&["192.168.0.0/24", "fd00::/64"])),
            settings: two_pools(),
            reason: "no new pod CIDR",
        },
        Case {
            name: "a status",
            request: status,
            settings: two_pools(),
            reason: "not a Service that is created or updated",
        },
        Case {
            name: "a deletion",
            request: about_node("DELETE", Value::Null, bare()),
            settings: two_pools(),
            reason: "not a Service that is created or updated",
        },
        Case {
            name: "a Node of another API group",
            request: other_group,
            settings: two_pools(),
            reason: "not a Service that is created or updated",
        },
    ];
    for Case { name, request, settings, reason } in rows {
        let cluster = FakeCluster::default();
        assert_eq!(answer_of(&request, &settings, &cluster), node_unchanged(reason), "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn update_without_blocks_gets_them_with_allocation_state() {
    let object = node_of("linux", json!({"unschedulable": true}));
    let request = about_node("UPDATE", object.clone(), node_of("linux", json!({})));
    let expected = assigned(&object, &["10.0.1.0/24"], by_os("linux", "Node w1", &[("kubernetes.io/os", "linux")]));
    assert_eq!(assigned_of(&request, &two_pools(), &held(&["10.0.0.0/24"])), expected);
}

#[test]
fn service_is_left_if_all_pools_are_for_nodes() {
    let mut with_pool = support::service(json!({}));
    with_pool["metadata"]["annotations"] = json!({"clusterip-policy/pool": "linux"});
    let rows = [
        ("without an address", support::service(json!({}))),
        ("with an address", support::service(json!({"clusterIP": "10.0.0.7"}))),
        ("with the name of a pool of Nodes", with_pool),
    ];
    for (name, object) in rows {
        let cluster = FakeCluster::default();
        let expected = unchanged("the settings have no pool for Services", support::UNASKED, &[]);
        assert_eq!(support::answer(&object, &two_pools(), &cluster), expected, "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn mistyped_node_is_refused_with_the_path() {
    struct Case {
        name: &'static str,
        object: Value,
        mistake: &'static str,
    }
    let rows = [
        Case {
            name: "labels",
            object: node(json!([]), json!({})),
            mistake: "metadata.labels: expected an object, found a list",
        },
        Case {
            name: "a label",
            object: node(json!({"a": 1}), json!({})),
            mistake: "metadata.labels.a: expected a string, found the number 1",
        },
        Case {
            name: "spec",
            object: node(json!({}), json!(7)),
            mistake: "spec: expected an object, found the number 7",
        },
        Case {
            name: "podCIDR",
            object: node(json!({}), json!({"podCIDR": 7})),
            mistake: "spec.podCIDR: expected a string, found the number 7",
        },
        Case {
            name: "podCIDRs",
            object: node(json!({}), json!({"podCIDRs": "x"})),
            mistake: r#"spec.podCIDRs: expected a list, found the string "x""#,
        },
        Case {
            name: "an element of podCIDRs",
            object: node(json!({}), json!({"podCIDRs": [{}]})),
            mistake: "spec.podCIDRs[0]: expected a string, found an object",
        },
    ];
    for Case { name, object, mistake } in rows {
        for (request, path) in [
            (node_created(&object), "object"),
            (about_node("UPDATE", node(json!({}), json!({})), object.clone()), "oldObject"),
        ] {
            let message = format!("the request can't be read: request.{path}.{mistake}");
            let expected = denied(400, &message, support::UNASKED, &[]);
            assert_eq!(answer_of(&request, &two_pools(), &FakeCluster::default()), expected, "{name}");
        }
    }
    let missing = |request: &Value, path: &str| {
        let message = format!("the request can't be read: request.{path}: expected a Node, found nothing");
        let expected = denied(400, &message, support::UNASKED, &[]);
        assert_eq!(answer_of(request, &two_pools(), &FakeCluster::default()), expected, "{path}");
    };
    missing(&node_created(&Value::Null), "object");
    missing(&about_node("UPDATE", node(json!({}), json!({})), Value::Null), "oldObject");
}
