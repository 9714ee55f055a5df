//! Restores the spec and the field owners of a Service as they were before a move, and keeps what others changed
//! meanwhile.
//!
//! A set of owned fields is a tree. A node is in the set if it has no children, or has the child `.`.

use std::collections::{BTreeMap, BTreeSet};

use clusterip_core::service::MANAGER;
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

/// Merges three versions of a spec. A field that is `now` as the API server left it when the address was `released`
/// becomes as it was in the `original`. A field that was changed since then stays as it is now.
pub(crate) fn merged_spec(original: &Fields, released: &Fields, now: &Fields) -> Fields {
    let mut names: Vec<&String> = original.keys().chain(released.keys()).chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value = |name: &String| {
        let (original, released, now) = (original.get(name), released.get(name), now.get(name));
        if now == released {
            return original.cloned();
        }
        match (original, released, now) {
            _ if original == released => now.cloned(),
            (Some(Value::Object(original)), Some(Value::Object(released)), Some(Value::Object(now))) => {
                Some(merged_spec(original, released, now).into())
            }
            (Some(Value::Array(original)), Some(Value::Array(released)), Some(Value::Array(now)))
                if name == "ports" =>
            {
                Some(ports(original, released, now).into())
            }
            _ => now.cloned(),
        }
    };
    names.into_iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
}

/// The present ports, each with the fields that the release removed. A port is known by its protocol and number.
fn ports(original: &[Value], released: &[Value], now: &[Value]) -> Vec<Value> {
    let (original, released) = (by_number(original), by_number(released));
    let merge = |port: &Value| match (original.get(&number(port)), released.get(&number(port)), port.as_object()) {
        (Some(original), Some(released), Some(now)) => merged_spec(original, released, now).into(),
        _ => port.clone(),
    };
    now.iter().map(merge).collect()
}

fn number(port: &Value) -> (Option<&str>, Option<u64>) {
    (port.get("protocol").and_then(Value::as_str), port.get("port").and_then(Value::as_u64))
}

/// A Service may have thousands of ports. If two have the same number, the first one counts.
fn by_number(ports: &[Value]) -> BTreeMap<(Option<&str>, Option<u64>), &Fields> {
    ports.iter().rev().filter_map(|port| Some((number(port), port.as_object()?))).collect()
}

/// The entries of `metadata.managedFields` that a Service should have after a move.
///
/// The API server takes a field away from its owners when another manager writes it. So the fields that the mover
/// owns now go back to their previous owners. A field that an owner has lost otherwise was taken by another manager
/// or given up, and stays lost. A field that an owner has gained stays with that owner. If no other client changed the
/// Service, the result equals `original` exactly.
pub(crate) fn owners<'e>(original: &[Fields], now: impl Iterator<Item = &'e Fields>) -> Vec<Fields> {
    let (ours, others): (Vec<&Fields>, Vec<&Fields>) = now.partition(|entry| is_ours(entry));
    let taken = tree(ours);
    let current: BTreeMap<_, &Fields> = others.iter().rev().map(|other| (key(other), *other)).collect();
    let known: BTreeSet<_> = original.iter().map(key).collect();
    let kept = original.iter().filter_map(|entry| {
        let before = tree([entry]);
        let current = current.get(&key(entry)).copied();
        let mut owned = tree(current);
        add(&mut owned, &intersection(&before, &taken));
        let current = current.unwrap_or(entry);
        if owned.is_empty() {
            return None;
        }
        if owned == before && current.get("time") == entry.get("time") {
            return Some(entry.clone());
        }
        // The fields of an owner may be most of the Service, so they are copied only once.
        let mut entry = without(Some(current), "fieldsV1");
        entry.insert("fieldsV1".into(), owned.into());
        Some(entry)
    });
    let new = others.into_iter().filter(|other| !known.contains(&key(other)));
    kept.chain(new.cloned()).collect()
}

