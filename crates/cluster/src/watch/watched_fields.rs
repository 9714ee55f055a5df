//! The fields of each watched kind that are used by the policy, by the controller, or by the rule that tells who
//! manages an address. Of long lists and maps that users write, no more is read than counts.

use std::sync::LazyLock;

use clusterip_core::annotations::has_parser;
use clusterip_core::field_mask::Mask;
use clusterip_core::label_selector::MAX_LABELS;
use clusterip_core::service::ADDRESS_FIELDS;
use clusterip_core::workload::{MAX_AFFINITY_TERMS, TemplateAt};

use crate::kinds::{Kind, own_name};
use crate::snapshot::{IGNORED_BY_KUBE_PROXY, MANY, MAX_PORTS, SERVICE_FIELDS, SERVICE_NAME_LABEL, TEXT};

/// A field, and how many values are read of a list or map in it.
type Field = (&'static str, usize);

/// A port consists of its number and its protocol.
const PORTS: [Field; 3] = [("spec.ports", 3 * MAX_PORTS), ("spec.ports.port", TEXT), ("spec.ports.protocol", TEXT)];
const CONDITIONS: [Field; 2] = [("status.conditions.status", TEXT), ("status.conditions.type", TEXT)];
const SERVICE_CIDR: [Field; 1] = [("spec.cidrs", MANY)];
const RUNTIME_CLASS: [Field; 1] = [("scheduling.nodeSelector", MANY)];
const ENDPOINT_SLICE: [Field; 4] = [
    ("endpoints.conditions.ready", TEXT),
    ("endpoints.conditions.serving", TEXT),
    ("endpoints.conditions.terminating", TEXT),
    ("endpoints.nodeName", TEXT),
];
const NODE: [Field; 2] = [("spec.podCIDR", TEXT), ("spec.podCIDRs", MANY)];
/// The Service for which the API server has allocated the address.
const IP_ADDRESS: [Field; 2] = [("spec.parentRef.name", TEXT), ("spec.parentRef.namespace", TEXT)];
/// A webhook configuration, an APIService or a CustomResourceDefinition.
const CALLER: [Field; 9] = [
    ("spec.conversion.webhook.clientConfig.service.name", TEXT),
    ("spec.conversion.webhook.clientConfig.service.namespace", TEXT),
    ("spec.service.name", TEXT),
    ("spec.service.namespace", TEXT),
    // More webhooks than an object has: a Service must not move because its caller was cut.
    ("webhooks", 4 * MANY),
    ("webhooks.clientConfig.service.name", TEXT),
    ("webhooks.clientConfig.service.namespace", TEXT),
    ("webhooks.matchConditions.expression", TEXT),
    ("webhooks.name", TEXT),
];
const POD_SPEC: [Field; 9] = [
    // More than the terms that are evaluated have, each with its key, its operator and a value.
    ("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", 16 * MAX_AFFINITY_TERMS),
    (
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.key",
        TEXT,
    ),
    (
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.operator",
        TEXT,
    ),
    (
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchExpressions.values",
        TEXT,
    ),
    ("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.matchFields.key", TEXT),
    ("nodeName", TEXT),
    ("nodeSelector", MAX_LABELS),
    ("os.name", TEXT),
    ("runtimeClassName", TEXT),
];
/// How many labels are read, in their order, which is that of the keys. Nodes and Namespaces of administrators have
/// fewer, and of other objects fewer count.
const LABELS_OF_OBJECT: usize = 4096;

/// The fields of a kind that are used, with those that identify an object.
pub fn of_kind(kind: &Kind) -> Mask {
    let template = TemplateAt::of(&kind.0, &kind.1);
    match own_name(kind) {
        "Service" => mask(&["annotations", "labels", "managedFields"], &[&SERVICE_FIELDS, &PORTS], &[]),
        // Pools select ServiceCIDRs by their labels.
        "ServiceCIDR" => mask(&["deletionTimestamp", "labels"], &[&SERVICE_CIDR, &CONDITIONS], &[]),
        "RuntimeClass" => mask(&[], &[&RUNTIME_CLASS], &[]),
        "EndpointSlice" => mask(&["labels"], &[&ENDPOINT_SLICE], &[]),
        "Node" => mask(&["labels"], &[&NODE, &CONDITIONS], &[]),
        "Namespace" => mask(&["annotations", "labels"], &[], &[]),
        "Pod" => mask(&["labels"], &[], &[template]),
        // For workloads, the labels of their Pods matter, not their own.
        "" => mask(&[], &[], &[template]),
        _ => mask(&[], &[], &[]),
    }
}

/// The fields of all kinds: all others can be skipped while an object is read whose kind is not known yet.
pub(super) static OF_ALL_KINDS: LazyLock<Mask> = LazyLock::new(|| {
    let metadata = ["annotations", "labels", "managedFields", "resourceVersion"];
    let of_services = [&SERVICE_FIELDS[..], &PORTS, &ENDPOINT_SLICE, &SERVICE_CIDR, &IP_ADDRESS];
    let of_others = [&NODE[..], &CONDITIONS, &RUNTIME_CLASS, &CALLER];
    let fields = [&of_services[..], &of_others].concat();
    mask(&metadata, &fields, &[TemplateAt::Itself, TemplateAt::Template, TemplateAt::JobTemplate])
});

fn mask(metadata: &[&str], fields: &[&[Field]], templates: &[TemplateAt]) -> Mask {
    let mut mask = Mask::new(["apiVersion", "kind", "metadata.name", "metadata.namespace"]);
    for (field, most) in fields.iter().copied().flatten() {
        mask.at(field).most = *most;
    }
    for field in metadata {
        let at = mask.at(&format!("metadata.{field}"));
        match *field {
            "labels" => {
                at.most = MANY;
                at.reads = |count, key| {
                    count < LABELS_OF_OBJECT || key == SERVICE_NAME_LABEL || IGNORED_BY_KUBE_PROXY.contains(&key)
                }
            }
            "annotations" => at.reads = |_, key| has_parser(key),
            "managedFields" => {
                at.at("manager");
                for field in ADDRESS_FIELDS {
                    at.at(&format!("fieldsV1.f:spec.{field}"));
                }
            }
            _ => at.most = TEXT,
        }
    }
    for template in templates {
        let mut at = |field: &[&str], most| mask.at(&[template.path(), field].concat().join(".")).most = most;
        POD_SPEC.iter().for_each(|(field, most)| at(&["spec", field], *most));
        if *template != TemplateAt::Itself {
            at(&["metadata", "labels"], MAX_LABELS);
        }
    }
    mask
}
