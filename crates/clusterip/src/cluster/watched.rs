//! Any object of a list or a watch, read at once into what somebody reads of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::DynamicResourceScope;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

/// An object whose kind is known. [`DynamicObject`] is read into a buffer first, and out of it twice, with all
/// its managed fields: with ten thousands of objects, and with thousands that change at once, this shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// Of `metadata` name, namespace, UID, version, time of deletion, labels and annotations.
    pub metadata: ObjectMeta,
    /// Of `metadata.managedFields` who manages which fields of `spec`, as in `f:clusterIP`.
    pub managers: Vec<Manager>,
    /// All other fields, but `apiVersion` and `kind`. Of `status`, which is most of a Node, only what somebody
    /// reads: type and status of `conditions`, and `loadBalancer`.
    pub data: Map<String, Value>,
}

/// Who manages fields of `spec`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manager {
    /// His name.
    pub name: Option<String>,
    /// The fields.
    pub spec: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<Entry>>,
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
    spec: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    conditions: Option<Vec<Condition>>,
    load_balancer: Option<Value>,
}

#[derive(serde::Deserialize)]
struct Condition {
    r#type: Option<String>,
    status: Option<String>,
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Whole)
    }
}

struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = Watched;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of the API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Watched, A::Error> {
        let mut watched = Watched::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => (watched.metadata, watched.managers) = map.next_value::<Metadata>()?.split(),
                "apiVersion" | "kind" => drop(map.next_value::<IgnoredAny>()?),
                "status" => {
                    let status = map.next_value::<Option<Status>>()?.map(Status::read).unwrap_or_default();
                    if !status.is_empty() {
                        watched.data.insert(key, status.into());
                    }
                }
                _ => drop(watched.data.insert(key, map.next_value()?)),
            }
        }
        Ok(watched)
    }
}

impl Status {
    fn read(self) -> Map<String, Value> {
        let condition = |condition: Condition| json!({"type": condition.r#type, "status": condition.status});
        let conditions = self.conditions.map(|conditions| conditions.into_iter().map(condition).collect());
        let fields = [("conditions", conditions), ("loadBalancer", self.load_balancer)];
        fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

impl Metadata {
    fn split(self) -> (ObjectMeta, Vec<Manager>) {
        let managers = self.managed_fields.into_iter().flatten().map(|entry| Manager {
            name: entry.manager,
            spec: entry.fields.and_then(|fields| fields.spec).into_iter().flat_map(BTreeMap::into_keys).collect(),
        });
        let metadata = ObjectMeta {
            name: self.name,
            namespace: self.namespace,
            uid: self.uid,
            resource_version: self.resource_version,
            deletion_timestamp: self.deletion_timestamp,
            labels: self.labels,
            annotations: self.annotations,
            ..ObjectMeta::default()
        };
        (metadata, managers.collect())
    }
}

impl Resource for Watched {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn all_is_read_that_somebody_reads() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"b": "c"},
                "annotations": {"d": "e"}, "deletionTimestamp": "2026-01-02T03:04:05Z", "generation": 3,
                "creationTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["f"],
                "managedFields": [
                    {"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {}}, "f:spec": {"f:podCIDR": {}, "f:b": {".": {}}}}},
                    {"manager": "other", "fieldsV1": {"f:status": {}}},
                    {},
                ],
            },
            "spec": {"podCIDR": "10.0.0.0/24"}, "other": [1, null],
            "status": {
                "capacity": {"cpu": "1"}, "loadBalancer": {"ingress": []},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}],
            },
        });
        let read = |object: &Value| -> Watched { serde_json::from_str(&object.to_string()).unwrap() };
        let mut expected: DynamicObject = serde_json::from_value(whole.clone()).unwrap();
        expected.metadata.managed_fields = None;
        expected.metadata.generation = None;
        expected.metadata.creation_timestamp = None;
        expected.metadata.finalizers = None;
        let manager = |name: Option<&str>, spec: &[&str]| Manager {
            name: name.map(str::to_owned),
            spec: spec.iter().map(|field| (*field).to_owned()).collect(),
        };
        let expected = Watched {
            metadata: expected.metadata,
            managers: vec![manager(Some("m"), &["f:b", "f:podCIDR"]), manager(Some("other"), &[]), manager(None, &[])],
            data: Map::from_iter([
                ("spec".to_owned(), json!({"podCIDR": "10.0.0.0/24"})),
                ("other".to_owned(), json!([1, null])),
                (
                    "status".to_owned(),
                    json!({"conditions": [{"type": "Ready", "status": "True"}], "loadBalancer": {"ingress": []}}),
                ),
            ]),
        };
        assert_eq!(read(&whole), expected);
        assert_eq!(serde_json::from_value::<Watched>(whole).unwrap(), expected, "out of a value");
        let spec = json!({"a": 1});
        let without = Watched { data: Map::from_iter([("spec".to_owned(), spec.clone())]), ..Watched::default() };
        assert_eq!(read(&json!({"metadata": {}, "spec": spec})), without, "with empty metadata");
        assert_eq!(read(&json!({"spec": spec})), without, "without metadata");
        assert!(serde_json::from_str::<Watched>("[]").is_err());
        assert!(serde_json::from_str::<Watched>(r#"{"metadata": {"name": 1}}"#).is_err());
    }
}
