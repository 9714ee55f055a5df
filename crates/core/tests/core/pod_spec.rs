//! What a Pod spec requires of the nodes of its Pods.

use clusterip_core::json::Located;
use clusterip_core::workload::{OS_LABEL, PodSpec, Pods, TemplateAt};
use serde_json::{Value, json};

use crate::support::pod_spec_of;

const ARCH: &str = "kubernetes.io/arch";

/// Compares which value of the label `key` each Pod spec requires.
#[track_caller]
fn check(key: &str, expected: Option<&str>, specs: &[(&str, Value)]) {
    for (name, spec) in specs {
        assert_eq!(pod_spec_of(spec).requires(key).as_deref(), expected, "{name}: {spec}");
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

/// Required node affinity with a term of these expressions.
fn expressions(expressions: Value) -> Value {
    affinity(json!([{ "matchExpressions": expressions }]))
}

fn node_selector(labels: Value) -> Value {
    json!({ "nodeSelector": labels })
}

const WINDOWS: Option<&str> = Some("windows");

#[test]
fn os_comes_from_the_spec_then_the_node_selector_then_the_affinity() {
    let mut all = affinity(json!([on("c")]));
    all["os"] = json!({"name": "a"});
    all["nodeSelector"] = json!({"kubernetes.io/os": "b"});
    let mut without_os = all.clone();
    without_os["os"] = json!({"name": ""});
    check(OS_LABEL, Some("a"), &[("os, nodeSelector and affinity", all)]);
    check(OS_LABEL, Some("b"), &[("an empty os.name", without_os)]);
    let sources = [
        ("os.name", json!({"os": {"name": "windows"}})),
        ("nodeSelector", node_selector(json!({"kubernetes.io/os": "windows"}))),
        ("the old label", node_selector(json!({"beta.kubernetes.io/os": "windows"}))),
        ("both labels", node_selector(json!({"beta.kubernetes.io/os": "linux", "kubernetes.io/os": "windows"}))),
        ("affinity", affinity(json!([on("windows")]))),
    ];
    check(OS_LABEL, WINDOWS, &sources);
    let preferred = json!([{"weight": 1, "preference": on("windows")}]);
    let preferred = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    let others = [
        ("nothing", json!({})),
        ("other labels", node_selector(json!({ARCH: "amd64"}))),
        ("an empty label", node_selector(json!({"kubernetes.io/os": ""}))),
        ("preferred affinity", json!({ "affinity": preferred })),
    ];
    check(OS_LABEL, None, &others);
}

#[test]
fn os_is_case_insensitive_and_other_labels_are_not() {
    let specs = [
        ("os.name", json!({"os": {"name": "Windows"}})),
        ("nodeSelector", node_selector(json!({"kubernetes.io/os": "Windows"}))),
        ("the old label", node_selector(json!({"beta.kubernetes.io/os": "WINDOWS"}))),
        ("terms that differ only in case", affinity(json!([on("Windows"), on("windows")]))),
        ("values that differ only in case", expressions(json!([among(OS_LABEL, &["Windows", "windows"])]))),
    ];
    check(OS_LABEL, WINDOWS, &specs);
    check(ARCH, Some("AMD64"), &[("nodeSelector", node_selector(json!({ARCH: "AMD64"})))]);
    let [upper, lower] = ["AMD64", "amd64"].map(|arch| json!({"matchExpressions": [among(ARCH, &[arch])]}));
    check(ARCH, None, &[("terms that differ in case", affinity(json!([upper, lower])))]);
}

#[test]
fn affinity_terms_must_agree() {
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
    let beside_fields = json!([{"matchFields": fields, "matchExpressions": [among(OS_LABEL, &["windows"])]}]);
    let common = json!([among(OS_LABEL, &["windows", "linux"]), among(OS_LABEL, &["windows", "plan9"])]);
    let contradiction = json!([among(OS_LABEL, &["a"]), among(OS_LABEL, &["b"])]);
    let beside_contradiction = json!([{ "matchExpressions": contradiction }, on("windows")]);
    let beside_other = json!([{"key": "gpu", "operator": "Exists"}, among(OS_LABEL, &["windows"])]);
    let agreeing = [
        ("two terms that agree", affinity(json!([on("windows"), on("windows")]))),
        ("an empty term matches no node", affinity(json!([{}, on("windows")]))),
        ("so does one of empty lists", affinity(json!([on("windows"), {"matchExpressions": [], "matchFields": []}]))),
        ("fields beside expressions", affinity(beside_fields)),
        ("the same value twice", expressions(json!([among(OS_LABEL, &["windows", "windows"])]))),
        ("expressions that leave one value in common", expressions(common)),
        ("a contradiction matches no node", affinity(beside_contradiction)),
        ("the old label", expressions(json!([among("beta.kubernetes.io/os", &["windows"])]))),
        ("In beside other expressions", expressions(beside_other)),
    ];
    check(OS_LABEL, WINDOWS, &agreeing);
    let about_arch = json!([on("windows"), {"matchExpressions": [among(ARCH, &["amd64"])]}]);
    let not_in = json!([{"key": OS_LABEL, "operator": "NotIn", "values": ["linux"]}]);
    let others = [
        ("two terms that disagree", affinity(json!([on("windows"), on("linux")]))),
        ("no terms", affinity(json!([]))),
        ("only empty terms", affinity(json!([{}, {}]))),
        ("a term about something else allows any os", affinity(about_arch)),
        ("a term about fields allows any os", affinity(json!([on("windows"), { "matchFields": fields }]))),
        ("two values of one expression", expressions(json!([among(OS_LABEL, &["windows", "linux"])]))),
        ("only a contradiction", expressions(contradiction)),
        ("NotIn", expressions(not_in)),
        ("Exists", expressions(json!([{"key": OS_LABEL, "operator": "Exists"}]))),
    ];
    check(OS_LABEL, None, &others);
}

#[test]
fn any_label_can_be_required() {
    let with_os = json!([among(OS_LABEL, &["linux"]), among(ARCH, &["arm64"])]);
    let specs = [
        ("nodeSelector", node_selector(json!({ARCH: "arm64"}))),
        ("affinity", expressions(json!([among(ARCH, &["arm64"])]))),
        ("affinity with another label", expressions(with_os)),
    ];
    check(ARCH, Some("arm64"), &specs);
    let empty = [
        ("a label with an empty value", node_selector(json!({ARCH: ""}))),
        ("affinity with an empty value", expressions(json!([among(ARCH, &[""])]))),
    ];
    check(ARCH, Some(""), &empty);
    let others = [
        ("several values", expressions(json!([among(ARCH, &["amd64", "arm64"])]))),
        ("os.name does not count", json!({"os": {"name": "windows"}})),
        ("the old label does not count", node_selector(json!({"beta.kubernetes.io/arch": "arm64"}))),
    ];
    check(ARCH, None, &others);
}

#[test]
fn null_counts_as_absent() {
    let every_field =
        json!({"os": null, "nodeSelector": null, "affinity": null, "runtimeClassName": null, "nodeName": null});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": null});
    let nothing = [
        ("the spec", Value::Null),
        ("every field", every_field),
        ("nodeAffinity", json!({"affinity": {"nodeAffinity": null}})),
        ("required", json!({"affinity": {"nodeAffinity": required}})),
        ("the terms", affinity(Value::Null)),
    ];
    check(OS_LABEL, None, &nothing);
    let lists = json!([{"matchExpressions": null, "matchFields": null}, on("windows")]);
    let values = json!([{"key": "gpu", "operator": "Exists", "values": null}, among(OS_LABEL, &["windows"])]);
    let specs = [
        ("os.name", json!({"os": {"name": null}, "nodeSelector": {"kubernetes.io/os": "windows"}})),
        ("a term's lists", affinity(lists)),
        ("values", expressions(values)),
    ];
    check(OS_LABEL, WINDOWS, &specs);
}

#[test]
fn mistyped_field_is_named_with_its_path() {
    let terms = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let value = format!(".{terms}[0].matchExpressions[0].values[0]: expected a string, found the number 1");
    for (spec, expected) in [
        (json!([]), ": expected an object, found a list"),
        (json!({"os": "windows"}), r#".os: expected an object, found the string "windows""#),
        (json!({"nodeSelector": {"a": 1}}), ".nodeSelector.a: expected a string, found the number 1"),
        (affinity(json!({})), &format!(".{terms}: expected a list, found an object")),
        (expressions(json!([{"key": "a", "operator": "In", "values": [1]}])), &value),
        (json!({"runtimeClassName": {}}), ".runtimeClassName: expected a string, found an object"),
    ] {
        let error = PodSpec::read(&Located::new(&spec, "spec")).unwrap_err();
        assert_eq!(error.to_string(), format!("spec{expected}"));
    }
}

/// Input beyond the limits is ignored, so a cache need not keep it.
#[test]
fn input_beyond_the_limits_is_ignored() {
    let windows = |count: usize| affinity(vec![on("windows"); count].into());
    let values: Vec<String> = (0..300).map(|number| format!("v{number}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let wide = expressions(json!([among("instance", &values), among(OS_LABEL, &["windows"])]));
    let not_in = json!({"key": "instance", "operator": "NotIn", "values": values});
    let others = expressions(json!([not_in, among(OS_LABEL, &["windows"])]));
    let selector = |count: usize| {
        let mut labels: serde_json::Map<String, Value> = (1..count).map(|n| (format!("a{n:03}"), json!("b"))).collect();
        labels.insert(OS_LABEL.to_owned(), "windows".into());
        json!({ "nodeSelector": labels })
    };
    let counted = [
        ("85 terms of one expression with one value", windows(85)),
        ("300 values of another operator", others),
        ("a node selector of 64 labels", selector(64)),
    ];
    check(OS_LABEL, WINDOWS, &counted);
    let ignored = [("86 terms", windows(86)), ("300 values", wide), ("a node selector of 65 labels", selector(65))];
    check(OS_LABEL, None, &ignored);
}

#[test]
fn pods_are_read_where_the_kind_has_them() {
    let labels = json!({"app": "web"});
    let pod = json!({"metadata": {"labels": labels}, "spec": {"nodeName": "n1"}});
    let template = json!({"template": pod});
    for (at, labels, spec, node) in [
        (TemplateAt::Itself, &labels, json!({"nodeName": "n1"}), Some("n1")),
        (TemplateAt::Template, &Value::Null, template.clone(), None),
        (TemplateAt::JobTemplate, &Value::Null, json!({"jobTemplate": {"spec": template}}), None),
    ] {
        let labels_of_pods = [("app".to_owned(), "web".to_owned())].into();
        let spec_of_pods = PodSpec { node: node.map(str::to_owned), ..PodSpec::default() };
        let expected = Pods { labels: labels_of_pods, spec: Ok(spec_of_pods) };
        assert_eq!(at.pods(labels, &spec), Ok(Some(expected)), "{at:?}");
        assert_eq!(at.pods(labels, &json!({})).unwrap().is_some(), at == TemplateAt::Itself, "{at:?}, empty");
    }
}
