//! The state of a cluster at one moment: of each object, only what decisions, moves and audits read.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use clusterip_core::address::{AddressSet, Span};
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{NamespaceMeta, Selected};
pub use clusterip_core::service::addresses;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use clusterip_core::workload::WorkloadKind;
use serde_json::Value;

mod compact_value;
mod namespace;
pub mod service_ranges;
mod shared;
mod stored_objects;
mod stored_service;
mod workloads;

pub use self::compact_value::CompactValue;
pub use self::namespace::MAX_BYTES;
use self::namespace::{Namespace, name_hash};
use self::stored_objects::StoredKind;
pub(crate) use self::stored_objects::namespace as namespace_of;
pub use self::stored_objects::{ReadObject, SERVICE_NAME_LABEL, Stored, StoredEndpoints, StoredNode};
pub use self::stored_service::StoredService;
pub(crate) use self::stored_service::{FIELDS as SERVICE_FIELDS, IGNORED_BY_KUBE_PROXY, MANY, MAX_PORTS, TEXT};
use self::workloads::Found;
pub use self::workloads::{LabelHashes, MAX_STEPS, StoredWorkload, label_hashes};
use crate::kinds::Kind;
use crate::snapshot::service_ranges::{ServiceCidr, ServiceRanges};

/// Objects by kind, namespace and name, with the indexes that look-ups need. The indexes are updated with each object,
/// so the cost of a look-up does not grow with the cluster, except for the blocks of Nodes.
#[derive(Default)]
pub struct Snapshot {
    /// The kinds without a meaning of their own, in the order of their first object.
    workload_kinds: Vec<Kind>,
    /// The objects without a namespace are under the empty name.
    namespaces: BTreeMap<Box<str>, Namespace>,
    ip_addresses: BTreeSet<IpAddr>,
    addresses: AddressIndex,
    /// The same addresses, without their Services.
    used: AddressSet,
    /// The Services that may have external addresses, without those that are left out.
    may_have_external: BTreeSet<Arc<ServiceKey>>,
    /// The external addresses that count as held, with their Services.
    external: AddressIndex,
    /// The kinds whose look-ups fail.
    missing: BTreeMap<Kind, Missing>,
    max_bytes: Option<usize>,
}

/// Why the look-ups of a kind fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The cluster does not have the kind.
    Absent,
    /// Its objects are not known, for this reason.
    Unlisted(String),
}

/// The result of adding an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Insertion {
    Same,
    Changed {
        before: Option<Stored>,
        after: Stored,
    },
    /// The objects of the namespace take too much memory. Contains the previous version.
    LeftOut(Option<Stored>),
}

impl Snapshot {
    /// A snapshot in which the objects of one namespace may take `max_bytes` bytes, such as [`MAX_BYTES`], for a cluster
    /// that many tenants share.
    pub fn limited_to(max_bytes: usize) -> Self {
        Self { max_bytes: Some(max_bytes), ..Self::default() }
    }

