//! What a plan keeps of the object of a manifest.

use clusterip_cluster::live_settings::is_settings_api;
use clusterip_cluster::snapshot::{CompactValue, ReadObject};
use serde_json::Value;

use super::misspellings;

pub struct PlannedObject {
    /// What decisions read of it.
    pub(crate) read: ReadObject,
    /// The object, if it is planned, or may be settings. The plan of a Service or Node changes it.
    whole: Option<CompactValue>,
    /// See [`misspellings::of_fields`].
    pub(crate) misspelled: Vec<String>,
}

impl PlannedObject {
    pub fn new(mut object: Value) -> Self {
        let (read, misspelled) = (ReadObject::new(&object), misspellings::of_fields(&object));
        let (api_version, kind) = &read.kind;
        let is_whole =
            read.service().is_some() || matches!(kind.as_str(), "Node" | "ServiceCIDR") || is_settings_api(api_version);
        // These are as large as the rest of an object, and [`ReadObject`] has what counts of them.
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
        Self { read, whole: is_whole.then(|| CompactValue::of(&object)), misspelled }
    }

    /// The object of a Service, a Node, a ServiceCIDR or settings; otherwise null.
    pub(crate) fn value(&self) -> Value {
        self.whole.as_ref().map(CompactValue::value).unwrap_or_default()
    }

    pub(crate) fn is_node(&self) -> bool {
        self.read.kind == ("v1".to_owned(), "Node".to_owned())
    }

    /// Its kind, namespace and name.
    pub(crate) fn shown(&self) -> String {
        let ReadObject { kind: (_, kind), namespace, name, .. } = &self.read;
        format!("{kind} {namespace}/{name}")
    }
}
