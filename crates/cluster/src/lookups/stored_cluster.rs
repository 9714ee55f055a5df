//! Answers the look-ups of a decision from a snapshot.

use std::cell::{Cell, OnceCell};
use std::net::IpAddr;
use std::sync::RwLock;

use clusterip_core::address::Span;
use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{Cluster, LookupError, NamespaceMeta, Reserve, Selected};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::{Workload, WorkloadKind};
use ipnet::IpNet;
use serde_json::Value;

use super::snapshot::{Snapshot, addresses};
use crate::object::{self, Packed};

/// How many bytes of workloads of all kinds are read for one decision, in the order of the kinds and of the names:
/// about 400 workloads, which takes some milliseconds. A tenant may have any number of workloads with any number of
/// labels.
const MAX_READ: usize = 256 << 10;

/// Which addresses the Service of a decision may have.
pub trait Addresses {
    /// Reserves an address for the Service, if it is free.
    ///
    /// # Errors
    /// [`LookupError`] if that is unknown.
    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError>;

    /// Calls `visit` with the namespace, name and address of each Service that has been given an address and is not in
    /// the snapshot yet.
    fn in_flight(&self, _visit: &mut dyn FnMut(&str, &str, IpAddr)) {}

    /// Whether all addresses are free, those of the snapshot too.
    fn all_are_free(&self) -> bool {
        false
    }
}

/// The addresses that no Service in a snapshot has, and that no `IPAddress` names. Nothing is kept.
pub struct Unused<'s>(pub &'s RwLock<Snapshot>);

impl Addresses for Unused<'_> {
    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        let is_used = Snapshot::read(self.0).has_ip_address(address);
        Ok(if is_used { Reserve::Taken } else { Reserve::Reserved })
    }
}

/// A snapshot, as the decision about one Service or Node sees it. The snapshot is locked for each look-up alone.
pub struct StoredCluster<'s> {
    snapshot: &'s RwLock<Snapshot>,
    service: ServiceKey,
    addresses: &'s dyn Addresses,
    used: OnceCell<Vec<Span>>,
    /// How many bytes of workloads may still be read.
    left: Cell<usize>,
}

impl<'s> StoredCluster<'s> {
    /// The cluster for a decision about `object`, a Service or a Node.
    pub fn new(snapshot: &'s RwLock<Snapshot>, object: &Value, addresses: &'s dyn Addresses) -> Self {
        let left = Cell::new(MAX_READ);
        Self { snapshot, service: ServiceKey::of(object), addresses, used: OnceCell::new(), left }
    }

    /// The object of a kind without namespaces; `None` if it does not exist.
    fn get(&self, resource: &Resource<'_>, name: &str) -> Result<Option<Value>, LookupError> {
        let found = {
            let snapshot = Snapshot::read(self.snapshot);
            resource.check(&snapshot)?;
            snapshot.packed(resource.api_version, resource.kind, "", name).cloned()
        };
        Ok(found.as_ref().map(Packed::value))
    }
}

impl Cluster for StoredCluster<'_> {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selector: &Labels,
    ) -> Result<Selected, LookupError> {
        let resource = Resource { api_version: &kind.api_version, kind: &kind.kind };
        let (objects, is_cut) = {
            let snapshot = Snapshot::read(self.snapshot);
            resource.check(&snapshot)?;
            if !object::is_namespaced(&kind.kind) && lookups == Lookups::Namespace {
                let detail = format!("{} is cluster wide, so it has no objects in a namespace", resource.name());
                return Err(LookupError::Failed { resource: resource.name(), detail });
            }
            snapshot.may_be_selected(kind, namespace, selector, &self.left)
        };
        let mut workloads = Vec::new();
        for object in objects {
            let object = object.value();
            let field = |path: &[&str]| path.iter().try_fold(&object, |value, key| value.get(key));
            let (labels, spec) = (field(&["metadata", "labels"]), field(&["spec"]));
            let selected =
                kind.template.selected(labels.unwrap_or(&Value::Null), spec.unwrap_or(&Value::Null), selector);
            let name = object::name(&object);
            match selected {
                Ok(Some(pod_spec)) => workloads.push(Workload { name: name.to_owned(), pod_spec }),
                Ok(None) => {}
                Err(mismatch) => return Err(resource.malformed(format!("{namespace}/{name}: {mismatch}"))),
            }
        }
        Ok(Selected { workloads, is_cut })
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        const NAMESPACE: Resource<'static> = Resource { api_version: "v1", kind: "Namespace" };
        let Some(object) = self.get(&NAMESPACE, name)? else { return Ok(None) };
        let labels = NAMESPACE.map(&object, "metadata", "labels")?;
        Ok(Some(NamespaceMeta { labels, annotations: NAMESPACE.map(&object, "metadata", "annotations")? }))
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        const NODE: Resource<'static> = Resource { api_version: "v1", kind: "Node" };
        self.get(&NODE, name)?.map(|node| NODE.map(&node, "metadata", "labels")).transpose()
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        const RUNTIME_CLASS: Resource<'static> = Resource { api_version: "node.k8s.io/v1", kind: "RuntimeClass" };
        let class = self.get(&RUNTIME_CLASS, name)?;
        class.map(|class| RUNTIME_CLASS.map(&class, "scheduling", "nodeSelector")).transpose()
    }

    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        if !self.addresses.all_are_free() {
            Snapshot::read(self.snapshot).each_service_address(visit);
        }
        self.addresses.in_flight(visit);
        Ok(())
    }

    fn known_used(&self) -> Option<&[Span]> {
        let used = || {
            if self.addresses.all_are_free() {
                return Vec::new();
            }
            let ServiceKey { namespace, name } = &self.service;
            let snapshot = Snapshot::read(self.snapshot);
            let own = snapshot.packed("v1", "Service", namespace, name).map(|service| addresses(&service.value()));
            snapshot.used_by_others(&self.service, &own.unwrap_or_default())
        };
        Some(self.used.get_or_init(used))
    }

    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        for (ServiceKey { namespace, name }, addresses) in Snapshot::read(self.snapshot).external_addresses() {
            addresses.iter().for_each(|address| visit(namespace, name, *address));
        }
        Ok(())
    }

    fn node_blocks(&self, blocks: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        Snapshot::read(self.snapshot).each_overlapping_block(blocks, visit);
        Ok(())
    }

    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        self.addresses.reserve(address)
    }
}

/// A kind that a decision looks up.
struct Resource<'r> {
    api_version: &'r str,
    kind: &'r str,
}

impl Resource<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.api_version, self.kind)
    }

    /// Checks that the cluster has the kind.
    fn check(&self, snapshot: &Snapshot) -> Result<(), LookupError> {
        if snapshot.has_api(self.api_version, self.kind) {
            return Ok(());
        }
        let resource = self.name();
        Err(LookupError::NoSuchApi { detail: format!("Cannot find resource {resource}"), resource })
    }

    /// The map of strings at `outer.inner` of an object.
    fn map(&self, object: &Value, outer: &str, inner: &str) -> Result<Labels, LookupError> {
        let map = || -> Result<Labels, TypeMismatch> {
            Located::new(object, "").get(outer)?.map_or(Ok(Labels::new()), |at| at.map_of(inner))
        };
        map().map_err(|mismatch| self.malformed(mismatch.to_string()))
    }

    fn malformed(&self, detail: String) -> LookupError {
        LookupError::Malformed { resource: self.name(), detail }
    }
}
