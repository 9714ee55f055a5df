//! The policy warns of annotations of Services that have its prefix and no effect.

use crate::support::{
    FakeCluster, about_node, annotated, answer, answer_of, created, lowest, node, request, updated, with_field,
    with_spec,
};
use clusterip_core::annotations::{
    ADDRESS_ANNOTATION, LEASE_LABEL, MOVE_ANNOTATION, MOVE_OBJECT_LABEL, MOVING_ANNOTATION, NODE_ANNOTATION,
    OS_ANNOTATION, POOL_ANNOTATION, REASON_ANNOTATION, RECORD_ANNOTATION, REGISTERED_URL_ANNOTATION,
    REQUESTED_ADDRESS_ANNOTATION, SERVICE_ANNOTATION, SETTINGS_HASH_ANNOTATION,
};
use serde_json::{Value, json};

const POL: &str = "annotation \"clusterip-policy/pol\" is ignored: unknown name \"pol\": did you mean pool?";
const KNOWN: &str = "known are external-address, move, os, pool";

/// The warnings of an answer.
fn warnings(answer: &Value) -> Vec<&str> {
    answer["warnings"].as_array().into_iter().flatten().map(|warning| warning.as_str().unwrap()).collect()
}

#[test]
fn unknown_names_and_values_are_warned_of() {
    let unknown =
        |name: &str| format!("annotation \"clusterip-policy/{name}\" is ignored: unknown name {name:?}: {KNOWN}");
    let value = |value: &str| {
        format!("annotation \"clusterip-policy/move\" is ignored: unknown value {value:?}: known are never, now")
    };
    let near = "annotation \"clusterip-policy/OS\" is ignored: unknown name \"OS\": did you mean os?".to_owned();
    let known = [(MOVE_ANNOTATION, "now"), (REQUESTED_ADDRESS_ANNOTATION, "10.0.9.1"), (POOL_ANNOTATION, "linux")];
    for (annotations, expected) in [
        (&[("clusterip-policy/pol", "linux")][..], vec![POL.to_owned()]),
        (&[("clusterip-policy/OS", "linux")], vec![near]),
        (&[("clusterip-policy/operating-system", "linux")], vec![unknown("operating-system")]),
        (&[("clusterip-policy/", "linux")], vec![unknown("")]),
        (&[(MOVE_ANNOTATION, "maybe")], vec![value("maybe")]),
        (&[(MOVE_ANNOTATION, "Never")], vec![value("Never")]),
        // It is near to another value than its author means.
        (&[(MOVE_ANNOTATION, "No")], vec![value("No")]),
        (&[(MOVE_ANNOTATION, "maybe"), ("clusterip-policy/pol", "linux")], vec![value("maybe"), POL.to_owned()]),
        (&known, vec![]),
        (&[(MOVE_ANNOTATION, ""), ("clusterip-policy/pol", "")], vec![]),
        (&[("example.com/pol", "x"), ("clusterip-policy", "x"), ("x/clusterip-policy/pol", "x")], vec![]),
    ] {
        let answer = answer(&annotated(annotations), &lowest(), &FakeCluster::default());
        assert_eq!(warnings(&answer), expected, "{annotations:?}: {answer}");
        assert_eq!(answer["accepted"], json!(true), "{annotations:?}");
    }
}

#[test]
fn keys_that_programs_write_are_not_warned_of() {
    let written = [
        ADDRESS_ANNOTATION,
        LEASE_LABEL,
        MOVE_ANNOTATION,
        MOVE_OBJECT_LABEL,
        MOVING_ANNOTATION,
        NODE_ANNOTATION,
        OS_ANNOTATION,
        POOL_ANNOTATION,
        REASON_ANNOTATION,
        RECORD_ANNOTATION,
        REGISTERED_URL_ANNOTATION,
        REQUESTED_ADDRESS_ANNOTATION,
        SERVICE_ANNOTATION,
        SETTINGS_HASH_ANNOTATION,
    ];
    for key in written {
        let value = match key {
            MOVE_ANNOTATION => "never",
            REQUESTED_ADDRESS_ANNOTATION => "10.0.9.1",
            _ => "linux",
        };
        let answer = answer(&annotated(&[(key, value)]), &lowest(), &FakeCluster::default());
        assert_eq!(warnings(&answer), Vec::<&str>::new(), "{key}");
    }
}

#[test]
fn warnings_are_bounded() {
    let keys: Vec<String> = (0..50).map(|number| format!("clusterip-policy/{number}{}", "x".repeat(100_000))).collect();
    let mut annotations: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "linux")).collect();
    let long = "é".repeat(100_000);
    annotations.push((MOVE_ANNOTATION, &long));
    for annotations in [&annotations[..], &annotations[50..]] {
        let answer = answer(&annotated(annotations), &lowest(), &FakeCluster::default());
        let warnings = warnings(&answer);
        assert_eq!(warnings.len(), annotations.len().min(4));
        assert!(warnings.iter().all(|warning| warning.chars().count() <= 256), "{warnings:?}");
    }
}

#[test]
fn annotation_is_warned_of_when_it_is_new() {
    let with = |value: &str| annotated(&[("clusterip-policy/pol", value)]);
    let headless = with_spec(with("linux"), json!({"clusterIP": "None"}));
    let endpoints = json!({"group": "", "version": "v1", "kind": "Endpoints"});
    let mut annotated_node = node(json!({}), json!({}));
    annotated_node["metadata"]["annotations"] = json!({"clusterip-policy/pol": "linux"});
    let status = with_field(updated(annotated(&[]), with("linux")), "subResource", json!("status"));
    for (name, request, expected) in [
        ("created", created(with("linux")), &[POL][..]),
        ("created headless", created(headless), &[POL]),
        ("added", updated(annotated(&[]), with("linux")), &[POL]),
        ("changed", updated(with("linux"), with("windows")), &[POL]),
        ("unchanged", updated(with("linux"), with("linux")), &[]),
        ("removed", updated(with("linux"), annotated(&[])), &[]),
        ("a deletion", request("DELETE", Value::Null, with("linux")), &[]),
        ("another kind", with_field(created(with("linux")), "kind", endpoints), &[]),
        ("a sub-resource", status, &[]),
        ("a Node", about_node("CREATE", annotated_node, Value::Null), &[]),
    ] {
        let answer = answer_of(&request, &lowest(), &FakeCluster::default());
        assert_eq!(warnings(&answer), expected, "{name}: {answer}");
    }
}
