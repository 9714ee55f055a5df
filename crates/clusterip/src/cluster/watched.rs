//! Any object of a watch, read at once into what is kept of it.

use std::borrow::Cow;
use std::fmt;

use kube::Resource;
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::DynamicResourceScope;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

/// What [`DynamicObject`] holds. That one is read into a buffer first, and out of it twice: with ten thousands
/// of objects, and with thousands that change at once, this shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// `metadata`
    pub metadata: ObjectMeta,
    /// All other fields, but `apiVersion` and `kind`.
    pub data: Map<String, Value>,
}

impl From<Watched> for DynamicObject {
    fn from(Watched { metadata, data }: Watched) -> Self {
        Self { types: None, metadata, data: data.into() }
    }
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Watched;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of the API")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Watched, A::Error> {
        let mut watched = Watched::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => watched.metadata = map.next_value()?,
                "apiVersion" | "kind" => drop(map.next_value::<serde::de::IgnoredAny>()?),
                _ => drop(watched.data.insert(key, map.next_value()?)),
            }
        }
        Ok(watched)
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
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_what_a_dynamic_object_is() {
        let whole = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "a", "labels": {"b": "c"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "1"}}, "other": [1, null],
        });
        let bare = json!({"metadata": {}});
        for (name, object) in [("whole", whole), ("without anything", bare), ("without metadata", json!({"spec": {}}))]
        {
            let text = object.to_string();
            let mut expected: DynamicObject = serde_json::from_str(&text).unwrap();
            expected.types = None;
            let watched: Watched = serde_json::from_str(&text).unwrap();
            assert_eq!(DynamicObject::from(watched), expected, "{name}");
        }
        assert!(serde_json::from_str::<Watched>("[]").is_err());
    }
}
