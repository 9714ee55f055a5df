//! Objects of the API `clusterip-policy.io` that are not read from a cluster: in a settings file, among manifests, or
//! in a snapshot.

use std::collections::BTreeSet;

use clusterip_api::{Compilation, GROUP, Kind, ObjectKey, Reason, mistake_of_type};
use serde_json::Value;

use super::WrittenSettings;
use super::pool_objects::compiled;
use crate::object::{api_version, kind};
use crate::snapshot::service_ranges::ServiceRanges;
use crate::yaml::{self, YamlError};

pub fn is_settings_object(object: &Value) -> bool {
    is_settings_api(api_version(object))
}

pub fn is_settings_api(api_version: &str) -> bool {
    api_version.split_once('/').is_some_and(|(group, _)| group == GROUP)
}

/// The objects in a text, if some of them are settings: those of all documents, and the items of lists.
pub(super) fn in_text(text: &str) -> Result<Option<Vec<Value>>, YamlError> {
    if !text.contains(GROUP) {
        return Ok(None);
    }
    let mut objects = Vec::new();
    for document in yaml::documents(text) {
        add(document?.to_value(), &mut objects);
    }
    Ok(objects.iter().any(is_settings_object).then_some(objects))
}

/// Adds an object, or the items of a list. Items without a type get that of a list such as a ServicePoolList.
fn add(object: Value, objects: &mut Vec<Value>) {
    if object.is_null() {
        return;
    }
    let (list_version, list_kind) = (api_version(&object).to_owned(), kind(&object).to_owned());
    let items = object.get("items").and_then(Value::as_array).cloned();
    let (Some(item_kind), Some(items)) = (list_kind.strip_suffix("List"), items) else {
        objects.push(object);
        return;
    };
    for mut item in items {
        if let Some(fields) = item.as_object_mut().filter(|_| !item_kind.is_empty()) {
            fields.entry("apiVersion").or_insert_with(|| list_version.clone().into());
            fields.entry("kind").or_insert_with(|| item_kind.into());
        }
        add(item, objects);
    }
}

/// The document that a server uses after the settings objects of a file were applied to a cluster that has the objects
/// `there` and these Service ranges. All objects of the file must be in use then, and all of `there` that are now. A
/// `serviceCIDRSelector` selects ServiceCIDR objects among `objects` and those of the cluster; other objects are ignored.
pub fn document_of_objects(
    objects: &[Value],
    there: &[Value],
    cluster: &ServiceRanges,
) -> Result<WrittenSettings, String> {
    let own: Vec<Value> = objects.iter().filter(|object| is_settings_object(object)).cloned().collect();
    let mistakes = wrong_names(&own);
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    let mut ranges = cluster.clone();
    ranges.labelled.extend(ServiceRanges::of(objects).labelled);
    let before = compiled(there, cluster, None);
    let given: BTreeSet<ObjectKey> = own.iter().filter_map(ObjectKey::of).collect();
    let is_kept = |object: &&Value| ObjectKey::of(object).is_none_or(|key| !given.contains(&key));
    let kept: Vec<Value> = there.iter().filter(is_kept).cloned().collect();
    let after = compiled(&[own.as_slice(), &kept].concat(), &ranges, Some(&before.in_use));
    let mistake = |object: &Value| mistake(object, &after, !cluster.labelled.is_empty());
    let mut mistakes: Vec<String> = own.iter().filter_map(mistake).collect();
    let was_in_use = |object: &&Value| {
        let state = ObjectKey::of(object).and_then(|key| before.states.get(&key));
        state.is_some_and(|state| state.reason == Reason::InUse)
    };
    let spoilt = kept.iter().filter(was_in_use).filter_map(mistake);
    mistakes.extend(spoilt.map(|mistake| format!("beside these objects, {mistake}")));
    if mistakes.is_empty() { Ok(after.into()) } else { Err(mistakes.join("\n")) }
}

pub(super) fn selects_service_cidrs(object: &Value) -> bool {
    let selector = object.pointer("/spec/serviceCIDRSelector");
    is_settings_object(object) && selector.is_some_and(|selector| !selector.is_null())
}

