//! The answers to look-ups in a snapshot, as Kubewarden gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::service_key::ServiceKey;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::field_mask::{Mask, Masked};
use super::super::{kubewarden_responses, selectors};
use super::{Kind, Snapshot, map};
use crate::object;
use crate::policy::host_calls::{HostCall, HostCalls};

impl Snapshot {
    /// The answer to a look-up.
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        match call {
            HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks } => {
                let query = Query { api_version, kind, label_selector, field_selector, field_masks };
                self.list(&query, None)
            }
            HostCall::ListNamespace { api_version, kind, namespace, label_selector, field_selector, field_masks } => {
                self.check_api(api_version, kind)?;
                if !object::is_namespaced(kind) {
                    return Err(format!(
                        "resource {api_version}/{kind} is cluster wide. Cannot search for it inside of a namespace"
                    ));
                }
                let query = Query { api_version, kind, label_selector, field_selector, field_masks };
                self.list(&query, Some(namespace))
            }
            HostCall::Get { api_version, kind, name, namespace, field_masks, .. } => {
                self.check_api(api_version, kind)?;
                if object::is_namespaced(kind) && namespace.is_none() {
                    return Err(format!("Resource {api_version}/{kind} is namespaced, but no namespace was provided"));
                }
                let mask = field_masks.as_ref().map(Mask::new);
                let scope = namespace.as_deref().filter(|_| object::is_namespaced(kind)).unwrap_or_default();
                let found = self.get(api_version, kind, scope, name);
                let derived = || (kind == "IPAddress").then(|| self.ip_address(api_version, name)).flatten();
                match found.or_else(derived) {
                    Some(object) => json(&Masked { object: &object, mask: mask.as_ref(), cached: false }),
                    None => Err(kubewarden_responses::not_found(api_version, kind, name, namespace.as_deref())),
                }
            }
        }
    }

    /// An `IPAddress` for an address of a Service: the API server has such objects, manifests don't.
    fn ip_address(&self, api_version: &str, name: &str) -> Option<Value> {
        let address: IpAddr = name.parse().ok()?;
        let owners = self.addresses.owners(address).filter(|_| address.to_string() == name)?;
        let ServiceKey { namespace, name: service } = owners.iter().next()?;
        Some(serde_json::json!({
            "apiVersion": api_version,
            "kind": "IPAddress",
            "metadata": {"name": name},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": service}},
        }))
    }

    fn check_api(&self, api_version: &str, kind: &str) -> Result<(), String> {
        let absent = self.absent.iter().any(|absent| absent.api_version == api_version && absent.kind == kind);
        if absent { Err(format!("Cannot find resource {api_version}/{kind}")) } else { Ok(()) }
    }

    fn list(&self, query: &Query<'_>, namespace: Option<&str>) -> Result<Vec<u8>, String> {
        self.check_api(query.api_version, query.kind)?;
        let kind = Kind { api_version: query.api_version.clone(), kind: query.kind.clone() };
        let labels =
            query.label_selector.as_deref().map(selectors::labels).transpose().map_err(|error| error.to_string())?;
        let selects = |object: &Value| match query.field_selector.as_deref() {
            _ if labels.as_ref().is_some_and(|labels| !labels.matches(&map(object, &["metadata", "labels"]))) => {
                Ok(false)
            }
            Some(fields) => selectors::fields_match(fields, object).map_err(|error| error.to_string()),
            None => Ok(true),
        };
        let mask = query.field_masks.as_ref().map(Mask::new);
        let mut items: Vec<Box<RawValue>> = Vec::new();
        for (_, object) in self.kinds.get(&kind).into_iter().flat_map(|objects| objects.of_namespace(namespace)) {
            let value = object.value();
            if selects(&value)? {
                let item = Masked { object: &value, mask: mask.as_ref(), cached: true };
                items.push(serde_json::value::to_raw_value(&item).map_err(|error| error.to_string())?);
            }
        }
        json(&List { query, items })
    }
}

struct Query<'q> {
    api_version: &'q String,
    kind: &'q String,
    label_selector: &'q Option<String>,
    field_selector: &'q Option<String>,
    field_masks: &'q Option<BTreeSet<String>>,
}

struct List<'l> {
    query: &'l Query<'l>,
    items: Vec<Box<RawValue>>,
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_map(Some(4))?;
        list.serialize_entry("apiVersion", self.query.api_version)?;
        list.serialize_entry("kind", &format!("{}List", self.query.kind))?;
        list.serialize_entry("metadata", &BTreeMap::<String, String>::new())?;
        list.serialize_entry("items", &self.items)?;
        list.end()
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

/// Answers all look-ups from a snapshot, as Kubewarden does.
#[derive(Clone)]
pub struct SnapshotCalls(Arc<RwLock<Snapshot>>);

impl SnapshotCalls {
    /// Answers from this snapshot, which may change between two look-ups.
    pub fn new(snapshot: Arc<RwLock<Snapshot>>) -> Self {
        Self(snapshot)
    }
}

impl HostCalls for SnapshotCalls {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        Snapshot::read(&self.0).answer(call)
    }
}
