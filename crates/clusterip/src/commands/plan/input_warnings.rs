//! The warnings of `clusterip plan` about its input.

use std::net::IpAddr;

use clusterip_cluster::kinds::{self, Kind};
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::object;
use clusterip_cluster::snapshot::{ReadObject, addresses};
use serde_json::Value;

use crate::commands::terminal::warn;
use crate::planner::{PlannedObject, misspellings};

pub(super) fn print(settings: &LiveSettings, there: &[Value], manifests: &[Manifest<PlannedObject>]) {
    warn_of_dns_address(settings, there, manifests);
    let asked: Vec<Kind> = kinds::asked(&settings.settings).collect();
    let mut misspelled: Vec<String> = Vec::new();
    for Manifest { object, origin } in manifests {
        if let Some(served) = served_instead(&object.read.kind) {
            let unused = format!("{origin}: {} is not used as evidence", object.shown());
            warn(&format!("{unused}: Kubernetes no longer serves {}, but {served}", object.read.kind.0));
        }
        if asked.contains(&object.read.kind) {
            misspelled.extend(object.misspelled.iter().map(|field| format!("{origin}: {}: {field}", object.shown())));
        } else if let Some(kind) = misspellings::of_kind(&asked, &object.read) {
            misspelled.push(format!("{origin}: {kind}"));
        }
    }
    misspelled.iter().take(MOST_MISSPELLED).for_each(|text| warn(text));
    if let more @ 1.. = misspelled.len().saturating_sub(MOST_MISSPELLED) {
        warn(&format!("{more} more names may be misspelled"));
    }
}

const MOST_MISSPELLED: usize = 20;

/// Warns if a pool may assign the usual address of the cluster's DNS, unless an object has that address.
fn warn_of_dns_address(settings: &LiveSettings, there: &[Value], manifests: &[Manifest<PlannedObject>]) {
    let is_used = |address: IpAddr| {
        let has = |object: &Value| match object::kind(object) {
            "IPAddress" => object::name(object).parse() == Ok(address),
            "Service" => object::is_service(object) && addresses(object).contains(&address),
            _ => false,
        };
        let of_manifests = |read: &ReadObject| match read.service() {
            Some(service) => service.addresses().contains(&address),
            None => read.kind.1 == "IPAddress" && read.name.parse() == Ok(address),
        };
        there.iter().any(has) || manifests.iter().any(|manifest| of_manifests(&manifest.object.read))
    };
    if let Some(dns) = settings.settings.unused_dns_address(is_used) {
        warn(&settings.warning((&dns).into()).to_string());
    }
}

/// The API version in which Kubernetes serves this kind; `None` unless `api_version` is one in which Kubernetes no longer
/// serves it. An object of such a version can't be created, so it is no evidence.
fn served_instead((api_version, kind): &Kind) -> Option<&'static str> {
    Some(match (api_version.as_str(), kind.as_str()) {
        ("extensions/v1beta1", "Deployment" | "DaemonSet" | "ReplicaSet")
        | ("apps/v1beta1", "Deployment" | "StatefulSet")
        | ("apps/v1beta2", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => "apps/v1",
        ("batch/v1beta1" | "batch/v2alpha1", "CronJob") => "batch/v1",
        _ => return None,
    })
}