/// The settings that a server with these objects of a cluster uses; `None` if none of them are settings. Objects that
/// can't be used are left out, or their last good version is used.
pub fn compiled_as_in_cluster(objects: &[Value]) -> Option<Compilation> {
    let own: Vec<Value> = objects.iter().filter(|object| is_settings_object(object)).cloned().collect();
    (!own.is_empty()).then(|| compiled(&own, &ServiceRanges::of(objects), None))
}

/// A mistake for each object whose kind or name the API server would refuse, or that is there twice.
fn wrong_names(objects: &[Value]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut mistakes = Vec::new();
    for object in objects {
        let Some(key) = ObjectKey::of(object) else {
            mistakes.push(match Kind::parse(kind(object)) {
                Some(kind) => format!("{}: Invalid: metadata.name is missing", kind.as_str()),
                None => {
                    let known = Kind::ALL.map(Kind::as_str).join(", ");
                    format!("{}: Invalid: unknown kind {:?}: known are {known}", api_version(object), kind(object))
                }
            });
            continue;
        };
        if key.kind == Kind::ClusterIPPolicy && key != ObjectKey::policy() {
            mistakes.push(format!("{key}: Invalid: the name must be {}", ObjectKey::policy().name));
        }
        if !seen.insert(key.clone()) {
            mistakes.push(format!("{key}: Invalid: there is another object of this kind and name: remove one"));
        }
    }
    mistakes
}

