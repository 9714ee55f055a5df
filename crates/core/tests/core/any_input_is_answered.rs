//! Any input is answered, and none panics.

use clusterip_core::{Response, validate, validate_settings};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{FakeCluster, about_node, allocated, answer_in_use, cases, node, some_json, updated, with_blocks};

/// Replaces a value somewhere in `target`, chosen by `path`, with `value`.
fn graft(target: &mut Value, path: &[prop::sample::Index], value: Value) {
    let Some((index, rest)) = path.split_first() else {
        *target = value;
        return;
    };
    match target {
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(index.index(map.len())).unwrap().clone();
            graft(map.get_mut(&key).unwrap(), rest, value);
        }
        Value::Array(items) if !items.is_empty() => {
            let index = index.index(items.len());
            graft(&mut items[index], rest, value);
        }
        leaf => *leaf = value,
    }
}

/// Every answer is complete: accepted, or refused with a message and a status.
fn is_an_answer(payload: &[u8]) -> Result<(), TestCaseError> {
    is_complete(|cluster| validate(payload, cluster))
}

/// The same for a host that knows what is in use.
fn is_an_answer_in_use(payload: &Value) -> Result<(), TestCaseError> {
    is_complete(|cluster| answer_in_use(payload, cluster))
}

fn is_complete(answer_with: impl Fn(&FakeCluster) -> Response) -> Result<(), TestCaseError> {
    let cluster = rich_cluster();
    let answer = answer_with(&cluster);
    prop_assert!(answer.accepted || answer.message.as_ref().is_some_and(|message| !message.is_empty()), "{:?}", answer);
    prop_assert_eq!(answer.accepted, answer.code.is_none());
    prop_assert_eq!(answer.accepted, answer.message.is_none());
    prop_assert!(answer.accepted || answer.mutated_object.is_none());
    let audit = answer.audit_annotations.as_ref().expect("audit annotations");
    let external = audit.get("external").map(String::as_str);
    let is_recorded = matches!(external, Some("recorded" | "removed"));
    prop_assert_eq!(audit["decision"] == "allocated" || is_recorded, answer.mutated_object.is_some());
    prop_assert!(answer.accepted || matches!(external, None | Some("denied")), "{:?}", answer);
    prop_assert_eq!(serde_json::to_vec(&answer_with(&cluster)).unwrap(), serde_json::to_vec(&answer).unwrap());
    Ok(())
}

/// A cluster in which the Service of [`rich_payload`] belongs to its first pool, and another Node has the block of the
/// Node of [`rich_node_payload`].
fn rich_cluster() -> FakeCluster {
    let pod_spec = json!({"nodeSelector": {"a": "b"}});
    let cluster = FakeCluster::default().node_block("w2", "10.0.7.0/24").node_block("w2", "fd00::/64");
    let cluster = cluster.external("shop/other", "10.9.0.12").external("shop/web", "10.9.0.14");
    cluster.namespace("shop", &[("a", "b")], &[]).workload("Pod", "shop/web", pod_spec)
}

