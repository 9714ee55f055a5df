//! Which blocks Nodes get: in each pool as the RangeAllocator of the Kubernetes controller manager assigns them.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support;
use crate::support::{
    FakeCluster, Sequence, Why, about_node, answer_of, assigned_of, blocks_given, by, by_os, denied, left, node,
    node_created, node_left, node_of, node_pool, with_blocks,
};
use serde_json::{Value, json};

fn held(held: &[&str]) -> Value {
    json!({ "held": held })
}

/// A pool of one range, cut into blocks of this length.
fn cut(cidr: &str, length: u8) -> Value {
    let size = if cidr.contains(':') { json!({"ipv6": length}) } else { json!({"ipv4": length}) };
    node_pool(json!({"cidrs": [cidr], "blockSize": size}))
}

/// The blocks, or the message of the refusal.
type Given<'a> = Result<Vec<&'a str>, String>;

/// A block with its pool and evidence, or the reason why the Node is left unchanged.
type Chosen<'a> = Result<(&'a str, Why<'a>), &'a str>;

fn slash_24_blocks(third_octets: impl Iterator<Item = u16>) -> Vec<String> {
    third_octets.map(|third| format!("127.123.{third}.0/24")).collect()
}

#[test]
fn next_block_follows_the_last_one() {
    struct Case {
        cidr: &'static str,
        length: u8,
        last: &'static str,
        expected: &'static str,
    }
    let rows = [
        Case { cidr: "127.123.0.0/16", length: 24, last: "127.123.255.0/24", expected: "127.123.0.0/24" },
        Case { cidr: "127.123.0.0/16", length: 24, last: "127.123.14.0/24", expected: "127.123.15.0/24" },
        Case { cidr: "192.168.5.208/28", length: 32, last: "192.168.5.212/32", expected: "192.168.5.213/32" },
        Case {
            cidr: "2001:db8:1234::/48",
            length: 64,
            last: "2001:db8:1234:ffff::/64",
            expected: "2001:db8:1234::/64",
        },
        Case { cidr: "2001:db8:1234::/48", length: 64, last: "2001:db8:1234:e::/64", expected: "2001:db8:1234:f::/64" },
        Case {
            cidr: "2001:db8:85a3::/50",
            length: 63,
            last: "2001:db8:85a3:3230::/63",
            expected: "2001:db8:85a3:3232::/63",
        },
        Case { cidr: "2001:db8::/32", length: 48, last: "2001:db8:ffff::/48", expected: "2001:db8::/48" },
        Case { cidr: "2001:db8::/32", length: 48, last: "2001:db8:e::/48", expected: "2001:db8:f::/48" },
        Case { cidr: "2001:db8::/32", length: 48, last: "2001:db8:1918::/48", expected: "2001:db8:1919::/48" },
        Case {
            cidr: "2001:db8:1234:ff00::/56",
            length: 72,
            last: "2001:db8:1234:ff00:e00::/72",
            expected: "2001:db8:1234:ff00:f00::/72",
        },
        Case {
            cidr: "2001:db8:1234:ff00::/56",
            length: 72,
            last: "2001:db8:1234:ff19:1800::/72",
            expected: "2001:db8:1234:ff19:1900::/72",
        },
        Case {
            cidr: "2001:db8:1234:0:1234::/80",
            length: 96,
            last: "2001:db8:1234:0:1234:e::/96",
            expected: "2001:db8:1234:0:1234:f::/96",
        },
        Case {
            cidr: "2001:db8:1234:ff00::/80",
            length: 96,
            last: "2001:db8:1234:ff00:0:1918::/96",
            expected: "2001:db8:1234:ff00:0:1919::/96",
        },
    ];
    for Case { cidr, length, last, expected } in rows {
        let allocation = json!({"held": [last], "last": [last]});
        let expected = Ok(vec![expected.to_owned()]);
        assert_eq!(blocks_given(&cut(cidr, length), &allocation), expected, "{cidr} in /{length} behind {last}");
    }
}

#[test]
fn range_of_one_block_is_assigned_once() {
    let mut sequence = Sequence::new(cut("127.123.234.0/30", 30));
    let whole = Ok(vec!["127.123.234.0/30".to_owned()]);
    assert_eq!(sequence.next(), whole);
    let full = sequence.next().unwrap_err();
    assert_eq!(
        full,
        "Node w1: pool \"a\" (127.123.234.0/30) is full: no block of /30 is free; chosen by default; add a range to \
         the pool, or delete Nodes that no longer exist"
    );
    sequence.held.clear();
    assert_eq!(sequence.next(), whole, "again, once it is released");
}

#[test]
fn all_blocks_come_in_order_again_after_release() {
    let mut sequence = Sequence::new(cut("127.123.0.0/16", 24));
    for round in ["first", "released"] {
        assert_eq!(sequence.drain(), slash_24_blocks(0..=255), "{round}");
        sequence.held.clear();
    }
}

