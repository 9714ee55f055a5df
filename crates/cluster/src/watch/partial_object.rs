//! An object of a list or a watch, of which only the fields that are used are read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use clusterip_core::annotations::has_parser;
use clusterip_core::services::{ADDRESS_FIELDS, MANAGER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use kube::api::ObjectMeta;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::kinds::{Kind, impl_dynamic_resource};
use super::watched_fields;
use crate::lookups::field_mask::MaskedReader;
use crate::lookups::snapshot::{IGNORED_BY_KUBE_PROXY, SERVICE_NAME_LABEL};

/// An object whose kind is known from the watch. A [`kube::api::DynamicObject`] would first be read into a buffer and
/// then out of it twice, with all its managed fields, which is noticeable with tens of thousands of objects or
/// thousands of changes at once.
///
/// Fields that are not used are skipped while the object is read, and all others are bounded: tenants can write objects
/// of 1.5 MB, a page of a list has many of them, and their parsed values would take ten times the memory of their text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartialObject {
    /// Name, namespace, UID, version, time of deletion, the first `MAX_LABELS` labels and those that always count, the
    /// annotations that are used, and of the managed fields what shows whether the address of a Service was set by hand.
    pub metadata: ObjectMeta,
    /// The other fields that are used, of each list and map as many values as [`watched_fields`] says.
    pub data: Map<String, Value>,
}

impl PartialObject {
    /// The object as JSON, with its kind; `None` if it has no name.
    pub fn value(self, (api_version, kind): &Kind) -> Option<Value> {
        self.metadata.name.as_ref()?;
        let mut fields = self.data;
        fields.insert("apiVersion".to_owned(), api_version.as_str().into());
        fields.insert("kind".to_owned(), kind.as_str().into());
        let metadata = ObjectMeta { resource_version: None, ..self.metadata };
        fields.insert("metadata".to_owned(), serde_json::to_value(metadata).ok()?);
        Some(Value::Object(fields))
    }
}

/// How many labels are read, in their order, which is that of the keys. Nodes and Namespaces of administrators have
/// fewer, and of other objects fewer count.
const MAX_LABELS: usize = 4096;

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
    managed_fields: Option<Managers>,
}

#[derive(serde::Deserialize)]
struct Entry {
    manager: Option<String>,
    #[serde(rename = "fieldsV1")]
    fields: Option<Fields>,
}

#[derive(serde::Deserialize)]
struct Fields {
    #[serde(rename = "f:spec")]
    spec: Option<OwnedFields>,
}

/// The values by key, of the entries for which `reads` returns true; it gets the number of entries read so far and the
/// key.
fn read_map<'de, A: MapAccess<'de>, V: Deserialize<'de>>(
    mut map: A,
    reads: impl Fn(usize, &str) -> bool,
) -> Result<BTreeMap<String, V>, A::Error> {
    let mut found = BTreeMap::new();
    while let Some(key) = map.next_key::<Cow<'_, str>>()? {
        if reads(found.len(), &key) {
            found.insert(key.into_owned(), map.next_value()?);
        } else {
            map.next_value::<IgnoredAny>()?;
        }
    }
    Ok(found)
}

/// Defines a map of which only some entries are read.
macro_rules! read_in_part {
    ($name:ident, $value:ty, $reads:expr) => {
        struct $name(BTreeMap<String, $value>);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Entries;

                impl<'de> Visitor<'de> for Entries {
                    type Value = BTreeMap<String, $value>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a map")
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                        read_map(map, $reads)
                    }
                }

                deserializer.deserialize_map(Entries).map(Self)
            }
        }
    };
}

read_in_part!(Labels, String, |count, key| {
    count < MAX_LABELS || key == SERVICE_NAME_LABEL || IGNORED_BY_KUBE_PROXY.contains(&key)
});
read_in_part!(Annotations, String, |_, key| has_parser(key));
read_in_part!(OwnedFields, IgnoredAny, |_, key| ADDRESS_FIELDS.contains(&key));

/// Of the managers, one that owns the address of a Service: another one than this program if there is any, because one
/// is enough for [`is_set_by_hand`](clusterip_core::services::is_set_by_hand), and server-side apply allows
/// any number. An empty entry if no manager owns it.
struct Managers(Option<ManagedFieldsEntry>);