fn mistake(object: &Value, compiled: &Compilation, is_cluster_known: bool) -> Option<String> {
    let key = ObjectKey::of(object)?;
    let state = compiled.states.get(&key)?;
    let (reason, message) = match state.reason {
        Reason::InUse => (Reason::Invalid, mistake_of_type(object)?),
        Reason::NoRanges if !is_cluster_known => {
            (Reason::NoRanges, format!("{}; in files, add the ServiceCIDR objects beside the pool", state.message))
        }
        other => (other, state.message.clone()),
    };
    Some(format!("{key}: {}: {message}", reason.as_str()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const LINUX: &str = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: linux}\n";
    const TEAM: &str = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: team}\n\
                        spec: {serviceCIDRSelector: {matchLabels: {team: a}}}\n";

    fn document_in(text: &str, cluster: &ServiceRanges) -> Result<Value, String> {
        let written = document_of_objects(&in_text(text).unwrap().unwrap(), &[], cluster);
        written.map(|written| written.document).map_err(|error| error.to_string())
    }

    fn document(text: &str) -> Result<Value, String> {
        document_in(text, &ServiceRanges::default())
    }

    #[test]
    fn objects_are_found_in_documents_and_lists() {
        struct Case {
            name: &'static str,
            text: String,
            /// The kinds of the objects; `None` if none is of the API.
            expected: Option<&'static str>,
        }
        let item = r#"{"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool"}"#;
        let cases = [
            Case { name: "nothing", text: String::new(), expected: None },
            Case { name: "a document", text: "services: {} # for clusterip-policy.io\n".to_owned(), expected: None },
            Case { name: "one", text: LINUX.to_owned(), expected: Some("ServicePool") },
            Case {
                name: "several, an empty document, and another object",
                text: format!("---\n{LINUX}---\n---\n{TEAM}---\napiVersion: v1\nkind: Service\n"),
                expected: Some("ServicePool ServicePool Service"),
            },
            Case {
                name: "a list",
                text: format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item}, {item}]}}"#),
                expected: Some("ServicePool ServicePool"),
            },
            Case {
                name: "a list whose items have no type",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ExternalPoolList\n\
                       items: [{metadata: {name: a}}]\n"
                    .to_owned(),
                expected: Some("ExternalPool"),
            },
        ];
        for Case { name, text, expected } in cases {
            let found = in_text(&text).unwrap();
            let kinds = found.map(|objects| objects.iter().map(kind).collect::<Vec<_>>().join(" "));
            assert_eq!(kinds.as_deref(), expected, "{name}");
        }
        assert!(in_text("clusterip-policy.io: [").is_err(), "no YAML");
    }

    #[test]
    fn objects_must_be_usable_beside_those_of_the_cluster() {
        struct Case {
            name: &'static str,
            given: Value,
            expected: Result<usize, &'static str>,
        }
        let pool = |name: &str, cidr: &str, match_: Value| {
            json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
                   "spec": {"cidrs": [cidr], "match": match_}})
        };
        let of = |namespace: &str| json!({"namespaces": [namespace]});
        let in_cluster = |name: &str, cidr: &str| {
            let mut pool = pool(name, cidr, of(name));
            pool["metadata"]["generation"] = json!(1);
            let ready = json!([{"type": "Ready", "status": "True"}]);
            pool["status"] = json!({"observedGeneration": 1, "conditions": ready, "ranges": [cidr]});
            pool
        };
        let there = [in_cluster("a", "10.96.0.0/24"), in_cluster("b", "10.96.1.0/24")];
        let cases = [
            Case { name: "a new pool", given: pool("c", "10.96.2.0/24", of("c")), expected: Ok(3) },
            Case { name: "the same pool", given: pool("a", "10.96.0.0/24", of("a")), expected: Ok(2) },
            Case { name: "another range", given: pool("a", "10.96.4.0/24", of("a")), expected: Ok(2) },
            Case {
                name: "a new pool that overlaps one of the cluster",
                given: pool("c", "10.96.1.128/25", of("c")),
                expected: Err(
                    "ServicePool c: Overlaps: spec.cidrs[0]: 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \"b\"",
                ),
            },
            Case {
                name: "an edit that overlaps another pool",
                given: pool("a", "10.96.1.0/25", of("a")),
                expected: Err("ServicePool a: Overlaps: this pool conflicts with pool \"b\": spec.cidrs[0]: "),
            },
            Case {
                name: "a pool that would be tried first and match everything",
                given: pool("0", "10.96.2.0/24", json!({})),
                expected: Err("ServicePool 0: NeverUsed: "),
            },
            Case {
                name: "a pool outside of the Service ranges",
                given: pool("c", "10.97.0.0/24", of("c")),
                expected: Err(
                    "ServicePool c: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.0.0/24 lies outside of the Service",
                ),
            },
        ];
        for Case { name, given, expected } in cases {
            let written = document_of_objects(&[given], &there, &vec!["10.96.0.0/16".to_owned()].into());
            let pools = written.map(|written| written.document["services"]["pools"].as_array().unwrap().len());
            match (pools.map_err(|error| error.to_string()), expected) {
                (Err(reason), Err(begin)) => assert!(reason.starts_with(begin), "{name}: {reason}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{name}"),
            }
        }
    }

    #[test]
    fn objects_of_a_file_must_all_be_usable() {
        struct Case {
            name: &'static str,
            text: String,
            expected: Result<Value, &'static str>,
        }
        let pool = |name: &str, spec: &str| {
            format!(
                "---\napiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {{name: {name}}}\n\
                 spec: {spec}\n"
            )
        };
        let policy = |name: &str| {
            format!(
                "---\napiVersion: clusterip-policy.io/v1alpha1\nkind: ClusterIPPolicy\nmetadata: {{name: {name}}}\n\
                 spec: {{order: Lowest}}\n"
            )
        };
        let cidr = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
                    metadata: {name: a, labels: {team: a}}\nspec: {cidrs: [10.97.0.0/24]}\n";
        let cases = [
            Case {
                name: "a pool and settings",
                text: pool("all", "{cidrs: [10.96.1.0/24], fence: Deny, priority: 3}") + &policy("default"),
                expected: Ok(json!({"services": {
                    "order": "lowest", "pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}],
                }})),
            },
            Case {
                name: "a labelled ServiceCIDR in the same file",
                text: TEAM.to_owned() + cidr,
                expected: Ok(json!({"services": {"pools": [{"name": "team", "cidrs": ["10.97.0.0/24"]}]}})),
            },
            Case {
                name: "no such ServiceCIDR",
                text: TEAM.to_owned(),
                expected: Err("ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these \
                               labels: label one with kubectl label servicecidr, or list cidrs; in files, add \
                               the ServiceCIDR objects beside the pool"),
            },
            Case {
                name: "mistakes of several objects, in the order of the file",
                text: pool("b", "{cidrs: [10.96.1.7/24]}") + &pool("a", "{cidrs: [10.96.2.0/24], fence: Denny}"),
                expected: Err("ServicePool b: Invalid: spec.cidrs[0]: 10.96.1.7/24 has host bits set: did you mean \
                               10.96.1.0/24?\nServicePool a: Invalid: spec.fence: unknown value \"Denny\": did you \
                               mean Deny?"),
            },
            Case {
                name: "overlapping pools",
                text: pool("a", "{cidrs: [10.96.1.0/24], match: {os: linux}}")
                    + &pool("b", "{cidrs: [10.96.1.128/25]}"),
                expected: Err("ServicePool b: Overlaps: spec.cidrs[0]: 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \
                               \"a\""),
            },
            Case {
                name: "another name of the settings",
                text: policy("other"),
                expected: Err("ClusterIPPolicy other: Invalid: the name must be default"),
            },
            Case {
                name: "two pools of one name",
                text: pool("a", "{cidrs: [10.96.1.0/24]}") + &pool("a", "{cidrs: [10.96.2.0/24]}"),
                expected: Err("ServicePool a: Invalid: there is another object of this kind and name: remove one"),
            },
            Case {
                name: "no name",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ExternalPool\n".to_owned(),
                expected: Err("ExternalPool: Invalid: metadata.name is missing"),
            },
            Case {
                name: "an unknown kind",
                text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: Pool\nmetadata: {name: a}\n".to_owned(),
                expected: Err("clusterip-policy.io/v1alpha1: Invalid: unknown kind \"Pool\": known are ServicePool, \
                               ExternalPool, NodeBlockPool, ClusterIPPolicy"),
            },
        ];
        for Case { name, text, expected } in cases {
            assert_eq!(document(&text), expected.map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn objects_of_a_file_are_compared_with_the_cluster() {
        struct Case {
            name: &'static str,
            text: String,
            cluster: Vec<Value>,
            expected: Result<Value, &'static str>,
        }
        let cidr = |name: &str, cidr: &str, labels: Value| {
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                   "metadata": {"name": name, "labels": labels}, "spec": {"cidrs": [cidr]}})
        };
        let kubernetes = || cidr("kubernetes", "10.96.0.0/16", json!({}));
        let far = LINUX.to_owned() + "spec: {cidrs: [10.97.1.0/24]}\n";
        let cases = [
            Case {
                name: "a ServiceCIDR of the cluster",
                text: TEAM.to_owned(),
                cluster: vec![kubernetes(), cidr("a", "10.97.0.0/24", json!({"team": "a"}))],
                expected: Ok(json!({"services": {"pools": [{"name": "team", "cidrs": ["10.97.0.0/24"]}]}})),
            },
            Case {
                name: "no such ServiceCIDR in the cluster",
                text: TEAM.to_owned(),
                cluster: vec![kubernetes()],
                expected: Err("ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these \
                               labels: label one with kubectl label servicecidr, or list cidrs"),
            },
            Case {
                name: "outside of the cluster",
                text: far.clone(),
                cluster: vec![kubernetes()],
                expected: Err("ServicePool linux: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.1.0/24 lies outside of \
                               the Service ranges of the cluster (10.96.0.0/16): the API server would refuse its \
                               addresses"),
            },
            Case {
                name: "the ranges of the cluster are unknown",
                text: far,
                cluster: vec![],
                expected: Ok(json!({"services": {"pools": [{"name": "linux", "cidrs": ["10.97.1.0/24"]}]}})),
            },
        ];
        for Case { name, text, cluster, expected } in cases {
            let found = document_in(&text, &ServiceRanges::of(&cluster));
            assert_eq!(found, expected.map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn objects_of_a_cluster_that_can_not_be_used_are_left_out() {
        assert_eq!(compiled_as_in_cluster(&[json!({"apiVersion": "v1", "kind": "Service"})]), None);
        let good = json!({
            "apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "good"},
            "spec": {"cidrs": ["10.96.1.0/24"]},
        });
        let mut bad = good.clone();
        bad["metadata"]["name"] = json!("bad");
        bad["spec"]["cidrs"] = json!(["10.97.0.0/24"]);
        let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                          "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
        let compiled = compiled_as_in_cluster(&[good, bad, cidr]).unwrap();
        let expected = json!({"services": {"pools": [{"name": "good", "cidrs": ["10.96.1.0/24"]}]}});
        assert_eq!(compiled.document, expected);
        assert_eq!(compiled.states.len(), 2);
    }
}
