//! Complete objects, and the answers of Kubewarden about them, for a build of the policy module.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::addresses;
use serde_json::{Value, json};

use super::field_mask::{Mask, masked};
use super::selectors;
use crate::object::{self, map};
use crate::policy::host_calls::{HostCall, HostCalls};
use crate::watch::kinds::Kind;

/// Complete objects by kind, namespace and name.
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
    /// Adds an object. It replaces an object of the same kind, namespace and name.
    pub fn insert(&mut self, object: Value) {
        let kind = (object::api_version(&object).to_owned(), object::kind(&object).to_owned());
        let id = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
        self.kinds.entry(kind).or_default().insert(id, object);
    }

    /// Marks a kind as unknown to the cluster, so that look-ups of it fail.
    pub fn remove_api(&mut self, api_version: &str, kind: &str) {
        self.absent.insert((api_version.to_owned(), kind.to_owned()));
    }

    fn of_kind(
        &self,
        api_version: &str,
        kind: &str,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = (&(String, String), &Value)> {
        let objects = self.kinds.get(&(api_version.to_owned(), kind.to_owned())).into_iter().flatten();
        objects.filter(move |((other, _), _)| namespace.is_none_or(|namespace| other == namespace))
    }

    /// An `IPAddress` for an address of a Service: the API server has such objects, manifests don't.
    fn ip_address(&self, api_version: &str, name: &str) -> Option<Value> {
        let address: IpAddr = name.parse().ok()?;
        let mut services = self.of_kind("v1", "Service", None).map(|(_, service)| service);
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

    fn check_api(&self, api_version: &str, kind: &str) -> Result<(), String> {
        let is_absent = self.absent.contains(&(api_version.to_owned(), kind.to_owned()));
        if is_absent { Err(format!("Cannot find resource {api_version}/{kind}")) } else { Ok(()) }
    }

    fn list(&self, query: &Query<'_>, namespace: Option<&str>) -> Result<Vec<u8>, String> {
        self.check_api(query.api_version, query.kind)?;
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
        let mut items = Vec::new();
        for (_, object) in self.of_kind(query.api_version, query.kind, namespace) {
            if selects(object)? {
                items.push(masked(object, mask.as_ref(), true));
            }
        }
        let (api_version, kind) = (json!(query.api_version), json!(format!("{}List", query.kind)));
        let items = Value::Array(items);
        Ok(format!(r#"{{"apiVersion":{api_version},"kind":{kind},"metadata":{{}},"items":{items}}}"#).into())
    }
}

struct Query<'q> {
    api_version: &'q String,
    kind: &'q String,
    label_selector: &'q Option<String>,
    field_selector: &'q Option<String>,
    field_masks: &'q Option<BTreeSet<String>>,
}

/// Answers all look-ups from complete objects, as Kubewarden does.
#[derive(Clone)]
pub struct ObjectCalls(Arc<RwLock<CompleteObjects>>);

impl ObjectCalls {
    /// Answers from these objects, which may change between two look-ups.
    pub fn new(objects: Arc<RwLock<CompleteObjects>>) -> Self {
        Self(objects)
    }
}

impl HostCalls for ObjectCalls {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).answer(call)
    }
}

impl HostCalls for CompleteObjects {
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
                let is_it = |((of, own), _): &(&(String, String), &Value)| of == scope && own == name;
                let found = self.of_kind(api_version, kind, None).find(is_it).map(|(_, object)| object.clone());
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