/// A copy of an object without this field, which is not copied.
pub(crate) fn without(object: Option<&Fields>, field: &str) -> Fields {
    let others = object.into_iter().flatten().filter(|(name, _)| *name != field);
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn is_ours(entry: &Fields) -> bool {
    entry.get("manager").is_some_and(|manager| manager == MANAGER)
}

fn key(entry: &Fields) -> [Option<&str>; 4] {
    ["manager", "operation", "apiVersion", "subresource"].map(|field| entry.get(field)?.as_str())
}

fn tree<'e>(entries: impl IntoIterator<Item = &'e Fields>) -> Fields {
    let mut tree = Fields::new();
    let sets = entries.into_iter().filter_map(|entry| entry.get("fieldsV1")?.as_object());
    sets.for_each(|set| add(&mut tree, set));
    tree
}

fn add(all: &mut Fields, more: &Fields) {
    for (name, child) in more.iter().filter(|(name, _)| *name != ".") {
        let child = child.as_object();
        let is_new = !all.contains_key(name);
        let Some(node) = all.entry(name.clone()).or_insert_with(|| json!({})).as_object_mut() else { continue };
        let member = child.is_none_or(is_member) || !is_new && is_member(node);
        child.into_iter().for_each(|child| add(node, child));
        if member && !node.is_empty() {
            node.insert(".".into(), json!({}));
        }
    }
}

fn intersection(a: &Fields, b: &Fields) -> Fields {
    let common = a.iter().filter(|(name, _)| *name != ".").filter_map(|(name, child)| {
        let (one, other) = (child.as_object()?, b.get(name)?.as_object()?);
        Some((name.clone(), node(is_member(one) && is_member(other), intersection(one, other))?))
    });
    common.collect()
}

fn is_member(node: &Fields) -> bool {
    node.is_empty() || node.contains_key(".")
}

