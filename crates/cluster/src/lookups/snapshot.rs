//! The state of a cluster at one moment, and Kubewarden's answers about it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use clusterip_core::label_selector::{Labels, includes};
use clusterip_core::service_key::ServiceKey;
pub use clusterip_core::services::addresses;
use serde_json::Value;

mod address_index;
mod block_index;
mod calls;
mod external_index;
mod packed_objects;
mod small_set;

use self::address_index::AddressIndex;
use self::block_index::BlockIndex;
pub use self::calls::SnapshotCalls;
use self::external_index::ExternalIndex;
use self::small_set::SmallSet;
use crate::object::{self, Packed};

/// Objects by kind, namespace and name, with the indexes that look-ups need. The indexes are updated with each object,
/// so the cost of a look-up does not grow with the cluster.
#[derive(Default)]
pub struct Snapshot {
    kinds: BTreeMap<Kind, Objects>,
    addresses: AddressIndex,
    external: ExternalIndex,
    blocks: BlockIndex,
    absent: BTreeSet<Kind>,
    /// How often an object changed that may decide which pool a Service belongs to: by namespace, and under the empty
    /// name for objects without a namespace.
    revisions: HashMap<String, u64>,
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

#[derive(Default)]
struct Objects {
    by_name: BTreeMap<(String, String), Object>,
    /// By namespace, and then by a label: workloads by each label of their Pods, Services by the first label of their
    /// selector, EndpointSlices by the label that names their Service.
    by_label: HashMap<String, HashMap<(String, String), SmallSet<String>>>,
}

struct Object {
    whole: Packed,
}

impl Object {
    fn value(&self) -> Value {
        self.whole.value()
    }
}

/// The result of adding an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Shared {
    /// The same object was there already.
    Same,
    /// The object was added or changed; the value is the previous object, if there was one.
    Changed(Option<Value>),
}

impl Snapshot {
    /// Locks a shared snapshot for reading, also after a thread has panicked while it wrote.
    pub fn read(shared: &RwLock<Self>) -> RwLockReadGuard<'_, Self> {
        shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object. It replaces an object of the same kind, namespace and name.
    pub fn insert(&mut self, object: Value) {
        self.share(&object, Packed::new(&object));
    }

    /// As [`Self::insert`], for a packed object that has other users too.
    pub fn share(&mut self, object: &Value, whole: Packed) -> Shared {
        let present = self.present(object);
        if present == Some(&whole) {
            return Shared::Same;
        }
        let replaced = present.map(Packed::value);
        self.put(object, whole, replaced.as_ref());
        Shared::Changed(replaced)
    }

    /// As [`Self::share`], for a snapshot that other threads read. The replaced object is parsed before the snapshot is
    /// locked for writing, unless another thread changes that object meanwhile.
    pub fn share_in(snapshot: &RwLock<Self>, object: &Value, whole: Packed) -> Shared {
        let present = Self::read(snapshot).present(object).cloned();
        if present.as_ref() == Some(&whole) {
            return Shared::Same;
        }
        let replaced = present.as_ref().map(Packed::value);
        let mut snapshot = snapshot.write().unwrap_or_else(PoisonError::into_inner);
        if snapshot.present(object) != present.as_ref() {
            // Another thread has changed the object meanwhile.
            return snapshot.share(object, whole);
        }
        snapshot.put(object, whole, replaced.as_ref());
        Shared::Changed(replaced)
    }

    /// The object that this one would replace: it has the same kind, namespace and name.
    fn present(&self, object: &Value) -> Option<&Packed> {
        let (api_version, kind) = (object::api_version(object), object::kind(object));
        self.packed(api_version, kind, object::namespace(object), object::name(object))
    }

