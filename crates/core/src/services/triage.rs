//! Determines what a request needs.

use std::net::IpAddr;

use super::object::Service;
use crate::request::{About, Change, Operation, Request};
use crate::settings::Settings;

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Triage<'r> {
    /// Nothing, for this reason.
    Leave(String),
    /// The Service has no address and needs one.
    Allocate(&'r Service),
    /// The Service has this address, and requests a second one of the other family.
    AllocateSecond(&'r Service, IpAddr),
    /// The Service keeps its addresses.
    Keep(&'r Service),
    /// The author of the request set these addresses.
    Check(&'r Service, Vec<IpAddr>),
}

impl Settings {
    /// Why the ClusterIP of the Service with this namespace and name is left alone, whatever the Service contains;
    /// `None` if the settings apply to it.
    pub fn exemption(&self, namespace: &str, name: &str) -> Option<String> {
        if namespace == "default" && name == "kubernetes" {
            return Some("default/kubernetes belongs to the API server".to_owned());
        }
        let is_exempt = self.exempt_namespaces.iter().any(|exempt| exempt == namespace);
        is_exempt.then(|| format!("namespace {namespace} is exempt"))
    }
}

/// Returns the first case that applies.
///
/// The cases follow the rules of the API server: an update can set an address only if the Service leaves `type:
/// ExternalName`, and a second address only if the Service has exactly one. The API server refuses any other change of
/// an address. A `PUT` without `clusterIP` keeps the Service's address.
pub fn triage<'r>(request: &'r Request, settings: &Settings) -> Triage<'r> {
    let leave = |why: &str| Triage::Leave(why.to_owned());
    let About::Service(change) = &request.about else {
        return leave("not a Service that is created or updated");
    };
    let Change { object: service, old } = &**change;
    if settings.pools.is_empty() {
        return leave("the settings have no pool for Services");
    }
    if let Some(reason) = settings.exemption(&request.namespace, &request.name) {
        return Triage::Leave(reason);
    }
    if service.is_headless() {
        return leave("headless");
    }
    if service.external_name {
        return leave("type ExternalName has no address");
    }
    let new = service.addresses();
    // An ExternalName Service has no address, even if the object still contains one.
    let had = old.as_ref().filter(|old| !old.external_name).map(Service::addresses).unwrap_or_default();
    // Server-side apply with an empty `clusterIP` keeps the list, and the API server then fills in the field.
    let keeps = !new.is_empty() && new.iter().all(|address| had.contains(address));
    if service.cluster_ip.is_none() && !service.cluster_ips.is_empty() && !keeps {
        return leave("clusterIPs without clusterIP: the API server refuses it");
    }
    match (request.operation, old) {
        (Operation::Create, _) if service.cluster_ip.is_none() => Triage::Allocate(service),
        (Operation::Create, _) => Triage::Check(service, new),
        (Operation::Update, Some(old)) => {
            if old.external_name && service.cluster_ip.is_none() {
                return Triage::Allocate(service);
            }
            if let [address] = new[..]
                && had == [address]
                && service.asks_for_more_than(old)
            {
                return Triage::AllocateSecond(service, address);
            }
            let added: Vec<IpAddr> = new.into_iter().filter(|address| !had.contains(address)).collect();
            if added.is_empty() { Triage::Keep(service) } else { Triage::Check(service, added) }
        }
        _ => leave("not a Service that is created or updated"),
    }
}
