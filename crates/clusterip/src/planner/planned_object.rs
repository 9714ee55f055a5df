//! What a plan keeps of the object of a manifest.

use clusterip_cluster::live_settings::is_settings_api;
use clusterip_cluster::object;
use clusterip_cluster::snapshot::{CompactValue, ReadObject};
use serde_json::Value;

use super::misspellings;
use crate::snapshot_kinds::kind_of;

pub struct PlannedObject {
    /// What decisions read of it.
    pub(crate) read: ReadObject,
    /// The fields that a plan may read of a Service, a Node, a ServiceCIDR, or an object of the settings API.
    whole: Option<CompactValue>,
    /// See [`misspellings::of_fields`].
    pub(crate) misspelled: Vec<String>,
}

impl PlannedObject {
    pub fn new(mut object: Value) -> Self {
        let (read, misspelled) = (ReadObject::new(&object), misspellings::of_fields(&object));
        let (api_version, kind) = &*read.kind;
        let is_whole =
            read.service().is_some() || matches!(kind.as_str(), "Node" | "ServiceCIDR") || is_settings_api(api_version);
        let whole = is_whole.then(|| {
            if let Value::Object(fields) = &mut object {
                fields
                    .retain(|field, _| ["apiVersion", "kind", "metadata", "spec", "status"].contains(&field.as_str()));
                // `managedFields` are often as large as the rest of an object. `ReadObject` has what counts of them.
                let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
                metadata.map(|metadata| metadata.remove("managedFields"));
            }
            CompactValue::of(&object)
        });
        Self { read, whole, misspelled }
    }

    /// The object, if it is a Service, a Node, a ServiceCIDR, or of the settings API; otherwise null.
    pub(crate) fn value(&self) -> Value {
        self.whole.as_ref().map(CompactValue::value).unwrap_or_default()
    }

    pub(crate) fn is_node(&self) -> bool {
        let (api_version, kind) = &*self.read.kind;
        (api_version.as_str(), kind.as_str()) == ("v1", "Node")
    }

    /// Whether this is the same kind of object, with the same name.
    pub(crate) fn is_about(&self, object: &Value) -> bool {
        let ReadObject { kind, name, .. } = &self.read;
        **kind == kind_of(object) && *name == object::name(object)
    }

    /// Takes [`Self::value`] out of the object, which forgets all but its kind, namespace and name.
    pub(crate) fn take(&mut self) -> Option<CompactValue> {
        self.read.forget();
        self.whole.take()
    }

    /// Its kind, its namespace, which is empty if it has none, and its name.
    pub(crate) fn shown(&self) -> String {
        let ReadObject { kind, namespace, name, .. } = &self.read;
        format!("{} {namespace}/{name}", kind.1)
    }
}