    /// Puts an object in the place of `replaced`, the one with the same kind, namespace and name.
    fn put(&mut self, object: &Value, whole: Packed, replaced: Option<&Value>) {
        let kind = Kind::new(object::api_version(object), object::kind(object));
        let id = (object::namespace(object).to_owned(), object::name(object).to_owned());
        let objects = self.kinds.entry(kind).or_default();
        objects.by_name.insert(id.clone(), Object { whole });
        if let Some(replaced) = replaced {
            objects.forget(&id, replaced);
        }
        for label in index_labels(object) {
            objects.by_label.entry(id.0.clone()).or_default().entry(label).or_default().insert(id.1.clone());
        }
        if let Some(replaced) = replaced {
            self.forget(replaced);
        }
        if object::is_service(object) {
            self.addresses.add(object);
            self.external.add(object);
        } else if object::is_node(object) {
            self.blocks.add(object);
        }
        self.revise(object::api_version(object), object::kind(object), &id.0);
    }

    /// Removes an object and returns it.
    pub fn remove(&mut self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let objects = self.kinds.get_mut(&Kind::new(api_version, kind))?;
        let id = (namespace.to_owned(), name.to_owned());
        let removed = objects.by_name.remove(&id)?.value();
        objects.forget(&id, &removed);
        self.forget(&removed);
        self.revise(api_version, kind, namespace);
        Some(removed)
    }

    /// Removes a replaced or deleted object from the indexes of addresses and blocks.
    fn forget(&mut self, object: &Value) {
        if object::is_service(object) {
            self.addresses.forget(object);
            self.external.forget(object);
        } else if object::is_node(object) {
            self.blocks.forget(object);
        }
    }

    /// A value that changes whenever an object changes that may decide which pool a Service of this namespace belongs
    /// to, other than the Service itself.
    pub fn revision(&self, namespace: &str) -> (u64, u64) {
        let of = |namespace: &str| self.revisions.get(namespace).copied().unwrap_or_default();
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
            *self.revisions.entry(namespace.to_owned()).or_default() += 1;
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

    /// The object with this kind, namespace and name.
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.packed(api_version, kind, namespace, name).map(Packed::value)
    }

    /// As [`Self::get`], without parsing the object.
    pub fn packed(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<&Packed> {
        let objects = self.kinds.get(&Kind::new(api_version, kind))?;
        objects.by_name.get(&(namespace.to_owned(), name.to_owned())).map(|object| &object.whole)
    }

    /// All objects of a kind, ordered by namespace and name.
    pub fn all(&self, api_version: &str, kind: &str) -> impl Iterator<Item = Value> {
        let objects = self.kinds.get(&Kind::new(api_version, kind));
        objects.into_iter().flat_map(|objects| objects.by_name.values().map(Object::value))
    }

    /// The Services of a namespace, or of all, in order.
    pub fn services(&self, namespace: Option<&str>) -> Vec<ServiceKey> {
        self.names("v1", "Service", namespace).into_iter().map(ServiceKey::from).collect()
    }

    /// The namespaces and names of the objects of a kind, in order, in all namespaces or in one.
    pub fn names(&self, api_version: &str, kind: &str, namespace: Option<&str>) -> Vec<(String, String)> {
        let Some(objects) = self.kinds.get(&Kind::new(api_version, kind)) else { return Vec::new() };
        objects.of_namespace(namespace).map(|(id, _)| id.clone()).collect()
    }

    /// The objects of a kind and namespace that are indexed by this label, ordered by name: EndpointSlices by the label
    /// that names their Service, workloads by each label of their Pods.
    pub fn labelled(&self, api_version: &str, kind: &str, namespace: &str, label: &(String, String)) -> Vec<Value> {
        let Some(objects) = self.kinds.get(&Kind::new(api_version, kind)) else { return Vec::new() };
        let names = objects.by_label.get(namespace).and_then(|index| index.get(label)).into_iter();
        let names = names.flat_map(SmallSet::iter);
        let object = |name: &String| objects.by_name.get(&(namespace.to_owned(), name.clone()));
        names.filter_map(object).map(Object::value).collect()
    }

    /// The names of the Services of a namespace that select Pods with these labels, in order.
    pub fn services_selecting(&self, namespace: &str, labels: &Labels) -> BTreeSet<String> {
        let Some(services) = self.kinds.get(&Kind::new("v1", "Service")) else { return BTreeSet::new() };
        let Some(index) = services.by_label.get(namespace) else { return BTreeSet::new() };
        let sets = labels.iter().filter_map(|(key, value)| index.get(&(key.clone(), value.clone())));
        let found = sets.flat_map(SmallSet::iter);
        let selects = |name: &&String| {
            let service = services.by_name.get(&(namespace.to_owned(), (*name).clone()));
            service.is_some_and(|service| includes(labels, &map(&service.value(), &["spec", "selector"])))
        };
        found.filter(selects).cloned().collect()
    }

    /// Whether an `IPAddress` object with this address exists, or a Service has the address.
    pub fn has_ip_address(&self, address: IpAddr) -> bool {
        let name = address.to_string();
        self.addresses.owners(address).is_some()
            || self.packed("networking.k8s.io/v1", "IPAddress", "", &name).is_some()
    }

    /// Every address that a Service has.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.addresses()
    }

