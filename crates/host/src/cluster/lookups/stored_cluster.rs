//! Answers the look-ups of the core from a snapshot, to choose the pool of a Service without the policy's module.
//!
//! The module makes every decision. But the controller examines each Service of a cluster, and nearly all of them are
//! in place. Therefore it first calls the core, which is the same code as in the module, and asks the module only about
//! Services that are not in the pool that the core chooses, and about those for which the core chooses none.

use std::net::IpAddr;
use std::sync::RwLock;

use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::{Labels, includes};
use clusterip_core::lookups::{Cluster, IpAddressLookup, LookupError, NamespaceMeta};
use clusterip_core::pod_spec::PodSpec;
use clusterip_core::request::{About, Request};
use clusterip_core::settings::{Lookups, Pool, Settings};
use clusterip_core::workload::{TemplateAt, Workload, WorkloadKind};
use ipnet::IpNet;
use serde_json::Value;

use super::snapshot::{Snapshot, map, pod_labels};
use crate::object::{Packed, name};

/// The pool that the module's answer to `request` names, if the request creates a Service without an address. `None`
/// if only the module can tell.
pub fn expected_pool<'s>(settings: &'s Settings, snapshot: &RwLock<Snapshot>, request: &Value) -> Option<&'s Pool> {
    // Look-ups of the whole cluster fail if any object of the cluster can't be read.
    if settings.lookups != Lookups::Namespace {
        return None;
    }
    let request = Request::read(request).ok()?;
    let About::Service(change) = &request.about else { return None };
    let cluster = StoredCluster { snapshot, selector: &change.object.selector };
    clusterip_core::expected_pool(&request, settings, &cluster)
}

/// How many bytes of workloads of a kind are read here for one Service. If it may select more, the module is asked: its
/// time and its memory are limited, and those of this thread are not.
const MAX_READ: usize = 128 << 10;

/// The objects of a snapshot that can affect the pool of one Service. Every other look-up fails.
struct StoredCluster<'s> {
    snapshot: &'s RwLock<Snapshot>,
    /// The selector of the Service.
    selector: &'s Labels,
}

impl StoredCluster<'_> {
    /// The object of a kind without namespaces; `None` if it does not exist.
    fn get(&self, api_version: &str, kind: &str, name: &str) -> Result<Option<Value>, LookupError> {
        let found = {
            let snapshot = Snapshot::read(self.snapshot);
            if !snapshot.has_api(api_version, kind) {
                return Err(not_read(format!("{api_version}/{kind}")));
            }
            snapshot.packed(api_version, kind, "", name).cloned()
        };
        Ok(found.as_ref().map(Packed::value))
    }
}

impl Cluster for StoredCluster<'_> {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        _: Lookups,
        selects: &dyn Fn(&Labels) -> bool,
    ) -> Result<Vec<Workload>, LookupError> {
        let objects = Snapshot::read(self.snapshot).may_be_selected(kind, namespace, self.selector);
        let few = objects.filter(|objects| objects.iter().map(Packed::size).sum::<usize>() <= MAX_READ);
        let mut workloads = Vec::new();
        for object in few.ok_or_else(|| not_read(kind.resource()))? {
            let object = object.value();
            let is_listed = includes(&pod_labels(&object), self.selector);
            if is_listed && selects(&template_labels(&object, kind.template)) {
                let pod_spec = pod_spec(&object, kind.template).map_err(|_| not_read(kind.resource()))?;
                workloads.push(Workload { name: name(&object).to_owned(), pod_spec });
            }
        }
        Ok(workloads)
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        let meta = |object: Value| NamespaceMeta {
            labels: map(&object, &["metadata", "labels"]),
            annotations: map(&object, &["metadata", "annotations"]),
        };
        Ok(self.get("v1", "Namespace", name)?.map(meta))
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        Ok(self.get("v1", "Node", name)?.map(|node| map(&node, &["metadata", "labels"])))
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        let class = self.get("node.k8s.io/v1", "RuntimeClass", name)?;
        Ok(class.map(|class| map(&class, &["scheduling", "nodeSelector"])))
    }

    fn service_addresses(&self, _: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        Err(not_read("v1/Service".to_owned()))
    }

    fn external_addresses(&self, _: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        Err(not_read("v1/Service".to_owned()))
    }

    fn node_blocks(&self, _: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        Err(not_read("v1/Node".to_owned()))
    }

    fn ip_address(&self, _: IpAddr) -> Result<IpAddressLookup, LookupError> {
        Err(not_read("networking.k8s.io/v1/IPAddress".to_owned()))
    }
}

/// This error is never shown: the module is asked instead.
fn not_read(resource: String) -> LookupError {
    LookupError::Failed { resource, detail: "not read here".to_owned() }
}

/// The fields from an object to the template of its Pods.
fn template(at: TemplateAt) -> &'static [&'static str] {
    match at {
        TemplateAt::Itself => &[],
        TemplateAt::Template => &["spec", "template"],
        TemplateAt::JobTemplate => &["spec", "jobTemplate", "spec", "template"],
    }
}

fn template_labels(object: &Value, at: TemplateAt) -> Labels {
    map(object, &[template(at), &["metadata", "labels"]].concat())
}

fn pod_spec(object: &Value, at: TemplateAt) -> Result<PodSpec, TypeMismatch> {
    let spec = Located::new(object, "").descend(&[template(at), &["spec"]].concat())?;
    let spec = spec.map_or(Ok(PodSpec::default()), |spec| PodSpec::read(&spec))?;
    // The policy asks for the Node of a Pod only.
    Ok(if at == TemplateAt::Itself { spec } else { PodSpec { node: None, ..spec } })
}
