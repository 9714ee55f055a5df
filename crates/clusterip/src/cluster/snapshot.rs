//! A cluster as it was at one moment, and Kubewarden's answers about it.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use clusterip_core::label_selector::{Labels, includes};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::masked::{Mask, Masked};
use super::object::{self, Packed};
use super::selectors;
use crate::policy::host_calls::{HostCall, HostCalls};

/// Objects by kind, namespace and name.
#[derive(Default)]
pub struct Snapshot {
    kinds: BTreeMap<Kind, Objects>,
    /// Whose each address is: namespace and name of the Service, or of several that claim it.
    addresses: HashMap<IpAddr, BTreeSet<(String, String)>>,
    absent: BTreeSet<Kind>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    api_version: String,
    kind: String,
}

#[derive(Default)]
struct Objects {
    by_name: BTreeMap<(String, String), Object>,
    /// The field masks of the first list of the whole cluster: the items are kept as it shows them.
    listed_with: OnceLock<Option<BTreeSet<String>>>,
    /// Made when first needed; none any more after a change.
    by_pod_label: OnceLock<PodLabels>,
}

struct Object {
    whole: Packed,
    /// As a list of the whole cluster shows it.
    listed: OnceLock<Box<RawValue>>,
}

impl Object {
    fn value(&self) -> Value {
        self.whole.value()
    }
}

/// By namespace, and then by a label of the Pods: the names of the objects.
type PodLabels = HashMap<String, HashMap<(String, String), Vec<String>>>;

impl Snapshot {
    /// Adds an object, in place of one of the same kind, namespace and name.
    pub fn insert(&mut self, object: Value) {
        self.add(&object, Packed::new(&object));
    }

    /// As [`Self::insert`]: an object that others keep too.
    pub fn share(&mut self, packed: &Packed) {
        self.add(&packed.value(), packed.clone());
    }

    fn add(&mut self, object: &Value, whole: Packed) {
        let kind = Kind { api_version: object::api_version(object).to_owned(), kind: object::kind(object).to_owned() };
        let id = (object::namespace(object).to_owned(), object::name(object).to_owned());
        let is_service = object::is_service(object);
        let objects = self.kinds.entry(kind).or_default();
        objects.by_pod_label = OnceLock::new();
        if is_service {
            for address in addresses(object) {
                self.addresses.entry(address).or_default().insert(id.clone());
            }
        }
        let replaced = objects.by_name.insert(id.clone(), Object { whole, listed: OnceLock::new() });
        if let Some(replaced) = replaced.filter(|_| is_service) {
            let kept = addresses(object);
            for address in addresses(&replaced.value()).into_iter().filter(|address| !kept.contains(address)) {
                if let Entry::Occupied(mut owners) = self.addresses.entry(address) {
                    owners.get_mut().remove(&id);
                    if owners.get().is_empty() {
                        owners.remove();
                    }
                }
            }
        }
    }

    /// Makes a kind unknown to the cluster, as before it was invented.
    pub fn remove_api(&mut self, api_version: &str, kind: &str) {
        self.absent.insert(Kind { api_version: api_version.to_owned(), kind: kind.to_owned() });
    }

