//! Which fields of an object a look-up with field masks contains.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::snapshots::{ask, deployment, get, list_all, masks};

/// Field masks, and what they keep of an object.
struct Case {
    name: &'static str,
    paths: Option<Vec<&'static str>>,
    fields: Value,
    kept: Value,
}

/// Compares an object of a list and a single object.
#[track_caller]
fn check(rows: Vec<Case>) {
    for Case { name, paths, fields, kept } in rows {
        let paths = paths.map(|paths| paths.into_iter().map(str::to_owned).collect::<BTreeSet<_>>());
        let whole = |fields: &Value| {
            let mut object = deployment("shop", "a");
            object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            object
        };
        let objects = [whole(&fields)];
        let listed = ask(&objects, &list_all("apps/v1/Deployment", paths.clone())).unwrap();
        assert_eq!(listed["items"], json!([whole(&kept)]), "{name}, listed");
        let got = ask(&objects, &get("apps/v1/Deployment", Some("shop"), "a", paths));
        assert_eq!(got, Ok(whole(&kept)), "{name}, got");
    }
}

#[test]
fn masks_keep_only_the_named_fields() {
    check(vec![
        Case {
            name: "no masks at all",
            paths: None,
            fields: json!({"spec": {"a": 1}, "status": 5}),
            kept: json!({"spec": {"a": 1}, "status": 5}),
        },
        Case {
            name: "an empty set is none",
            paths: Some(vec![]),
            fields: json!({"spec": {"a": 1}}),
            kept: json!({"spec": {"a": 1}}),
        },
        Case {
            name: "a field with all that is below",
            paths: Some(vec!["spec"]),
            fields: json!({"spec": {"a": {"b": [1]}}, "status": {}}),
            kept: json!({"spec": {"a": {"b": [1]}}}),
        },
        Case {
            name: "fields of a field",
            paths: Some(vec!["spec.a.b", "spec.c"]),
            fields: json!({"spec": {"a": {"b": 1, "x": 2}, "c": 3, "x": 4}}),
            kept: json!({"spec": {"a": {"b": 1}, "c": 3}}),
        },
        Case {
            name: "lists are passed through",
            paths: Some(vec!["spec.containers.image"]),
            fields: json!({"spec": {"containers": [{"name": "a", "image": "b"}, {"name": "c"}, "text"]}}),
            kept: json!({"spec": {"containers": [{"image": "b"}, {}, "text"]}}),
        },
        Case {
            name: "lists of lists too",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a": [[{"b": 1, "c": 2}], []]}}),
            kept: json!({"spec": {"a": [[{"b": 1}], []]}}),
        },
        Case {
            name: "of a path and a longer one, the longer counts",
            paths: Some(vec!["spec", "spec.a"]),
            fields: json!({"spec": {"a": 1, "b": 2}}),
            kept: json!({"spec": {"a": 1}}),
        },
    ]);
}

#[test]
fn masks_that_name_no_field_of_an_object_keep_its_parents_and_values() {
    check(vec![
        Case {
            name: "a value where the mask goes on stays",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a": 5, "b": 6}}),
            kept: json!({"spec": {"a": 5}}),
        },
        Case {
            name: "null too",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a": null}}),
            kept: json!({"spec": {"a": null}}),
        },
        Case {
            name: "a parent that loses everything stays",
            paths: Some(vec!["spec.x"]),
            fields: json!({"spec": {"a": 1}}),
            kept: json!({"spec": {}}),
        },
        Case {
            name: "a mask that no object has",
            paths: Some(vec!["nothing"]),
            fields: json!({"spec": {"a": 1}}),
            kept: json!({}),
        },
        Case {
            name: "a key with a dot can't be named",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a.b": 1}}),
            kept: json!({"spec": {}}),
        },
    ]);
}

#[test]
fn metadata_is_complete_except_for_fields_that_a_cache_omits() {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let metadata = |annotations: Value| json!({"name": "a", "namespace": "shop", "labels": {"app": "web"}, "annotations": annotations, "finalizers": ["x/y"]});
    let mut object = deployment("shop", "a");
    object["metadata"] = metadata(json!({LAST_APPLIED: "{}", "team": "red"}));
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
    let mut cached = deployment("shop", "a");
    cached["metadata"] = metadata(json!({"team": "red"}));
    for paths in [None, masks(&["metadata"]), masks(&["metadata.name"]), masks(&["spec.x"])] {
        let objects = [object.clone()];
        let listed = ask(&objects, &list_all("apps/v1/Deployment", paths.clone())).unwrap();
        assert_eq!(listed["items"], json!([cached]), "listed with {paths:?}");
        let got = ask(&objects, &get("apps/v1/Deployment", Some("shop"), "a", paths.clone()));
        assert_eq!(got, Ok(object.clone()), "got with {paths:?}");
    }
}
