//! The objects of one namespace, with a limit for the memory that they take.

use std::borrow::Borrow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::Selected;

use super::stored_objects::{Stored, StoredEndpoints, StoredKind};
use super::stored_service::StoredService;
use super::workloads::{Found, LabelIndex, hash};

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
    pub(super) bytes: usize,
    kinds: BTreeMap<StoredKind, OfKind>,
    services: BTreeSet<ByName>,
    /// The addresses of the Services that are left out.
    pub(super) bare: BTreeMap<Box<str>, Addresses>,
    /// The EndpointSlices by Service.
    slices: BTreeSet<(Box<str>, Arc<str>)>,
}

/// A Service in the order of its name, which is kept only once.
struct ByName(Arc<StoredService>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.key.name
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.name.cmp(&other.0.key.name)
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByName {}

#[derive(Default)]
struct OfKind {
    /// Empty for Services.
    objects: BTreeMap<Arc<str>, Stored>,
    /// The workloads by the labels of their Pods.
    labelled: LabelIndex,
    /// The hashes of the names of the objects that are left out. Workloads that affect no decision are not among them.
    left_out: HashSet<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Addresses {
    pub(super) cluster: Box<[IpAddr]>,
    pub(super) external: Box<[IpAddr]>,
    /// How many of `external` kube-proxy sends to the Service: the first ones. See [`StoredService::routed`].
    routed: usize,
    /// What its status is emptied from; `None` if the status shows nothing. Only controllers write statuses.
    pub(super) shown: Option<Arc<StoredService>>,
}

impl Addresses {
    pub(super) fn of(service: &StoredService) -> Self {
        let all = service.routed();
        let mut external: Box<[IpAddr]> = service.external().into();
        external.sort_by_key(|address| !all.contains(address));
        let routed = external.partition_point(|address| all.contains(address));
        let shown = service.for_status().map(Arc::new);
        Self { cluster: service.addresses().into(), external, routed, shown }
    }

    pub(super) fn routed(&self) -> &[IpAddr] {
        &self.external[..self.routed]
    }
}

impl Namespace {
    /// How many objects of this kind are left out that may affect a decision.
    pub(super) fn left_out(&self, kind: StoredKind) -> usize {
        self.kinds.get(&kind).map_or(0, |of_kind| of_kind.left_out.len())
    }

    /// Whether objects of this kind are left out, although the objects take less than three quarters of `max_bytes`.
    pub(super) fn has_room_for(&self, kind: StoredKind, max_bytes: usize) -> bool {
        self.left_out(kind) > 0 && self.bytes < max_bytes / 4 * 3
    }

    /// Forgets the objects of this kind that were left out and are not in a new list.
    pub(super) fn keep_left_out(&mut self, kind: StoredKind, exists: &HashSet<u64>) {
        if let Some(of_kind) = self.kinds.get_mut(&kind) {
            of_kind.left_out.retain(|name| exists.contains(name));
        }
    }

    /// Adds an object whose name no object of the kind has. Returns whether all objects then take at most `max_bytes`.
    /// If they would take more, the object is left out, except for the addresses of a Service.
    pub(super) fn insert(&mut self, kind: StoredKind, name: &str, object: Stored, max_bytes: usize) -> bool {
        let bytes = self.bytes + object.bytes(name);
        let of_kind = self.kinds.entry(kind).or_default();
        of_kind.left_out.remove(&name_hash(name));
        if bytes > max_bytes {
            if !matches!(&object, Stored::Workload(workload) if workload.is_inert()) {
                of_kind.left_out.insert(name_hash(name));
            }
            // Nothing limits the number of Services with external addresses. But which of these lie in a pool, now or
            // later, is not known here, and such an address must not be given to another Service. So all are kept, in
            // little memory.
            if let Stored::Service(service) = &object
                && !(service.addresses().is_empty() && service.external().is_empty())
            {
                self.bare.insert(name.into(), Addresses::of(service));
            }
            return false;
        }
        self.bytes = bytes;
        if let Stored::Service(service) = object {
            self.services.insert(ByName(service));
            return true;
        }
        let name: Arc<str> = name.into();
        match &object {
            Stored::Workload(workload) => of_kind.labelled.add(&name, workload),
            Stored::Endpoints(endpoints) => {
                self.slices.insert((endpoints.service.clone(), Arc::clone(&name)));
            }
            _ => {}
        }
        of_kind.objects.insert(name, object);
        true
    }

    pub(super) fn remove(&mut self, kind: StoredKind, name: &str) -> Option<Stored> {
        let of_kind = self.kinds.get_mut(&kind)?;
        of_kind.left_out.remove(&name_hash(name));
        if kind == StoredKind::Service {
            let service = Stored::Service(self.services.take(name)?.0);
            self.bytes -= service.bytes(name);
            return Some(service);
        }
        let (name, object) = of_kind.objects.remove_entry(name)?;
        self.bytes -= object.bytes(&name);
        match &object {
            Stored::Workload(workload) => of_kind.labelled.remove(&name, workload),
            Stored::Endpoints(endpoints) => {
                self.slices.remove(&(endpoints.service.clone(), name));
            }
            _ => {}
        }
        Some(object)
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &Arc<StoredService>> {
        self.services.iter().map(|service| &service.0)
    }

    /// The Services whose names come after this one, in order.
    pub(super) fn services_after(&self, name: &str) -> impl Iterator<Item = &Arc<StoredService>> {
        let rest = (Bound::Excluded(name), Bound::Unbounded);
        self.services.range::<str, _>(rest).map(|service| &service.0)
    }

    pub(super) fn service(&self, name: &str) -> Option<&Arc<StoredService>> {
        self.services.get(name).map(|service| &service.0)
    }

    /// The objects of a kind, except for Services.
    pub(super) fn each(&self, kind: StoredKind) -> impl Iterator<Item = (&Arc<str>, &Stored)> {
        self.kinds.get(&kind).into_iter().flat_map(|of_kind| &of_kind.objects)
    }

    /// The objects of a kind whose names come after this one, in order, except for Services.
    pub(super) fn after(&self, kind: StoredKind, name: &str) -> impl Iterator<Item = (&Arc<str>, &Stored)> {
        let rest = (Bound::Excluded(name), Bound::Unbounded);
        self.kinds.get(&kind).into_iter().flat_map(move |of_kind| of_kind.objects.range::<str, _>(rest))
    }

    /// An object of any kind, except for Services.
    pub(super) fn get(&self, kind: StoredKind, name: &str) -> Option<&Stored> {
        self.kinds.get(&kind)?.objects.get(name)
    }

    pub(super) fn selected(&self, kind: StoredKind, selector: &Labels, left: &Cell<usize>) -> Found {
        let Some(of_kind) = self.kinds.get(&kind) else { return Ok(Selected::default()) };
        let workload = |name: &str| match of_kind.objects.get(name) {
            Some(Stored::Workload(workload)) => Some(&**workload),
            _ => None,
        };
        of_kind.labelled.selected(&workload, selector, left)
    }

    pub(super) fn endpoints_of(&self, service: &str) -> impl Iterator<Item = &Arc<StoredEndpoints>> {
        let slices = self.slices.range((Box::from(service), Arc::from(""))..);
        let slices = slices.take_while(move |(other, _)| **other == *service);
        slices.filter_map(|(_, name)| match self.get(StoredKind::EndpointSlice, name)? {
            Stored::Endpoints(endpoints) => Some(endpoints),
            _ => None,
        })
    }
}

pub(super) fn name_hash(name: &str) -> u64 {
    hash("", name)
}
