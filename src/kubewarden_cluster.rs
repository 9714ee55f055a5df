//! Implements the port [`Cluster`] with Kubewarden's host calls.
//!
//! policy-server keeps a watch open for ever for each distinct query. Therefore every query has one of a few constant
//! shapes. Only two values of a request enter a query: the namespace, if the settings ask for look-ups by namespace,
//! and the name of a single object.

use std::net::IpAddr;

use clusterip_core::annotations::cut;
use clusterip_core::field_mask::Mask;
use clusterip_core::json::Located;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{Cluster, LookupError, NamespaceMeta, Reserve, Selected};
use clusterip_core::settings::Lookups;
use clusterip_core::workload::WorkloadKind;
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::list::{self, EXTERNAL_MASKS, NODE_MASKS, SERVICE_MASKS, workload_masks};

/// The cluster as the Kubewarden host shows it.
///
/// `call` makes a host call of the binding `kubewarden`, namespace `kubernetes`. It takes an operation and its request,
/// and returns the response or the host's error text.
pub struct KubewardenCluster<C> {
    call: C,
}

impl<C: Fn(&str, &[u8]) -> Result<Vec<u8>, String>> KubewardenCluster<C> {
    /// A cluster that is read through `call`.
    pub fn new(call: C) -> Self {
        Self { call }
    }

    fn list(&self, resource: &Resource<'_>, namespace: Option<&str>, masks: &[String]) -> Result<Vec<u8>, LookupError> {
        let operation = if namespace.is_some() { "list_resources_by_namespace" } else { "list_resources_all" };
        let mut request = json!({
            "api_version": resource.api_version, "kind": resource.kind,
            "label_selector": null, "field_selector": null, "field_masks": masks,
        });
        if let Some(namespace) = namespace {
            request["namespace"] = namespace.into();
        }
        self.send(operation, &request).map_err(|text| failure(&text, resource, ""))
    }

    /// The object of this name, or `None` if it does not exist.
    fn get(
        &self,
        resource: &Resource<'_>,
        name: &str,
        disable_cache: bool,
        masks: &[&str],
    ) -> Result<Option<Value>, LookupError> {
        let request = json!({
            "api_version": resource.api_version, "kind": resource.kind, "name": name, "namespace": null,
            "disable_cache": disable_cache, "field_masks": masks,
        });
        match self.send("get_resource", &request) {
            Ok(object) => resource.object(&object).map(Some),
            Err(text) if is_not_found(&text, resource, name) => Ok(None),
            Err(text) => Err(failure(&text, resource, name)),
        }
    }

    fn send(&self, operation: &str, request: &Value) -> Result<Vec<u8>, String> {
        (self.call)(operation, request.to_string().as_bytes())
    }
}

/// A kind that the policy looks up.
struct Resource<'r> {
    api_version: &'r str,
    kind: &'r str,
}

impl Resource<'_> {
    const SERVICE: Resource<'static> = Resource { api_version: "v1", kind: "Service" };
    const NAMESPACE: Resource<'static> = Resource { api_version: "v1", kind: "Namespace" };
    const NODE: Resource<'static> = Resource { api_version: "v1", kind: "Node" };
    const RUNTIME_CLASS: Resource<'static> = Resource { api_version: "node.k8s.io/v1", kind: "RuntimeClass" };
    const IP_ADDRESS: Resource<'static> = Resource { api_version: "networking.k8s.io/v1", kind: "IPAddress" };

    fn name(&self) -> String {
        format!("{}/{}", self.api_version, self.kind)
    }

    /// Parses an object; any fields are accepted.
    fn object(&self, json: &[u8]) -> Result<Value, LookupError> {
        let object = Mask::read_all(json).map_err(|error| self.malformed(&error))?;
        Located::new(&object, "answer").object().map_err(|mismatch| self.malformed(&mismatch))?;
        Ok(object)
    }

    fn map(&self, object: &Value, outer: &str, inner: &str) -> Result<Labels, LookupError> {
        let map = Located::new(object, "").at(outer).and_then(|at| at.map_of(inner));
        map.map_err(|mismatch| self.malformed(&mismatch))
    }

    fn malformed(&self, error: &impl ToString) -> LookupError {
        LookupError::Malformed { resource: self.name(), detail: error.to_string() }
    }
}

/// The mask for objects of which the policy reads only `metadata`, which Kubewarden always returns.
const METADATA_MASKS: [&str; 1] = ["metadata"];
const RUNTIME_CLASS_MASKS: [&str; 1] = ["scheduling.nodeSelector"];

