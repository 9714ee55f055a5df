//! Complete objects, of manifests or of the API server, and the answers of Kubewarden about them, for a build of the
//! policy module.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::field_mask::Mask;
use clusterip_core::service::addresses;
use clusterip_core::service_key::ServiceKey;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::connect::ClusterArguments;
use crate::kinds::{self, Kind};
use crate::list_pages::visit_pages;
use crate::object;
use crate::policy::host_calls::{HostCall, HostCalls};
use crate::watch::api_server_lists;

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

/// Answers as policy-server does: with the objects of the cluster, or with the error of the API server in the words of
/// kube, which the policy searches. An answer that was given once is repeated.
pub struct ApiServerLookups {
    runtime: Runtime,
    client: Client,
    answered: Mutex<Answered>,
}

type Answered = Vec<(HostCall, Result<Vec<u8>, String>)>;

impl ApiServerLookups {
    pub fn new(cluster: &ClusterArguments) -> anyhow::Result<Self> {
        let (runtime, client) = api_server_lists::connect(cluster)?;
        Ok(Self { runtime, client, answered: Mutex::default() })
    }

    /// The `ServiceCIDR` objects of the cluster; empty if it has none, as before Kubernetes 1.33, or if the user may
    /// not list them.
    pub fn service_cidrs(&self) -> Vec<Value> {
        let kind = ("networking.k8s.io/v1".to_owned(), "ServiceCIDR".to_owned());
        self.runtime.block_on(api_server_lists::list(&self.client, &kind)).unwrap_or_default()
    }

    pub fn run<T>(&self, requests: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.block_on(requests(&self.client))
    }

    async fn look_up(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (api_version, kind) = call.resource();
        // Only [`CompleteObjects`] turns objects, selectors and masks into an answer, so that all answers are alike.
        let mut objects = CompleteObjects::default();
        let resource = match kinds::discovered(&self.client, &(api_version.to_owned(), kind.to_owned())).await {
            Ok(Some(resource)) => resource,
            Ok(None) => {
                objects.remove_api(api_version, kind);
                return objects.answer(call);
            }
            Err(error) => return Err(format!("error finding resource {api_version} / {kind}: {error}")),
        };
        let namespace = match call {
            HostCall::ListAll { .. } => None,
            HostCall::ListNamespace { namespace, .. } => Some(namespace),
            HostCall::Get { namespace, .. } => namespace.as_ref(),
        };
        let api: &Api<DynamicObject> = &match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let mut add = |object| {
            // Serializing can't fail: the keys of an object are strings, and its numbers are finite.
            let mut object = serde_json::to_value(object).unwrap_or_default();
            // The items of a list lack them.
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            objects.insert(object);
        };
        let found = match call {
            HostCall::Get { name, .. } => api.get_opt(name).await.map(|found| found.into_iter().for_each(add)),
            _ => visit_pages(ListParams::default(), |page| async move { api.list(&page).await }, &mut add).await,
        };
        found.map_err(|error| error.to_string())?;
        objects.answer(call)
    }
}

impl HostCalls for ApiServerLookups {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let mut answered = self.answered.lock();
        if let Some((_, answer)) = answered.iter().find(|(asked, _)| asked == call) {
            return answer.clone();
        }
        let answer = self.runtime.block_on(self.look_up(call));
        answered.push((call.clone(), answer.clone()));
        answer
    }
}
