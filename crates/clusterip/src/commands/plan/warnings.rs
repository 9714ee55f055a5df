//! The warnings of `clusterip plan` about its input.

use std::net::IpAddr;

use clusterip_host::cluster::lookups::snapshot::addresses;
use clusterip_host::cluster::manifests::Manifest;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::object;
use serde_json::Value;

use crate::commands::terminal_options::warn;

/// Prints the warnings about the settings and the manifests. `there` are the objects of the cluster.
pub(super) fn print(settings: &LiveSettings, there: &[Value], manifests: &[Manifest]) {
    warn_of_dns_address(settings, there, manifests);
    for manifest in manifests {
        warn_of_retired_api(manifest);
        warn_of_misspelled_service(manifest);
    }
}

/// Warns if a pool may assign the address that many installers give to the cluster's DNS, unless an object in the
/// cluster or in the manifests has that address.
fn warn_of_dns_address(settings: &LiveSettings, there: &[Value], manifests: &[Manifest]) {
    let is_used = |address: IpAddr| {
        let has = |object: &Value| match object::kind(object) {
            "IPAddress" => object::name(object).parse() == Ok(address),
            "Service" => addresses(object).contains(&address),
            _ => false,
        };
        let may_have = |manifest: &&Manifest| match manifest.kind.as_str() {
            "IPAddress" => true,
            "Service" => ["clusterIP", "clusterIPs"].iter().any(|field| manifest.object.may_have(field)),
            _ => false,
        };
        there.iter().any(has) || manifests.iter().filter(may_have).any(|manifest| has(&manifest.object.value()))
    };
    if let Some(dns) = settings.settings.unused_dns_address(is_used) {
        warn(&settings.warning((&dns).into()).to_string());
    }
}

/// Warns about a manifest with an API version that Kubernetes no longer serves: it can't be created, so it is not
/// used as evidence.
fn warn_of_retired_api(manifest: &Manifest) {
    let (api_version, kind) = (manifest.api_version.as_str(), manifest.kind.as_str());
    let served = match (api_version, kind) {
        ("extensions/v1beta1", "Deployment" | "DaemonSet" | "ReplicaSet")
        | ("apps/v1beta1", "Deployment" | "StatefulSet")
        | ("apps/v1beta2", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => "apps/v1",
        ("batch/v1beta1" | "batch/v2alpha1", "CronJob") => "batch/v1",
        _ => return,
    };
    let object = &manifest.object.value();
    let (origin, namespace, name) = (&manifest.origin, object::namespace(object), object::name(object));
    let warning = format!(
        "{origin}: {kind} {namespace}/{name} is not used as evidence: Kubernetes no longer serves {api_version}, \
         but {served}"
    );
    warn(&warning);
}

/// Warns about a manifest that is not planned because its kind or API version is almost that of a Service. The API
/// server has no such kind. A kind of an API group, such as the Service of Knative, is another kind.
fn warn_of_misspelled_service(manifest: &Manifest) {
    let (api_version, kind) = (manifest.api_version.as_str(), manifest.kind.as_str());
    let is_like_service = kind.eq_ignore_ascii_case("Service") || kind.eq_ignore_ascii_case("Services");
    if !is_like_service || api_version.contains('/') || manifest.is_service() {
        return;
    }
    let object = &manifest.object.value();
    let (origin, namespace, name) = (&manifest.origin, object::namespace(object), object::name(object));
    let warning = format!("{origin}: {api_version} {kind} {namespace}/{name} is not planned: did you mean v1 Service?");
    warn(&warning);
}
