//! The rules of the API server for the ClusterIP of a Service, and for its name, namespace and type. A plan must not
//! promise an address with which the API server would refuse the Service, even if the policy allows it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_cluster::manifests::Origin;
use clusterip_cluster::object;
use clusterip_cluster::snapshot::addresses;
use clusterip_core::address::parse_address;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Settings, is_dns_label};
use ipnet::IpNet;
use serde_json::Value;

use crate::text::joined;

const TYPES: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
/// The Namespaces that the API server creates if they don't exist.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];
pub const ADDRESS_FIELDS: [&str; 2] = ["clusterIP", "clusterIPs"];

/// The addresses that can't be given to another Service, and the Namespaces that exist.
#[derive(Default)]
pub struct ApiServerRules {
    taken: BTreeMap<IpAddr, TakenBy>,
    namespaces: BTreeSet<String>,
    /// Whether the objects of the cluster include Namespaces. Otherwise it is unknown which ones exist.
    knows_namespaces: bool,
}

/// What has taken an address. A large plan has many addresses, so the text about each is made only when a message needs
/// it.
enum TakenBy {
    /// A Service, with the origin of its manifest if it is planned; `None` if it is in the cluster.
    Service(Arc<ServiceKey>, Option<Origin>),
    /// An `IPAddress` of the cluster, with the Service that it names.
    IpAddress(Option<ServiceKey>),
}

impl TakenBy {
    fn service(&self) -> Option<&ServiceKey> {
        match self {
            Self::Service(service, _) => Some(service),
            Self::IpAddress(service) => service.as_ref(),
        }
    }

    fn in_words(&self, address: IpAddr) -> String {
        match self {
            Self::Service(service, Some(origin)) => format!("Service {service} ({origin})"),
            Self::Service(service, None) => format!("Service {service} in the cluster"),
            Self::IpAddress(_) => format!("IPAddress {address} in the cluster"),
        }
    }
}

impl ApiServerRules {
    pub fn add_existing(&mut self, object: &Value) {
        let namespace = object::namespace(object);
        if !namespace.is_empty() && !self.namespaces.contains(namespace) {
            self.namespaces.insert(namespace.to_owned());
        }
        if is_namespace(object::api_version(object), object::kind(object)) {
            self.knows_namespaces = true;
            self.add_namespace(object::name(object));
        }
        match (object::api_version(object), object::kind(object)) {
            ("v1", "Service") => {
                let owner = Arc::new(ServiceKey::of(object));
                for address in addresses(object) {
                    self.taken.insert(address, TakenBy::Service(Arc::clone(&owner), None));
                }
            }
            ("networking.k8s.io/v1", "IPAddress") => {
                let Ok(address) = object::name(object).parse() else { return };
                let parent = |key: &str| object::text(object, &["spec", "parentRef", key]).to_owned();
                let is_service = parent("resource") == "services";
                let owner = is_service.then(|| ServiceKey::new(parent("namespace"), parent("name")));
                self.taken.entry(address).or_insert(TakenBy::IpAddress(owner));
            }
            _ => {}
        }
    }

    pub fn add_namespace(&mut self, name: &str) {
        self.namespaces.insert(name.to_owned());
    }

    /// Adds the addresses of a planned Service.
    pub fn add_planned(&mut self, owner: &Arc<ServiceKey>, service: &Value, origin: &Origin) {
        for address in addresses(service) {
            let taken_by = || TakenBy::Service(Arc::clone(owner), Some(origin.clone()));
            self.taken.entry(address).or_insert_with(taken_by);
        }
    }

