//! Complete objects, and the answers of Kubewarden about them, for a build of the policy module.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::field_mask::Mask;
use clusterip_core::service::addresses;
use clusterip_core::service_key::ServiceKey;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::object;
use crate::policy::host_calls::{HostCall, HostCalls};

#[derive(Clone, Debug, Default)]
pub struct CompleteObjects {
    kinds: BTreeMap<Kind, BTreeMap<(String, String), Value>>,
    absent: BTreeSet<Kind>,
}

impl FromIterator<Value> for CompleteObjects {
    fn from_iter<I: IntoIterator<Item = Value>>(objects: I) -> Self {
        let mut complete = Self::default();
        objects.into_iter().for_each(|object| complete.insert(object));
        complete
    }
}

impl CompleteObjects {
    pub fn insert(&mut self, object: Value) {
        let kind = (object::api_version(&object).to_owned(), object::kind(&object).to_owned());
        let id = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
        self.kinds.entry(kind).or_default().insert(id, object);
    }

    pub fn remove_api(&mut self, api_version: &str, kind: &str) {
        self.absent.insert((api_version.to_owned(), kind.to_owned()));
    }

    fn of_kind(&self, api_version: &str, kind: &str, namespace: Option<&str>) -> impl Iterator<Item = &Value> {
        let objects = self.kinds.get(&(api_version.to_owned(), kind.to_owned())).into_iter().flatten();
        let inside = objects.filter(move |((other, _), _)| namespace.is_none_or(|namespace| other == namespace));
        inside.map(|(_, object)| object)
    }

    /// An `IPAddress` for an address of a Service: the API server has such objects, manifests don't.
    fn ip_address(&self, api_version: &str, name: &str) -> Option<Value> {
        let address: IpAddr = name.parse().ok()?;
        let mut services = self.of_kind("v1", "Service", None);
        let owner = services.find(|service| addresses(service).contains(&address));
        let ServiceKey { namespace, name: service } =
            owner.filter(|_| address.to_string() == name).map(ServiceKey::of)?;
        Some(json!({
            "apiVersion": api_version,
            "kind": "IPAddress",
            "metadata": {"name": name},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": service}},
        }))
    }
}

impl HostCalls for CompleteObjects {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        if self.absent.contains(&(api_version.to_owned(), kind.to_owned())) {
            return Err(format!("Cannot find resource {api_version}/{kind}"));
        }
        match call {
            HostCall::ListAll { label_selector, field_selector, field_masks, .. }
            | HostCall::ListNamespace { label_selector, field_selector, field_masks, .. } => {
                // Queries of the policy have constant shapes, so none has a selector.
                if label_selector.is_some() || field_selector.is_some() {
                    return Err("look-ups with selectors are not answered".to_owned());
                }
                let namespace = match call {
                    HostCall::ListNamespace { namespace, .. } => Some(namespace.as_str()),
                    _ => None,
                };
                if namespace.is_some() && !object::is_namespaced(kind) {
                    return Err(format!(
                        "resource {api_version}/{kind} is cluster wide. Cannot search for it inside of a namespace"
                    ));
                }
                let mask = field_masks.as_ref().map(Mask::new);
                let objects = self.of_kind(api_version, kind, namespace);
                let items: Value = objects.map(|object| masked(object, mask.as_ref(), true)).collect();
                let (api_version, kind) = (json!(api_version), json!(format!("{kind}List")));
                Ok(format!(r#"{{"apiVersion":{api_version},"kind":{kind},"metadata":{{}},"items":{items}}}"#).into())
            }
            HostCall::Get { name, namespace, field_masks, .. } => {
                if object::is_namespaced(kind) && namespace.is_none() {
                    return Err(format!("Resource {api_version}/{kind} is namespaced, but no namespace was provided"));
                }
                let mask = field_masks.as_ref().map(Mask::new);
                let scope = namespace.as_deref().filter(|_| object::is_namespaced(kind)).unwrap_or_default();
                let objects = self.kinds.get(&(api_version.to_owned(), kind.to_owned()));
                let found = objects.and_then(|objects| objects.get(&(scope.to_owned(), name.clone()))).cloned();
                let derived = || (kind == "IPAddress").then(|| self.ip_address(api_version, name)).flatten();
                match found.or_else(derived) {
                    Some(object) => Ok(masked(&object, mask.as_ref(), false).to_string().into()),
                    None => Err(format!(
                        "Cannot find {api_version}/{kind} named '{name}' inside of namespace '{namespace:?}'"
                    )),
                }
            }
        }
    }
}

/// An object as Kubewarden returns it: type and `metadata` completely, the other fields as the mask says, or all of
/// them. In an answer from a watch cache, `metadata` lacks the managed fields and the last applied configuration.
fn masked(object: &Value, mask: Option<&Mask>, is_cached: bool) -> Value {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let mut masked = object.clone();
    if let Some(mask) = mask {
        mask.prune(&mut masked);
    }
    let Some(fields) = masked.as_object_mut() else { return masked };
    for key in ["apiVersion", "kind", "metadata"] {
        fields.extend(object.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| is_cached) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    masked
}