/// A valid payload about a Node, which has blocks or is to get some.
fn rich_node_payload(brings: bool) -> Value {
    let labels = json!({"kubernetes.io/os": "windows", "a": "b"});
    let spec =
        if brings { with_blocks(&["10.0.7.0/24", "fd00:0:0:7::/64"]) } else { json!({"podCIDR": "", "podCIDRs": []}) };
    json!({
        "request": about_node("UPDATE", node(labels.clone(), spec), node(labels, json!({"podCIDRs": ["10.0.9.0/24"]}))),
        "settings": {
            "services": {
                "pools": [{"name": "services", "cidrs": ["10.0.3.0/24"]}],
                "serviceCIDRs": ["10.0.2.0/23", "fd00::/112"],
            },
            "nodes": {
                "pools": [
                    {"name": "windows", "cidrs": ["10.0.0.0/16", "fd00::/48", "10.7.0.0/20"], "blockSize": {"ipv4": 25, "ipv6": 64},
                     "exclude": ["10.0.3.0/24", "10.0.0.9"],
                     "match": {"os": "windows", "nodeLabels": {"a": "b"},
                               "nodeSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}}},
                    {"name": "rest", "cidrs": ["10.1.0.0/16"]},
                ],
                "explicit": "deny",
            },
        },
        "allocation": {"held": ["10.0.0.0/20", "fd00::/60"], "last": ["10.0.0.128/25", "fd00:0:0:1::/64"]},
    })
}

/// A valid payload that uses many fields of requests and settings.
fn rich_payload() -> Value {
    let object = |spec: Value| {
        json!({
            "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}, "annotations": {"clusterip-policy/os": "windows"}},
            "spec": spec,
        })
    };
    let new = object(
        json!({"type": "ClusterIP", "selector": {"app": "web"}, "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "RequireDualStack"}),
    );
    let old = object(json!({"type": "ExternalName", "clusterIPs": []}));
    json!({
        "request": updated(old, new),
        "settings": {"services": {
            "pools": [
                {"name": "windows", "cidrs": ["10.0.0.0/24", "fd00::/120"], "reserved": 9, "exclude": ["10.0.0.99"], "bands": true,
                 "reservations": [{"address": "10.0.0.9", "namespace": "shop", "name": "web"}],
                 "match": {"os": "windows", "nodeLabels": {"a": "b"}, "namespaces": ["shop"],
                           "namespaceSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}}},
                {"name": "rest", "cidrs": ["10.1.0.0/24"]},
            ],
            "evidence": {"kinds": ["Pod", "a/v1/B"], "lookups": "namespace"},
            "assumeOS": "linux", "order": "lowest", "explicit": "deny", "whenFull": "unmanaged",
            "exemptNamespaces": ["kube-system"], "serviceCIDRs": ["10.0.0.0/8", "fd00::/64"],
        }},
    })
}

/// A valid payload about external addresses: a Service that claims some in every way, and gets two.
fn rich_external_payload() -> Value {
    let object = |record: &str| {
        json!({
            "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}, "annotations": {
                "clusterip-policy/external-address": "10.9.0.11",
                "clusterip-policy/external-addresses": record,
                "metallb.io/loadBalancerIPs": "10.9.0.13, 192.0.2.1",
            }},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "a/b", "clusterIP": "10.96.0.7", "loadBalancerIP": "10.9.0.13",
                     "externalIPs": ["10.9.0.14", "::ffff:10.9.0.13"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"},
        })
    };
    json!({
        "request": updated(object("fd09::1"), object("10.9.0.10")),
        "settings": {"external": {
            "pools": [
                {"name": "edge", "cidrs": ["10.9.0.10-10.9.0.20", "fd09::/120"], "exclude": ["10.9.0.15", "10.9.0.16-10.9.0.17"],
                 "match": {"namespaces": ["shop"], "namespaceSelector": {"matchLabels": {"a": "b"}},
                           "serviceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}},
                 "nodes": {"matchLabels": {"a": "b"}}},
                {"name": "rest", "cidrs": ["10.8.0.0/24"]},
            ],
            "loadBalancerClass": "a/b", "default": true,
        }},
        "external": {"held": [{"address": "10.9.0.12", "by": "shop/other"}, {"address": "fd09::1", "by": "shop/other"}]},
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_bytes_are_answered(payload in prop::collection::vec(any::<u8>(), 0..64)) {
        is_an_answer(&payload)?;
        prop_assert_eq!(validate_settings(&payload).valid, validate_settings(&payload).message.is_none());
    }

    #[test]
    fn any_json_is_answered(payload in some_json(), request in some_json(), settings in some_json()) {
        is_an_answer(payload.to_string().as_bytes())?;
        is_an_answer(json!({"request": request, "settings": settings}).to_string().as_bytes())?;
        let answer = validate_settings(settings.to_string().as_bytes());
        prop_assert_eq!(answer.valid, answer.message.is_none());
    }

    #[test]
    fn payload_with_one_replaced_value_is_answered(
        path in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        value in some_json(),
        brings: bool,
        knows_holders: bool,
        create: bool,
    ) {
        let mut external = rich_external_payload();
        if !knows_holders {
            external["external"] = Value::Null;
        }
        for mut payload in [rich_payload(), rich_node_payload(brings), external] {
            if create {
                payload["request"]["operation"] = "CREATE".into();
                payload["request"]["oldObject"] = Value::Null;
                payload["request"]["object"]["spec"]["clusterIP"] = Value::Null;
                payload["request"]["object"]["spec"]["clusterIPs"] = Value::Null;
            }
            graft(&mut payload, &path, value.clone());
            is_an_answer(payload.to_string().as_bytes())?;
            is_an_answer_in_use(&payload)?;
            let answer = validate_settings(payload["settings"].to_string().as_bytes());
            prop_assert_eq!(answer.valid, answer.message.is_none());
        }
    }

    #[test]
    fn any_node_with_any_allocation_state_is_answered(object in some_json(), spec in some_json(), allocation in some_json()) {
        let mut payload = rich_node_payload(false);
        payload["allocation"] = allocation;
        is_an_answer_in_use(&payload)?;
        payload["request"]["object"]["spec"] = spec;
        is_an_answer_in_use(&payload)?;
        payload["request"]["object"] = object;
        is_an_answer_in_use(&payload)?;
    }
}

#[test]
fn payloads_are_valid_before_a_value_is_replaced() {
    let answer_to = |payload: &Value| {
        assert!(validate_settings(payload["settings"].to_string().as_bytes()).valid);
        answer_in_use(payload, &rich_cluster())
    };
    let payload = rich_payload();
    let evidence: &[(&str, &str)] = &[("a", "b"), ("kubernetes.io/os", "windows")];
    let why = (Some("windows"), Some(("Pod shop/web, annotation clusterip-policy/os", evidence)));
    let expected = allocated(&payload["request"]["object"], &["10.0.0.9", "fd00::11"], why, &[]);
    assert_eq!(serde_json::to_value(answer_to(&payload)).unwrap(), expected);

    let blocks = answer_to(&rich_node_payload(false)).mutated_object.unwrap()["spec"]["podCIDRs"].clone();
    assert_eq!(blocks, json!(["10.0.16.0/25", "fd00:0:0:10::/64"]));
    let message = "Node w1: 10.0.7.0/24 overlaps 10.0.7.0/24 of Node w2; omit podCIDR and podCIDRs, or use a free block \
                   of the Node's pool";
    assert_eq!(answer_to(&rich_node_payload(true)).message.as_deref(), Some(message));

    let object = answer_to(&rich_external_payload()).mutated_object.unwrap();
    let record = &object["metadata"]["annotations"]["clusterip-policy/external-addresses"];
    assert_eq!(*record, json!("10.9.0.11,fd09::9b"));
}
