//! The fields of each watched kind that are used by the policy, by the controller, or by the rule that tells who
//! manages an address.

use std::sync::LazyLock;

use clusterip_core::external::claim::MAX_EXTERNAL_IPS;
use clusterip_core::label_selector::MAX_LABELS;
use clusterip_core::workload::{MAX_AFFINITY_TERMS, TemplateAt};

use super::kinds::{Kind, own_name};
use crate::lookups::field_mask::Mask;
use crate::lookups::snapshot::MAX_PORTS;

const SERVICE: [&str; 13] = [
    "spec.clusterIP",
    "spec.clusterIPs",
    "spec.externalIPs",
    "spec.externalName",
    "spec.ipFamilies",
    "spec.ipFamilyPolicy",
    "spec.loadBalancerClass",
    "spec.loadBalancerIP",
    "spec.ports.port",
    "spec.ports.protocol",
    "spec.selector",
    "spec.type",
    "status.loadBalancer.ingress",
];
const SERVICE_CIDR: [&str; 3] = ["spec.cidrs", "status.conditions.status", "status.conditions.type"];
const RUNTIME_CLASS: [&str; 1] = ["scheduling.nodeSelector"];
const ENDPOINT_SLICE: [&str; 4] = [
    "endpoints.conditions.ready",
    "endpoints.conditions.serving",
    "endpoints.conditions.terminating",
    "endpoints.nodeName",
];
const NODE: [&str; 4] = ["spec.podCIDR", "spec.podCIDRs", "status.conditions.status", "status.conditions.type"];
const POD_SPEC: [&str; 8] = [
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.key",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.operator",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.values",
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchFields.key",
    "nodeName",
    "nodeSelector",
    "os.name",
    "runtimeClassName",
];
const TEXTS_OF_POD_SPEC: [&str; 3] = ["nodeName", "os.name", "runtimeClassName"];
const TERMS: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
/// More than the terms that are evaluated have, each with its key, its operator and a value.
const VALUES_OF_TERMS: usize = 16 * MAX_AFFINITY_TERMS;
/// A port consists of its number and its protocol.
const VALUES_OF_PORT: usize = 3;

/// The fields of a kind that are used, with those that identify an object.
pub fn of_kind(kind: &Kind) -> Mask {
    let (metadata, fields): (&[&str], &[&str]) = match own_name(kind) {
        "Service" => (&["annotations", "deletionTimestamp", "labels", "managedFields", "uid"], &SERVICE),
        // Pools select ServiceCIDRs by their labels.
        "ServiceCIDR" => (&["deletionTimestamp", "labels"], &SERVICE_CIDR),
        "RuntimeClass" => (&[], &RUNTIME_CLASS),
        "EndpointSlice" => (&["labels"], &ENDPOINT_SLICE),
        "Node" => (&["labels"], &NODE),
        "Namespace" => (&["annotations", "labels"], &[]),
        "Pod" => (&["labels"], &[]),
        // For workloads, the labels of their Pods matter, not their own.
        _ => (&[], &[]),
    };
    let pods = match own_name(kind) {
        "Pod" | "" => of_pods(TemplateAt::of(&kind.0, &kind.1)),
        _ => Vec::new(),
    };
    let metadata = metadata.iter().chain(&["name", "namespace"]).map(|field| format!("metadata.{field}"));
    let fields = fields.iter().chain(&["apiVersion", "kind"]).map(|field| (*field).to_owned());
    Mask::new(&metadata.chain(fields).chain(pods).collect())
}

fn of_pods(template: TemplateAt) -> Vec<String> {
    let at = |field: &[&str]| [template.path(), field].concat().join(".");
    let labels = (template != TemplateAt::Itself).then(|| at(&["metadata", "labels"]));
    POD_SPEC.iter().map(|field| at(&["spec", field])).chain(labels).collect()
}

/// The fields of all kinds besides `metadata`: all others can be skipped while an object is read whose kind is not known
/// yet. Of long lists and maps that users write, no more is read than counts.
pub static OF_ALL_KINDS: LazyLock<Mask> = LazyLock::new(|| {
    let flat = [&SERVICE[..], &SERVICE_CIDR, &RUNTIME_CLASS, &ENDPOINT_SLICE, &NODE];
    let flat = flat.into_iter().flatten().map(|field| (*field).to_owned());
    let pods = [TemplateAt::Itself, TemplateAt::Template, TemplateAt::JobTemplate].map(of_pods);
    let mask = Mask::new(&flat.chain(pods.into_iter().flatten()).collect())
        .limited("spec.externalIPs", MAX_EXTERNAL_IPS)
        .limited("spec.ports", VALUES_OF_PORT * MAX_PORTS)
        // A Service with a longer selector selects no Pod.
        .limited("spec.selector", MAX_LABELS + 1);
    let templates = [TemplateAt::Itself, TemplateAt::Template, TemplateAt::JobTemplate].map(TemplateAt::path);
    templates.into_iter().fold(mask, |mask, template| {
        let at = |field: &[&str]| [template, field].concat().join(".");
        let mask = mask.limited(&at(&["spec", "nodeSelector"]), MAX_LABELS);
        // The API server checks these types only in objects of its own kinds.
        let mask = TEXTS_OF_POD_SPEC.iter().fold(mask, |mask, field| mask.limited(&at(&["spec", *field]), 0));
        let mask = mask.limited(&at(&["spec", TERMS]), VALUES_OF_TERMS);
        if template.is_empty() { mask } else { mask.limited(&at(&["metadata", "labels"]), MAX_LABELS) }
    })
});