    /// Locks a shared snapshot for reading, also after a thread has panicked while it wrote.
    pub fn read(shared: &RwLock<Self>) -> RwLockReadGuard<'_, Self> {
        shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&mut self, object: &Value) -> Insertion {
        self.add(ReadObject::new(object))
    }

    /// As [`Self::insert`], for a snapshot that other threads read. The object is read before the snapshot is locked.
    pub fn insert_in(snapshot: &RwLock<Self>, object: &Value) -> Insertion {
        let read = ReadObject::new(object);
        Self::write(snapshot).add(read)
    }

    /// Locks a shared snapshot for writing, also after a thread has panicked while it wrote.
    pub fn write(shared: &RwLock<Self>) -> RwLockWriteGuard<'_, Self> {
        shared.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&mut self, read: ReadObject) -> Insertion {
        let ReadObject { kind, namespace, name, stored: after } = read;
        let (api_version, kind) = &*kind;
        if after == Stored::IpAddress {
            let is_new = name.parse().is_ok_and(|address| self.ip_addresses.insert(address));
            return if is_new { Insertion::Changed { before: None, after } } else { Insertion::Same };
        }
        let stored_kind = self.stored_kind(api_version, kind);
        let namespace = stored_kind.scope(&namespace);
        let is_same = match &after {
            Stored::Service(service) => self.service_at(namespace, &name) == Some(service),
            _ => self.get(stored_kind, namespace, &name) == Some(&after),
        };
        if is_same {
            return Insertion::Same;
        }
        let before = self.remove(api_version, kind, namespace, &name);
        let of_namespace = self.namespaces.entry(namespace.into()).or_default();
        let is_kept = of_namespace.insert(stored_kind, &name, after.clone(), self.max_bytes.unwrap_or(usize::MAX));
        if let Stored::Service(service) = &after {
            self.addresses.add(&service.key, service.addresses());
            service.addresses().iter().for_each(|address| self.used.insert(*address));
            self.external.add(&service.key, service.external());
            if is_kept && service.may_have_external() {
                self.may_have_external.insert(Arc::clone(&service.key));
            }
        }
        self.revise(stored_kind, namespace);
        if is_kept { Insertion::Changed { before, after } } else { Insertion::LeftOut(before) }
    }

    fn service_at(&self, namespace: &str, name: &str) -> Option<&Arc<StoredService>> {
        self.namespaces.get(namespace)?.service(name)
    }

    fn get(&self, kind: StoredKind, namespace: &str, name: &str) -> Option<&Stored> {
        self.namespaces.get(namespace)?.get(kind, name)
    }

    pub fn remove(&mut self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Stored> {
        let stored_kind = self.stored_kind(api_version, kind);
        if stored_kind == StoredKind::IpAddress {
            return name.parse().is_ok_and(|address| self.ip_addresses.remove(&address)).then_some(Stored::IpAddress);
        }
        let namespace = stored_kind.scope(namespace);
        let of_namespace = self.namespaces.get_mut(namespace)?;
        let bare = if stored_kind == StoredKind::Service { of_namespace.bare.remove(name) } else { None };
        let removed = of_namespace.remove(stored_kind, name);
        let addresses = match (&removed, &bare) {
            (Some(Stored::Service(service)), _) => Some((service.addresses(), service.external())),
            (_, bare) => bare.as_ref().map(|bare| (&*bare.cluster, &*bare.external)),
        };
        if let Some((cluster, external)) = addresses {
            let service = Arc::new(ServiceKey::new(namespace, name));
            self.addresses.forget(&service, cluster);
            for address in cluster.iter().filter(|address| !self.addresses.has(**address)) {
                self.used.remove(*address);
            }
            self.external.forget(&service, external);
            self.may_have_external.remove(&service);
        }
        let removed = removed?;
        self.revise(stored_kind, namespace);
        Some(removed)
    }

    fn known_kind(&self, api_version: &str, kind: &str) -> Option<StoredKind> {
        let is_it = |known: &Kind| known.0 == api_version && known.1 == kind;
        let workload = || self.workload_kinds.iter().position(is_it).map(StoredKind::Workload);
        StoredKind::known(api_version, kind).or_else(workload)
    }

    fn stored_kind(&mut self, api_version: &str, kind: &str) -> StoredKind {
        self.known_kind(api_version, kind).unwrap_or_else(|| {
            self.workload_kinds.push((api_version.to_owned(), kind.to_owned()));
            StoredKind::Workload(self.workload_kinds.len() - 1)
        })
    }

    /// A value that changes whenever an object changes that may decide which pool a Service of this namespace belongs
    /// to, other than the Service itself.
    pub fn revision(&self, namespace: &str) -> (u64, u64) {
        let of = |namespace: &str| self.namespaces.get(namespace).map(|of| of.revision).unwrap_or_default();
        (of(""), of(namespace))
    }

    fn revise(&mut self, kind: StoredKind, namespace: &str) {
        // Excluded are the Services themselves, and the kinds that only tell which addresses exist or are used.
        if !matches!(
            kind,
            StoredKind::Service | StoredKind::EndpointSlice | StoredKind::ServiceCidr | StoredKind::IpAddress
        ) {
            self.namespaces.entry(namespace.into()).or_default().revision += 1;
        }
    }

    /// Marks a kind as unknown to the cluster, so that look-ups of it fail.
    pub fn remove_api(&mut self, api_version: &str, kind: &str) {
        self.set_missing(api_version, kind, Missing::Absent);
        if self.stored_kind(api_version, kind) == StoredKind::IpAddress {
            self.ip_addresses.clear();
        }
    }

    /// Makes look-ups of a kind fail for this reason, whether the cluster has it or not.
    pub(crate) fn set_missing(&mut self, api_version: &str, kind: &str, missing: Missing) {
        self.missing.insert((api_version.to_owned(), kind.to_owned()), missing);
        let stored_kind = self.stored_kind(api_version, kind);
        self.revise(stored_kind, "");
    }

    pub(crate) fn add_api(&mut self, api_version: &str, kind: &str) {
        if self.missing.remove(&(api_version.to_owned(), kind.to_owned())).is_some() {
            let stored_kind = self.stored_kind(api_version, kind);
            self.revise(stored_kind, "");
        }
    }

    /// Why look-ups of a kind fail; `None` if they do not.
    pub(crate) fn missing(&self, api_version: &str, kind: &str) -> Option<&Missing> {
        if self.missing.is_empty() { None } else { self.missing.get(&(api_version.to_owned(), kind.to_owned())) }
    }

    /// Ordered by namespace and name.
    pub fn each_service(&self, namespace: Option<&str>) -> impl Iterator<Item = &Arc<StoredService>> {
        let inside =
            self.namespaces.range::<str, _>((Bound::Included(namespace.unwrap_or_default()), Bound::Unbounded));
        let inside = inside.take_while(move |(other, _)| namespace.is_none_or(|namespace| ***other == *namespace));
        inside.flat_map(|(_, of_namespace)| of_namespace.services())
    }

    pub fn services(&self, namespace: Option<&str>) -> Vec<ServiceKey> {
        self.each_service(namespace).map(|service| service.key().clone()).collect()
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<StoredService>> {
        self.service_at(&key.namespace, &key.name)
    }

    fn of_cluster(&self, kind: StoredKind) -> impl Iterator<Item = &Stored> {
        self.namespaces.get("").into_iter().flat_map(move |of_cluster| of_cluster.each(kind)).map(|(_, stored)| stored)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Arc<StoredNode>> {
        self.of_cluster(StoredKind::Node).filter_map(Stored::node)
    }

    pub fn node(&self, name: &str) -> Option<&Arc<StoredNode>> {
        self.get(StoredKind::Node, "", name)?.node()
    }

    /// The labels and annotations of a Namespace, or the mistake in them; `None` if the Namespace does not exist. The
    /// `Arc` stays the same until they change.
    pub fn namespace(&self, name: &str) -> Option<&Arc<Result<NamespaceMeta, TypeMismatch>>> {
        match self.get(StoredKind::Namespace, "", name)? {
            Stored::Namespace(meta) => Some(meta),
            _ => None,
        }
    }

    pub(super) fn node_labels(&self, name: &str) -> Option<Result<&Labels, &TypeMismatch>> {
        self.node(name).map(|node| node.mistake.as_ref().map_or(Ok(&node.labels), Err))
    }

    pub(super) fn runtime_class_nodes(&self, name: &str) -> Option<&Result<Labels, TypeMismatch>> {
        match self.get(StoredKind::RuntimeClass, "", name)? {
            Stored::RuntimeClass(nodes) => Some(nodes),
            _ => None,
        }
    }

    pub fn service_ranges(&self) -> ServiceRanges {
        ServiceRanges::of_service_cidrs(self.of_cluster(StoredKind::ServiceCidr).filter_map(|stored| match stored {
            Stored::ServiceCidr(service_cidr) => Some(ServiceCidr::clone(service_cidr)),
            _ => None,
        }))
    }

    /// In order.
    pub fn names(&self, api_version: &str, kind: &str) -> Vec<(String, String)> {
        match self.known_kind(api_version, kind) {
            None => Vec::new(),
            Some(StoredKind::IpAddress) => {
                self.ip_addresses.iter().map(|address| (String::new(), address.to_string())).collect()
            }
            Some(kind) => {
                let each = self.namespaces.iter().flat_map(|(namespace, of_namespace)| {
                    let services = of_namespace.services().map(|service| &*service.key().name);
                    let services = services.chain(of_namespace.bare.keys().map(|name| &**name));
                    let services = services.filter(|_| kind == StoredKind::Service);
                    let names = of_namespace.each(kind).map(|(name, _)| &**name).chain(services);
                    names.map(|name| (namespace.to_string(), name.to_owned()))
                });
                each.collect()
            }
        }
    }

    /// As long as there are steps `left`.
    pub(super) fn selected(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        selector: &Labels,
        left: &Cell<usize>,
    ) -> Found {
        let stored_kind = self.known_kind(&kind.api_version, &kind.kind);
        let of_namespace = stored_kind.and_then(|kind| Some((kind, self.namespaces.get(namespace)?)));
        let Some((stored_kind, of_namespace)) = of_namespace else { return Ok(Selected::default()) };
        let found = of_namespace.selected(stored_kind, selector, left)?;
        Ok(Selected { is_incomplete: of_namespace.left_out(stored_kind) > 0, ..found })
    }

    pub fn endpoints_of(&self, service: &ServiceKey) -> Vec<Arc<StoredEndpoints>> {
        let of_namespace = self.namespaces.get(service.namespace.as_str()).into_iter();
        of_namespace.flat_map(|of_namespace| of_namespace.endpoints_of(&service.name)).cloned().collect()
    }

    pub fn services_after(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Arc<StoredService>> {
        self.namespaces.get(namespace).into_iter().flat_map(move |of_namespace| of_namespace.services_after(name))
    }

    pub fn pods_after(&self, namespace: &str, name: &str) -> impl Iterator<Item = (&str, &StoredWorkload)> {
        let of_namespace = self.known_kind("v1", "Pod").zip(self.namespaces.get(namespace)).into_iter();
        let pods = of_namespace.flat_map(|(pod, of_namespace)| of_namespace.after(pod, name));
        pods.filter_map(|(name, stored)| match stored {
            Stored::Workload(pod) => Some((&**name, &**pod)),
            _ => None,
        })
    }

    pub fn namespaces(&self) -> Vec<String> {
        self.namespaces.keys().filter(|name| !name.is_empty()).map(|name| name.to_string()).collect()
    }

    /// Whether an `IPAddress` object with this address exists, or a Service has the address.
    pub fn is_used(&self, address: IpAddr) -> bool {
        self.addresses.has(address) || self.ip_addresses.contains(&address)
    }

    pub fn ip_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.ip_addresses
    }

    /// Without repetition, in order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.addresses()
    }

    pub fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.addresses.owners(address)
    }

    /// The addresses of all Services, in order.
    pub fn service_addresses(&self) -> impl Iterator<Item = (IpAddr, &ServiceKey)> {
        self.addresses.iter()
    }

    /// See [`Cluster::free_addresses`](clusterip_core::lookups::Cluster::free_addresses), for this Service.
    pub fn free_addresses(&self, service: &ServiceKey, ranges: &[Span], most: usize) -> (Vec<IpAddr>, bool) {
        let own = self.service(service).map(|service| service.addresses()).unwrap_or_default();
        self.addresses.free(service, own, &self.used, ranges, most)
    }

    /// The external addresses that count as held, see [`in_use`](clusterip_core::external::claim::in_use), with their
    /// Services, in order. An address that several Services have is there several times.
    pub fn external_addresses(&self) -> impl Iterator<Item = (IpAddr, &ServiceKey)> {
        self.external.iter()
    }

    /// The external addresses of these pools that count as held. An address that several Services have is there several
    /// times. Nothing limits how many addresses of no pool Services name, so these are not looked at.
    pub fn external_of_pools(&self, settings: &ExternalSettings) -> impl Iterator<Item = IpAddr> {
        settings.pools.iter().flat_map(|pool| &pool.ranges).flat_map(|range| self.external.within(range))
    }

    pub fn external_owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.external.owners(address)
    }

    /// Whether kube-proxy sends the traffic of this address to a Service other than that at `key`, also one that is left
    /// out. See [`StoredService::routed`].
    pub fn is_routed_to_other(&self, address: IpAddr, key: &ServiceKey) -> bool {
        let bare = |other: &ServiceKey| self.namespaces.get(&*other.namespace)?.bare.get(&*other.name);
        self.external_owners(address).filter(|other| *other != key).any(|other| match self.service(other) {
            Some(service) => service.routed().contains(&address),
            None => bare(other).is_some_and(|bare| bare.routed().contains(&address)),
        })
    }

    pub fn external_services(&self) -> Vec<Arc<StoredService>> {
        self.may_have_external.iter().filter_map(|service| self.service(service)).cloned().collect()
    }

    /// The Services that are left out and whose statuses show addresses, with what a write of their status needs.
    pub fn shown_left_out(&self) -> Vec<Arc<StoredService>> {
        self.namespaces
            .values()
            .flat_map(|namespace| namespace.bare.values())
            .filter_map(|bare| bare.shown.clone())
            .collect()
    }

    pub fn bytes(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, |of_namespace| of_namespace.bytes)
    }

    /// Whether a namespace that leaves out objects of this kind has room for some of them, so that the kind is to be
    /// listed again.
    pub fn has_room_for(&self, api_version: &str, kind: &str) -> bool {
        let stored_kind = self.known_kind(api_version, kind);
        let Some((kind, max_bytes)) = stored_kind.zip(self.max_bytes) else { return false };
        self.namespaces.values().any(|of_namespace| of_namespace.has_room_for(kind, max_bytes))
    }

    pub fn services_left_out(&self) -> usize {
        self.namespaces.values().map(|of_namespace| of_namespace.left_out(StoredKind::Service)).sum()
    }

    /// Forgets the objects of a kind that were left out and are not in this complete list of namespaces and names.
    pub fn keep_left_out(&mut self, api_version: &str, kind: &str, listed: &BTreeSet<(String, String)>) {
        let Some(kind) = self.known_kind(api_version, kind) else { return };
        for (namespace, of_namespace) in &mut self.namespaces {
            if of_namespace.left_out(kind) > 0 {
                let inside = listed.range((namespace.to_string(), String::new())..);
                let inside = inside.take_while(|(other, _)| **other == **namespace);
                let exists: HashSet<u64> = inside.map(|(_, name)| name_hash(name)).collect();
                of_namespace.keep_left_out(kind, &exists);
            }
        }
    }
}

