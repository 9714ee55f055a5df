//! What a Pod spec requires of the nodes of its Pods.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::pod_spec_of;
use clusterip_core::json::Located;
use clusterip_core::pod_spec::{OS_LABEL, PodSpec};
use serde_json::{Value, json};

const ARCH: &str = "kubernetes.io/arch";

#[track_caller]
fn check(key: &str, rows: &[(&str, Value, Option<&str>)]) {
    for (name, spec, expected) in rows {
        assert_eq!(pod_spec_of(spec).requires(key).as_deref(), *expected, "{name}: {spec}");
    }
}

/// A Pod spec with these terms of required node affinity.
fn affinity(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

fn among(key: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": "In", "values": values})
}

/// A term that requires one operating system.
fn on(os: &str) -> Value {
    json!({"matchExpressions": [among(OS_LABEL, &[os])]})
}

#[test]
fn os_comes_from_the_spec_then_the_node_selector_then_the_affinity() {
    let mut all = affinity(json!([on("c")]));
    all["os"] = json!({"name": "a"});
    all["nodeSelector"] = json!({"kubernetes.io/os": "b"});
    let mut without_os = all.clone();
    without_os["os"] = json!({"name": ""});
    check(
        OS_LABEL,
        &[
            ("nothing", json!({}), None),
            ("os.name", json!({"os": {"name": "windows"}}), Some("windows")),
            ("nodeSelector", json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), Some("windows")),
            ("its old label", json!({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}), Some("windows")),
            (
                "both labels",
                json!({"nodeSelector": {"beta.kubernetes.io/os": "linux", "kubernetes.io/os": "windows"}}),
                Some("windows"),
            ),
            ("other labels", json!({"nodeSelector": {"kubernetes.io/arch": "amd64"}}), None),
            ("an empty label", json!({"nodeSelector": {"kubernetes.io/os": ""}}), None),
            ("affinity", affinity(json!([on("windows")])), Some("windows")),
            ("all three", all, Some("a")),
            ("an empty os.name", without_os, Some("b")),
            (
                "preferred affinity",
                json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": on("windows")}]}}}),
                None,
            ),
        ],
    );
}

#[test]
fn os_is_case_insensitive_and_other_labels_are_not() {
    check(
        OS_LABEL,
        &[
            ("os.name", json!({"os": {"name": "Windows"}}), Some("windows")),
            ("nodeSelector", json!({"nodeSelector": {"kubernetes.io/os": "Windows"}}), Some("windows")),
            ("the old label", json!({"nodeSelector": {"beta.kubernetes.io/os": "WINDOWS"}}), Some("windows")),
            ("terms that differ in case alone", affinity(json!([on("Windows"), on("windows")])), Some("windows")),
            (
                "values that differ in case alone",
                affinity(json!([{"matchExpressions": [among(OS_LABEL, &["Windows", "windows"])]}])),
                Some("windows"),
            ),
        ],
    );
    check(
        ARCH,
        &[
            ("nodeSelector", json!({"nodeSelector": {ARCH: "AMD64"}}), Some("AMD64")),
            (
                "terms that differ in case",
                affinity(json!([
                    {"matchExpressions": [among(ARCH, &["AMD64"])]},
                    {"matchExpressions": [among(ARCH, &["amd64"])]},
                ])),
                None,
            ),
        ],
    );
}

#[test]
fn affinity_terms_must_agree() {
    let expressions = |expressions: Value| affinity(json!([{ "matchExpressions": expressions }]));
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
    check(
        OS_LABEL,
        &[
            ("two that agree", affinity(json!([on("windows"), on("windows")])), Some("windows")),
            ("two that disagree", affinity(json!([on("windows"), on("linux")])), None),
            ("no terms", affinity(json!([])), None),
            ("an empty term matches no node", affinity(json!([{}, on("windows")])), Some("windows")),
            (
                "a term with empty lists matches no node",
                affinity(json!([on("windows"), {"matchExpressions": [], "matchFields": []}])),
                Some("windows"),
            ),
            ("only empty terms", affinity(json!([{}, {}])), None),
            (
                "a term about something else allows any os",
                affinity(json!([on("windows"), {"matchExpressions": [among(ARCH, &["amd64"])]}])),
                None,
            ),
            ("a term about fields allows any os", affinity(json!([on("windows"), {"matchFields": fields}])), None),
            (
                "fields beside expressions",
                affinity(json!([{"matchFields": fields, "matchExpressions": [among(OS_LABEL, &["windows"])]}])),
                Some("windows"),
            ),
            ("two values", expressions(json!([among(OS_LABEL, &["windows", "linux"])])), None),
            ("the same value twice", expressions(json!([among(OS_LABEL, &["windows", "windows"])])), Some("windows")),
            (
                "expressions that leave one value in common",
                expressions(json!([among(OS_LABEL, &["windows", "linux"]), among(OS_LABEL, &["windows", "plan9"])])),
                Some("windows"),
            ),
            (
                "a contradiction matches no node",
                affinity(
                    json!([{"matchExpressions": [among(OS_LABEL, &["a"]), among(OS_LABEL, &["b"])]}, on("windows")]),
                ),
                Some("windows"),
            ),
            ("only a contradiction", expressions(json!([among(OS_LABEL, &["a"]), among(OS_LABEL, &["b"])])), None),
            ("the old label", expressions(json!([among("beta.kubernetes.io/os", &["windows"])])), Some("windows")),
            ("NotIn", expressions(json!([{"key": OS_LABEL, "operator": "NotIn", "values": ["linux"]}])), None),
            ("Exists", expressions(json!([{"key": OS_LABEL, "operator": "Exists"}])), None),
            (
                "In beside others",
                expressions(json!([{"key": "gpu", "operator": "Exists"}, among(OS_LABEL, &["windows"])])),
                Some("windows"),
            ),
        ],
    );
}

