//! The state of a cluster at one moment: of each object, only what decisions, moves and audits read.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use clusterip_core::address::Span;
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{NamespaceMeta, Selected};
use clusterip_core::service_key::ServiceKey;
pub use clusterip_core::services::addresses;
use clusterip_core::workload::{TemplateAt, WorkloadKind};
use ipnet::IpNet;
use serde_json::Value;

mod address_index;
mod block_index;
mod namespace;
mod stored_objects;
mod stored_service;
mod workloads;

use self::address_index::AddressIndex;
use self::block_index::BlockIndex;
pub use self::namespace::MAX_BYTES;
use self::namespace::{Addresses, Namespace, Object, name_hash};
pub use self::stored_objects::{SERVICE_NAME_LABEL, StoredEndpoints, StoredNode};
pub use self::stored_service::StoredService;
use self::workloads::{Found, StoredWorkload};
pub use self::workloads::{LabelHashes, MAX_STEPS, label_hashes};
use crate::object;
use crate::watch::service_ranges::{ServiceCidr, ServiceRanges};

/// Objects by kind, namespace and name, with the indexes that look-ups need. The indexes are updated with each object,
/// so the cost of a look-up does not grow with the cluster.
#[derive(Default)]
pub struct Snapshot {
    /// The kinds of namespaced objects. The place of a kind is its number.
    kinds: Vec<Kind>,
    namespaces: BTreeMap<Box<str>, Namespace>,
    namespace_objects: BTreeMap<Box<str>, Result<NamespaceMeta, TypeMismatch>>,
    nodes: BTreeMap<Box<str>, Arc<StoredNode>>,
    runtime_classes: BTreeMap<Box<str>, Result<Labels, TypeMismatch>>,
    ip_addresses: BTreeSet<IpAddr>,
    service_cidrs: BTreeMap<Box<str>, ServiceCidr>,
    addresses: AddressIndex,
    /// The Services that may have external addresses, and the addresses that count as held.
    external: BTreeMap<ServiceKey, Box<[IpAddr]>>,
    blocks: BlockIndex,
    absent: BTreeSet<Kind>,
    /// How many bytes the objects of a namespace may take; `None` if there is no limit.
    max_bytes: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    api_version: String,
    kind: String,
}

impl Kind {
    fn new(api_version: &str, kind: &str) -> Self {
        Self { api_version: api_version.to_owned(), kind: kind.to_owned() }
    }
}

/// How the objects of a kind are kept.
enum Role {
    Service,
    Namespace,
    Node,
    RuntimeClass,
    IpAddress,
    ServiceCidr,
    EndpointSlice,
    Workload(TemplateAt),
}

impl Role {
    fn of(api_version: &str, kind: &str) -> Self {
        match (api_version, kind) {
            ("v1", "Service") => Self::Service,
            ("v1", "Namespace") => Self::Namespace,
            ("v1", "Node") => Self::Node,
            ("node.k8s.io/v1", "RuntimeClass") => Self::RuntimeClass,
            ("networking.k8s.io/v1", "IPAddress") => Self::IpAddress,
            ("networking.k8s.io/v1", "ServiceCIDR") => Self::ServiceCidr,
            ("discovery.k8s.io/v1", "EndpointSlice") => Self::EndpointSlice,
            ("v1", "Pod") => Self::Workload(TemplateAt::Itself),
            ("batch/v1", "CronJob") => Self::Workload(TemplateAt::JobTemplate),
            _ => Self::Workload(TemplateAt::Template),
        }
    }
}

/// An object that was read and is not in the snapshot yet.
enum Read {
    Namespaced(Object),
    Namespace(Result<NamespaceMeta, TypeMismatch>),
    Node(Arc<StoredNode>),
    RuntimeClass(Result<Labels, TypeMismatch>),
    IpAddress(Option<IpAddr>),
    ServiceCidr(ServiceCidr),
}