#[test]
fn held_blocks_parts_and_larger_ranges_are_skipped() {
    struct Case {
        name: &'static str,
        held: Vec<&'static str>,
        expected: Vec<String>,
    }
    let free = |without: &[u16]| {
        let without = without.to_vec();
        slash_24_blocks((0..=255).filter(move |third| !without.contains(third)))
    };
    let rows = [
        Case {
            name: "the last 128, one of them twice",
            held: vec!["127.123.128.0/17", "127.123.200.0/24"],
            expected: slash_24_blocks(0..=127),
        },
        Case {
            name: "blocks, and a range of four with one released",
            held: vec!["127.123.8.0/24", "127.123.10.0/23"],
            expected: free(&[8, 10, 11]),
        },
        Case { name: "the first half", held: vec!["127.123.0.0/17"], expected: slash_24_blocks(128..=255) },
        Case { name: "a part of a block", held: vec!["127.123.7.8/29", "127.123.9.1/32"], expected: free(&[7, 9]) },
        Case { name: "host bits", held: vec!["127.123.7.8/24"], expected: free(&[7]) },
        Case { name: "outside the pool", held: vec!["10.0.0.0/8", "::/0"], expected: slash_24_blocks(0..=255) },
        Case { name: "all IPv4 addresses", held: vec!["0.0.0.0/0"], expected: vec![] },
    ];
    for Case { name, held, expected } in rows {
        assert_eq!(Sequence::occupying(cut("127.123.0.0/16", 24), &held).drain(), expected, "{name}");
    }
}

#[test]
fn allocation_wraps_around_and_does_not_go_back() {
    let mut sequence = Sequence::new(cut("10.0.0.0/22", 24));
    let mut step = |release: Option<&str>| {
        sequence.held.retain(|held| Some(held.as_str()) != release);
        sequence.next().map(|blocks| blocks[0].clone()).ok()
    };
    let block = |third: u8| Some(format!("10.0.{third}.0/24"));
    let steps = [
        (None, block(0)),
        (None, block(1)),
        // The released block is not assigned again at once.
        (Some("10.0.0.0/24"), block(2)),
        (None, block(3)),
        (None, block(0)),
        (None, None),
        (Some("10.0.2.0/24"), block(2)),
        (Some("10.0.1.0/24"), block(1)),
    ];
    for (index, (release, expected)) in steps.into_iter().enumerate() {
        assert_eq!(step(release), expected, "step {index}, released {release:?}");
    }
}

