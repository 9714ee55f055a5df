//! Every admission request gets an answer, and only the addresses or blocks of its object change.

#![no_main]

use clusterip_core::lookups::EmptyCluster;
use ipnet::IpNet;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let answer = clusterip_core::validate(bytes, &EmptyCluster);
    assert_eq!(answer, clusterip_core::validate(bytes, &EmptyCluster), "the second answer to the same request differs");
    assert_eq!(answer.accepted, answer.message.is_none());
    assert!(answer.audit_annotations.is_some_and(|audit| audit.contains_key("decision")));
    let Some(mutated) = answer.mutated_object else { return };
    let payload: Value = serde_json::from_slice(bytes).expect("the request is not JSON, but its object was changed");
    assert_blocks(&mutated, &payload);
    if payload["settings"]["services"]["annotateReason"] == true {
        return;
    }
    assert_eq!(without_addresses(payload["request"]["object"].clone()), without_addresses(mutated));
});

/// Checks that a Node gets at most one block of each family, that `podCIDR` and `podCIDRs` agree, and that no other
/// Node holds a block.
fn assert_blocks(mutated: &Value, payload: &Value) {
    let Some(blocks) = mutated["spec"]["podCIDRs"].as_array().filter(|_| payload["request"]["kind"]["kind"] == "Node")
    else {
        return;
    };
    assert_eq!(mutated["spec"]["podCIDR"], blocks[0]);
    let blocks: Vec<IpNet> =
        blocks.iter().map(|block| block.as_str().expect("a string").parse().expect("a CIDR")).collect();
    assert!(blocks.len() == 1 || (blocks.len() == 2 && blocks[0].addr().is_ipv4() != blocks[1].addr().is_ipv4()));
    for held in payload["allocation"]["held"].as_array().into_iter().flatten() {
        let held: IpNet = held.as_str().expect("a string").parse().expect("a CIDR");
        assert!(!blocks.iter().any(|block| block.contains(&held.trunc()) || held.contains(block)), "{held} is held");
    }
}

fn without_addresses(mut object: Value) -> Value {
    if object["spec"].is_null() {
        object["spec"] = Value::Object(serde_json::Map::new());
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
        spec.remove("podCIDR");
        spec.remove("podCIDRs");
    }
    object
}