impl Read {
    fn of(object: &Value) -> Self {
        match Role::of(object::api_version(object), object::kind(object)) {
            Role::Service => Self::Namespaced(Object::Service(Arc::new(StoredService::read(object)))),
            Role::EndpointSlice => Self::Namespaced(Object::Endpoints(Arc::new(StoredEndpoints::read(object)))),
            Role::Workload(template) => Self::Namespaced(Object::Workload(StoredWorkload::read(template, object))),
            Role::Namespace => Self::Namespace(stored_objects::namespace(object)),
            Role::Node => Self::Node(Arc::new(StoredNode::read(object))),
            Role::RuntimeClass => Self::RuntimeClass(stored_objects::runtime_class_nodes(object)),
            Role::IpAddress => Self::IpAddress(object::name(object).parse().ok()),
            Role::ServiceCidr => Self::ServiceCidr(ServiceCidr::read(object)),
        }
    }
}

/// What is known of a version of an object: enough to find the Services that it concerns.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// A Service.
    Service(Arc<StoredService>),
    /// A Node.
    Node(Arc<StoredNode>),
    /// A workload, with the labels of its Pods.
    Workload(LabelHashes),
    /// An EndpointSlice.
    Endpoints(Arc<StoredEndpoints>),
    /// An object of another kind.
    Other,
}

/// The result of adding an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Insertion {
    /// The same object was there already.
    Same,
    /// The object was added or changed.
    Changed {
        /// The previous version; `None` if there was none.
        before: Option<Stored>,
        /// The new version.
        after: Stored,
    },
    /// The objects of the namespace take too much memory, so the object was left out. Contains the previous version.
    LeftOut(Option<Stored>),
}

impl Snapshot {
    /// A snapshot in which the objects of one namespace may take [`MAX_BYTES`], for a cluster that many tenants share.
    pub fn limited() -> Self {
        Self { max_bytes: Some(MAX_BYTES), ..Self::default() }
    }

    /// Locks a shared snapshot for reading, also after a thread has panicked while it wrote.
    pub fn read(shared: &RwLock<Self>) -> RwLockReadGuard<'_, Self> {
        shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object. It replaces an object of the same kind, namespace and name.
    pub fn insert(&mut self, object: &Value) -> Insertion {
        self.put(object, Read::of(object))
    }

    /// As [`Self::insert`], for a snapshot that other threads read. The object is read before the snapshot is locked.
    pub fn insert_in(snapshot: &RwLock<Self>, object: &Value) -> Insertion {
        let read = Read::of(object);
        snapshot.write().unwrap_or_else(PoisonError::into_inner).put(object, read)
    }

    fn put(&mut self, object: &Value, read: Read) -> Insertion {
        let (api_version, kind) = (object::api_version(object), object::kind(object));
        let (namespace, name) = (object::namespace(object), object::name(object));
        if self.has(&read, (api_version, kind), namespace, name) {
            return Insertion::Same;
        }
        let before = self.remove(api_version, kind, namespace, name);
        let after = match read {
            Read::Namespaced(object) => {
                let after = match &object {
                    Object::Service(service) => {
                        self.add_addresses(service.key(), &Addresses::of(service));
                        Stored::Service(Arc::clone(service))
                    }
                    Object::Workload(workload) => Stored::Workload(workload.labels().clone()),
                    Object::Endpoints(endpoints) => Stored::Endpoints(Arc::clone(endpoints)),
                };
                let kind = self.number(api_version, kind);
                let of_namespace = self.namespaces.entry(namespace.into()).or_default();
                if !of_namespace.insert(kind, name, object, self.max_bytes.unwrap_or(usize::MAX)) {
                    self.revise(api_version, &self.kinds[kind].kind.clone(), namespace);
                    return Insertion::LeftOut(before);
                }
                after
            }
            Read::Namespace(meta) => {
                self.namespace_objects.insert(name.into(), meta);
                Stored::Other
            }
            Read::Node(node) => {
                self.blocks.add(&node);
                self.nodes.insert(name.into(), Arc::clone(&node));
                Stored::Node(node)
            }
            Read::RuntimeClass(nodes) => {
                self.runtime_classes.insert(name.into(), nodes);
                Stored::Other
            }
            Read::IpAddress(address) => {
                self.ip_addresses.extend(address);
                Stored::Other
            }
            Read::ServiceCidr(service_cidr) => {
                self.service_cidrs.insert(name.into(), service_cidr);
                Stored::Other
            }
        };
        self.revise(api_version, kind, namespace);
        Insertion::Changed { before, after }
    }