#[test]
fn allocation_state_determines_the_blocks() {
    struct Case {
        name: &'static str,
        settings: Value,
        allocation: Value,
        expected: Given<'static>,
    }
    let two = || node_pool(json!({"cidrs": ["10.0.0.0/23", "10.9.0.0/24", "fd00::/63"]}));
    let full = |ranges: &str, length: u8| {
        format!(
            "Node w1: pool \"a\" ({ranges}) is full: no block of /{length} is free; chosen by default; add a range to \
             the pool, or delete Nodes that no longer exist"
        )
    };
    let with_services = |services: Value, exclude: Value| {
        let mut settings = node_pool(json!({"cidrs": ["10.0.0.0/22"], "exclude": exclude}));
        settings["services"] = services;
        settings
    };
    let service_range = |cidrs: Value| with_services(json!({ "serviceCIDRs": cidrs }), json!([]));
    let rows = [
        Case {
            name: "nothing held",
            settings: two(),
            allocation: json!({}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "both lists null",
            settings: two(),
            allocation: json!({"held": null, "last": null}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "the first range is full: a block of the second range",
            settings: two(),
            allocation: held(&["10.0.0.0/23"]),
            expected: Ok(vec!["10.9.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "each range continues behind its own last block",
            settings: two(),
            allocation: json!({"held": ["fd00::/64"], "last": ["fd00::/64", "10.0.0.0/24", "10.9.0.0/24"]}),
            expected: Ok(vec!["10.0.1.0/24", "fd00:0:0:1::/64"]),
        },
        Case {
            name: "the first range is full and has the last block",
            settings: two(),
            allocation: json!({"held": ["10.0.0.0/23"], "last": ["10.0.1.0/24"]}),
            expected: Ok(vec!["10.9.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "the last block is released",
            settings: two(),
            allocation: json!({"held": [], "last": ["10.0.1.0/24", "fd00:0:0:1::/64"]}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "the last block is outside the pool",
            settings: two(),
            allocation: json!({"last": ["192.168.0.0/24", "fd01::/64"]}),
            expected: Ok(vec!["10.0.0.0/24", "fd00::/64"]),
        },
        Case {
            name: "IPv4 is full: no IPv6 block either",
            settings: two(),
            allocation: held(&["10.0.0.0/23", "10.9.0.0/16"]),
            expected: Err(full("10.0.0.0/23, 10.9.0.0/24", 24)),
        },
        Case {
            name: "IPv6 is full: no IPv4 block either",
            settings: two(),
            allocation: held(&["fd00::/16"]),
            expected: Err(full("fd00::/63", 64)),
        },
        Case {
            name: "IPv6 first",
            settings: node_pool(json!({"cidrs": ["fd00::/48", "10.0.0.0/16"]})),
            allocation: json!({}),
            expected: Ok(vec!["fd00::/64", "10.0.0.0/24"]),
        },
        Case {
            name: "blocks of other sizes",
            settings: node_pool(json!({"cidrs": ["10.0.0.0/16", "fd00::/48"], "blockSize": {"ipv4": 26, "ipv6": 56}})),
            allocation: held(&["10.0.0.0/26", "fd00::/60"]),
            expected: Ok(vec!["10.0.0.64/26", "fd00:0:0:100::/56"]),
        },
        Case {
            name: "2^120 IPv6 blocks, half of them held",
            settings: node_pool(json!({"cidrs": ["fd00::/8"], "blockSize": {"ipv6": 128}})),
            allocation: held(&["fd00::/9"]),
            expected: Ok(vec!["fd80::/128"]),
        },
        Case {
            name: "excluded",
            settings: node_pool(
                json!({"cidrs": ["10.0.0.0/22"], "exclude": ["10.0.0.0/25", "10.0.1.255", "10.0.2.0/24"]}),
            ),
            allocation: json!({}),
            expected: Ok(vec!["10.0.3.0/24"]),
        },
        Case {
            name: "a Service range at the start of the pool",
            settings: service_range(json!(["10.0.0.0/23"])),
            allocation: json!({}),
            expected: Ok(vec!["10.0.2.0/24"]),
        },
        Case {
            name: "Service ranges inside blocks",
            settings: service_range(json!(["10.0.0.128/25", "10.0.1.0/29"])),
            allocation: json!({}),
            expected: Ok(vec!["10.0.2.0/24"]),
        },
        Case {
            name: "Service ranges outside the pool",
            settings: service_range(json!(["172.16.0.0/16", "fd00::/112"])),
            allocation: json!({}),
            expected: Ok(vec!["10.0.0.0/24"]),
        },
        Case {
            name: "a pool of Services that is excluded",
            settings: with_services(
                json!({"pools": [{"name": "s", "cidrs": ["10.0.1.0/24"]}]}),
                json!(["10.0.0.0/23"]),
            ),
            allocation: json!({}),
            expected: Ok(vec!["10.0.2.0/24"]),
        },
    ];
    for Case { name, settings, allocation, expected } in rows {
        let expected = expected.map(|blocks| blocks.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(blocks_given(&settings, &allocation), expected, "{name}");
    }
}

fn two_pools() -> Value {
    json!({"nodes": {"pools": [
        {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
        {"name": "gpu", "cidrs": ["10.2.0.0/16"], "match": {
            "os": "linux",
            "nodeLabels": {"disk": "ssd"},
            "nodeSelector": {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100", "h100"]}]},
        }},
        {"name": "linux", "cidrs": ["10.0.0.0/16"], "match": {"os": "linux"}},
    ]}})
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
            Err(reason) => node_left(reason),
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
        assert_eq!(answer_of(&request, &settings, &cluster), node_left(reason), "{name}");
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
        let expected = left("the settings have no pool for Services", support::UNASKED, &[]);
        assert_eq!(support::answer(&object, &two_pools(), &cluster), expected, "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn allocation_state_must_be_two_lists_of_cidrs() {
    struct Case {
        name: &'static str,
        allocation: Value,
        mistake: &'static str,
    }
    let rows = [
        Case { name: "a list", allocation: json!([]), mistake: "allocation: expected an object, found a list" },
        Case { name: "a number", allocation: json!(5), mistake: "allocation: expected an object, found the number 5" },
        Case {
            name: "held is not a list",
            allocation: json!({"held": "10.0.0.0/24"}),
            mistake: r#"allocation.held: expected a list, found the string "10.0.0.0/24""#,
        },
        Case {
            name: "a number in the list",
            allocation: json!({"held": ["10.0.0.0/24", 5]}),
            mistake: "allocation.held[1]: expected a string, found the number 5",
        },
        Case {
            name: "an address",
            allocation: json!({"held": ["10.0.0.1"]}),
            mistake: r#"allocation.held[0]: expected a CIDR, found the string "10.0.0.1""#,
        },
        Case {
            name: "a prefix length that is too long",
            allocation: json!({"last": ["10.0.0.0/33"]}),
            mistake: r#"allocation.last[0]: expected a CIDR, found the string "10.0.0.0/33""#,
        },
        Case {
            name: "null in the list",
            allocation: json!({"last": [null]}),
            mistake: "allocation.last[0]: expected a string, found null",
        },
    ];
    let request = node_created(&node_of("linux", json!({})));
    for Case { name, allocation, mistake } in rows {
        let message = format!("the request can't be read: {mistake}");
        let expected = denied(400, &message, support::UNASKED, &[]);
        assert_eq!(assigned_of(&request, &two_pools(), &allocation), expected, "{name}");
    }
    let expected = node_left("pod CIDRs are assigned by the controller of `clusterip serve`, not in admission");
    assert_eq!(assigned_of(&request, &two_pools(), &Value::Null), expected, "null");
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
