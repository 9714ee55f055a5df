//! The warnings of `clusterip plan` about its input.

use std::net::IpAddr;

use clusterip_cluster::in_order::in_order;
use clusterip_cluster::kinds::{self, Kind};
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::object;
use clusterip_cluster::snapshot::addresses;
use clusterip_core::workload::TemplateAt;
use serde_json::Value;
use strsim::damerau_levenshtein;

use crate::commands::terminal::warn;

pub(super) fn print(settings: &LiveSettings, there: &[Value], manifests: &[Manifest]) {
    warn_of_dns_address(settings, there, manifests);
    let asked: Vec<Kind> = kinds::asked(&settings.settings).collect();
    let mut misspelled: Vec<String> = Vec::new();
    let names = |manifest: &Manifest| match asked
        .iter()
        .any(|(api, kind)| (api, kind) == (&manifest.api_version, &manifest.kind))
    {
        true if manifest.api_version == "v1" && matches!(manifest.kind.as_str(), "Namespace" | "Node") => Vec::new(),
        true => misspelled_fields(manifest),
        false => misspelled_kind(&asked, manifest).into_iter().collect(),
    };
    in_order(manifests, names, |manifest, names| {
        warn_of_retired_api(manifest);
        misspelled.extend(names);
    });
    misspelled.iter().take(MOST_MISSPELLED).for_each(|text| warn(text));
    if let more @ 1.. = misspelled.len().saturating_sub(MOST_MISSPELLED) {
        warn(&format!("{more} more names may be misspelled"));
    }
}

const MOST_MISSPELLED: usize = 20;

/// Warns if a pool may assign the usual address of the cluster's DNS, unless an object has that address.
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

/// A manifest with an API version that Kubernetes no longer serves can't be created, so it is no evidence.
fn warn_of_retired_api(manifest: &Manifest) {
    let (api_version, kind) = (manifest.api_version.as_str(), manifest.kind.as_str());
    let served = match (api_version, kind) {
        ("extensions/v1beta1", "Deployment" | "DaemonSet" | "ReplicaSet")
        | ("apps/v1beta1", "Deployment" | "StatefulSet")
        | ("apps/v1beta2", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => "apps/v1",
        ("batch/v1beta1" | "batch/v2alpha1", "CronJob") => "batch/v1",
        _ => return,
    };
    warn(&format!(
        "{} is not used as evidence: Kubernetes no longer serves {api_version}, but {served}",
        named(manifest, &manifest.object.value())
    ));
}

fn named(manifest: &Manifest, object: &Value) -> String {
    let (namespace, name) = (object::namespace(object), object::name(object));
    format!("{}: {} {namespace}/{name}", manifest.origin, manifest.kind)
}

/// The fields that a plan reads, by the object that they belong to. Of a Pod, those that say on which nodes it runs.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];
const SERVICE: [&str; 8] =
    ["type", "selector", "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "externalIPs", "loadBalancerIP"];
const WORKLOAD: [&str; 2] = ["template", "jobTemplate"];
const POD: [&str; 5] = ["os", "nodeSelector", "nodeName", "affinity", "runtimeClassName"];

/// A manifest whose kind is not one that a plan reads, but almost. The Service of Knative is another kind.
fn misspelled_kind(asked: &[Kind], manifest: &Manifest) -> Option<String> {
    let (api_version, kind) = (manifest.api_version.as_str(), manifest.kind.as_str());
    let is_like_this = |(of_api, name): &&Kind| {
        let same_group = of_api == api_version || is_almost(of_api, api_version);
        let core_service = name == "Service" && of_api == "v1" && !api_version.contains('/');
        (same_group || core_service) && (name == kind || is_almost(name, kind))
    };
    let (of_api, name) = asked.iter().find(is_like_this)?;
    let object = &manifest.object.value();
    let (origin, namespace, object) = (&manifest.origin, object::namespace(object), object::name(object));
    let object = if namespace.is_empty() { object.to_owned() } else { format!("{namespace}/{object}") };
    let effect = if name == "Service" { "planned" } else { "used as evidence" };
    Some(format!("{origin}: {api_version} {kind} {object} is not {effect}: did you mean {of_api} {name}?"))
}

/// Fields that are ignored because their names are almost those of fields that a plan reads.
fn misspelled_fields(manifest: &Manifest) -> Vec<String> {
    let object = manifest.object.value();
    let mut found: Vec<String> = Vec::new();
    let mut check = |path: &str, known: &[&str]| {
        let fields = object.pointer(path).and_then(Value::as_object);
        let is_reported = |key: &str| {
            // The row of the Service has a warning about these.
            ["clusterIP", "clusterIPs"].iter().any(|field| field.eq_ignore_ascii_case(key))
        };
        let keys = fields.into_iter().flat_map(|fields| fields.keys()).map(String::as_str);
        for key in keys.filter(|key| !known.contains(key) && !is_reported(key)) {
            if let Some(meant) = known.iter().find(|known| is_almost(known, key)) {
                let path = format!("{path}/{key}")[1..].replace('/', ".");
                found.push(format!("{path} is ignored: did you mean {meant}?"));
            }
        }
    };
    check("/metadata", &METADATA);
    match manifest.kind.as_str() {
        "Service" => check("/spec", &SERVICE),
        "Pod" => check("/spec", &POD),
        kind => {
            let template = TemplateAt::of(&manifest.api_version, kind).path();
            let at = |path: &[&str]| format!("/{}", path.join("/"));
            for (place, _) in template.iter().enumerate().filter(|(_, key)| **key == "spec") {
                check(&at(&template[..=place]), &WORKLOAD);
            }
            check(&at(&[template, &["metadata"]].concat()), &METADATA);
            check(&at(&[template, &["spec"]].concat()), &POD);
        }
    }
    let named = named(manifest, &object);
    found.into_iter().map(|text| format!("{named}: {text}")).collect()
}

/// Whether two names differ by the case of letters, or by one character that is missing, added, another one, or has
/// changed places with the next one.
fn is_almost(known: &str, name: &str) -> bool {
    // Most pairs of names need no further comparison.
    let is_of_other_length = known.chars().count().abs_diff(name.chars().count()) > 1;
    let differ = || damerau_levenshtein(&known.to_ascii_lowercase(), &name.to_ascii_lowercase());
    !is_of_other_length && known != name && differ() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_by_one_edit_are_almost_the_same() {
        let pairs = [
            ("Service", "Servce", true),
            ("Service", "Services", true),
            ("Service", "service", true),
            ("Service", "Sevrice", true),
            ("Service", "Serbice", true),
            ("Service", "Service", false),
            ("Service", "Srvce", false),
            ("Deployment", "Deploymnt", true),
            ("apps/v1", "app/v1", true),
            ("nodeSelector", "nodeselector", true),
            ("os", "so", true),
            ("Pod", "Node", false),
            ("aa", "a", true),
            ("", "a", true),
        ];
        for (known, name, expected) in pairs {
            assert_eq!(is_almost(known, name), expected, "{known} {name}");
        }
    }
}
