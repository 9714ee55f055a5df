//! Reduces a watched object to the fields that are used by the policy, by the controller, or by the rule that tells who
//! manages an address.

use std::collections::BTreeMap;

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, NAMESPACE_ANNOTATIONS, SERVICE_ANNOTATIONS, shortened};
use serde_json::{Map, Value};

use super::address_set_by_hand::of_address;
use super::kinds::{Kind, own_name};
use super::partial_object::PartialObject;
use super::{field_limits, watched_fields};
use crate::lookups::field_mask::Mask;
use crate::lookups::snapshot::SERVICE_NAME_LABEL;

/// Reduces each object of a kind to the fields that are used.
pub struct Projection {
    kind: Kind,
    mask: Mask,
}

impl Projection {
    /// A projection for objects of `kind`.
    pub fn new(kind: &Kind) -> Self {
        Self { kind: kind.clone(), mask: Mask::new(&watched_fields::of_kind(kind).into_iter().collect()) }
    }

    /// The API version and kind.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The reduced object; `None` if the object has no name.
    pub fn keep(&self, object: PartialObject) -> Option<Value> {
        let metadata = kept_metadata(&self.kind, &object)?;
        let mut fields = object.data;
        self.mask.prune(&mut fields);
        field_limits::limit(&self.kind, &mut fields);
        fields.insert("apiVersion".to_owned(), self.kind.0.clone().into());
        fields.insert("kind".to_owned(), self.kind.1.clone().into());
        fields.insert("metadata".to_owned(), metadata);
        Some(Value::Object(fields))
    }
}

fn kept_metadata(kind: &Kind, object: &PartialObject) -> Option<Value> {
    let from = &object.metadata;
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), from.name.clone()?.into());
    if let Some(namespace) = &from.namespace {
        metadata.insert("namespace".to_owned(), namespace.clone().into());
    }
    if own_name(kind) == "IPAddress" {
        return Some(metadata.into());
    }
    let labels = kept_labels(kind, from.labels.as_ref());
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), labels.into());
    }
    let annotations = kept_annotations(kind, from.annotations.as_ref());
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    if own_name(kind) == "ServiceCIDR" && from.deletion_timestamp.is_some() {
        metadata.insert("deletionTimestamp".to_owned(), true.into());
    }
    if own_name(kind) == "Service" {
        metadata.insert("uid".to_owned(), from.uid.clone().unwrap_or_default().into());
        if from.deletion_timestamp.is_some() {
            metadata.insert("deletionTimestamp".to_owned(), true.into());
        }
        if !object.managers.is_empty() {
            metadata.insert("managedFields".to_owned(), of_address(&object.managers).into());
        }
    }
    Some(metadata.into())
}

fn kept_labels(kind: &Kind, labels: Option<&BTreeMap<String, String>>) -> Map<String, Value> {
    let strings = labels.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone().into()));
    let mut labels: Map<String, Value> = match own_name(kind) {
        // Pools select ServiceCIDRs by their labels.
        "Service" | "Namespace" | "Node" | "Pod" | "ServiceCIDR" => strings.collect(),
        "EndpointSlice" => strings.filter(|(key, _)| key == SERVICE_NAME_LABEL).collect(),
        // For workloads, the labels of their Pods matter, not their own.
        _ => Map::new(),
    };
    // The labels of Namespaces, Nodes and ServiceCIDRs are not bounded: administrators set them.
    if matches!(own_name(kind), "Service" | "Pod") {
        field_limits::labels(&mut labels);
    }
    labels
}

/// The annotations that the core parses, each no longer than its parser reads.
fn kept_annotations(kind: &Kind, annotations: Option<&BTreeMap<String, String>>) -> Map<String, Value> {
    let is_read = |key: &str| match own_name(kind) {
        "Service" => SERVICE_ANNOTATIONS.contains(&key) || FOREIGN_ANNOTATIONS.contains(&key),
        "Namespace" => NAMESPACE_ANNOTATIONS.contains(&key),
        _ => false,
    };
    let kept = annotations.into_iter().flatten().filter(|(key, _)| is_read(key));
    kept.filter_map(|(key, text)| Some((key.clone(), shortened(key, text)?.into_owned().into()))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
