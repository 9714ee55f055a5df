//! Answers the look-ups of a decision from a snapshot.

use std::cell::{Cell, OnceCell};
use std::net::IpAddr;
use std::sync::RwLock;

use clusterip_core::address::Span;
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{Cluster, LookupError, NamespaceMeta, Reserve, Selected};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::WorkloadKind;
use ipnet::IpNet;
use serde_json::Value;

use super::snapshot::{MAX_STEPS, Snapshot};
use crate::object;

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

/// A snapshot, as the decision about one Service or Node sees it. Each look-up locks the snapshot and unlocks it.
pub struct StoredCluster<'s> {
    snapshot: &'s RwLock<Snapshot>,
    service: ServiceKey,
    addresses: &'s dyn Addresses,
    used: OnceCell<Vec<Span>>,
    /// How many steps may still be taken to look at workloads.
    left: Cell<usize>,
}

impl<'s> StoredCluster<'s> {
    /// The cluster for a decision about `object`, a Service or a Node.
    pub fn new(snapshot: &'s RwLock<Snapshot>, object: &Value, addresses: &'s dyn Addresses) -> Self {
        let left = Cell::new(MAX_STEPS);
        Self { snapshot, service: ServiceKey::of(object), addresses, used: OnceCell::new(), left }
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
        let snapshot = Snapshot::read(self.snapshot);
        resource.check(&snapshot)?;
        if !object::is_namespaced(&kind.kind) && lookups == Lookups::Namespace {
            let detail = format!("{} is cluster wide, so it has no objects in a namespace", resource.name());
            return Err(LookupError::Failed { resource: resource.name(), detail });
        }
        let found = snapshot.selected(kind, namespace, selector, &self.left);
        found.map_err(|(name, mismatch)| resource.malformed(format!("{namespace}/{name}: {mismatch}")))
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        const NAMESPACE: Resource<'static> = Resource { api_version: "v1", kind: "Namespace" };
        let snapshot = Snapshot::read(self.snapshot);
        NAMESPACE.check(&snapshot)?;
        NAMESPACE.found(snapshot.namespace(name).map(Result::as_ref))
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        const NODE: Resource<'static> = Resource { api_version: "v1", kind: "Node" };
        let snapshot = Snapshot::read(self.snapshot);
        NODE.check(&snapshot)?;
        NODE.found(snapshot.node_labels(name))
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        const RUNTIME_CLASS: Resource<'static> = Resource { api_version: "node.k8s.io/v1", kind: "RuntimeClass" };
        let snapshot = Snapshot::read(self.snapshot);
        RUNTIME_CLASS.check(&snapshot)?;
        RUNTIME_CLASS.found(snapshot.runtime_class_nodes(name).map(Result::as_ref))
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
            Snapshot::read(self.snapshot).used_by_others(&self.service)
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

    /// A copy of what was found, unless it can't be read.
    fn found<T: Clone>(&self, found: Option<Result<&T, &TypeMismatch>>) -> Result<Option<T>, LookupError> {
        found.transpose().map(|found| found.cloned()).map_err(|mismatch| self.malformed(mismatch.to_string()))
    }

    fn malformed(&self, detail: String) -> LookupError {
        LookupError::Malformed { resource: self.name(), detail }
    }
}
