//! What a request asks of us.

use std::net::IpAddr;

use crate::request::{About, Change, Operation, Request};
use crate::service::Service;
use crate::settings::Settings;

/// What is to be done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Triage<'r> {
    /// Nothing, and why.
    Leave(String),
    /// The Service needs an address, and has none.
    Allocate(&'r Service),
    /// The Service has this address, and asks for one of the other family beside it.
    AllocateSecond(&'r Service, IpAddr),
    /// The Service keeps the address that it has.
    Keep(&'r Service),
    /// The author of the request set these addresses.
    Check(&'r Service, Vec<IpAddr>),
}

/// The first row that fits.
///
/// The rules of the API server behind it: an update may bring an address only to a Service that leaves
/// `type: ExternalName`, and a second one only to a Service with a single one; any other change of an
/// address is refused there. A `PUT` without `clusterIP` keeps the address that the Service has.
pub fn triage<'r>(request: &'r Request, settings: &Settings) -> Triage<'r> {
    let leave = |why: &str| Triage::Leave(why.to_owned());
    let About::Service(change) = &request.about else {
        return leave("not a Service that is created or updated");
    };
    let Change { object: service, old } = &**change;
    if settings.pools.is_empty() {
        return leave("no pool in the settings is for Services");
    }
    if request.namespace == "default" && request.name == "kubernetes" {
        return leave("default/kubernetes belongs to the API server");
    }
    if settings.exempt_namespaces.contains(&request.namespace) {
        return Triage::Leave(format!("namespace {} is exempt", request.namespace));
    }
    if service.is_headless() {
        return leave("headless");
    }
    if service.external_name {
        return leave("type ExternalName has no address");
    }
    let new = service.addresses();
    // What an ExternalName still carries is no address that it has.
    let had = old.as_ref().filter(|old| !old.external_name).map(Service::addresses).unwrap_or_default();
    // An empty `clusterIP` by server-side apply leaves the list as it was, and the API server fills the field in.
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