    /// The object of this kind, namespace and name.
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = Kind { api_version: api_version.to_owned(), kind: kind.to_owned() };
        self.kinds.get(&kind)?.by_name.get(&(namespace.to_owned(), name.to_owned())).map(Object::value)
    }

    /// All objects of a kind, by namespace and name.
    pub fn all(&self, api_version: &str, kind: &str) -> impl Iterator<Item = Value> {
        let kind = Kind { api_version: api_version.to_owned(), kind: kind.to_owned() };
        self.kinds.get(&kind).into_iter().flat_map(|objects| objects.by_name.values().map(Object::value))
    }

    /// Every address that a Service has.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    fn answer(&self, call: &HostCall, selected: Option<&Labels>) -> Result<Vec<u8>, String> {
        match call {
            HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks } => {
                let query = Query { api_version, kind, label_selector, field_selector, field_masks };
                self.list(&query, None, selected)
            }
            HostCall::ListNamespace { api_version, kind, namespace, label_selector, field_selector, field_masks } => {
                self.check_api(api_version, kind)?;
                if !object::is_namespaced(kind) {
                    return Err(format!(
                        "resource {api_version}/{kind} is cluster wide. Cannot search for it inside of a namespace"
                    ));
                }
                let query = Query { api_version, kind, label_selector, field_selector, field_masks };
                self.list(&query, Some(namespace), selected)
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
                    None => {
                        let namespace = namespace.as_deref();
                        Err(format!(
                            "Cannot find {api_version}/{kind} named '{name}' inside of namespace '{namespace:?}'"
                        ))
                    }
                }
            }
        }
    }

    /// The API server keeps an `IPAddress` for each address of a Service; manifests have none.
    fn ip_address(&self, api_version: &str, name: &str) -> Option<Value> {
        let address: IpAddr = name.parse().ok()?;
        let owners = self.addresses.get(&address).filter(|_| address.to_string() == name)?;
        let (namespace, service) = owners.first()?;
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

    fn list(&self, query: &Query<'_>, namespace: Option<&str>, selected: Option<&Labels>) -> Result<Vec<u8>, String> {
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
            for object in objects.of(namespace, selected) {
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
        json(&List { query, items })
    }
}

impl Objects {
    /// The objects, all or of one namespace; where `selected` are the labels that a Service selects,
    /// those with other Pods may be left out.
    fn of<'s>(&'s self, namespace: Option<&'s str>, selected: Option<&Labels>) -> Vec<&'s Object> {
        let Some(namespace) = namespace else { return self.by_name.values().collect() };
        if let Some(selected) = selected.filter(|selected| !selected.is_empty()) {
            let index = self.by_pod_label.get_or_init(|| self.index());
            let names = |(key, value): (&String, &String)| {
                index
                    .get(namespace)
                    .and_then(|index| index.get(&(key.clone(), value.clone())))
                    .map(Vec::as_slice)
                    .unwrap_or_default()
            };
            let fewest = selected.iter().map(names).min_by_key(|names| names.len()).unwrap_or_default();
            let object = |name: &String| self.by_name.get(&(namespace.to_owned(), name.clone()));
            let selects = |object: &&Object| includes(&pod_labels(&object.value()), selected);
            return fewest.iter().filter_map(object).filter(selects).collect();
        }
        let from = (namespace.to_owned(), String::new());
        self.by_name.range(from..).take_while(|((other, _), _)| other == namespace).map(|(_, object)| object).collect()
    }

    fn index(&self) -> PodLabels {
        let mut index = PodLabels::new();
        for ((namespace, name), object) in &self.by_name {
            let labels = index.entry(namespace.clone()).or_default();
            for (key, value) in pod_labels(&object.value()) {
                labels.entry((key, value)).or_default().push(name.clone());
            }
        }
        index
    }
}

/// The labels of an object's Pods.
fn pod_labels(object: &Value) -> Labels {
    match object::kind(object) {
        "Pod" => map(object, &["metadata", "labels"]),
        "CronJob" => map(object, &["spec", "jobTemplate", "spec", "template", "metadata", "labels"]),
        _ => map(object, &["spec", "template", "metadata", "labels"]),
    }
}

fn map(object: &Value, path: &[&str]) -> Labels {
    let found = path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_object);
    let strings = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    found.into_iter().flatten().filter_map(strings).collect()
}

/// The addresses of a Service object.
pub fn addresses(service: &Value) -> Vec<IpAddr> {
    let spec = service.get("spec");
    let primary = spec.and_then(|spec| spec.get("clusterIP")).into_iter();
    let all = spec.and_then(|spec| spec.get("clusterIPs")).and_then(Value::as_array).into_iter().flatten();
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in primary.chain(all).filter_map(|address| address.as_str()?.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
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
    selected: Option<Labels>,
}

impl SnapshotCalls {
    /// Answers just as Kubewarden does.
    pub fn new(snapshot: Arc<RwLock<Snapshot>>) -> Self {
        Self { snapshot, selected: None }
    }

    /// Answers for one Service, whose selector this is: workloads of a namespace whose Pods it does not
    /// select are left out. The policy would pass over them, so its answer is the same; but its price
    /// does not grow with the namespace.
    #[must_use]
    pub fn for_selector(self, selector: Labels) -> Self {
        Self { selected: Some(selector), ..self }
    }
}

impl HostCalls for SnapshotCalls {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).answer(call, self.selected.as_ref())
    }
}
