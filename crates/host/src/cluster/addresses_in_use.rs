//! Reads which external addresses a Service has or claims.

use std::net::IpAddr;

use clusterip_core::annotations::{RECORD_ANNOTATION, recorded_addresses};
use clusterip_core::external::claim::claims;
use clusterip_core::service::Service;
use serde_json::Value;

use crate::cluster::object::text;
use crate::external::service_fields::shown;

/// The addresses that a Service has recorded or claims, sorted and without duplicates. A Service that can't be read
/// claims none.
pub fn claimed(service: &Value) -> Vec<IpAddr> {
    let mut found = recorded_addresses(text(service, &["metadata", "annotations", RECORD_ANNOTATION]));
    if let Ok(service) = Service::read(service, "object") {
        found.extend(claims(&service).into_iter().map(|(_, address)| address));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The addresses of [`claimed`] and those that the status of the Service contains.
pub fn in_use(service: &Value) -> Vec<IpAddr> {
    let mut found = claimed(service);
    found.extend(shown(service));
    found.sort_unstable();
    found.dedup();
    found
}