impl<C: Fn(&str, &[u8]) -> Result<Vec<u8>, String>> Cluster for KubewardenCluster<C> {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selector: &Labels,
    ) -> Result<Selected, LookupError> {
        let resource = Resource { api_version: &kind.api_version, kind: &kind.kind };
        let scope = (lookups == Lookups::Namespace).then_some(namespace);
        let objects = self.list(&resource, scope, &workload_masks(kind.template))?;
        let workloads = list::workloads(&objects, kind.template, namespace, selector);
        let workloads = workloads.map_err(|error| resource.malformed(&error))?;
        Ok(Selected { workloads, ..Selected::default() })
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        let Some(object) = self.get(&Resource::NAMESPACE, name, false, &METADATA_MASKS)? else { return Ok(None) };
        Ok(Some(NamespaceMeta {
            labels: Resource::NAMESPACE.map(&object, "metadata", "labels")?,
            annotations: Resource::NAMESPACE.map(&object, "metadata", "annotations")?.into(),
        }))
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        let object = self.get(&Resource::NODE, name, false, &METADATA_MASKS)?;
        object.map(|object| Resource::NODE.map(&object, "metadata", "labels")).transpose()
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        let object = self.get(&Resource::RUNTIME_CLASS, name, false, &RUNTIME_CLASS_MASKS)?;
        object.map(|object| Resource::RUNTIME_CLASS.map(&object, "scheduling", "nodeSelector")).transpose()
    }

    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        let objects = self.list(&Resource::SERVICE, None, &SERVICE_MASKS.map(str::to_owned))?;
        list::service_addresses(&objects, visit).map_err(|error| Resource::SERVICE.malformed(&error))
    }

    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        let objects = self.list(&Resource::SERVICE, None, &EXTERNAL_MASKS.map(str::to_owned))?;
        list::external_addresses(&objects, visit).map_err(|error| Resource::SERVICE.malformed(&error))
    }

    fn node_blocks(&self, _: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        let objects = self.list(&Resource::NODE, None, &NODE_MASKS.map(str::to_owned))?;
        list::node_blocks(&objects, visit).map_err(|error| Resource::NODE.malformed(&error))
    }

    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        let name = address.to_string();
        match self.get(&Resource::IP_ADDRESS, &name, true, &METADATA_MASKS) {
            Ok(Some(_)) => Ok(Reserve::Taken),
            Ok(None) => Ok(Reserve::Free),
            Err(LookupError::NoSuchApi { .. }) => Ok(Reserve::NoSuchApi),
            Err(error) => Err(error),
        }
    }
}

/// Hosts report errors as text. Errors are recognised by what the text contains, because prefixes may come before.
fn is_not_found(text: &str, resource: &Resource<'_>, name: &str) -> bool {
    without_backtrace(text).contains(&format!("Cannot find {} named '{name}'", resource.name()))
}

fn failure(text: &str, resource: &Resource<'_>, name: &str) -> LookupError {
    let text = without_backtrace(text);
    let detail = in_one_line(text);
    let mut resource_name = resource.name();
    let no_such_kind = text.contains(&format!("Cannot find resource {resource_name}"));
    // The same text introduces a missing API and an unreachable API server. A bare 404 may come from a proxy before the
    // API server, so only the API server's own text and its Status count.
    let no_such_group = text.contains(&format!("error finding resource {} / {}", resource.api_version, resource.kind))
        && ["404 page not found", "reason: \"NotFound\""].iter().any(|words| text.contains(words));
    // In this order: by Kubewarden; by the API server, about an object or a list; by the API server, about the list of
    // its APIs.
    let not_granted =
        ["has not been granted access", "is forbidden: ", "code: 403"].iter().any(|words| text.contains(words));
    if !name.is_empty() {
        resource_name = format!("{resource_name} {name}");
    }
    if no_such_kind || no_such_group {
        LookupError::NoSuchApi { resource: resource_name, detail }
    } else if not_granted {
        LookupError::NotGranted { resource: resource_name, detail }
    } else {
        LookupError::Failed { resource: resource_name, detail }
    }
}

/// A backtrace lists symbol names, which could look like the texts searched for here.
fn without_backtrace(text: &str) -> &str {
    text.split("\nStack backtrace:").next().unwrap_or(text)
}

/// The first line, without the prefixes that hosts add and without the API server's Status, which repeats the message;
/// then the last cause, if the line does not contain it. At most 300 characters.
fn in_one_line(text: &str) -> String {
    const MAX_LENGTH: usize = 300;
    let mut line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given");
    for prefix in ["Host error: ", "Callback evaluation failure: "] {
        line = line.strip_prefix(prefix).unwrap_or(line);
    }
    for status in [" (Status {", " (ErrorResponse {"] {
        line = line.split(status).next().unwrap_or(line);
    }
    let mut line = line.to_owned();
    if let Some(cause) = last_cause(text).filter(|cause| !line.contains(cause)) {
        line = format!("{line}: {cause}");
    }
    cut(&line, MAX_LENGTH).into_owned()
}

/// Causes follow the error, each on its own line, and are numbered if there are several.
fn last_cause(text: &str) -> Option<&str> {
    let (_, causes) = text.split_once("\nCaused by:")?;
    let last = causes.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(match last.split_once(": ") {
        Some((number, cause)) if number.bytes().all(|byte| byte.is_ascii_digit()) => cause,
        _ => last,
    })
}

#[cfg(test)]
mod tests;
