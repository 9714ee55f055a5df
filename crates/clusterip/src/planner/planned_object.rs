//! What a plan keeps of the object of a manifest.

use std::sync::Arc;

use clusterip_cluster::live_settings::is_settings_api;
use clusterip_cluster::object;
use clusterip_cluster::snapshot::{CompactValue, ReadObject, StoredService};
use clusterip_core::json::TypeMismatch;
use clusterip_core::request::{Change, Request};
use serde_json::Value;

use super::api_server_rules::misspelled_fields;
use super::misspellings;
use crate::snapshot_kinds::kind_of;

pub struct PlannedObject {
    /// What decisions read of it.
    pub(crate) read: ReadObject,
    /// The fields that a plan may read of a Node, a ServiceCIDR, an object of the settings API, or a Service of which
    /// `read` lacks some of them.
    whole: Option<CompactValue>,
    /// See [`misspellings::of_fields`].
    pub(crate) misspelled: Vec<String>,
}

impl PlannedObject {
    pub fn new(mut object: Value) -> Self {
        let (read, misspelled) = (ReadObject::new(&object), misspellings::of_fields(&object));
        let (api_version, kind) = &*read.kind;
        let is_whole = match read.service() {
            Some(service) => !service.has_all_of(&object) || misspelled_fields(&object).next().is_some(),
            None => matches!(kind.as_str(), "Node" | "ServiceCIDR") || is_settings_api(api_version),
        };
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
        let of_service = || self.read.service().map(|service| service.value());
        self.whole.as_ref().map(CompactValue::value).or_else(of_service).unwrap_or_default()
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

    /// Takes the Service out of the object, which forgets all but its kind, namespace and name.
    pub(crate) fn take(&mut self) -> Option<PlannedService> {
        let service = PlannedService { read: Arc::clone(self.read.service()?), whole: self.whole.take() };
        self.read.forget();
        Some(service)
    }

    /// Its kind, its namespace, which is empty if it has none, and its name.
    pub(crate) fn shown(&self) -> String {
        let ReadObject { kind, namespace, name, .. } = &self.read;
        format!("{} {namespace}/{name}", kind.1)
    }
}

/// A Service that is to be planned.
pub(crate) struct PlannedService {
    pub(crate) read: Arc<StoredService>,
    whole: Option<CompactValue>,
}

impl PlannedService {
    /// The request to create the Service, of the manifest with this index, and the object of the request.
    pub(crate) fn create(&self, index: usize) -> (Result<Request, TypeMismatch>, Value) {
        let uid = format!("plan-{index}");
        if let Some(whole) = &self.whole {
            let object = whole.value();
            return (Request::of_service(&uid, &object, None), object);
        }
        let request = |object| Request::of_change(&uid, &self.read.key().namespace, Change { object, old: None });
        (self.read.in_request(|_| true).map(request), self.read.value())
    }
}