    /// Whether the snapshot has this version of an object already.
    fn has(&self, read: &Read, (api_version, kind): (&str, &str), namespace: &str, name: &str) -> bool {
        match read {
            Read::Namespaced(object) => {
                let Some(of_namespace) = self.namespaces.get(namespace) else { return false };
                match object {
                    Object::Service(service) => of_namespace.services().get(name) == Some(service),
                    Object::Endpoints(endpoints) => of_namespace.endpoints().get(name) == Some(endpoints),
                    Object::Workload(workload) => {
                        let number = self.known_number(api_version, kind);
                        let workloads = number.and_then(|kind| of_namespace.workloads(kind));
                        workloads.and_then(|workloads| workloads.get(name)) == Some(workload)
                    }
                }
            }
            Read::Namespace(meta) => self.namespace_objects.get(name) == Some(meta),
            Read::Node(node) => self.nodes.get(name) == Some(node),
            Read::RuntimeClass(nodes) => self.runtime_classes.get(name) == Some(nodes),
            Read::IpAddress(address) => address.is_none_or(|address| self.ip_addresses.contains(&address)),
            Read::ServiceCidr(service_cidr) => self.service_cidrs.get(name) == Some(service_cidr),
        }
    }

    /// Removes an object and returns it.
    pub fn remove(&mut self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Stored> {
        let role = Role::of(api_version, kind);
        let removed = match role {
            Role::Service | Role::EndpointSlice | Role::Workload(_) => {
                let number = self.number(api_version, kind);
                let of_namespace = self.namespaces.get_mut(namespace)?;
                match role {
                    Role::EndpointSlice => Stored::Endpoints(of_namespace.remove_endpoints(number, name)?),
                    Role::Workload(_) => Stored::Workload(of_namespace.remove_workload(number, name)?),
                    _ => {
                        let (bare, service) =
                            (of_namespace.remove_bare(name), of_namespace.remove_service(number, name));
                        let of_service = service.as_ref().map(|service| Addresses::of(service));
                        if let Some(addresses) = bare.or(of_service) {
                            self.forget_addresses(&ServiceKey::new(namespace, name), &addresses);
                        }
                        Stored::Service(service?)
                    }
                }
            }
            Role::Node => {
                let node = self.nodes.remove(name)?;
                self.blocks.forget(&node);
                Stored::Node(node)
            }
            Role::Namespace => self.namespace_objects.remove(name).map(|_| Stored::Other)?,
            Role::RuntimeClass => self.runtime_classes.remove(name).map(|_| Stored::Other)?,
            Role::IpAddress => {
                let address = name.parse().ok()?;
                self.ip_addresses.remove(&address).then_some(Stored::Other)?
            }
            Role::ServiceCidr => self.service_cidrs.remove(name).map(|_| Stored::Other)?,
        };
        self.revise(api_version, kind, namespace);
        Some(removed)
    }

    fn add_addresses(&mut self, service: &ServiceKey, addresses: &Addresses) {
        self.addresses.add(service, &addresses.cluster);
        if addresses.may_have_external {
            self.external.insert(service.clone(), addresses.external.clone());
        }
    }

    fn forget_addresses(&mut self, service: &ServiceKey, addresses: &Addresses) {
        self.addresses.forget(service, &addresses.cluster);
        self.external.remove(service);
    }

    fn known_number(&self, api_version: &str, kind: &str) -> Option<usize> {
        self.kinds.iter().position(|known| known.kind == kind && known.api_version == api_version)
    }

    fn number(&mut self, api_version: &str, kind: &str) -> usize {
        self.known_number(api_version, kind).unwrap_or_else(|| {
            self.kinds.push(Kind::new(api_version, kind));
            self.kinds.len() - 1
        })
    }

    /// A value that changes whenever an object changes that may decide which pool a Service of this namespace belongs
    /// to, other than the Service itself.
    pub fn revision(&self, namespace: &str) -> (u64, u64) {
        let of = |namespace: &str| self.namespaces.get(namespace).map(|of| of.revision).unwrap_or_default();
        (of(""), of(namespace))
    }

    fn revise(&mut self, api_version: &str, kind: &str, namespace: &str) {
        // Excluded are the Services themselves, and the kinds that only tell which addresses exist or are used. A kind
        // of the same name in another API, such as a Service of Knative, may be a workload.
        let decides_no_pool = matches!(
            (api_version, kind),
            ("v1", "Service")
                | ("discovery.k8s.io/v1", "EndpointSlice")
                | ("networking.k8s.io/v1", "IPAddress" | "ServiceCIDR")
                | ("coordination.k8s.io/v1", "Lease")
        );
        if !decides_no_pool {
            self.namespaces.entry(namespace.into()).or_default().revision += 1;
        }
    }

    /// Marks a kind as unknown to the cluster, so that look-ups of it fail.
    pub fn remove_api(&mut self, api_version: &str, kind: &str) {
        self.absent.insert(Kind::new(api_version, kind));
        self.revise(api_version, kind, "");
    }

    /// Marks a kind as known again.
    pub fn add_api(&mut self, api_version: &str, kind: &str) {
        if self.absent.remove(&Kind::new(api_version, kind)) {
            self.revise(api_version, kind, "");
        }
    }

    /// Whether the cluster has a kind, as far as is known.
    pub fn has_api(&self, api_version: &str, kind: &str) -> bool {
        self.absent.is_empty() || !self.absent.contains(&Kind::new(api_version, kind))
    }

    /// The Services of a namespace, or of all, ordered by namespace and name.
    pub fn each_service(&self, namespace: Option<&str>) -> impl Iterator<Item = &Arc<StoredService>> {
        let inside =
            self.namespaces.range::<str, _>((Bound::Included(namespace.unwrap_or_default()), Bound::Unbounded));
        let inside = inside.take_while(move |(other, _)| namespace.is_none_or(|namespace| ***other == *namespace));
        inside.flat_map(|(_, of_namespace)| of_namespace.services().values())
    }

    /// The keys of the Services of a namespace, or of all, in order.
    pub fn services(&self, namespace: Option<&str>) -> Vec<ServiceKey> {
        self.each_service(namespace).map(|service| service.key().clone()).collect()
    }

    /// The Service with this key; `None` if there is none.
    pub fn service(&self, key: &ServiceKey) -> Option<&Arc<StoredService>> {
        self.namespaces.get(key.namespace.as_str())?.services().get(key.name.as_str())
    }

    /// The Nodes in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<StoredNode>> {
        self.nodes.values()
    }

