//! What a Pod spec requires of the nodes of its Pods.

use clusterip_core::json::Located;
use clusterip_core::workload::{OS_LABEL, PodSpec};
use serde_json::{Value, json};

use crate::support::pod_spec_of;

const ARCH: &str = "kubernetes.io/arch";

struct Case {
    name: &'static str,
    spec: Value,
    expected: Option<&'static str>,
}

#[track_caller]
fn check(key: &str, cases: &[Case]) {
    for Case { name, spec, expected } in cases {
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
            Case { name: "nothing", spec: json!({}), expected: None },
            Case { name: "os.name", spec: json!({"os": {"name": "windows"}}), expected: Some("windows") },
            Case {
                name: "nodeSelector",
                spec: json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
                expected: Some("windows"),
            },
            Case {
                name: "nodeSelector with the old label",
                spec: json!({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}),
                expected: Some("windows"),
            },
            Case {
                name: "both labels",
                spec: json!({"nodeSelector": {"beta.kubernetes.io/os": "linux", "kubernetes.io/os": "windows"}}),
                expected: Some("windows"),
            },
            Case {
                name: "other labels",
                spec: json!({"nodeSelector": {"kubernetes.io/arch": "amd64"}}),
                expected: None,
            },
            Case { name: "an empty label", spec: json!({"nodeSelector": {"kubernetes.io/os": ""}}), expected: None },
            Case { name: "affinity", spec: affinity(json!([on("windows")])), expected: Some("windows") },
            Case { name: "os, nodeSelector and affinity", spec: all, expected: Some("a") },
            Case { name: "an empty os.name", spec: without_os, expected: Some("b") },
            Case {
                name: "preferred affinity",
                spec: json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": on("windows")}]}}}),
                expected: None,
            },
        ],
    );
}

#[test]
fn os_is_case_insensitive_and_other_labels_are_not() {
    check(
        OS_LABEL,
        &[
            Case { name: "os.name", spec: json!({"os": {"name": "Windows"}}), expected: Some("windows") },
            Case {
                name: "nodeSelector",
                spec: json!({"nodeSelector": {"kubernetes.io/os": "Windows"}}),
                expected: Some("windows"),
            },
            Case {
                name: "the old label",
                spec: json!({"nodeSelector": {"beta.kubernetes.io/os": "WINDOWS"}}),
                expected: Some("windows"),
            },
            Case {
                name: "terms that differ only in case",
                spec: affinity(json!([on("Windows"), on("windows")])),
                expected: Some("windows"),
            },
            Case {
                name: "values that differ only in case",
                spec: affinity(json!([{"matchExpressions": [among(OS_LABEL, &["Windows", "windows"])]}])),
                expected: Some("windows"),
            },
        ],
    );
    check(
        ARCH,
        &[
            Case { name: "nodeSelector", spec: json!({"nodeSelector": {ARCH: "AMD64"}}), expected: Some("AMD64") },
            Case {
                name: "terms that differ in case",
                spec: affinity(json!([
                    {"matchExpressions": [among(ARCH, &["AMD64"])]},
                    {"matchExpressions": [among(ARCH, &["amd64"])]},
                ])),
                expected: None,
            },
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
            Case {
                name: "two terms that agree",
                spec: affinity(json!([on("windows"), on("windows")])),
                expected: Some("windows"),
            },
            Case {
                name: "two terms that disagree",
                spec: affinity(json!([on("windows"), on("linux")])),
                expected: None,
            },
            Case { name: "no terms", spec: affinity(json!([])), expected: None },
            Case {
                name: "an empty term matches no node",
                spec: affinity(json!([{}, on("windows")])),
                expected: Some("windows"),
            },
            Case {
                name: "a term with empty lists matches no node",
                spec: affinity(json!([on("windows"), {"matchExpressions": [], "matchFields": []}])),
                expected: Some("windows"),
            },
            Case { name: "only empty terms", spec: affinity(json!([{}, {}])), expected: None },
            Case {
                name: "a term about something else allows any os",
                spec: affinity(json!([on("windows"), {"matchExpressions": [among(ARCH, &["amd64"])]}])),
                expected: None,
            },
            Case {
                name: "a term about fields allows any os",
                spec: affinity(json!([on("windows"), {"matchFields": fields}])),
                expected: None,
            },
            Case {
                name: "fields beside expressions",
                spec: affinity(json!([{"matchFields": fields, "matchExpressions": [among(OS_LABEL, &["windows"])]}])),
                expected: Some("windows"),
            },
            Case {
                name: "two values of one expression",
                spec: expressions(json!([among(OS_LABEL, &["windows", "linux"])])),
                expected: None,
            },
            Case {
                name: "the same value twice",
                spec: expressions(json!([among(OS_LABEL, &["windows", "windows"])])),
                expected: Some("windows"),
            },
            Case {
                name: "expressions that leave one value in common",
                spec: expressions(json!([
                    among(OS_LABEL, &["windows", "linux"]),
                    among(OS_LABEL, &["windows", "plan9"])
                ])),
                expected: Some("windows"),
            },
            Case {
                name: "a contradiction matches no node",
                spec: affinity(
                    json!([{"matchExpressions": [among(OS_LABEL, &["a"]), among(OS_LABEL, &["b"])]}, on("windows")]),
                ),
                expected: Some("windows"),
            },
            Case {
                name: "only a contradiction",
                spec: expressions(json!([among(OS_LABEL, &["a"]), among(OS_LABEL, &["b"])])),
                expected: None,
            },
            Case {
                name: "the old label",
                spec: expressions(json!([among("beta.kubernetes.io/os", &["windows"])])),
                expected: Some("windows"),
            },
            Case {
                name: "NotIn",
                spec: expressions(json!([{"key": OS_LABEL, "operator": "NotIn", "values": ["linux"]}])),
                expected: None,
            },
            Case {
                name: "Exists",
                spec: expressions(json!([{"key": OS_LABEL, "operator": "Exists"}])),
                expected: None,
            },
            Case {
                name: "In beside other expressions",
                spec: expressions(json!([{"key": "gpu", "operator": "Exists"}, among(OS_LABEL, &["windows"])])),
                expected: Some("windows"),
            },
        ],
    );
}

