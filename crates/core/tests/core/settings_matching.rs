//! Mistakes in the parts of a settings document that select Services for a pool: labels, selectors, kinds, the
//! operating system.

use clusterip_core::workload::{TemplateAt, WorkloadKind};
use serde_json::{Value, json};

use crate::support::{check_mistakes, pool, services, settings};

/// Settings with one pool that has this `match`.
fn matching(matches: Value) -> Value {
    pool(json!({ "match": matches }))
}

/// What a label value is.
const VALUE: &str = "is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and .";

#[test]
fn label_keys_and_values_follow_the_rules_of_kubernetes() {
    let (longest, long) = ("x".repeat(63), "x".repeat(64));
    let path = "services.pools[0].match.";
    for key in ["Disk_Type.v1-x", "kubernetes.io/arch", &longest] {
        check_mistakes(path, matching, &[(json!({"nodeLabels": {key: longest}}), "")]);
    }
    for key in ["kubernetes.io/", "/arch", "a/b/c", "K8s.io/a", "-a..b/c", "", ".a"] {
        let mistake = format!("nodeLabels[{key:?}]: {key:?} is not a label key");
        check_mistakes(path, matching, &[(json!({"nodeLabels": {key: "x"}}), &mistake)]);
    }
    for key in ["a-", &long] {
        let mistake = format!("nodeLabels.{key}: {key:?} is not a label key");
        check_mistakes(path, matching, &[(json!({"nodeLabels": {key: "x"}}), &mistake)]);
    }
    for value in ["a b", &long] {
        let mistake = format!("nodeLabels.a: {value:?} {VALUE}");
        check_mistakes(path, matching, &[(json!({"nodeLabels": {"a": value}}), &mistake)]);
    }
    let label = r#"namespaces[1]: "a_b" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#;
    check_mistakes(path, matching, &[(json!({"namespaces": ["shop", "a_b"]}), label)]);
}

#[test]
fn selector_requirements_need_a_key_an_operator_and_matching_values() {
    let expression = |expression: Value| matching(json!({"namespaceSelector": {"matchExpressions": [expression]}}));
    let no_values = "values: missing: In and NotIn need at least one value";
    let some_values = "values: Exists and DoesNotExist take no values";
    let rows = [
        (json!({"key": "team", "operator": "In", "values": ["a", "b"]}), ""),
        (json!({}), "key: missing: a requirement needs a label key"),
        (json!({"key": "team"}), "operator: missing: one of In, NotIn, Exists, DoesNotExist"),
        (json!({"key": "team", "operator": "exists"}), r#"operator: unknown operator "exists": did you mean Exists?"#),
        // An operator of node affinity.
        (
            json!({"key": "team", "operator": "Gt", "values": ["1"]}),
            r#"operator: unknown operator "Gt": known are In, NotIn, Exists, DoesNotExist"#,
        ),
        (json!({"key": "te am", "operator": "Exists"}), r#"key: "te am" is not a label key"#),
        (json!({"key": "team", "operator": "In"}), no_values),
        (json!({"key": "team", "operator": "NotIn", "values": []}), no_values),
        (json!({"key": "team", "operator": "Exists", "values": ["a"]}), some_values),
        (json!({"key": "team", "operator": "DoesNotExist", "values": ["a"]}), some_values),
        (json!({"key": "team", "operator": "In", "values": ["a", "b c"]}), &format!(r#"values[1]: "b c" {VALUE}"#)),
        (
            json!({"key": "team", "operator": "Exists", "values": "a"}),
            r#"values: expected a list, found the string "a""#,
        ),
    ];
    check_mistakes("services.pools[0].match.namespaceSelector.matchExpressions[0].", expression, &rows);
}

#[test]
fn kinds_are_known_names_or_group_version_kind_without_duplicates() {
    let kinds = |kinds: Value| services(json!({"evidence": {"kinds": kinds}}));
    let custom = "write a custom resource as group/version/Kind";
    let rows = [
        (json!([]), ""),
        (json!(["Pod", "argoproj.io/v1alpha1/Rollout", "apps/v1/Deployment"]), ""),
        (json!(["statefulset"]), &format!(r#"[0]: unknown kind "statefulset": did you mean StatefulSet?; {custom}"#)),
        (json!(["Pod", "Job", "Pod"]), r#"[2]: "Pod" is already in the list"#),
        (json!(["apps/v1/Deployment", "Deployment"]), r#"[1]: "Deployment" is already in the list"#),
        (json!([7, null]), "[0]: expected a string, found the number 7\n[1]: expected a string, found null"),
    ];
    check_mistakes("services.evidence.kinds", kinds, &rows);
    for unknown in ["Rollout", "argoproj.io/v1alpha1/rollout", "argoproj.io/1/Rollout"] {
        let mistake = format!(
            "{unknown:?}: known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, \
             CronJob, Pod; {custom}"
        );
        check_mistakes("services.evidence.kinds[0]: unknown kind ", kinds, &[(json!([unknown]), &mistake)]);
    }
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
    let both = |os: &str, label: &str| json!({"os": os, "nodeLabels": {"kubernetes.io/os": label}});
    let rows = [
        (both("windows", "windows"), ""),
        (both("Windows", "WINDOWS"), ""),
        (both("windows", "linux"), r#"contradicts nodeLabels, where kubernetes.io/os is "linux""#),
        (json!({"os": ""}), "empty: name an operating system, such as linux or windows"),
        (json!({"os": "win dows"}), &format!(r#""win dows" {VALUE}"#)),
    ];
    check_mistakes("services.pools[0].match.os: ", matching, &rows);
}
