//! How much is kept of what a tenant can write in any number: labels, required node affinity, ports, and texts.
//!
//! Each bound is one of the core, which reads no more of a whole object: so a decision is the same with a cached
//! object and with a whole one.

use clusterip_core::annotations::{TOO_LONG_FOR_ADDRESSES, cut};
use clusterip_core::external::claim::MOST_EXTERNAL_IPS;
use clusterip_core::json::At;
use clusterip_core::label_selector::MOST_LABELS;
use clusterip_core::pod_spec::PodSpec;
use serde_json::{Map, Value};

use super::kinds::{Kind, own_name};

/// This many ports of a Service of type `LoadBalancer` are read: of others none is.
pub const MOST_PORTS: usize = 1024;

/// A text of a custom kind with more characters than this is cut. Nothing that has a meaning is as long: the
/// names of objects have at most 253 characters, the keys of labels 317.
const LONGEST: usize = 512;

/// A Pod template with more bytes than this, all fields cut down, is none: a custom kind may have anything in
/// its place, and a template of the wrong shape refuses no more than the Services of its namespace.
const LARGEST: usize = 256 * 1024;

/// Cuts the fields of an object of `kind` down.
pub fn bound(kind: &Kind, fields: &mut Map<String, Value>) {
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
            if size(template) > LARGEST {
                *template = false.into();
            }
        }
        _ => {}
    }
}

/// Keeps the first labels by key, as many as count.
pub fn labels(labels: &mut Map<String, Value>) {
    first(labels, MOST_LABELS);
}

fn service(spec: &mut Map<String, Value>) {
    if let Some(selector) = spec.get_mut("selector").and_then(Value::as_object_mut) {
        // One more than a Pod can have: then the Service selects none, as before.
        first(selector, MOST_LABELS + 1);
    }
    if let Some(addresses) = spec.get_mut("externalIPs").and_then(Value::as_array_mut) {
        addresses.truncate(MOST_EXTERNAL_IPS);
    }
    if let Some(Value::String(address)) = spec.get_mut("loadBalancerIP") {
        *address = cut(address, TOO_LONG_FOR_ADDRESSES).into_owned();
    }
    if spec.get("type").is_none_or(|of| of != "LoadBalancer") {
        spec.remove("ports");
    } else if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) {
        ports.truncate(MOST_PORTS);
    }
}

fn pod_spec(spec: &mut Value) {
    if let Some(selector) = spec.get_mut("nodeSelector").and_then(Value::as_object_mut) {
        labels(selector);
    }
    if PodSpec::read(&At::new(&*spec, "")).is_ok_and(|spec| spec.affinity.is_empty()) {
        spec.as_object_mut().into_iter().for_each(|fields| drop(fields.remove("affinity")));
        return;
    }
    let path = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    for term in spec.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten() {
        // Of fields it is read whether there are any.
        if let Some(fields) = term.get_mut("matchFields").and_then(Value::as_array_mut) {
            fields.truncate(1);
        }
        let Some(expressions) = term.get_mut("matchExpressions").and_then(Value::as_array_mut) else { continue };
        // And of other operators than `In` whether there is one.
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

/// Cuts the texts in a value. The API server checks those of its own kinds.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > LONGEST => *text = cut(text, LONGEST).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(fields) => {
            fields.retain(|key, _| key.len() <= LONGEST);
            fields.values_mut().for_each(shorten);
        }
        _ => {}
    }
}

/// About as many bytes as a value takes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum::<usize>() + items.len(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + size(value) + 4).sum(),
        _ => 4,
    }
}
