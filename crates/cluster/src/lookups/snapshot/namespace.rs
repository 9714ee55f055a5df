//! The objects of one namespace, with a limit for the memory that they take.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::stored_objects::StoredEndpoints;
use super::stored_service::StoredService;
use super::workloads::{LabelHashes, StoredWorkload, Workloads, hash};

/// How many bytes the objects of one namespace may take, of all kinds together. Kubernetes is tested with 3,000 Pods and
/// 5,000 Services in a namespace; they take about two thirds of it. What exceeds it is left out, so that a tenant who
/// creates any number of objects affects no other namespace.
pub const MAX_BYTES: usize = 16 << 20;

/// An object of a namespace.
#[derive(Debug, PartialEq)]
pub(super) enum Object {
    Service(Arc<StoredService>),
    Workload(StoredWorkload),
    Endpoints(Arc<StoredEndpoints>),
}

/// The objects of one namespace, with the indexes that look-ups need.
#[derive(Default)]
pub(super) struct Namespace {
    /// How often an object changed that may decide which pool a Service of the namespace belongs to.
    pub(super) revision: u64,
    /// About how many bytes the objects take.
    bytes: usize,
    services: BTreeMap<Box<str>, Arc<StoredService>>,
    /// The Services by the first label of their selector.
    selecting: BTreeSet<(u64, Box<str>)>,
    /// The addresses of the Services that are left out: cluster IPs, and external addresses.
    bare: BTreeMap<Box<str>, Addresses>,
    /// The workloads by the number of their kind.
    workloads: BTreeMap<usize, Workloads>,
    endpoints: BTreeMap<Box<str>, Arc<StoredEndpoints>>,
    /// The EndpointSlices by Service.
    slices: BTreeSet<(Box<str>, Box<str>)>,
    /// The hashes of the names of the objects that are left out, by the number of their kind. Workloads that affect no
    /// decision are not among them.
    left_out: BTreeMap<usize, HashSet<u64>>,
}

/// The cluster IPs and the external addresses of a Service.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    pub(super) cluster: Box<[IpAddr]>,
    pub(super) external: Box<[IpAddr]>,
    pub(super) may_have_external: bool,
}

impl Addresses {
    pub(super) fn of(service: &StoredService) -> Self {
        let (cluster, external) = (service.addresses().into(), service.external().into());
        Self { cluster, external, may_have_external: service.may_have_external() }
    }
}

impl Object {
    /// About how many bytes of memory the object takes, with its entries in the indexes.
    fn bytes(&self, name: &str) -> usize {
        match self {
            Self::Service(service) => service.bytes(),
            Self::Workload(workload) => workload.bytes(name),
            Self::Endpoints(endpoints) => endpoints.bytes(name),
        }
    }
}

impl Namespace {
    /// About how many bytes the objects take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an object of this kind is left out that may affect a decision.
    pub(super) fn leaves_out(&self, kind: usize) -> bool {
        self.left_out.contains_key(&kind)
    }

    /// Whether objects of this kind are left out, although the objects take less than three quarters of `max_bytes`.
    pub(super) fn has_room_for(&self, kind: usize, max_bytes: usize) -> bool {
        self.leaves_out(kind) && self.bytes < max_bytes / 4 * 3
    }

    /// Forgets the objects of this kind that were left out and are not in a new list.
    pub(super) fn keep_left_out(&mut self, kind: usize, exists: &HashSet<u64>) {
        if let Some(names) = self.left_out.get_mut(&kind) {
            names.retain(|name| exists.contains(name));
            self.left_out.retain(|_, names| !names.is_empty());
        }
    }