    /// The Node with this name; `None` if there is none.
    pub fn node(&self, name: &str) -> Option<&Arc<StoredNode>> {
        self.nodes.get(name)
    }

    /// The labels and annotations of a Namespace, or the mistake in them; `None` if the Namespace does not exist.
    pub fn namespace(&self, name: &str) -> Option<&Result<NamespaceMeta, TypeMismatch>> {
        self.namespace_objects.get(name)
    }

    /// The labels of a Node, or the mistake in them; `None` if the Node does not exist.
    pub(super) fn node_labels(&self, name: &str) -> Option<Result<&Labels, &TypeMismatch>> {
        self.nodes.get(name).map(|node| node.mistake.as_ref().map_or(Ok(&node.labels), Err))
    }

    /// The node selector of a RuntimeClass, or the mistake in it; `None` if the RuntimeClass does not exist.
    pub(super) fn runtime_class_nodes(&self, name: &str) -> Option<&Result<Labels, TypeMismatch>> {
        self.runtime_classes.get(name)
    }

    /// The ranges of the ServiceCIDRs.
    pub fn service_ranges(&self) -> ServiceRanges {
        ServiceRanges::of_service_cidrs(self.service_cidrs.values().cloned())
    }

    /// The namespaces and names of the objects of a kind, in order.
    pub fn names(&self, api_version: &str, kind: &str) -> Vec<(String, String)> {
        let cluster_wide = |names: &mut dyn Iterator<Item = &Box<str>>| {
            names.map(|name| (String::new(), name.to_string())).collect::<Vec<_>>()
        };
        match Role::of(api_version, kind) {
            Role::Namespace => cluster_wide(&mut self.namespace_objects.keys()),
            Role::Node => cluster_wide(&mut self.nodes.keys()),
            Role::RuntimeClass => cluster_wide(&mut self.runtime_classes.keys()),
            Role::ServiceCidr => cluster_wide(&mut self.service_cidrs.keys()),
            Role::IpAddress => self.ip_addresses.iter().map(|address| (String::new(), address.to_string())).collect(),
            role => {
                let number = self.known_number(api_version, kind);
                let in_namespace = |(namespace, of_namespace): (&str, &Namespace)| {
                    let named = |name: &str| (namespace.to_owned(), name.to_owned());
                    match role {
                        Role::Service => {
                            let whole = of_namespace.services().keys().map(|name| &**name);
                            whole.chain(of_namespace.bare()).map(named).collect::<Vec<_>>()
                        }
                        Role::EndpointSlice => of_namespace.endpoints().keys().map(|name| named(name)).collect(),
                        _ => {
                            let workloads = number.and_then(|kind| of_namespace.workloads(kind)).into_iter();
                            workloads.flat_map(|workloads| workloads.iter()).map(|(name, _)| named(name)).collect()
                        }
                    }
                };
                self.each_namespace().flat_map(in_namespace).collect()
            }
        }
    }