impl<'de> Deserialize<'de> for Managers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Option<ManagedFieldsEntry>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of managers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let (mut own, mut other, mut any) = (None, None, None);
                while let Some(Entry { manager, fields }) = list.next_element()? {
                    any.get_or_insert_default();
                    let owned = fields.and_then(|fields| fields.spec).map(|spec| spec.0).unwrap_or_default();
                    if owned.is_empty() {
                        continue;
                    }
                    let spec: Map<String, Value> = owned.into_keys().map(|field| (field, json!({}))).collect();
                    let manages = if manager.as_deref() == Some(MANAGER) { &mut own } else { &mut other };
                    let fields_v1 = Some(FieldsV1(json!({ "f:spec": spec })));
                    manages.get_or_insert(ManagedFieldsEntry { manager, fields_v1, ..ManagedFieldsEntry::default() });
                }
                Ok(other.or(own).or(any))
            }
        }

        deserializer.deserialize_seq(Entries).map(Self)
    }
}

impl<'de> Deserialize<'de> for PartialObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Whole)
    }
}

struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = PartialObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of the API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PartialObject, A::Error> {
        let mut watched = PartialObject::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "metadata" {
                watched.metadata = map.next_value::<Metadata>()?.into();
            } else if let Some(reader) = MaskedReader::new(&watched_fields::OF_ALL_KINDS).field(&key) {
                let value = map.next_value_seed(reader)?;
                watched.data.insert(key, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(watched)
    }
}

impl From<Metadata> for ObjectMeta {
    fn from(read: Metadata) -> Self {
        Self {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels.map(|labels| labels.0),
            annotations: read.annotations.map(|annotations| annotations.0),
            managed_fields: read.managed_fields.and_then(|managers| managers.0).map(|manager| vec![manager]),
            ..Self::default()
        }
    }
}

impl_dynamic_resource!(PartialObject);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::lookups::snapshot::MAX_PORTS;

    fn read(object: &Value) -> PartialObject {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn only_used_fields_are_read() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"b": "c"},
                "annotations": {"d": "e", "clusterip-policy/os": "linux"}, "generation": 3,
                "deletionTimestamp": "2026-01-02T03:04:05Z", "creationTimestamp": "2026-01-02T03:04:05Z",
                "finalizers": ["f"],
                "managedFields": [
                    {"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": {"f:clusterIP": {}, "f:b": {".": {}}}}},
                    {"manager": "other", "fieldsV1": {"f:spec": {"f:ports": {}}}},
                    {},
                ],
            },
            "spec": {"podCIDR": "10.0.0.0/24", "providerID": "x"}, "other": [1, null],
            "status": {
                "capacity": {"cpu": "1"}, "loadBalancer": {"ingress": []},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}],
            },
        });
        let metadata = ObjectMeta {
            name: Some("a".to_owned()),
            namespace: Some("n".to_owned()),
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            labels: Some([("b".to_owned(), "c".to_owned())].into()),
            annotations: Some([("clusterip-policy/os".to_owned(), "linux".to_owned())].into()),
            deletion_timestamp: serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap(),
            managed_fields: Some(vec![ManagedFieldsEntry {
                manager: Some("m".to_owned()),
                fields_v1: Some(FieldsV1(json!({"f:spec": {"f:clusterIP": {}}}))),
                ..ManagedFieldsEntry::default()
            }]),
            ..ObjectMeta::default()
        };
        let expected = PartialObject {
            metadata,
            data: Map::from_iter([
                ("spec".to_owned(), json!({"podCIDR": "10.0.0.0/24"})),
                (
                    "status".to_owned(),
                    json!({"conditions": [{"type": "Ready", "status": "True"}], "loadBalancer": {"ingress": []}}),
                ),
            ]),
        };
        assert_eq!(read(&whole), expected);
        assert_eq!(serde_json::from_value::<PartialObject>(whole).unwrap(), expected, "out of a value");
        let spec = json!({"type": "ClusterIP"});
        let without =
            PartialObject { data: Map::from_iter([("spec".to_owned(), spec.clone())]), ..PartialObject::default() };
        assert_eq!(read(&json!({"metadata": {}, "spec": spec})), without, "with empty metadata");
        assert_eq!(read(&json!({"spec": spec})), without, "without metadata");
        assert!(serde_json::from_str::<PartialObject>("[]").is_err());
        assert!(serde_json::from_str::<PartialObject>(r#"{"metadata": {"name": 1}}"#).is_err());
    }

    #[test]
    fn large_object_is_read_within_bounds() {
        let many = |count: usize| Value::Array(vec!["".into(); count]);
        let keys = |count: usize| -> Value {
            (0..count).map(|key| (format!("k{key:06}"), "".into())).collect::<Map<_, _>>().into()
        };
        let managers =
            (0..1000).map(|name| json!({"manager": name.to_string(), "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}));
        let mut labels = keys(10_000);
        for label in [SERVICE_NAME_LABEL].iter().chain(&IGNORED_BY_KUBE_PROXY) {
            labels[*label] = "a".into();
        }
        let object = read(&json!({
            "metadata": {
                "labels": labels, "annotations": keys(10_000),
                "managedFields": managers.collect::<Vec<_>>(),
            },
            "spec": {
                "template": {"spec": {"containers": [{"args": many(700_000)}], "nodeSelector": keys(100_000)}},
                "ports": vec![json!({"name": "", "port": 1, "protocol": "TCP"}); 10_000],
                "podCIDRs": many(100_000),
                "externalIPs": [many(100_000)],
            },
            "endpoints": vec![json!({"conditions": {"ready": true}, "nodeName": "a", "addresses": many(9)}); 5000],
        }));
        assert_eq!(object.metadata.labels.unwrap().len(), MAX_LABELS + 3, "with those that always count");
        assert_eq!(object.metadata.annotations.unwrap().len(), 0);
        assert_eq!(object.metadata.managed_fields.unwrap().len(), 1);
        let read = &object.data["spec"];
        let spec = &read["template"]["spec"];
        assert_eq!(spec.as_object().unwrap().len(), 1, "{:?}", spec.as_object().unwrap().keys());
        assert_eq!(spec["nodeSelector"].as_object().unwrap().len(), 64);
        let length = |list: &Value| list.as_array().unwrap().len();
        assert_eq!(read["ports"], json!(vec![json!({"port": 1, "protocol": "TCP"}); MAX_PORTS]));
        assert_eq!(length(&read["podCIDRs"]), 16_384);
        assert_eq!(read["externalIPs"], json!([]), "an item that has too many values itself");
        assert_eq!(length(&object.data["endpoints"]), 16_384 / 4, "each with all of its four values");
        assert_eq!(object.data["endpoints"][4095], json!({"conditions": {"ready": true}, "nodeName": "a"}));
    }

    /// An object of a custom kind, in which the API server checks no types.
    #[test]
    fn little_is_read_of_fields_that_should_be_texts() {
        let nested = (0..90).fold(json!(""), |inner, _| json!([inner]));
        let many = || Value::Array(vec![nested.clone(); 300]);
        let expression = json!({"key": many(), "operator": many(), "values": many()});
        let terms = json!([{"matchExpressions": [expression]}]);
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let pod = json!({"affinity": {"nodeAffinity": affinity}, "nodeName": many(), "os": {"name": {"a": many()}},
            "runtimeClassName": many()});
        let read = read(&json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": pod}}}));
        assert!(read.data["spec"].to_string().len() < 500, "{}", read.data["spec"]);
    }

    /// The object as JSON with the field at this path before all others.
    fn with_first(value: &Value, path: &[&str]) -> String {
        let (Value::Object(fields), [first, inner @ ..]) = (value, path) else { return value.to_string() };
        let others = fields.iter().filter(|(key, _)| key != first).map(|(key, value)| format!("\"{key}\":{value}"));
        let first = format!("\"{first}\":{}", with_first(&fields[*first], inner));
        format!("{{{}}}", std::iter::once(first).chain(others).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn long_field_hides_no_other() {
        let keys = || -> Value { (0..20_000).map(|key| (format!("k{key}"), "".into())).collect::<Map<_, _>>().into() };
        let many = |item: Value| Value::Array(vec![item; 20_000]);
        let condition = json!({"type": "Ready", "status": "True"});
        let term = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
        let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        let pod = json!({
            "affinity": {"nodeAffinity": terms}, "nodeName": "a", "nodeSelector": {"a": "b"},
            "os": {"name": "windows"}, "runtimeClassName": "a",
        });
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
        struct Case {
            kind: &'static str,
            /// An object with all fields that are used.
            whole: Value,
            /// The paths of the fields that can be long, each with a long value.
            long: Vec<(&'static str, Value)>,
        }
        let cases = [
            Case {
                kind: "Service",
                whole: json!({
                    "spec": {
                        "clusterIP": "a", "clusterIPs": ["a"], "externalIPs": ["a"], "externalName": "a",
                        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "a", "loadBalancerClass": "a", "loadBalancerIP": "a",
                        "ports": [{"port": 1, "protocol": "TCP"}], "selector": {"a": "b"}, "type": "a",
                    },
                    "status": {"loadBalancer": {"ingress": [{"ip": "a"}]}},
                }),
                long: vec![
                    ("spec/selector", keys()),
                    ("spec/ports", many(json!({"port": 1, "protocol": "TCP"}))),
                    ("spec/externalIPs", many("a".into())),
                    ("status/loadBalancer/ingress", many(json!({"ip": "a"}))),
                ],
            },
            Case {
                kind: "ServiceCIDR",
                whole: json!({"spec": {"cidrs": ["a"]}, "status": {"conditions": [condition]}}),
                long: vec![("spec/cidrs", many("a".into())), ("status/conditions", many(condition.clone()))],
            },
            Case {
                kind: "Node",
                whole: json!({"spec": {"podCIDR": "a", "podCIDRs": ["a"]}, "status": {"conditions": [condition]}}),
                long: vec![("spec/podCIDRs", many("a".into())), ("status/conditions", many(condition.clone()))],
            },
            Case {
                kind: "EndpointSlice",
                whole: json!({"endpoints": [{"nodeName": "a"}]}),
                long: vec![("endpoints", many(json!({"nodeName": "a"})))],
            },
            Case {
                kind: "Pod",
                whole: json!({"spec": pod}),
                long: vec![
                    ("spec/nodeSelector", keys()),
                    (
                        "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
                        many(term.clone()),
                    ),
                ],
            },
            Case {
                kind: "Deployment",
                whole: json!({"spec": {"template": template}}),
                long: vec![
                    ("spec/template/metadata/labels", keys()),
                    ("spec/template/spec/nodeSelector", keys()),
                    ("spec/template/spec/os/name", many("a".into())),
                ],
            },
            Case {
                kind: "CronJob",
                whole: json!({"spec": {"jobTemplate": {"spec": {"template": template}}}}),
                long: vec![
                    ("spec/jobTemplate/spec/template/metadata/labels", keys()),
                    ("spec/jobTemplate/spec/template/spec/nodeSelector", keys()),
                ],
            },
        ];
        let manager = |name: &str| json!({"manager": name, "fieldsV1": {"f:spec": {"f:clusterIP": {}}}});
        for Case { kind, mut whole, long } in cases {
            whole["metadata"] = json!({
                "annotations": {"clusterip-policy/os": "linux"}, "deletionTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"a": "b"}, "managedFields": [manager("m")], "name": "a", "namespace": "b", "uid": "c",
            });
            whole["apiVersion"] = "v1".into();
            whole["kind"] = kind.into();
            let kind = ("v1".to_owned(), kind.to_owned());
            assert_eq!(read(&whole).value(&kind).unwrap(), whole, "{kind:?}");
            let of_metadata = [
                ("metadata/labels", keys()),
                ("metadata/annotations", keys()),
                ("metadata/managedFields", many(manager("n"))),
            ];
            for (path, value) in long.into_iter().chain(of_metadata) {
                let mut object = whole.clone();
                *object.pointer_mut(&format!("/{path}")).unwrap() = value;
                let text = with_first(&object, &path.split('/').collect::<Vec<_>>());
                let mut found = serde_json::from_str::<PartialObject>(&text).unwrap().value(&kind).unwrap();
                let values = found.pointer_mut(&format!("/{path}")).map(Value::take).unwrap_or_default();
                let count = values.as_object().map(Map::len).or_else(|| values.as_array().map(Vec::len));
                assert!(count.unwrap() < 20_000, "{kind:?}: {path}");
                *found.pointer_mut(&format!("/{path}")).unwrap() = whole.pointer(&format!("/{path}")).unwrap().clone();
                assert_eq!(found, whole, "{kind:?}: {path}");
            }
        }
    }
}
