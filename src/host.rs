//! The port of the decision on Kubewarden's host calls.
//!
//! policy-server keeps a watch for ever for each distinct query. So every query here has one of a few
//! constant shapes: nothing of a request ever gets into one, but for a namespace where the settings ask
//! for that, and the names of single objects.

use std::net::IpAddr;

use clusterip_core::cluster::{Cluster, IpAddressLookup, LookupError, NamespaceMeta};
use clusterip_core::json::At;
use clusterip_core::label_selector::Labels;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::{TemplateAt, Workload, WorkloadKind};
use serde::Serialize;
use serde_json::Value;

use crate::list;

/// The cluster as the host shows it.
///
/// `call` makes a host call of the binding `kubewarden`, namespace `kubernetes`: an operation and its
/// request in, the answer or the host's error text out.
pub struct Host<C> {
    call: C,
}

impl<C: Fn(&str, &[u8]) -> Result<Vec<u8>, String>> Host<C> {
    /// A cluster behind these host calls.
    pub fn new(call: C) -> Self {
        Self { call }
    }

    fn list(&self, resource: &Resource<'_>, namespace: Option<&str>, masks: &[String]) -> Result<Vec<u8>, LookupError> {
        let operation = if namespace.is_some() { "list_resources_by_namespace" } else { "list_resources_all" };
        let request = ListRequest {
            api_version: resource.api_version,
            kind: resource.kind,
            namespace,
            label_selector: None,
            field_selector: None,
            field_masks: Some(masks),
        };
        self.send(operation, &request, resource).map_err(|text| failure(&text, resource, ""))
    }

    /// The object of this name, or nothing where there is none.
    fn get(
        &self,
        resource: &Resource<'_>,
        name: &str,
        disable_cache: bool,
        masks: &[&str],
    ) -> Result<Option<Value>, LookupError> {
        let request = GetRequest {
            api_version: resource.api_version,
            kind: resource.kind,
            name,
            namespace: None,
            disable_cache,
            field_masks: Some(masks),
        };
        match self.send("get_resource", &request, resource) {
            Ok(object) => resource.object(&object).map(Some),
            Err(text) if is_not_found(&text, resource, name) => Ok(None),
            Err(text) => Err(failure(&text, resource, name)),
        }
    }

    fn send(&self, operation: &str, request: &impl Serialize, resource: &Resource<'_>) -> Result<Vec<u8>, String> {
        let request = serde_json::to_vec(request).map_err(|error| format!("{}: {error}", resource.name()))?;
        (self.call)(operation, &request)
    }
}

/// A kind that is looked up.
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

    /// Reads an object, whatever its fields.
    fn object(&self, json: &[u8]) -> Result<Value, LookupError> {
        let object: Value = serde_json::from_slice(json).map_err(|error| self.malformed(&error))?;
        At::new(&object, "answer").object().map_err(|mistyped| self.malformed(&mistyped))?;
        Ok(object)
    }

    /// The strings at two fields of an object, one inside the other.
    fn map(&self, object: &Value, outer: &str, inner: &str) -> Result<Labels, LookupError> {
        let map = match At::new(object, "").get(outer) {
            Ok(Some(at)) => at.map_of(inner),
            Ok(None) => Ok(Labels::new()),
            Err(mistyped) => Err(mistyped),
        };
        map.map_err(|mistyped| self.malformed(&mistyped))
    }

    fn malformed(&self, error: &impl ToString) -> LookupError {
        LookupError::Malformed { resource: self.name(), detail: error.to_string() }
    }
}

#[derive(Serialize)]
struct ListRequest<'r> {
    api_version: &'r str,
    kind: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'r str>,
    label_selector: Option<&'r str>,
    field_selector: Option<&'r str>,
    field_masks: Option<&'r [String]>,
}

#[derive(Serialize)]
struct GetRequest<'r> {
    api_version: &'r str,
    kind: &'r str,
    name: &'r str,
    namespace: Option<&'r str>,
    disable_cache: bool,
    field_masks: Option<&'r [&'r str]>,
}

/// The fields that are read, sorted: the host prunes everything else, `metadata` apart, and compares
/// queries as sets.
const SERVICE_MASKS: [&str; 2] = ["spec.clusterIP", "spec.clusterIPs"];
/// Nothing but `metadata` is read: a mask that no object has prunes the rest.
const METADATA_MASKS: [&str; 1] = ["metadata"];
const RUNTIME_CLASS_MASKS: [&str; 1] = ["scheduling.nodeSelector"];

/// The masks of a kind with its Pod template at `at`.
fn workload_masks(at: TemplateAt) -> Vec<String> {
    const POD_SPEC: [&str; 4] = ["affinity.nodeAffinity", "nodeSelector", "os", "runtimeClassName"];
    let template = match at {
        TemplateAt::Itself => {
            let fields = ["affinity.nodeAffinity", "nodeName", "nodeSelector", "os", "runtimeClassName"];
            return fields.iter().map(|field| format!("spec.{field}")).collect();
        }
        TemplateAt::Template => "spec.template",
        TemplateAt::JobTemplate => "spec.jobTemplate.spec.template",
    };
    let mut masks = vec![format!("{template}.metadata.labels")];
    masks.extend(POD_SPEC.iter().map(|field| format!("{template}.spec.{field}")));
    masks
}

