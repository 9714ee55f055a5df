//! Limits what is kept of fields that tenants can fill without limit: labels, required node affinity, ports and texts.
//!
//! Each limit is one of the core, which reads no more of a complete object either, so a decision is the same with a
//! cached and with a complete object.

use clusterip_core::annotations::{TOO_LONG_FOR_ADDRESSES, cut};
use clusterip_core::external::claim::MAX_EXTERNAL_IPS;
use clusterip_core::json::Located;
use clusterip_core::label_selector::MAX_LABELS;
use clusterip_core::pod_spec::PodSpec;
use serde_json::{Map, Value};

use super::kinds::{Kind, own_name};

/// How many ports of a Service of type `LoadBalancer` are kept. Ports of other types are not needed.
pub const MAX_PORTS: usize = 1024;

/// A text of a custom kind with more characters than this is cut. No text with a meaning is that long: names of objects
/// have at most 253 characters, keys of labels 317.
const MAX_LENGTH: usize = 512;

/// A Pod template that has more bytes than this after all fields are limited is dropped. A custom kind may have
/// anything in its place, and a template of the wrong shape denies only the Services of its namespace.
const MAX_BYTES: usize = 256 * 1024;

/// Applies the limits to the fields of an object of `kind`.
pub fn limit(kind: &Kind, fields: &mut Map<String, Value>) {
    match own_name(kind) {
        "Service" => {
            if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
                service(spec);
            }
        }
        "Pod" => {
            if let Some(spec) = fields.get_mut("spec") {
                pod_spec(spec);
            }
        }
        "" => {
            let job = fields.get_mut("spec").and_then(|spec| spec.get_mut("jobTemplate"));
            let template = match job {
                Some(job) => job.pointer_mut("/spec/template"),
                None => fields.get_mut("spec").and_then(|spec| spec.get_mut("template")),
            };
            let Some(template) = template else { return };
            if let Some(of_pods) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
                labels(of_pods);
            }
            if let Some(spec) = template.get_mut("spec") {
                pod_spec(spec);
            }
            shorten(template);
            if size(template) > MAX_BYTES {
                *template = false.into();
            }
        }
        _ => {}
    }
}

/// Keeps the first labels in the order of their keys, as many as the core reads.
pub fn labels(labels: &mut Map<String, Value>) {
    first(labels, MAX_LABELS);
}

fn service(spec: &mut Map<String, Value>) {
    if let Some(selector) = spec.get_mut("selector").and_then(Value::as_object_mut) {
        // One more than a Pod can have: a Service with a longer selector still selects no Pod.
        first(selector, MAX_LABELS + 1);
    }
    if let Some(addresses) = spec.get_mut("externalIPs").and_then(Value::as_array_mut) {
        addresses.truncate(MAX_EXTERNAL_IPS);
    }
    if let Some(Value::String(address)) = spec.get_mut("loadBalancerIP") {
        *address = cut(address, TOO_LONG_FOR_ADDRESSES).into_owned();
    }
    if spec.get("type").is_none_or(|of| of != "LoadBalancer") {
        spec.remove("ports");
    } else if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) {
        ports.truncate(MAX_PORTS);
    }
}

fn pod_spec(spec: &mut Value) {
    if let Some(selector) = spec.get_mut("nodeSelector").and_then(Value::as_object_mut) {
        labels(selector);
    }
    if PodSpec::read(&Located::new(&*spec, "")).is_ok_and(|spec| spec.affinity.is_empty()) {
        spec.as_object_mut().into_iter().for_each(|fields| drop(fields.remove("affinity")));
        return;
    }
    let path = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    for term in spec.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten() {
        // It only matters whether there are any fields.
        if let Some(fields) = term.get_mut("matchFields").and_then(Value::as_array_mut) {
            fields.truncate(1);
        }
        let Some(expressions) = term.get_mut("matchExpressions").and_then(Value::as_array_mut) else { continue };
        // Of the operators other than `In`, it only matters whether there is one.
        let mut others = 0;
        expressions.retain_mut(|expression| {
            if expression.get("operator").is_some_and(|operator| operator == "In") {
                return true;
            }
            others += 1;
            expression.as_object_mut().into_iter().for_each(|expression| drop(expression.remove("values")));
            others == 1
        });
    }
}

fn first(map: &mut Map<String, Value>, most: usize) {
    let excess: Vec<String> = map.keys().skip(most).cloned().collect();
    for key in excess {
        map.remove(&key);
    }
}

/// Shortens the texts in a value. The API server already checks those of its own kinds.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > MAX_LENGTH => *text = cut(text, MAX_LENGTH).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(fields) => {
            fields.retain(|key, _| key.len() <= MAX_LENGTH);
            fields.values_mut().for_each(shorten);
        }
        _ => {}
    }
}

/// The approximate size of a value in bytes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum::<usize>() + items.len(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + size(value) + 4).sum(),
        _ => 4,
    }
}
