//! The owner of a Service's address in `metadata.managedFields` if the request does not name an address.

use crate::support::{FakeCluster, answer_of, created, service, updated};
use serde_json::{Value, json};

fn settings() -> Value {
    json!({"services": {
        "order": "lowest",
        "pools": [{"name": "all", "cidrs": ["10.96.0.0/24"], "reserved": 1, "match": {"namespaces": ["shop", "full"]}}],
        "exemptNamespaces": ["exempt"],
        "serviceCIDRs": ["10.96.0.0/16"],
    }})
}

/// The entry of a server-side apply that owns these fields of `spec`.
fn entry(manager: &str, spec: Value) -> Value {
    json!({"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
           "fieldsV1": {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": spec}})
}

fn with(mut object: Value, entries: Value) -> Value {
    object["metadata"]["managedFields"] = entries;
    object
}

/// The object of the answer; null if the request's object does not change.
#[track_caller]
fn answered(name: &str, request: &Value) -> Value {
    let answer = answer_of(request, &settings(), &FakeCluster::default());
    assert_eq!(answer["accepted"], true, "{name}: {answer}");
    answer["mutated_object"].clone()
}

/// The first address of the range is that of `default/kubernetes`.
const AT: &str = "10.96.0.2";

#[test]
fn address_that_the_request_does_not_name_has_no_owner() {
    struct Case {
        name: &'static str,
        request: Value,
        expected: Value,
    }
    let ports = json!({"f:ports": {}});
    let empty = || json!([entry("flux", json!({"f:clusterIP": {}, "f:ports": {}})), entry("other", ports.clone())]);
    let stripped = || json!([entry("flux", ports.clone()), entry("other", ports.clone())]);
    let new = |spec: Value| with(service(spec), empty());
    let placed = |spec: Value| with(service(spec), stripped());
    let old = |spec: Value| service(spec);
    let rows = [
        Case { name: "created", request: created(new(json!({}))), expected: placed(json!({"clusterIP": AT})) },
        Case {
            name: "created with an empty text",
            request: created(new(json!({"clusterIP": ""}))),
            expected: placed(json!({"clusterIP": AT})),
        },
        Case {
            name: "updated without an address",
            request: updated(old(json!({"clusterIP": AT, "clusterIPs": [AT]})), new(json!({}))),
            expected: placed(json!({})),
        },
        Case {
            name: "updated, the list as it was: a server-side apply of an empty address",
            request: updated(old(json!({"clusterIP": AT, "clusterIPs": [AT]})), new(json!({"clusterIPs": [AT]}))),
            expected: placed(json!({"clusterIPs": [AT]})),
        },
        Case {
            name: "the type changes from ExternalName",
            request: updated(old(json!({"type": "ExternalName"})), new(json!({"type": "ClusterIP"}))),
            expected: placed(json!({"type": "ClusterIP", "clusterIP": AT, "clusterIPs": [AT]})),
        },
    ];
    for Case { name, request, expected } in rows {
        assert_eq!(answered(name, &request), expected, "{name}");
    }
    let both = json!({"f:clusterIP": {}, "f:clusterIPs": {}});
    let listed = |spec: Value| json!([entry("flux", spec)]);
    let request = updated(
        old(json!({"clusterIP": AT, "clusterIPs": [AT]})),
        with(service(json!({"clusterIPs": [AT]})), listed(both.clone())),
    );
    let expected = with(service(json!({"clusterIPs": [AT]})), listed(json!({"f:clusterIPs": {}})));
    assert_eq!(answered("the list is named", &request), expected);

    let alone = with(service(json!({})), json!([entry("flux", both)]));
    let mut expected = with(service(json!({"clusterIP": AT})), json!([entry("flux", json!({}))]));
    expected["metadata"]["managedFields"][0]["fieldsV1"].as_object_mut().unwrap().remove("f:spec");
    assert_eq!(answered("nothing else owned", &created(alone)), expected, "an empty f:spec would own all of spec");

    let mut unmanaged = new(json!({}));
    unmanaged["metadata"]["namespace"] = "elsewhere".into();
    let mut request = created(unmanaged.clone());
    request["namespace"] = "elsewhere".into();
    unmanaged["metadata"]["managedFields"] = stripped();
    assert_eq!(answered("Kubernetes picks the address", &request), unmanaged);
}

#[test]
fn address_that_the_request_names_keeps_its_owner() {
    let owned = |spec: Value| with(service(spec), json!([entry("flux", json!({"f:clusterIP": {}, "f:ports": {}}))]));
    let at = || owned(json!({"clusterIP": AT}));
    let mut exempt = owned(json!({}));
    exempt["metadata"]["namespace"] = "exempt".into();
    let rows = [
        ("created with an address", created(at())),
        ("updated with its address", updated(at(), at())),
        ("headless", created(owned(json!({"clusterIP": "None"})))),
        ("headless by the list alone", created(owned(json!({"clusterIPs": ["None"]})))),
        ("the list without the first", created(owned(json!({"clusterIPs": [AT]})))),
        ("ExternalName", created(owned(json!({"type": "ExternalName"})))),
        ("an exempt namespace", created(exempt)),
    ];
    for (name, request) in rows {
        assert_eq!(answered(name, &request), Value::Null, "{name}");
    }
}

#[test]
fn malformed_managed_fields_are_left_unchanged() {
    let shapes = [
        json!(null),
        json!({}),
        json!([null, 1, "x", {}, {"fieldsV1": null}, {"fieldsV1": {"f:spec": null}}]),
        json!([{"fieldsV1": {"f:spec": {}}}, {"fieldsV1": {"f:spec": []}}, {"fieldsV1": {"f:clusterIP": {}}}]),
    ];
    for shape in shapes {
        let object = with(service(json!({})), shape.clone());
        let expected = with(service(json!({"clusterIP": AT})), shape.clone());
        assert_eq!(answered("any shape", &created(object)), expected, "{shape}");
    }
}
