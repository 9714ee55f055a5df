//! From which pool a Node gets its blocks, and which Nodes are left unchanged.

use crate::support;
use crate::support::{
    FakeCluster, Why, about_node, answer_of, assigned_of, by, by_os, denied, node, node_created, node_of, node_pool,
    node_unchanged, two_pools, unchanged, with_blocks, with_field,
};
use serde_json::{Value, json};

fn held(held: &[&str]) -> Value {
    json!({ "held": held })
}

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
    const OS: &str = "kubernetes.io/os";
    let gpu: &[(&str, &str)] = &[("disk", "ssd"), ("gpu", "h100"), (OS, "linux")];
    let windows = ("10.1.0.0/24", by_os("windows", "Node w1", &[(OS, "windows")]));
    let linux = ("10.0.0.0/24", by_os("linux", "Node w1", &[(OS, "linux")]));
    for (labels, (block, why)) in [
        (json!({OS: "windows"}), windows),
        (json!({OS: "Windows"}), windows),
        (json!({"beta.kubernetes.io/os": "windows"}), windows),
        (
            json!({OS: "linux", "disk": "ssd", "gpu": "h100", "zone": "a"}),
            ("10.2.0.0/24", by_os("gpu", "Node w1", gpu)),
        ),
        (json!({OS: "linux", "disk": "hdd", "gpu": "h100"}), linux),
        (json!({OS: "linux", "disk": "ssd", "gpu": "t4"}), linux),
    ] {
        let object = node(labels, json!({}));
        let expected = assigned(&object, &[block], why);
        assert_eq!(assigned_of(&node_created(&object), &two_pools(), &json!({})), expected);
    }
    // Of the labels of a Node that no pool matches, those are named on which pools match.
    for (labels, reason) in [
        (json!({OS: "beos", "zone": "a"}), "no pool of Nodes matches kubernetes.io/os=beos"),
        (
            json!({OS: "be os", "disk": "", "gpu": "h100"}),
            r#"no pool of Nodes matches disk="", gpu=h100, kubernetes.io/os="be os""#,
        ),
        (json!({}), "no pool of Nodes matches a Node without their labels"),
        (Value::Null, "no pool of Nodes matches a Node without their labels"),
    ] {
        let request = node_created(&node(labels, json!({})));
        assert_eq!(assigned_of(&request, &two_pools(), &json!({})), node_unchanged(reason));
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
    let bare = || node_of("linux", json!({}));
    let with = |blocks: &[&str]| node_of("linux", with_blocks(blocks));
    let not_here = "pod CIDRs are assigned by the controller of `clusterip serve`, not in admission";
    let foreign = "not a Service that is created or updated";
    let (kept, both) = (with(&["192.168.0.0/24"]), with(&["192.168.0.0/24", "fd00::/64"]));
    let status = with_field(about_node("UPDATE", kept.clone(), bare()), "subResource", "status".into());
    let mut other_group = node_created(&bare());
    other_group["kind"]["group"] = "example.org".into();
    for (request, reason) in [
        (node_created(&bare()), not_here),
        // No pool matches this Node.
        (node_created(&node(json!({}), json!({}))), not_here),
        (about_node("UPDATE", bare(), bare()), not_here),
        (about_node("UPDATE", kept.clone(), kept.clone()), "no new pod CIDR"),
        (about_node("UPDATE", kept, both), "no new pod CIDR"),
        (status, foreign),
        (about_node("DELETE", Value::Null, bare()), foreign),
        (other_group, foreign),
    ] {
        let cluster = FakeCluster::default();
        assert_eq!(answer_of(&request, &two_pools(), &cluster), node_unchanged(reason), "{request}");
        assert_eq!(cluster.questions(), [""; 0], "{request}");
    }
    for object in [bare(), with(&["10.0.0.0/24"])] {
        let cluster = FakeCluster::default();
        let answer = answer_of(&node_created(&object), &json!({"services": {}}), &cluster);
        assert_eq!(answer, node_unchanged("the settings have no pool for Nodes"), "{object}");
        assert_eq!(cluster.questions(), [""; 0], "{object}");
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
    for (object, mistake) in [
        (node(json!([]), json!({})), "metadata.labels: expected an object, found a list"),
        (node(json!({"a": 1}), json!({})), "metadata.labels.a: expected a string, found the number 1"),
        (node(json!({}), json!(7)), "spec: expected an object, found the number 7"),
        (node(json!({}), json!({"podCIDR": 7})), "spec.podCIDR: expected a string, found the number 7"),
        (node(json!({}), json!({"podCIDRs": "x"})), r#"spec.podCIDRs: expected a list, found the string "x""#),
        (node(json!({}), json!({"podCIDRs": [{}]})), "spec.podCIDRs[0]: expected a string, found an object"),
    ] {
        for (request, path) in [
            (node_created(&object), "object"),
            (about_node("UPDATE", node(json!({}), json!({})), object.clone()), "oldObject"),
        ] {
            let message = format!("the request can't be read: request.{path}.{mistake}");
            let expected = denied(400, &message, support::UNASKED, &[]);
            assert_eq!(answer_of(&request, &two_pools(), &FakeCluster::default()), expected);
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