/// A node of the tree; `None` if neither the node nor anything below it is in the set.
fn node(member: bool, mut children: Fields) -> Option<Value> {
    if member && !children.is_empty() {
        children.insert(".".into(), json!({}));
    }
    (member || !children.is_empty()).then(|| children.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    mod spec_merge {
        use serde_json::json;

        use super::super::*;

        #[test]
        fn fields_changed_by_others_stay_and_the_rest_is_owners() {
            struct Case {
                name: &'static str,
                change: Value,
                expected: Value,
            }
            let original = json!({
                "type": "NodePort", "clusterIP": "172.21.0.7", "selector": {"app": "web"}, "externalTrafficPolicy": "Local",
                "ports": [{"protocol": "TCP", "port": 80, "nodePort": 30080}, {"protocol": "UDP", "port": 80, "nodePort": 30081}],
            });
            let released = json!({
                "type": "ExternalName", "externalName": "moving.invalid", "selector": {"app": "web"},
                "ports": [{"protocol": "TCP", "port": 80}, {"protocol": "UDP", "port": 80}],
            });
            let with = |base: &Value, changes: Value| {
                let mut base = base.clone();
                json_patch::merge(&mut base, &changes);
                base
            };
            let cases = [
                Case { name: "nothing changed", change: json!({}), expected: json!({}) },
                Case {
                    name: "a selector",
                    change: json!({"selector": {"app": "shop", "tier": "x"}}),
                    expected: json!({"selector": {"app": "shop", "tier": "x"}}),
                },
                Case { name: "no selector", change: json!({"selector": null}), expected: json!({"selector": null}) },
                Case {
                    name: "a new field",
                    change: json!({"sessionAffinity": "ClientIP"}),
                    expected: json!({"sessionAffinity": "ClientIP"}),
                },
                Case {
                    name: "a field that the release had removed",
                    change: json!({"externalTrafficPolicy": "Cluster"}),
                    expected: json!({"externalTrafficPolicy": "Cluster"}),
                },
                Case {
                    name: "a port renamed, one removed, one added",
                    change: json!({"ports": [{"protocol": "UDP", "port": 80, "name": "dns"}, {"protocol": "TCP", "port": 443}]}),
                    expected: json!({"ports": [{"protocol": "UDP", "port": 80, "name": "dns", "nodePort": 30081}, {"protocol": "TCP", "port": 443}]}),
                },
            ];
            for Case { name, change, expected } in cases {
                let now = with(&released, change);
                let merged =
                    merged_spec(original.as_object().unwrap(), released.as_object().unwrap(), now.as_object().unwrap());
                assert_eq!(Value::from(merged), with(&original, expected), "{name}");
            }
        }
    }

    mod field_ownership {
        use super::super::*;

        fn entries(value: Value) -> Vec<Fields> {
            serde_json::from_value(value).unwrap()
        }

        fn entry(manager: &str, time: &str, fields: Value) -> Value {
            json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time,
           "fieldsType": "FieldsV1", "fieldsV1": fields})
        }

        #[test]
        fn fields_go_back_to_their_previous_owners() {
            struct Case {
                name: &'static str,
                original: Value,
                now: Value,
                expected: Value,
            }
            let spec = |fields: Value| json!({"f:spec": fields});
            let owner = entry("owner", "1", spec(json!({"f:type": {}, "f:selector": {}})));
            let cases = [
                Case {
                    name: "without another writer, the owner gets its fields back",
                    original: json!([owner]),
                    now: json!([
                        entry("owner", "1", spec(json!({"f:selector": {}}))),
                        entry(MANAGER, "2", spec(json!({"f:type": {}, "f:clusterIP": {}}))),
                    ]),
                    expected: json!([owner]),
                },
                Case {
                    name: "an owner without fields gets them back",
                    original: json!([entry("owner", "1", spec(json!({"f:type": {}})))]),
                    now: json!([entry(MANAGER, "2", spec(json!({"f:type": {}})))]),
                    expected: json!([entry("owner", "1", spec(json!({"f:type": {}})))]),
                },
                Case {
                    name: "an owner that took the selector during the move keeps it",
                    original: json!([owner]),
                    now: json!([
                        entry(MANAGER, "2", spec(json!({"f:type": {}}))),
                        entry("editor", "3", spec(json!({"f:selector": {}}))),
                    ]),
                    expected: json!([
                        entry("owner", "1", spec(json!({"f:type": {}}))),
                        entry("editor", "3", spec(json!({"f:selector": {}}))),
                    ]),
                },
                Case {
                    name: "fields that the owner wrote during the move stay with the owner",
                    original: json!([owner]),
                    now: json!([
                        entry("owner", "3", spec(json!({"f:selector": {}, "f:sessionAffinity": {}}))),
                        entry(MANAGER, "2", spec(json!({"f:type": {}}))),
                    ]),
                    expected: json!([entry(
                        "owner",
                        "3",
                        spec(json!({"f:selector": {}, "f:sessionAffinity": {}, "f:type": {}}))
                    )]),
                },
                Case {
                    name: "parts of a list, and a list itself",
                    original: json!([entry(
                        "owner",
                        "1",
                        json!({"f:ports": {".": {}, "k:80": {".": {}, "f:port": {}, "f:nodePort": {}}}})
                    )]),
                    now: json!([
                        entry("owner", "1", json!({"f:ports": {".": {}, "k:80": {".": {}, "f:port": {}}}})),
                        entry(MANAGER, "2", json!({"f:ports": {"k:80": {"f:nodePort": {}}}})),
                    ]),
                    expected: json!([entry(
                        "owner",
                        "1",
                        json!({"f:ports": {".": {}, "k:80": {".": {}, "f:port": {}, "f:nodePort": {}}}})
                    )]),
                },
                Case {
                    name: "without known owners, only the entry of the move is removed",
                    original: json!([]),
                    now: json!([owner, entry(MANAGER, "2", spec(json!({"f:type": {}})))]),
                    expected: json!([owner]),
                },
                Case {
                    name: "a field set that is not a tree owns nothing",
                    original: json!([{"manager": "owner", "fieldsV1": 5}]),
                    now: json!([{"manager": "owner", "fieldsV1": {"f:x": 5}}]),
                    expected: json!([{"manager": "owner", "fieldsV1": {"f:x": {}}}]),
                },
            ];
            for Case { name, original, now, expected } in cases {
                assert_eq!(owners(&entries(original), entries(now).iter()), entries(expected), "{name}");
            }
        }
    }
}