    /// The Services that have this address.
    pub fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        self.addresses.owners(address).into_iter().flat_map(SmallSet::iter)
    }
}

impl Objects {
    /// The objects of a namespace whose Pods have the rarest of these labels, as many as have `left` bytes together, and
    /// whether there are more.
    fn with_rarest_label<'s>(
        &'s self,
        namespace: &str,
        selected: &Labels,
        left: &Cell<usize>,
    ) -> (Vec<&'s Object>, bool) {
        let none = SmallSet::default();
        let index = self.by_label.get(namespace);
        let names = |(key, value): (&String, &String)| {
            index.and_then(|index| index.get(&(key.clone(), value.clone()))).unwrap_or(&none)
        };
        let Some(fewest) = selected.iter().map(names).min_by_key(|names| names.len()) else {
            return (Vec::new(), false);
        };
        let object = |name: &String| self.by_name.get(&(namespace.to_owned(), name.clone()));
        let mut is_cut = false;
        let within = |object: &&Object| {
            let rest = left.get().checked_sub(object.whole.size());
            left.set(rest.unwrap_or_default());
            is_cut = rest.is_none();
            !is_cut
        };
        let found = fewest.iter().filter_map(object).take_while(within).collect();
        (found, is_cut)
    }

    fn of_namespace<'s>(
        &'s self,
        namespace: Option<&'s str>,
    ) -> impl Iterator<Item = (&'s (String, String), &'s Object)> {
        let from = (namespace.unwrap_or_default().to_owned(), String::new());
        let objects = self.by_name.range(from..);
        objects.take_while(move |((other, _), _)| namespace.is_none_or(|namespace| other == namespace))
    }

    /// Removes a replaced or deleted object from the index.
    fn forget(&mut self, id: &(String, String), object: &Value) {
        let Some(index) = self.by_label.get_mut(&id.0) else { return };
        for label in index_labels(object) {
            if let hash_map::Entry::Occupied(mut names) = index.entry(label) {
                names.get_mut().remove(&id.1);
                if names.get().is_empty() {
                    names.remove();
                }
            }
        }
        if index.is_empty() {
            self.by_label.remove(&id.0);
        }
    }
}

/// The label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The labels that an object is indexed by.
fn index_labels(object: &Value) -> Labels {
    if object::kind(object) == "EndpointSlice" {
        let labels = map(object, &["metadata", "labels"]);
        return labels.into_iter().filter(|(key, _)| key == SERVICE_NAME_LABEL).collect();
    }
    if object::is_service(object) {
        // A selected Pod has all labels of the selector, so one of them is enough to find the Service.
        return map(object, &["spec", "selector"]).into_iter().take(1).collect();
    }
    pod_labels(object)
}

/// The labels of a workload's Pods, or of a Pod itself.
pub fn pod_labels(object: &Value) -> Labels {
    match object::kind(object) {
        "Pod" => map(object, &["metadata", "labels"]),
        "CronJob" => map(object, &["spec", "jobTemplate", "spec", "template", "metadata", "labels"]),
        _ => map(object, &["spec", "template", "metadata", "labels"]),
    }
}

/// The entries with string values of a map at a path of fields.
pub fn map(object: &Value, path: &[&str]) -> Labels {
    let found = path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_object);
    let strings = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    found.into_iter().flatten().filter_map(strings).collect()
}