    /// Why the API server would refuse this Service, or its update from `old`; `None` if no rule is known to refuse it.
    pub fn refusal(
        &self,
        settings: &Settings,
        owner: &ServiceKey,
        service: &Value,
        old: Option<&Value>,
    ) -> Option<String> {
        let mut reasons: Vec<String> = self.missing_namespace(service).into_iter().collect();
        reasons.extend(invalid_names(service).chain(invalid_type(service)));
        if !is_external_name(service) {
            reasons.extend(invalid(service));
            let old = old.filter(|old| !is_external_name(old));
            if reasons.is_empty() {
                reasons.extend(old.into_iter().flat_map(|old| changed(old, service)));
            }
            if reasons.is_empty() {
                let had = old.map(addresses).unwrap_or_default();
                let new = addresses(service).into_iter().filter(|address| !had.contains(address));
                reasons.extend(new.filter_map(|address| self.unavailable(settings, owner, address)));
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn missing_namespace(&self, service: &Value) -> Option<String> {
        let namespace = object::namespace(service);
        let exists = SYSTEM_NAMESPACES.contains(&namespace) || self.namespaces.contains(namespace);
        (self.knows_namespaces && !exists).then(|| format!("namespaces \"{namespace}\" not found"))
    }

    fn unavailable(&self, settings: &Settings, owner: &ServiceKey, address: IpAddr) -> Option<String> {
        let ranges = &settings.service_cidrs;
        if !ranges.is_empty() && !ranges.iter().any(|range| allocates(range, address)) {
            return Some(format!("{address} can't be allocated from the Service ranges ({})", joined(ranges, ", ")));
        }
        if let Some(range) = settings.unusable_range_of(address) {
            return Some(format!("{address}: {}", range.why));
        }
        match self.taken.get(&address) {
            Some(taken_by) if taken_by.service() != Some(owner) => {
                Some(format!("{address} is already used by {}", taken_by.in_words(address)))
            }
            _ => None,
        }
    }
}

/// Every address of a range except the network address and, for IPv4, the broadcast address.
fn allocates(range: &IpNet, address: IpAddr) -> bool {
    let is_broadcast = address.is_ipv4() && address == range.broadcast();
    range.contains(&address) && address != range.network() && !is_broadcast
}

pub fn is_namespace(api_version: &str, kind: &str) -> bool {
    (api_version, kind) == ("v1", "Namespace")
}

/// The errors for a name and a namespace that are not DNS labels. A name that is yet to be generated is not checked.
fn invalid_names(service: &Value) -> impl Iterator<Item = String> {
    let names = [("name", object::name(service)), ("namespace", object::namespace(service))];
    let invalid = names.into_iter().filter(|(_, name)| !name.is_empty() && !is_dns_label(name));
    invalid.map(|(field, name)| format!("metadata.{field}: {name:?} is not a DNS label"))
}

fn invalid_type(service: &Value) -> Option<String> {
    let kind = service.get("spec")?.get("type").filter(|kind| !kind.is_null() && **kind != "")?;
    let is_known = TYPES.iter().any(|known| kind == known);
    (!is_known).then(|| format!("spec.type: {kind} is not one of {}", TYPES.join(", ")))
}

/// Warnings about unknown fields that differ from those for addresses only by case.
pub fn misspelled_fields(service: &Value) -> impl Iterator<Item = String> {
    let fields = service.get("spec").and_then(Value::as_object).into_iter().flat_map(|spec| spec.keys());
    fields.filter_map(|field| {
        let meant = ADDRESS_FIELDS.into_iter().find(|known| known.eq_ignore_ascii_case(field))?;
        (field != meant).then(|| format!("unknown field spec.{field}: did you mean {meant}?"))
    })
}

fn is_external_name(service: &Value) -> bool {
    object::text(service, &["spec", "type"]) == "ExternalName"
}

fn invalid(service: &Value) -> Vec<String> {
    let Some(spec) = service.get("spec") else { return Vec::new() };
    let primary = spec.get("clusterIP").filter(|value| !value.is_null() && **value != "");
    let primary = primary.map(|value| ("spec.clusterIP".to_owned(), value));
    let all = spec.get("clusterIPs").and_then(Value::as_array).into_iter().flatten().enumerate();
    let all = all.map(|(index, value)| (format!("spec.clusterIPs[{index}]"), value));
    let is_valid = |value: &Value| value.as_str().is_some_and(|text| text == "None" || parse_address(text).is_some());
    let wrong = primary.into_iter().chain(all).filter(|(_, value)| !is_valid(value));
    wrong.map(|(path, value)| format!("{path}: {value} is not an IP address")).collect()
}

/// The addresses that an update would change. The API server lets a Service keep its addresses for life.
fn changed(old: &Value, new: &Value) -> Vec<String> {
    let address = |service: &Value, index: usize| {
        let listed = service.pointer(&format!("/spec/clusterIPs/{index}")).and_then(Value::as_str);
        let primary = service.pointer("/spec/clusterIP").and_then(Value::as_str);
        primary.filter(|text| index == 0 && !text.is_empty()).or(listed).map(str::to_owned)
    };
    let mut reasons = Vec::new();
    for (index, path) in ["spec.clusterIP", "spec.clusterIPs[1]"].into_iter().enumerate() {
        if let (Some(before), Some(after)) = (address(old, index), address(new, index))
            && before != after
            && (parse_address(&before).is_none() || parse_address(&before) != parse_address(&after))
        {
            reasons
                .push(format!("{path} can't change from {before} to {after}: delete the Service, and create it again"));
        }
    }
    reasons
}

#[cfg(test)]
mod tests;