impl<C: Fn(&str, &[u8]) -> Result<Vec<u8>, String>> Cluster for Host<C> {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selects: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError> {
        let resource = Resource { api_version: &kind.api_version, kind: &kind.kind };
        let scope = (lookups == Lookups::Namespace).then_some(namespace);
        let objects = self.list(&resource, scope, &workload_masks(kind.template))?;
        list::workloads(&objects, kind.template, namespace, selects).map_err(|error| resource.malformed(&error))
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        let Some(object) = self.get(&Resource::NAMESPACE, name, false, &METADATA_MASKS)? else { return Ok(None) };
        let meta = NamespaceMeta {
            labels: Resource::NAMESPACE.map(&object, "metadata", "labels")?,
            annotations: Resource::NAMESPACE.map(&object, "metadata", "annotations")?,
        };
        Ok(Some(meta))
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

    fn ip_address(&self, address: IpAddr) -> Result<IpAddressLookup, LookupError> {
        let name = address.to_string();
        match self.get(&Resource::IP_ADDRESS, &name, true, &METADATA_MASKS) {
            Ok(Some(_)) => Ok(IpAddressLookup::Taken),
            Ok(None) => Ok(IpAddressLookup::Free),
            Err(LookupError::NoSuchApi { .. }) => Ok(IpAddressLookup::NoSuchApi),
            Err(error) => Err(error),
        }
    }
}

/// Hosts answer with texts. They are told apart by what they contain, since a backtrace may follow and
/// prefixes may come before.
fn is_not_found(text: &str, resource: &Resource<'_>, name: &str) -> bool {
    text.contains(&format!("Cannot find {} named '{name}'", resource.name()))
}

fn failure(text: &str, resource: &Resource<'_>, name: &str) -> LookupError {
    let detail = first_line(text);
    let mut resource_name = resource.name();
    let no_such_kind = text.contains(&format!("Cannot find resource {resource_name}"));
    // The same words introduce a missing API and an API server that can't be reached.
    let no_such_group = text.contains(&format!("error finding resource {} / {}", resource.api_version, resource.kind))
        && (text.contains("404") || text.contains("NotFound"));
    let not_granted =
        text.contains("has not been granted access") || text.contains("is forbidden: ") || text.contains("(Forbidden)");
    if !name.is_empty() {
        resource_name = format!("{resource_name} {name}");
    }
    match () {
        () if no_such_kind || no_such_group => LookupError::NoSuchApi { resource: resource_name, detail },
        () if not_granted => LookupError::NotGranted { resource: resource_name, detail },
        () => LookupError::Failed { resource: resource_name, detail },
    }
}

/// The first line, without what hosts put before every error, and without a backtrace; cut, so that it
/// fits a message.
fn first_line(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason given");
    for prefix in ["Host error: ", "Callback evaluation failure: "] {
        line = line.strip_prefix(prefix).unwrap_or(line);
    }
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn classify(text: &str) -> Result<Option<IpAddressLookup>, LookupError> {
        let host = Host::new(|_: &str, _: &[u8]| Err(text.to_owned()));
        host.ip_address(IpAddr::from([10, 0, 0, 9])).map(Some)
    }

    #[test]
    fn error_texts_are_told_apart() {
        use IpAddressLookup::{Free, NoSuchApi};
        let prefix = "Host error: ";
        let backtrace = "\n\nStack backtrace:\n   0: std::backtrace::Backtrace::create";
        let rows = [
            (
                "not found",
                "Cannot find networking.k8s.io/v1/IPAddress named '10.0.0.9' inside of namespace 'None'",
                Some(Free),
            ),
            ("no such kind", "Cannot find resource networking.k8s.io/v1/IPAddress", Some(NoSuchApi)),
            (
                "no such group",
                "error finding resource networking.k8s.io/v1 / IPAddress: ApiError: \"404 page not found\": NotFound (404)",
                Some(NoSuchApi),
            ),
            ("unreachable", "error finding resource networking.k8s.io/v1 / IPAddress: connection refused", None),
            (
                "of another address",
                "Cannot find networking.k8s.io/v1/IPAddress named '10.0.0.99' inside of namespace 'None'",
                None,
            ),
            ("callback", "Callback evaluation failure: channel closed", None),
        ];
        for (name, text, expected) in rows {
            for text in [text.to_owned(), format!("{prefix}{text}{backtrace}")] {
                let found = classify(&text);
                match expected {
                    Some(expected) => assert_eq!(found, Ok(Some(expected)), "{name}: {text}"),
                    None => assert!(matches!(found, Err(LookupError::Failed { .. })), "{name}: {text}: {found:?}"),
                }
            }
        }
    }

    #[test]
    fn missing_grants_are_told_apart_from_failures() {
        let rows = [
            "Policy has not been granted access to Kubernetes v1/Node resources. The violation has been reported.",
            "Policy has not been granted access to the 'kubernetes/get_resource' host capability. The violation has been reported.",
            "ApiError: ipaddresses.networking.k8s.io \"10.0.0.9\" is forbidden: User \"kw\" cannot get resource",
        ];
        for text in rows {
            assert!(matches!(classify(text), Err(LookupError::NotGranted { .. })), "{text}");
        }
    }

    #[test]
    fn masks_are_sorted_as_the_host_compares_them() {
        for at in [TemplateAt::Itself, TemplateAt::Template, TemplateAt::JobTemplate] {
            assert!(workload_masks(at).is_sorted(), "{at:?}");
        }
    }
}
