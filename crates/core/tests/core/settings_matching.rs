//! Mistakes in the parts of a settings document that select Services for a pool: labels, selectors, kinds, the
//! operating system.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{check_mistakes, pool, services, settings};
use clusterip_core::workload::{TemplateAt, WorkloadKind};
use serde_json::{Value, json};

/// Settings with one pool that has this `match`.
fn matching(matches: Value) -> Value {
    pool(json!({ "match": matches }))
}

fn kinds(kinds: Value) -> Value {
    services(json!({"evidence": {"kinds": kinds}}))
}

#[test]
fn label_keys_and_values_follow_the_rules_of_kubernetes() {
    let keys = |key: &str| matching(json!({"nodeLabels": {key: "x"}}));
    let value = |value: &str| matching(json!({"nodeLabels": {"a": value}}));
    let long = "x".repeat(64);
    check_mistakes(&[
        ("a name", keys("Disk_Type.v1-x"), &[]),
        ("prefix and name", keys("kubernetes.io/arch"), &[]),
        (
            "no name",
            keys("kubernetes.io/"),
            &[r#"services.pools[0].match.nodeLabels["kubernetes.io/"]: "kubernetes.io/" is not a label key"#],
        ),
        ("no prefix", keys("/arch"), &[r#"services.pools[0].match.nodeLabels["/arch"]: "/arch" is not a label key"#]),
        ("two slashes", keys("a/b/c"), &[r#"services.pools[0].match.nodeLabels["a/b/c"]: "a/b/c" is not a label key"#]),
        (
            "a prefix in upper case",
            keys("K8s.io/a"),
            &[r#"services.pools[0].match.nodeLabels["K8s.io/a"]: "K8s.io/a" is not a label key"#],
        ),
        (
            "a prefix that is not a domain",
            keys("-a..b/c"),
            &[r#"services.pools[0].match.nodeLabels["-a..b/c"]: "-a..b/c" is not a label key"#],
        ),
        ("empty", keys(""), &[r#"services.pools[0].match.nodeLabels[""]: "" is not a label key"#]),
        ("begins with a dot", keys(".a"), &[r#"services.pools[0].match.nodeLabels[".a"]: ".a" is not a label key"#]),
        ("ends with a hyphen", keys("a-"), &[r#"services.pools[0].match.nodeLabels.a-: "a-" is not a label key"#]),
        (
            "64 characters",
            keys(&long),
            &[&format!(r#"services.pools[0].match.nodeLabels.{long}: "{long}" is not a label key"#)],
        ),
        (
            "a space in the value",
            value("a b"),
            &[
                r#"services.pools[0].match.nodeLabels.a: "a b" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#,
            ],
        ),
        (
            "a value too long",
            value(&long),
            &[&format!(
                r#"services.pools[0].match.nodeLabels.a: "{long}" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#
            )],
        ),
        ("63 characters", value(&"x".repeat(63)), &[]),
        (
            "a namespace",
            matching(json!({"namespaces": ["shop", "a_b"]})),
            &[
                r#"services.pools[0].match.namespaces[1]: "a_b" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
            ],
        ),
    ]);
}

#[test]
fn selector_requirements_need_a_key_an_operator_and_matching_values() {
    let expression = |expression: Value| matching(json!({"namespaceSelector": {"matchExpressions": [expression]}}));
    let at = |rest: &str| format!("services.pools[0].match.namespaceSelector.matchExpressions[0]{rest}");
    check_mistakes(&[
        ("good", expression(json!({"key": "team", "operator": "In", "values": ["a", "b"]})), &[]),
        ("nothing at all", expression(json!({})), &[&at(".key: missing: a requirement needs a label key")]),
        (
            "no operator",
            expression(json!({"key": "team"})),
            &[&at(".operator: missing: one of In, NotIn, Exists, DoesNotExist")],
        ),
        (
            "an operator in lower case",
            expression(json!({"key": "team", "operator": "exists"})),
            &[&at(r#".operator: unknown operator "exists": did you mean Exists?"#)],
        ),
        (
            "an operator of nodes",
            expression(json!({"key": "team", "operator": "Gt", "values": ["1"]})),
            &[&at(r#".operator: unknown operator "Gt": known are In, NotIn, Exists, DoesNotExist"#)],
        ),
        (
            "a bad key",
            expression(json!({"key": "te am", "operator": "Exists"})),
            &[&at(r#".key: "te am" is not a label key"#)],
        ),
        (
            "In without values",
            expression(json!({"key": "team", "operator": "In"})),
            &[&at(".values: missing: In and NotIn need at least one value")],
        ),
        (
            "NotIn with an empty list",
            expression(json!({"key": "team", "operator": "NotIn", "values": []})),
            &[&at(".values: missing: In and NotIn need at least one value")],
        ),
        (
            "Exists with values",
            expression(json!({"key": "team", "operator": "Exists", "values": ["a"]})),
            &[&at(".values: Exists and DoesNotExist take no values")],
        ),
        (
            "DoesNotExist with values",
            expression(json!({"key": "team", "operator": "DoesNotExist", "values": ["a"]})),
            &[&at(".values: Exists and DoesNotExist take no values")],
        ),
        (
            "a bad value",
            expression(json!({"key": "team", "operator": "In", "values": ["a", "b c"]})),
            &[&at(r#".values[1]: "b c" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#)],
        ),
        (
            "a single value",
            expression(json!({"key": "team", "operator": "Exists", "values": "a"})),
            &[&at(r#".values: expected a list, found the string "a""#)],
        ),
    ]);
}

#[test]
fn kinds_are_known_names_or_group_version_kind_without_duplicates() {
    let custom = "write a custom resource as group/version/Kind";
    check_mistakes(&[
        ("none", kinds(json!([])), &[]),
        ("known and custom", kinds(json!(["Pod", "argoproj.io/v1alpha1/Rollout", "apps/v1/Deployment"])), &[]),
        (
            "another case",
            kinds(json!(["statefulset"])),
            &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "statefulset": did you mean StatefulSet?; {custom}"#
            )],
        ),
        (
            "nothing near",
            kinds(json!(["Rollout"])),
            &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "Rollout": known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod; {custom}"#
            )],
        ),
        (
            "a kind in lower case",
            kinds(json!(["argoproj.io/v1alpha1/rollout"])),
            &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "argoproj.io/v1alpha1/rollout": known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod; {custom}"#
            )],
        ),
        (
            "a version that is none",
            kinds(json!(["argoproj.io/1/Rollout"])),
            &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "argoproj.io/1/Rollout": known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod; {custom}"#
            )],
        ),
        (
            "twice",
            kinds(json!(["Pod", "Job", "Pod"])),
            &[r#"services.evidence.kinds[2]: "Pod" is already in the list"#],
        ),
        (
            "twice in other words",
            kinds(json!(["apps/v1/Deployment", "Deployment"])),
            &[r#"services.evidence.kinds[1]: "Deployment" is already in the list"#],
        ),
        (
            "wrong types",
            kinds(json!([7, null])),
            &[
                "services.evidence.kinds[0]: expected a string, found the number 7",
                "services.evidence.kinds[1]: expected a string, found null",
            ],
        ),
    ]);
    let kind = |api_version: &str, kind: &str, template| WorkloadKind {
        api_version: api_version.into(),
        kind: kind.into(),
        template,
    };
    assert_eq!(
        settings(&kinds(json!(["Pod", "argoproj.io/v1alpha1/Rollout", "apps/v1/Deployment", "CronJob"]))).kinds,
        [
            kind("v1", "Pod", TemplateAt::Itself),
            kind("argoproj.io/v1alpha1", "Rollout", TemplateAt::Template),
            kind("apps/v1", "Deployment", TemplateAt::Template),
            kind("batch/v1", "CronJob", TemplateAt::JobTemplate),
        ]
    );
}

#[test]
fn os_and_node_labels_must_not_contradict_each_other() {
    let both = |os: &str, label: &str| matching(json!({"os": os, "nodeLabels": {"kubernetes.io/os": label}}));
    check_mistakes(&[
        ("the same", both("windows", "windows"), &[]),
        ("the same but for the case", both("Windows", "WINDOWS"), &[]),
        (
            "another",
            both("windows", "linux"),
            &[r#"services.pools[0].match.os: contradicts nodeLabels, where kubernetes.io/os is "linux""#],
        ),
        (
            "empty",
            matching(json!({"os": ""})),
            &["services.pools[0].match.os: empty: name an operating system, such as linux or windows"],
        ),
        (
            "no label value",
            matching(json!({"os": "win dows"})),
            &[
                r#"services.pools[0].match.os: "win dows" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#,
            ],
        ),
    ]);
}