/// Which Services have each address. The addresses of a Service share its key, because a tenant may write any number of
/// external addresses.
#[derive(Default)]
struct AddressIndex(BTreeSet<(IpAddr, Arc<ServiceKey>)>);

impl AddressIndex {
    fn add(&mut self, service: &Arc<ServiceKey>, addresses: &[IpAddr]) {
        self.0.extend(addresses.iter().map(|address| (*address, Arc::clone(service))));
    }

    fn forget(&mut self, service: &Arc<ServiceKey>, addresses: &[IpAddr]) {
        for address in addresses {
            self.0.remove(&(*address, Arc::clone(service)));
        }
    }

    fn has(&self, address: IpAddr) -> bool {
        self.owners(address).next().is_some()
    }

    fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        static FIRST: LazyLock<Arc<ServiceKey>> = LazyLock::new(Arc::default);
        let owners = self.0.range((address, Arc::clone(&FIRST))..);
        owners.take_while(move |(other, _)| *other == address).map(|(_, service)| &**service)
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let mut last = None;
        let addresses = self.iter().map(|(address, _)| address);
        addresses.filter(move |address| last.replace(*address) != Some(*address))
    }

    fn within(&self, range: &Span) -> impl Iterator<Item = IpAddr> {
        let last = range.last();
        let all = self.0.range((range.first(), Arc::default())..).map(|(address, _)| *address);
        all.take_while(move |address| *address <= last)
    }

    fn iter(&self) -> impl Iterator<Item = (IpAddr, &ServiceKey)> {
        self.0.iter().map(|(address, service)| (*address, &**service))
    }

    /// The addresses of `ranges` that no Service other than `service` has: the first `most` of each range, and whether
    /// these are all. `own` are the addresses of `service`, and `used` those of all Services.
    fn free(
        &self,
        service: &ServiceKey,
        own: &[IpAddr],
        used: &AddressSet,
        ranges: &[Span],
        most: usize,
    ) -> (Vec<IpAddr>, bool) {
        let is_only_own = |address: &IpAddr| self.owners(*address).all(|owner| owner == service);
        let mut free: Vec<IpAddr> = own.iter().copied().filter(is_only_own).collect();
        free.retain(|address| ranges.iter().any(|range| range.contains(*address)));
        let mut are_all = true;
        for range in ranges {
            let address = |number| range.family().address(number);
            let mut gaps = used.gaps(range).flatten().map(address);
            free.extend(gaps.by_ref().take(most));
            are_all &= gaps.next().is_none();
        }
        (free, are_all)
    }
}
