//! The objects of one namespace, with a limit for the memory that they take.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::Selected;

use super::stored_objects::StoredEndpoints;
use super::stored_service::StoredService;
use super::workloads::{Found, LabelIndex, hash};
use super::{Stored, StoredKind};

/// How many bytes the objects of one namespace may take, of all kinds together. Kubernetes is tested with 3,000 Pods and
/// 5,000 Services in a namespace; they take about half of it. What exceeds it is left out, so that a tenant who
/// creates any number of objects affects no other namespace.
pub const MAX_BYTES: usize = 16 << 20;

/// The objects of one namespace, with the indexes that look-ups need.
#[derive(Default)]
pub(super) struct Namespace {
    /// How often an object changed that may decide which pool a Service of the namespace belongs to.
    pub(super) revision: u64,
    /// About how many bytes the objects take.
    bytes: usize,
    /// The objects by their kind, and by name.
    objects: BTreeMap<StoredKind, BTreeMap<Arc<str>, Stored>>,
    /// The addresses of the Services that are left out: cluster IPs, and external addresses.
    bare: BTreeMap<Box<str>, Addresses>,
    /// The workloads of each kind by the labels of their Pods.
    labelled: BTreeMap<StoredKind, LabelIndex>,
    /// The EndpointSlices by Service.
    slices: BTreeSet<(Box<str>, Arc<str>)>,
    /// The hashes of the names of the objects that are left out, by their kind. Workloads that affect no
    /// decision are not among them.
    left_out: BTreeMap<StoredKind, HashSet<u64>>,
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

impl Namespace {
    /// About how many bytes the objects take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether an object of this kind is left out that may affect a decision.
    pub(super) fn leaves_out(&self, kind: StoredKind) -> bool {
        self.left_out.contains_key(&kind)
    }

    /// How many objects of this kind are left out.
    pub(super) fn count_left_out(&self, kind: StoredKind) -> usize {
        self.left_out.get(&kind).map_or(0, HashSet::len)
    }

    /// Whether objects of this kind are left out, although the objects take less than three quarters of `max_bytes`.
    pub(super) fn has_room_for(&self, kind: StoredKind, max_bytes: usize) -> bool {
        self.leaves_out(kind) && self.bytes < max_bytes / 4 * 3
    }

    /// Forgets the objects of this kind that were left out and are not in a new list.
    pub(super) fn keep_left_out(&mut self, kind: StoredKind, exists: &HashSet<u64>) {
        if let Some(names) = self.left_out.get_mut(&kind) {
            names.retain(|name| exists.contains(name));
            self.left_out.retain(|_, names| !names.is_empty());
        }
    }

    /// Adds an object whose name no object of the kind has. Returns whether all objects then take at most `max_bytes`.
    /// If they would take more, the object is left out, except for the addresses of a Service.
    pub(super) fn insert(&mut self, kind: StoredKind, name: &str, object: Stored, max_bytes: usize) -> bool {
        let bytes = self.bytes + object.bytes(name);
        self.forget_left_out(kind, name);
        if bytes > max_bytes {
            if !matches!(&object, Stored::Workload(workload) if workload.is_inert()) {
                self.left_out.entry(kind).or_default().insert(name_hash(name));
            }
            // The Service ranges limit the number of Services with a ClusterIP. Nothing limits the number of Services
            // without addresses, so nothing is kept of them.
            if let Stored::Service(service) = &object
                && (!service.addresses().is_empty() || service.may_have_external())
            {
                self.bare.insert(name.into(), Addresses::of(service));
            }
            return false;
        }
        self.bytes = bytes;
        let name: Arc<str> = name.into();
        match &object {
            Stored::Workload(workload) => self.labelled.entry(kind).or_default().add(&name, workload),
            Stored::Endpoints(endpoints) => {
                self.slices.insert((endpoints.service.clone(), Arc::clone(&name)));
            }
            _ => {}
        }
        self.objects.entry(kind).or_default().insert(name, object);
        true
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, kind: StoredKind, name: &str) -> Option<Stored> {
        self.forget_left_out(kind, name);
        let (name, object) = self.objects.get_mut(&kind)?.remove_entry(name)?;
        self.bytes -= object.bytes(&name);
        match &object {
            Stored::Workload(workload) => {
                self.labelled.entry(kind).or_default().remove(&name, workload);
            }
            Stored::Endpoints(endpoints) => {
                self.slices.remove(&(endpoints.service.clone(), name));
            }
            _ => {}
        }
        Some(object)
    }

    /// Removes a Service of which only the addresses are kept.
    pub(super) fn remove_bare(&mut self, name: &str) -> Option<Addresses> {
        self.bare.remove(name)
    }

    fn forget_left_out(&mut self, kind: StoredKind, name: &str) {
        if let Some(names) = self.left_out.get_mut(&kind) {
            names.remove(&name_hash(name));
            if names.is_empty() {
                self.left_out.remove(&kind);
            }
        }
    }

    /// The objects of a kind in the order of their names.
    pub(super) fn each(&self, kind: StoredKind) -> impl Iterator<Item = (&Arc<str>, &Stored)> {
        self.objects.get(&kind).into_iter().flatten()
    }

    /// The objects of a kind whose names come after this one, in order.
    pub(super) fn after(&self, kind: StoredKind, name: &str) -> impl Iterator<Item = (&Arc<str>, &Stored)> {
        let rest = (Bound::Excluded(name), Bound::Unbounded);
        self.objects.get(&kind).into_iter().flat_map(move |objects| objects.range::<str, _>(rest))
    }

    /// The object with this name.
    pub(super) fn get(&self, kind: StoredKind, name: &str) -> Option<&Stored> {
        self.objects.get(&kind)?.get(name)
    }

    /// The workloads of a kind whose Pods have all labels of a selector, as long as there are steps `left`.
    pub(super) fn selected(&self, kind: StoredKind, selector: &Labels, left: &Cell<usize>) -> Found {
        let workload = |name: &str| match self.get(kind, name) {
            Some(Stored::Workload(workload)) => Some(&**workload),
            _ => None,
        };
        let index = self.labelled.get(&kind);
        index.map_or_else(|| Ok(Selected::default()), |index| index.selected(&workload, selector, left))
    }

    /// The names of the Services of which only the addresses are kept.
    pub(super) fn bare(&self) -> impl Iterator<Item = &str> {
        self.bare.keys().map(|name| &**name)
    }

    /// The endpoints of a Service.
    pub(super) fn endpoints_of(&self, service: &str) -> impl Iterator<Item = &Arc<StoredEndpoints>> {
        let slices = self.slices.range((Box::from(service), Arc::from(""))..);
        let slices = slices.take_while(move |(other, _)| **other == *service);
        slices.filter_map(|(_, name)| match self.get(StoredKind::EndpointSlice, name)? {
            Stored::Endpoints(endpoints) => Some(endpoints),
            _ => None,
        })
    }
}

/// The hash of the name of an object.
pub(super) fn name_hash(name: &str) -> u64 {
    hash("", name)
}