#[test]
fn any_label_can_be_required() {
    check(
        ARCH,
        &[
            ("nodeSelector", json!({"nodeSelector": {ARCH: "arm64"}}), Some("arm64")),
            ("affinity", affinity(json!([{"matchExpressions": [among(ARCH, &["arm64"])]}])), Some("arm64")),
            ("a label with an empty value", json!({"nodeSelector": {ARCH: ""}}), Some("")),
            ("the same by affinity", affinity(json!([{"matchExpressions": [among(ARCH, &[""])]}])), Some("")),
            ("several values", affinity(json!([{"matchExpressions": [among(ARCH, &["amd64", "arm64"])]}])), None),
            (
                "one more label beside it",
                affinity(json!([{"matchExpressions": [among(OS_LABEL, &["linux"]), among(ARCH, &["arm64"])]}])),
                Some("arm64"),
            ),
            ("os.name says nothing of it", json!({"os": {"name": "windows"}}), None),
            ("nor does an old label", json!({"nodeSelector": {"beta.kubernetes.io/arch": "arm64"}}), None),
        ],
    );
}

#[test]
fn null_counts_as_absent() {
    check(
        OS_LABEL,
        &[
            ("the spec", Value::Null, None),
            (
                "every field",
                json!({"os": null, "nodeSelector": null, "affinity": null, "runtimeClassName": null, "nodeName": null}),
                None,
            ),
            (
                "os.name",
                json!({"os": {"name": null}, "nodeSelector": {"kubernetes.io/os": "windows"}}),
                Some("windows"),
            ),
            ("nodeAffinity", json!({"affinity": {"nodeAffinity": null}}), None),
            (
                "required",
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}}}),
                None,
            ),
            ("the terms", affinity(Value::Null), None),
            (
                "a term's lists",
                affinity(json!([{"matchExpressions": null, "matchFields": null}, on("windows")])),
                Some("windows"),
            ),
            (
                "values",
                affinity(
                    json!([{"matchExpressions": [{"key": "gpu", "operator": "Exists", "values": null}, among(OS_LABEL, &["windows"])]}]),
                ),
                Some("windows"),
            ),
        ],
    );
}

#[test]
fn mistyped_field_is_named_with_its_path() {
    let terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let rows = [
        ("the spec", json!([]), "spec: expected an object, found a list".to_owned()),
        ("os", json!({"os": "windows"}), r#"spec.os: expected an object, found the string "windows""#.to_owned()),
        (
            "a label",
            json!({"nodeSelector": {"a": 1}}),
            "spec.nodeSelector.a: expected a string, found the number 1".to_owned(),
        ),
        ("the terms", affinity(json!({})), format!("{terms}: expected a list, found an object")),
        (
            "a value",
            affinity(json!([{"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}])),
            format!("{terms}[0].matchExpressions[0].values[0]: expected a string, found the number 1"),
        ),
        (
            "runtimeClassName",
            json!({"runtimeClassName": {}}),
            "spec.runtimeClassName: expected a string, found an object".to_owned(),
        ),
    ];
    for (name, spec, expected) in rows {
        let error = PodSpec::read(&Located::new(&spec, "spec")).unwrap_err();
        assert_eq!(error.to_string(), expected, "{name}");
    }
}

/// Input beyond the limits is ignored, so a cache need not keep it.
#[test]
fn input_beyond_the_limits_is_ignored() {
    let windows = |count: usize| affinity(vec![on("windows"); count].into());
    let values: Vec<String> = (0..300).map(|number| format!("v{number}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let wide = affinity(json!([{"matchExpressions": [among("instance", &values), among(OS_LABEL, &["windows"])]}]));
    let not_in = json!({"key": "instance", "operator": "NotIn", "values": values});
    let others = affinity(json!([{"matchExpressions": [not_in, among(OS_LABEL, &["windows"])]}]));
    let selector = |count: usize| {
        let mut labels: serde_json::Map<String, Value> = (1..count).map(|n| (format!("a{n:03}"), json!("b"))).collect();
        labels.insert(OS_LABEL.to_owned(), "windows".into());
        json!({ "nodeSelector": labels })
    };
    check(
        OS_LABEL,
        &[
            ("85 terms of one expression with one value", windows(85), Some("windows")),
            ("86 of them", windows(86), None),
            ("300 values", wide, None),
            ("300 values of another operator", others, Some("windows")),
            ("a node selector of 64 labels", selector(64), Some("windows")),
            ("of 65", selector(65), None),
        ],
    );
}