    fn each_namespace(&self) -> impl Iterator<Item = (&str, &Namespace)> {
        self.namespaces.iter().map(|(name, of_namespace)| (&**name, of_namespace))
    }

    /// The workloads of a kind in a namespace that a Service with this selector selects, as long as there are steps
    /// `left`; and whether there may be more.
    pub(super) fn selected(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        selector: &Labels,
        left: &Cell<usize>,
    ) -> Found {
        let number = self.known_number(&kind.api_version, &kind.kind);
        let of_namespace = number.and_then(|kind| Some((kind, self.namespaces.get(namespace)?)));
        let Some((number, of_namespace)) = of_namespace else { return Ok(Selected::default()) };
        let found = of_namespace.workloads(number).map(|workloads| workloads.selected(selector, left));
        let found = found.unwrap_or_else(|| Ok(Selected::default()))?;
        Ok(Selected { is_incomplete: of_namespace.leaves_out(number), ..found })
    }

    /// The endpoints of a Service.
    pub fn endpoints_of(&self, service: &ServiceKey) -> Vec<Arc<StoredEndpoints>> {
        let of_namespace = self.namespaces.get(service.namespace.as_str()).into_iter();
        of_namespace.flat_map(|of_namespace| of_namespace.endpoints_of(&service.name)).cloned().collect()
    }

    /// The names of the Services of a namespace that select Pods with these labels, in order.
    pub fn services_selecting(&self, namespace: &str, labels: &LabelHashes) -> BTreeSet<String> {
        let of_namespace = self.namespaces.get(namespace).into_iter();
        of_namespace.flat_map(|of_namespace| of_namespace.services_selecting(labels)).map(str::to_owned).collect()
    }

