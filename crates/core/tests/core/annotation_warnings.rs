//! The policy warns of annotations of Services that have its prefix and no effect.

use crate::support::{
    FakeCluster, about_node, annotated, answer, answer_of, created, lowest, node, request, service, updated, with_field,
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
    struct Case<'a> {
        name: &'static str,
        annotations: &'a [(&'a str, &'a str)],
        expected: &'a [&'a str],
    }
    let unknown =
        |name: &str| format!("annotation \"clusterip-policy/{name}\" is ignored: unknown name {name:?}: {KNOWN}");
    let value = |value: &str, advice: &str| {
        format!("annotation \"clusterip-policy/move\" is ignored: unknown value {value:?}: {advice}")
    };
    let cases = [
        Case { name: "a misspelt name", annotations: &[("clusterip-policy/pol", "linux")], expected: &[POL] },
        Case {
            name: "another case",
            annotations: &[("clusterip-policy/OS", "linux")],
            expected: &["annotation \"clusterip-policy/OS\" is ignored: unknown name \"OS\": did you mean os?"],
        },
        Case {
            name: "a name that is far from all",
            annotations: &[("clusterip-policy/operating-system", "linux")],
            expected: &[&unknown("operating-system")],
        },
        Case { name: "no name", annotations: &[("clusterip-policy/", "linux")], expected: &[&unknown("")] },
        Case {
            name: "an unknown value",
            annotations: &[(MOVE_ANNOTATION, "maybe")],
            expected: &[&value("maybe", "known are never, now")],
        },
        Case {
            name: "a misspelt value",
            annotations: &[(MOVE_ANNOTATION, "Never")],
            expected: &[&value("Never", "known are never, now")],
        },
        Case {
            name: "a value near to another one than the author means",
            annotations: &[(MOVE_ANNOTATION, "No")],
            expected: &[&value("No", "known are never, now")],
        },
        Case {
            name: "several, by their keys",
            annotations: &[(MOVE_ANNOTATION, "maybe"), ("clusterip-policy/pol", "linux")],
            expected: &[&value("maybe", "known are never, now"), POL],
        },
        Case {
            name: "known values",
            annotations: &[
                (MOVE_ANNOTATION, "now"),
                (REQUESTED_ADDRESS_ANNOTATION, "10.0.9.1"),
                ("clusterip-policy/os", "linux"),
                ("clusterip-policy/pool", "linux"),
            ],
            expected: &[],
        },
        Case {
            name: "empty values",
            annotations: &[(MOVE_ANNOTATION, ""), ("clusterip-policy/pol", "")],
            expected: &[],
        },
        Case {
            name: "other prefixes",
            annotations: &[("example.com/pol", "x"), ("clusterip-policy", "x"), ("x/clusterip-policy/pol", "x")],
            expected: &[],
        },
    ];
    for Case { name, annotations, expected } in cases {
        let answer = answer(&annotated(annotations), &lowest(), &FakeCluster::default());
        assert_eq!(warnings(&answer), expected, "{name}: {answer}");
        assert_eq!(answer["accepted"], json!(true), "{name}");
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
    struct Case {
        name: &'static str,
        request: Value,
        expected: &'static [&'static str],
    }
    let with = |value: &str| annotated(&[("clusterip-policy/pol", value)]);
    let headless = || {
        let mut object = service(json!({"clusterIP": "None"}));
        object["metadata"]["annotations"] = json!({"clusterip-policy/pol": "linux"});
        object
    };
    let endpoints = json!({"group": "", "version": "v1", "kind": "Endpoints"});
    let mut annotated_node = node(json!({}), json!({}));
    annotated_node["metadata"]["annotations"] = json!({"clusterip-policy/pol": "linux"});
    let cases = [
        Case { name: "created", request: created(with("linux")), expected: &[POL] },
        Case { name: "created headless", request: created(headless()), expected: &[POL] },
        Case { name: "added", request: updated(annotated(&[]), with("linux")), expected: &[POL] },
        Case { name: "changed", request: updated(with("linux"), with("windows")), expected: &[POL] },
        Case { name: "unchanged", request: updated(with("linux"), with("linux")), expected: &[] },
        Case { name: "removed", request: updated(with("linux"), annotated(&[])), expected: &[] },
        Case { name: "a deletion", request: request("DELETE", Value::Null, with("linux")), expected: &[] },
        Case { name: "another kind", request: with_field(created(with("linux")), "kind", endpoints), expected: &[] },
        Case {
            name: "a sub-resource",
            request: with_field(updated(annotated(&[]), with("linux")), "subResource", json!("status")),
            expected: &[],
        },
        Case { name: "a Node", request: about_node("CREATE", annotated_node, Value::Null), expected: &[] },
    ];
    for Case { name, request, expected } in cases {
        let answer = answer_of(&request, &lowest(), &FakeCluster::default());
        assert_eq!(warnings(&answer), expected, "{name}: {answer}");
    }
}