    /// Adds an object whose name no object of the kind has. Returns whether all objects then take at most `max_bytes`. If
    /// they would take more, the object is left out, except for the addresses of a Service.
    pub(super) fn insert(&mut self, kind: usize, name: &str, object: Object, max_bytes: usize) -> bool {
        let bytes = self.bytes + object.bytes(name);
        self.forget_left_out(kind, name);
        if bytes > max_bytes {
            if !matches!(&object, Object::Workload(workload) if workload.is_inert()) {
                self.left_out.entry(kind).or_default().insert(name_hash(name));
            }
            if let Object::Service(service) = &object {
                self.bare.insert(name.into(), Addresses::of(service));
            }
            return false;
        }
        self.bytes = bytes;
        match object {
            Object::Service(service) => {
                self.selecting.extend(service.first_selected().map(|label| (label, name.into())));
                self.services.insert(name.into(), service);
            }
            Object::Workload(workload) => self.workloads.entry(kind).or_default().insert(name, workload),
            Object::Endpoints(endpoints) => {
                self.slices.insert((endpoints.service.clone(), name.into()));
                self.endpoints.insert(name.into(), endpoints);
            }
        }
        true
    }

    /// Removes a workload.
    pub(super) fn remove_workload(&mut self, kind: usize, name: &str) -> Option<LabelHashes> {
        self.forget_left_out(kind, name);
        let workloads = self.workloads.get_mut(&kind)?;
        let workload = workloads.remove(name)?;
        if workloads.is_empty() {
            self.workloads.remove(&kind);
        }
        self.bytes -= workload.bytes(name);
        Some(workload.into_labels())
    }

    /// Removes a Service.
    pub(super) fn remove_service(&mut self, kind: usize, name: &str) -> Option<Arc<StoredService>> {
        self.forget_left_out(kind, name);
        let service = self.services.remove(name)?;
        if let Some(label) = service.first_selected() {
            self.selecting.remove(&(label, name.into()));
        }
        self.bytes -= service.bytes();
        Some(service)
    }

    /// Removes a Service of which only the addresses are kept.
    pub(super) fn remove_bare(&mut self, name: &str) -> Option<Addresses> {
        self.bare.remove(name)
    }

    /// Removes the endpoints of an EndpointSlice.
    pub(super) fn remove_endpoints(&mut self, kind: usize, name: &str) -> Option<Arc<StoredEndpoints>> {
        self.forget_left_out(kind, name);
        let endpoints = self.endpoints.remove(name)?;
        self.slices.remove(&(endpoints.service.clone(), name.into()));
        self.bytes -= endpoints.bytes(name);
        Some(endpoints)
    }

    fn forget_left_out(&mut self, kind: usize, name: &str) {
        if let Some(names) = self.left_out.get_mut(&kind) {
            names.remove(&name_hash(name));
            if names.is_empty() {
                self.left_out.remove(&kind);
            }
        }
    }

    /// The Services in the order of their names.
    pub(super) fn services(&self) -> &BTreeMap<Box<str>, Arc<StoredService>> {
        &self.services
    }

    /// The names of the Services of which only the addresses are kept.
    pub(super) fn bare(&self) -> impl Iterator<Item = &str> {
        self.bare.keys().map(|name| &**name)
    }

    /// The workloads of a kind.
    pub(super) fn workloads(&self, kind: usize) -> Option<&Workloads> {
        self.workloads.get(&kind)
    }

    /// The EndpointSlices by name.
    pub(super) fn endpoints(&self) -> &BTreeMap<Box<str>, Arc<StoredEndpoints>> {
        &self.endpoints
    }

    /// The endpoints of a Service.
    pub(super) fn endpoints_of(&self, service: &str) -> impl Iterator<Item = &Arc<StoredEndpoints>> {
        let slices = self.slices.range((Box::from(service), Box::from(""))..);
        let slices = slices.take_while(move |(other, _)| **other == *service);
        slices.filter_map(|(_, name)| self.endpoints.get(name))
    }

    /// The names of the Services that select Pods with these labels.
    pub(super) fn services_selecting(&self, labels: &[u64]) -> impl Iterator<Item = &str> {
        let with_first = labels.iter().flat_map(|label| {
            let entries = self.selecting.range((*label, Box::from(""))..);
            entries.take_while(move |(other, _)| other == label).map(|(_, name)| &**name)
        });
        with_first.filter(|name| self.services.get(*name).is_some_and(|service| service.selects(labels)))
    }
}

/// The hash of the name of an object.
pub(super) fn name_hash(name: &str) -> u64 {
    hash("", name)
}