    /// The Services that select a Pod on this Node. All Pods are scanned.
    pub fn services_on_node(&self, node: &str) -> BTreeSet<ServiceKey> {
        let Some(pod) = self.known_number("v1", "Pod") else { return BTreeSet::new() };
        let of_namespace = |(name, of_namespace): (&str, &Namespace)| {
            let pods = of_namespace.workloads(pod).into_iter().flat_map(|pods| pods.iter());
            let on_node = pods.filter(|(_, pod)| pod.is_on(node));
            let services = on_node.flat_map(|(_, pod)| of_namespace.services_selecting(pod.labels()));
            services.map(|service| ServiceKey::new(name, service)).collect::<Vec<_>>()
        };
        self.each_namespace().flat_map(of_namespace).collect()
    }

    /// Whether an `IPAddress` object with this address exists, or a Service has the address.
    pub fn has_ip_address(&self, address: IpAddr) -> bool {
        self.addresses.has(address) || self.ip_addresses.contains(&address)
    }

    /// The addresses of the `IPAddress` objects.
    pub fn ip_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.ip_addresses
    }

    /// Every address that a Service has, in order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.addresses()
    }

    /// The Services that have this address, in order.
    pub fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.addresses.owners(address)
    }

    /// Calls `visit` with the namespace, name and address of each Service and each of its addresses, in any order.
    pub fn each_service_address(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) {
        self.addresses.each(visit);
    }

    /// The longer spans of addresses that Services other than `service` have.
    pub fn used_by_others(&self, service: &ServiceKey) -> Vec<Span> {
        let own = self.service(service).map(|service| service.addresses()).unwrap_or_default();
        self.addresses.used_by_others(service, own)
    }

    /// The external addresses that count as held, see [`in_use`](clusterip_core::external::stored::in_use), with their
    /// Services in the order of namespace and name. A Service may have none.
    pub fn external_addresses(&self) -> impl Iterator<Item = (&ServiceKey, &[IpAddr])> {
        self.external.iter().map(|(service, addresses)| (service, &**addresses))
    }

    /// The Services of [`Self::external_addresses`].
    pub fn external_services(&self) -> Vec<Arc<StoredService>> {
        self.external.keys().filter_map(|service| self.service(service)).cloned().collect()
    }

    /// Calls `visit` with the name of each Node and each of its pod CIDRs that overlaps one of `blocks`, in any order.
    pub fn each_overlapping_block(&self, blocks: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) {
        self.blocks.each_overlapping(blocks, &mut |block, nodes| nodes.iter().for_each(|node| visit(node, block)));
    }

    /// About how many bytes the objects of a namespace take.
    pub fn bytes(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, Namespace::bytes)
    }

    /// Whether a namespace that leaves out objects of this kind has room for some of them, so that the kind is to be
    /// listed again.
    pub fn has_room_for(&self, api_version: &str, kind: &str) -> bool {
        let number = self.known_number(api_version, kind);
        let Some((kind, max_bytes)) = number.zip(self.max_bytes) else { return false };
        self.namespaces.values().any(|of_namespace| of_namespace.has_room_for(kind, max_bytes))
    }

    /// Forgets the objects of a kind that were left out and are not in this complete list of namespaces and names.
    pub fn keep_left_out(&mut self, api_version: &str, kind: &str, listed: &BTreeSet<(String, String)>) {
        let Some(kind) = self.known_number(api_version, kind) else { return };
        for (namespace, of_namespace) in &mut self.namespaces {
            if of_namespace.leaves_out(kind) {
                let inside = listed.range((namespace.to_string(), String::new())..);
                let inside = inside.take_while(|(other, _)| **other == **namespace);
                let exists: HashSet<u64> = inside.map(|(_, name)| name_hash(name)).collect();
                of_namespace.keep_left_out(kind, &exists);
            }
        }
    }
}
