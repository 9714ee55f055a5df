//! Which fields of an object a look-up with field masks contains.

use serde_json::{Value, json};

use crate::support::snapshots::{ask, deployment, get, list_all, masks};

/// An object of a list and a single object have the same fields.
#[test]
fn masks_keep_only_the_named_fields_and_their_parents() {
    let whole = |fields: &Value| {
        let mut object = deployment("shop", "a");
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let (list, list_of_lists) = (json!([{"b": 1, "c": 2}, {"c": 3}, "text"]), json!([[{"b": 1, "c": 2}], []]));
    let more = json!({"spec": {"a": {"b": [1], "x": 2}, "c": 3, "x": 4}, "status": 5});
    for (name, paths, fields, kept) in [
        ("no masks at all", None, more.clone(), more.clone()),
        ("an empty set is none", masks(&[]), more.clone(), more.clone()),
        ("a field with all below", masks(&["spec.a"]), more.clone(), json!({"spec": {"a": {"b": [1], "x": 2}}})),
        ("several", masks(&["spec.a.b", "spec.c"]), more.clone(), json!({"spec": {"a": {"b": [1]}, "c": 3}})),
        ("the longer path counts", masks(&["spec", "spec.c"]), more.clone(), json!({"spec": {"c": 3}})),
        ("lists", masks(&["spec.b"]), json!({ "spec": list }), json!({"spec": [{"b": 1}, {}, "text"]})),
        ("lists of lists", masks(&["spec.b"]), json!({ "spec": list_of_lists }), json!({"spec": [[{"b": 1}], []]})),
        ("a value where the mask goes on", masks(&["spec.c.b"]), more.clone(), json!({"spec": {"c": 3}})),
        ("null there", masks(&["spec.a.b"]), json!({"spec": {"a": null}}), json!({"spec": {"a": null}})),
        ("a parent that loses everything", masks(&["spec.y"]), more.clone(), json!({"spec": {}})),
        ("no field of the object", masks(&["nothing"]), more, json!({})),
        ("a key with a dot can't be named", masks(&["spec.a.b"]), json!({"spec": {"a.b": 1}}), json!({"spec": {}})),
    ] {
        let objects = [whole(&fields)];
        let listed = ask(&objects, &list_all("apps/v1/Deployment", paths.clone())).unwrap();
        assert_eq!(listed["items"], json!([whole(&kept)]), "{name}, listed");
        let got = ask(&objects, &get("apps/v1/Deployment", Some("shop"), "a", paths));
        assert_eq!(got, Ok(whole(&kept)), "{name}, got");
    }
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
