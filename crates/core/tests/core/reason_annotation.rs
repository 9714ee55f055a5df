//! The annotation `clusterip-policy/reason` says why a new Service has its address, if the settings ask for it.

use clusterip_core::annotations::{OS_ANNOTATION, REASON_ANNOTATION};
use serde_json::{Value, json};

use crate::support::{FakeCluster, annotated, answer_of, created, selecting, service, updated, with_spec};

fn settings(annotate: bool) -> Value {
    json!({"services": {
        "pools": [
            {"name": "windows", "cidrs": ["10.0.1.0/24"], "match": {"os": "windows"}},
            {"name": "tiny", "cidrs": ["10.0.2.0/30"], "reserved": 2, "match": {"os": "tiny"}},
            {"name": "linux", "cidrs": ["10.0.0.0/24"], "match": {"os": "linux"}},
        ],
        "order": "lowest",
        "whenFull": "unmanaged",
        "annotateReason": annotate,
        "exemptNamespaces": ["exempt"],
    }})
}

fn cluster() -> FakeCluster {
    FakeCluster::default()
        .workload("Deployment", "shop/web", json!({"nodeSelector": {"kubernetes.io/os": "linux"}}))
        .service("shop/db", "10.0.2.2")
}

/// What the author of a Service might write.
const FORGED: (&str, &str) = (REASON_ANNOTATION, "pool payments: default");

/// The object of the answer, or of the request if the answer does not change it.
#[track_caller]
fn stored(request: &Value, annotate: bool) -> Value {
    let answer = answer_of(request, &settings(annotate), &cluster());
    assert_eq!(answer["accepted"], true, "{answer}");
    let changed = answer["mutated_object"].clone();
    if changed.is_null() { request["object"].clone() } else { changed }
}

#[test]
fn annotation_names_the_pool_and_the_evidence_of_a_new_service() {
    let by_deployment = json!({REASON_ANNOTATION: "pool linux: kubernetes.io/os=linux (Deployment shop/web)"});
    let by_annotation = "pool windows: kubernetes.io/os=windows (annotation clusterip-policy/os)";
    let mut with_null = selecting();
    with_null["metadata"]["annotations"] = Value::Null;
    let mut exempt = annotated(&[FORGED]);
    exempt["metadata"]["namespace"] = "exempt".into();
    let by_hand = with_spec(annotated(&[FORGED, ("a", "b")]), json!({"clusterIP": "10.0.0.9"}));
    let headless = |object: Value| with_spec(object, json!({"clusterIP": "None"}));
    let on = |os: &str| annotated(&[FORGED, (OS_ANNOTATION, os)]);
    for (name, object, expected) in [
        ("no annotations", selecting(), by_deployment.clone()),
        ("null as annotations", with_null, by_deployment.clone()),
        ("a forged reason", annotated(&[FORGED]), by_deployment),
        (
            "other annotations stay",
            annotated(&[(OS_ANNOTATION, "windows"), ("a", "b")]),
            json!({OS_ANNOTATION: "windows", "a": "b", REASON_ANNOTATION: by_annotation}),
        ),
        ("the address was set by hand", by_hand, json!({"a": "b"})),
        ("headless", headless(annotated(&[FORGED])), json!({})),
        ("no pool matches", on("plan9"), json!({OS_ANNOTATION: "plan9"})),
        ("the pool is full", on("tiny"), json!({OS_ANNOTATION: "tiny"})),
        ("an exempt namespace", exempt, json!({REASON_ANNOTATION: FORGED.1})),
        ("no address, and no reason to remove", headless(selecting()), Value::Null),
    ] {
        assert_eq!(stored(&created(object), true)["metadata"]["annotations"], expected, "{name}");
    }
}

#[test]
fn annotation_is_left_alone_without_the_setting_and_in_updates() {
    let old = service(json!({"type": "ExternalName", "externalName": "example.com"}));
    let rows = [
        ("without the setting", created(annotated(&[FORGED])), false),
        (
            "without the setting, set by hand",
            created(with_spec(annotated(&[FORGED]), json!({"clusterIP": "None"}))),
            false,
        ),
        ("the type changes from ExternalName", updated(old, annotated(&[FORGED])), true),
    ];
    for (name, request, annotate) in rows {
        let annotations = stored(&request, annotate)["metadata"]["annotations"].clone();
        assert_eq!(annotations, json!({REASON_ANNOTATION: FORGED.1}), "{name}");
    }
    assert_eq!(stored(&created(selecting()), false)["metadata"].get("annotations"), None, "nothing is added");
}

#[test]
fn annotation_is_one_line_of_at_most_256_characters() {
    // Enough labels for any value to make the line too long.
    let keys: Vec<String> = (0..9).map(|number| format!("example.com/{number}{}", "k".repeat(40))).collect();
    let pool = |(number, key): (usize, &String)| {
        let (name, cidr) = (format!("p{number}"), format!("10.1.{number}.0/24"));
        json!({"name": name, "cidrs": [cidr], "match": {"nodeLabels": {key: "v"}}})
    };
    let mut pools: Vec<Value> = keys.iter().enumerate().map(pool).collect();
    pools.push(json!({"name": "all", "cidrs": ["10.0.0.0/24"]}));
    let mut settings = settings(true);
    settings["services"]["pools"] = pools.into();
    for value in ["a\nb".to_owned(), "é".repeat(100_000), "x".repeat(100_000)] {
        let labels: Value = keys.iter().map(|key| (key.as_str(), value.as_str())).collect();
        let cluster = FakeCluster::default().workload("Deployment", "shop/web", json!({"nodeSelector": labels}));
        let answer = answer_of(&created(selecting()), &settings, &cluster);
        let reason = answer["mutated_object"]["metadata"]["annotations"][REASON_ANNOTATION].as_str().unwrap();
        assert_eq!(reason.chars().count(), 256, "{reason}");
        assert!(reason.starts_with("pool all: example.com/0kkk") && reason.ends_with('…'), "{reason}");
        assert!(!reason.contains('\n'), "{reason}");
    }
}