#[test]
fn any_label_can_be_required() {
    check(
        ARCH,
        &[
            Case { name: "nodeSelector", spec: json!({"nodeSelector": {ARCH: "arm64"}}), expected: Some("arm64") },
            Case {
                name: "affinity",
                spec: affinity(json!([{"matchExpressions": [among(ARCH, &["arm64"])]}])),
                expected: Some("arm64"),
            },
            Case { name: "a label with an empty value", spec: json!({"nodeSelector": {ARCH: ""}}), expected: Some("") },
            Case {
                name: "affinity with an empty value",
                spec: affinity(json!([{"matchExpressions": [among(ARCH, &[""])]}])),
                expected: Some(""),
            },
            Case {
                name: "several values",
                spec: affinity(json!([{"matchExpressions": [among(ARCH, &["amd64", "arm64"])]}])),
                expected: None,
            },
            Case {
                name: "affinity with another label",
                spec: affinity(json!([{"matchExpressions": [among(OS_LABEL, &["linux"]), among(ARCH, &["arm64"])]}])),
                expected: Some("arm64"),
            },
            Case {
                name: "os.name does not count for another label",
                spec: json!({"os": {"name": "windows"}}),
                expected: None,
            },
            Case {
                name: "the old label does not count for another label",
                spec: json!({"nodeSelector": {"beta.kubernetes.io/arch": "arm64"}}),
                expected: None,
            },
        ],
    );
}

#[test]
fn null_counts_as_absent() {
    check(
        OS_LABEL,
        &[
            Case { name: "the spec", spec: Value::Null, expected: None },
            Case {
                name: "every field",
                spec: json!({"os": null, "nodeSelector": null, "affinity": null, "runtimeClassName": null, "nodeName": null}),
                expected: None,
            },
            Case {
                name: "os.name",
                spec: json!({"os": {"name": null}, "nodeSelector": {"kubernetes.io/os": "windows"}}),
                expected: Some("windows"),
            },
            Case { name: "nodeAffinity", spec: json!({"affinity": {"nodeAffinity": null}}), expected: None },
            Case {
                name: "required",
                spec: json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}}}),
                expected: None,
            },
            Case { name: "the terms", spec: affinity(Value::Null), expected: None },
            Case {
                name: "a term's lists",
                spec: affinity(json!([{"matchExpressions": null, "matchFields": null}, on("windows")])),
                expected: Some("windows"),
            },
            Case {
                name: "values",
                spec: affinity(
                    json!([{"matchExpressions": [{"key": "gpu", "operator": "Exists", "values": null}, among(OS_LABEL, &["windows"])]}]),
                ),
                expected: Some("windows"),
            },
        ],
    );
}

#[test]
fn mistyped_field_is_named_with_its_path() {
    struct MistypedCase {
        name: &'static str,
        spec: Value,
        expected: String,
    }
    let terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let rows = [
        MistypedCase {
            name: "the spec",
            spec: json!([]),
            expected: "spec: expected an object, found a list".to_owned(),
        },
        MistypedCase {
            name: "os",
            spec: json!({"os": "windows"}),
            expected: r#"spec.os: expected an object, found the string "windows""#.to_owned(),
        },
        MistypedCase {
            name: "a label",
            spec: json!({"nodeSelector": {"a": 1}}),
            expected: "spec.nodeSelector.a: expected a string, found the number 1".to_owned(),
        },
        MistypedCase {
            name: "the terms",
            spec: affinity(json!({})),
            expected: format!("{terms}: expected a list, found an object"),
        },
        MistypedCase {
            name: "a value",
            spec: affinity(json!([{"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}])),
            expected: format!("{terms}[0].matchExpressions[0].values[0]: expected a string, found the number 1"),
        },
        MistypedCase {
            name: "runtimeClassName",
            spec: json!({"runtimeClassName": {}}),
            expected: "spec.runtimeClassName: expected a string, found an object".to_owned(),
        },
    ];
    for MistypedCase { name, spec, expected } in rows {
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
            Case { name: "85 terms of one expression with one value", spec: windows(85), expected: Some("windows") },
            Case { name: "86 terms of one expression with one value", spec: windows(86), expected: None },
            Case { name: "300 values", spec: wide, expected: None },
            Case { name: "300 values of another operator", spec: others, expected: Some("windows") },
            Case { name: "a node selector of 64 labels", spec: selector(64), expected: Some("windows") },
            Case { name: "a node selector of 65 labels", spec: selector(65), expected: None },
        ],
    );
}
