//! Every admission request gets an answer, and only the addresses of its object change.

#![no_main]

use clusterip_core::lookups::EmptyCluster;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let answer = clusterip_core::validate(bytes, &EmptyCluster);
    assert_eq!(answer, clusterip_core::validate(bytes, &EmptyCluster), "the second answer to the same request differs");
    assert_eq!(answer.accepted, answer.message.is_none());
    assert!(answer.audit_annotations.is_some_and(|audit| audit.contains_key("decision")));
    let Some(mutated) = answer.mutated_object else { return };
    let payload: Value = serde_json::from_slice(bytes).expect("the request is not JSON, but its object was changed");
    if payload["settings"]["services"]["annotateReason"] == true {
        return;
    }
    assert_eq!(without_addresses(payload["request"]["object"].clone()), without_addresses(mutated));
});

fn without_addresses(mut object: Value) -> Value {
    if object["spec"].is_null() {
        object["spec"] = Value::Object(serde_json::Map::new());
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    object
}
