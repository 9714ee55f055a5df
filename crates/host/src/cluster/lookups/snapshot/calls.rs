//! The answers to look-ups in a snapshot, as Kubewarden gives them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::label_selector::Labels;
use clusterip_core::prefetched::Prefetched;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use ipnet::IpNet;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::field_mask::{Mask, Masked};
use super::super::{kubewarden_responses, selectors};
use super::{Kind, Snapshot, map};
use crate::object;
use crate::policy::host_calls::{HostCall, HostCalls};

impl Snapshot {
    /// The answer to a look-up; `more` objects are appended to a list of the whole cluster.
    fn answer(&self, call: &HostCall, relevant: &Relevant, more: &[Value]) -> Result<Vec<u8>, String> {
        match call {
            HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks } => {
                let query = Query { api_version, kind, label_selector, field_selector, field_masks };
                self.list(&query, None, relevant, more)
            }
            HostCall::ListNamespace { api_version, kind, namespace, label_selector, field_selector, field_masks } => {
                self.check_api(api_version, kind)?;
                if !object::is_namespaced(kind) {
                    return Err(format!(
                        "resource {api_version}/{kind} is cluster wide. Cannot search for it inside of a namespace"
                    ));
                }
                let query = Query { api_version, kind, label_selector, field_selector, field_masks };
                self.list(&query, Some(namespace), relevant, &[])
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

    fn list(
        &self,
        query: &Query<'_>,
        namespace: Option<&str>,
        relevant: &Relevant,
        more: &[Value],
    ) -> Result<Vec<u8>, String> {
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
        let mut items: Vec<Cow<'_, RawValue>> = Vec::new();
        if let Some(objects) = self.kinds.get(&kind) {
            let all = namespace.is_none() && query.label_selector.is_none() && query.field_selector.is_none();
            let keep = all && objects.listed_with.get_or_init(|| query.field_masks.clone()) == query.field_masks;
            let listed = match &relevant.blocks {
                Some(blocks) if query.api_version == "v1" && query.kind == "Node" => {
                    let names = self.blocks.overlapping(blocks).into_iter();
                    names.filter_map(|name| objects.by_name.get(&(String::new(), name.to_owned()))).collect()
                }
                _ => objects.of(namespace, relevant.selector.as_ref()),
            };
            for object in listed {
                if let Some(listed) = object.listed.get().filter(|_| keep) {
                    items.push(Cow::Borrowed(listed));
                    continue;
                }
                let value = object.value();
                if !selects(&value)? {
                    continue;
                }
                let item = Masked { object: &value, mask: mask.as_ref(), cached: true };
                let item = serde_json::value::to_raw_value(&item).map_err(|error| error.to_string())?;
                items.push(if keep { Cow::Borrowed(object.listed.get_or_init(|| item)) } else { Cow::Owned(item) });
            }
        }
        for object in more {
            items.push(Cow::Owned(serde_json::value::to_raw_value(object).map_err(|error| error.to_string())?));
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
    items: Vec<Cow<'l, RawValue>>,
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

/// Look-ups answered from a snapshot that may change between two evaluations.
#[derive(Clone)]
pub struct SnapshotCalls {
    snapshot: Arc<RwLock<Snapshot>>,
    relevant: Relevant,
    prefetched: Prefetched,
}

/// The objects that can affect the policy's answer. Lists may leave out all others.
#[derive(Clone, Debug, Default)]
struct Relevant {
    /// Workloads whose Pods have these labels; all workloads if there is no label.
    selector: Option<Labels>,
    /// Nodes whose blocks overlap one of these.
    blocks: Option<Vec<IpNet>>,
}

impl SnapshotCalls {
    /// Answers all look-ups as Kubewarden does.
    pub fn new(snapshot: Arc<RwLock<Snapshot>>) -> Self {
        Self { snapshot, relevant: Relevant::default(), prefetched: Prefetched::default() }
    }

    /// Answers for one Service with this selector: workloads of a namespace whose Pods it does not select are left out.
    /// The policy would ignore them, so its answer is the same, but the cost does not grow with the namespace.
    #[must_use]
    pub fn for_selector(self, selector: Labels) -> Self {
        Self { relevant: Relevant { selector: Some(selector), ..self.relevant }, ..self }
    }

    /// Answers for one Service or Node. For a Service as [`Self::for_selector`]; for a Node, the other Nodes whose
    /// blocks do not overlap its own are left out.
    #[must_use]
    pub fn for_object(self, object: &Value) -> Self {
        if object::is_node(object) {
            return Self { relevant: Relevant { blocks: Some(object::blocks_of(object)), ..self.relevant }, ..self };
        }
        self.for_selector(map(object, &["spec", "selector"]))
    }

    /// Sends the answers to some look-ups with the request: those that the policy makes under these settings for
    /// `service`, whose selector [`Self::for_selector`] or [`Self::for_object`] got. Without a selector, nothing is
    /// sent.
    #[must_use]
    pub fn prefetching(self, settings: &Settings, service: &ServiceKey) -> Self {
        let Some(selector) = &self.relevant.selector else { return self };
        let prefetched = Snapshot::read(&self.snapshot).prefetched(settings, service, selector);
        Self { prefetched, ..self }
    }

    /// The answer to a look-up; `more` objects are appended to a list of the whole cluster.
    ///
    /// # Errors
    /// As [`HostCalls::answer`].
    pub fn answer_with(&self, call: &HostCall, more: &[Value]) -> Result<Vec<u8>, String> {
        Snapshot::read(&self.snapshot).answer(call, &self.relevant, more)
    }
}

impl HostCalls for SnapshotCalls {
    fn services(&self) -> usize {
        // Each Service has one address or two.
        Snapshot::read(&self.snapshot).addresses.len()
    }

    fn prefetched(&self) -> Prefetched {
        self.prefetched.clone()
    }

    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        self.answer_with(call, &[])
    }
}
