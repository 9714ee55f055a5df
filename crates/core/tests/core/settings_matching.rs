//! Mistakes in the parts of a settings document that select Services for a pool: labels, selectors, kinds, the
//! operating system.

use clusterip_core::workload::{TemplateAt, WorkloadKind};
use serde_json::{Value, json};

use crate::support::{SettingsCase, check_mistakes, pool, services, settings};

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
        SettingsCase { name: "a name", document: keys("Disk_Type.v1-x"), mistakes: &[] },
        SettingsCase { name: "prefix and name", document: keys("kubernetes.io/arch"), mistakes: &[] },
        SettingsCase {
            name: "no name",
            document: keys("kubernetes.io/"),
            mistakes: &[r#"services.pools[0].match.nodeLabels["kubernetes.io/"]: "kubernetes.io/" is not a label key"#],
        },
        SettingsCase {
            name: "no prefix",
            document: keys("/arch"),
            mistakes: &[r#"services.pools[0].match.nodeLabels["/arch"]: "/arch" is not a label key"#],
        },
        SettingsCase {
            name: "two slashes",
            document: keys("a/b/c"),
            mistakes: &[r#"services.pools[0].match.nodeLabels["a/b/c"]: "a/b/c" is not a label key"#],
        },
        SettingsCase {
            name: "a prefix in upper case",
            document: keys("K8s.io/a"),
            mistakes: &[r#"services.pools[0].match.nodeLabels["K8s.io/a"]: "K8s.io/a" is not a label key"#],
        },
        SettingsCase {
            name: "a prefix that is not a domain",
            document: keys("-a..b/c"),
            mistakes: &[r#"services.pools[0].match.nodeLabels["-a..b/c"]: "-a..b/c" is not a label key"#],
        },
        SettingsCase {
            name: "empty",
            document: keys(""),
            mistakes: &[r#"services.pools[0].match.nodeLabels[""]: "" is not a label key"#],
        },
        SettingsCase {
            name: "begins with a dot",
            document: keys(".a"),
            mistakes: &[r#"services.pools[0].match.nodeLabels[".a"]: ".a" is not a label key"#],
        },
        SettingsCase {
            name: "ends with a hyphen",
            document: keys("a-"),
            mistakes: &[r#"services.pools[0].match.nodeLabels.a-: "a-" is not a label key"#],
        },
        SettingsCase {
            name: "64 characters",
            document: keys(&long),
            mistakes: &[&format!(r#"services.pools[0].match.nodeLabels.{long}: "{long}" is not a label key"#)],
        },
        SettingsCase {
            name: "a space in the value",
            document: value("a b"),
            mistakes: &[
                r#"services.pools[0].match.nodeLabels.a: "a b" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#,
            ],
        },
        SettingsCase {
            name: "a value too long",
            document: value(&long),
            mistakes: &[&format!(
                r#"services.pools[0].match.nodeLabels.a: "{long}" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#
            )],
        },
        SettingsCase { name: "63 characters", document: value(&"x".repeat(63)), mistakes: &[] },
        SettingsCase {
            name: "a namespace",
            document: matching(json!({"namespaces": ["shop", "a_b"]})),
            mistakes: &[
                r#"services.pools[0].match.namespaces[1]: "a_b" is not a DNS label: 1 to 63 of a-z, 0-9 and -, no - at either end"#,
            ],
        },
    ]);
}

#[test]
fn selector_requirements_need_a_key_an_operator_and_matching_values() {
    let expression = |expression: Value| matching(json!({"namespaceSelector": {"matchExpressions": [expression]}}));
    let at = |rest: &str| format!("services.pools[0].match.namespaceSelector.matchExpressions[0]{rest}");
    check_mistakes(&[
        SettingsCase {
            name: "a valid expression",
            document: expression(json!({"key": "team", "operator": "In", "values": ["a", "b"]})),
            mistakes: &[],
        },
        SettingsCase {
            name: "an empty expression",
            document: expression(json!({})),
            mistakes: &[&at(".key: missing: a requirement needs a label key")],
        },
        SettingsCase {
            name: "no operator",
            document: expression(json!({"key": "team"})),
            mistakes: &[&at(".operator: missing: one of In, NotIn, Exists, DoesNotExist")],
        },
        SettingsCase {
            name: "an operator in lower case",
            document: expression(json!({"key": "team", "operator": "exists"})),
            mistakes: &[&at(r#".operator: unknown operator "exists": did you mean Exists?"#)],
        },
        SettingsCase {
            name: "an operator of node affinity",
            document: expression(json!({"key": "team", "operator": "Gt", "values": ["1"]})),
            mistakes: &[&at(r#".operator: unknown operator "Gt": known are In, NotIn, Exists, DoesNotExist"#)],
        },
        SettingsCase {
            name: "an invalid key",
            document: expression(json!({"key": "te am", "operator": "Exists"})),
            mistakes: &[&at(r#".key: "te am" is not a label key"#)],
        },
        SettingsCase {
            name: "In without values",
            document: expression(json!({"key": "team", "operator": "In"})),
            mistakes: &[&at(".values: missing: In and NotIn need at least one value")],
        },
        SettingsCase {
            name: "NotIn with an empty list",
            document: expression(json!({"key": "team", "operator": "NotIn", "values": []})),
            mistakes: &[&at(".values: missing: In and NotIn need at least one value")],
        },
        SettingsCase {
            name: "Exists with values",
            document: expression(json!({"key": "team", "operator": "Exists", "values": ["a"]})),
            mistakes: &[&at(".values: Exists and DoesNotExist take no values")],
        },
        SettingsCase {
            name: "DoesNotExist with values",
            document: expression(json!({"key": "team", "operator": "DoesNotExist", "values": ["a"]})),
            mistakes: &[&at(".values: Exists and DoesNotExist take no values")],
        },
        SettingsCase {
            name: "an invalid value",
            document: expression(json!({"key": "team", "operator": "In", "values": ["a", "b c"]})),
            mistakes: &[&at(r#".values[1]: "b c" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#)],
        },
        SettingsCase {
            name: "a single value",
            document: expression(json!({"key": "team", "operator": "Exists", "values": "a"})),
            mistakes: &[&at(r#".values: expected a list, found the string "a""#)],
        },
    ]);
}

#[test]
fn kinds_are_known_names_or_group_version_kind_without_duplicates() {
    let custom = "write a custom resource as group/version/Kind";
    check_mistakes(&[
        SettingsCase { name: "none", document: kinds(json!([])), mistakes: &[] },
        SettingsCase {
            name: "known kinds and a custom resource",
            document: kinds(json!(["Pod", "argoproj.io/v1alpha1/Rollout", "apps/v1/Deployment"])),
            mistakes: &[],
        },
        SettingsCase {
            name: "a known kind in another case",
            document: kinds(json!(["statefulset"])),
            mistakes: &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "statefulset": did you mean StatefulSet?; {custom}"#
            )],
        },
        SettingsCase {
            name: "no similar kind",
            document: kinds(json!(["Rollout"])),
            mistakes: &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "Rollout": known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod; {custom}"#
            )],
        },
        SettingsCase {
            name: "a kind in lower case",
            document: kinds(json!(["argoproj.io/v1alpha1/rollout"])),
            mistakes: &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "argoproj.io/v1alpha1/rollout": known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod; {custom}"#
            )],
        },
        SettingsCase {
            name: "an invalid version",
            document: kinds(json!(["argoproj.io/1/Rollout"])),
            mistakes: &[&format!(
                r#"services.evidence.kinds[0]: unknown kind "argoproj.io/1/Rollout": known are Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob, Pod; {custom}"#
            )],
        },
        SettingsCase {
            name: "twice",
            document: kinds(json!(["Pod", "Job", "Pod"])),
            mistakes: &[r#"services.evidence.kinds[2]: "Pod" is already in the list"#],
        },
        SettingsCase {
            name: "twice, once with its group and version",
            document: kinds(json!(["apps/v1/Deployment", "Deployment"])),
            mistakes: &[r#"services.evidence.kinds[1]: "Deployment" is already in the list"#],
        },
        SettingsCase {
            name: "wrong types",
            document: kinds(json!([7, null])),
            mistakes: &[
                "services.evidence.kinds[0]: expected a string, found the number 7",
                "services.evidence.kinds[1]: expected a string, found null",
            ],
        },
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
        SettingsCase { name: "the same", document: both("windows", "windows"), mistakes: &[] },
        SettingsCase { name: "the same in another case", document: both("Windows", "WINDOWS"), mistakes: &[] },
        SettingsCase {
            name: "another",
            document: both("windows", "linux"),
            mistakes: &[r#"services.pools[0].match.os: contradicts nodeLabels, where kubernetes.io/os is "linux""#],
        },
        SettingsCase {
            name: "empty",
            document: matching(json!({"os": ""})),
            mistakes: &["services.pools[0].match.os: empty: name an operating system, such as linux or windows"],
        },
        SettingsCase {
            name: "not a label value",
            document: matching(json!({"os": "win dows"})),
            mistakes: &[
                r#"services.pools[0].match.os: "win dows" is not a label value: at most 63 of A-Z, a-z, 0-9, -, _ and ."#,
            ],
        },
    ]);
}
