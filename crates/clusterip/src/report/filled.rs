//! Manifests with their addresses filled in.

use std::net::IpAddr;

use clusterip_core::answer::Outcome;
use serde_json::Value;
use thiserror::Error;

use crate::cluster::fill::{Edit, apply};
use crate::cluster::manifests::{self, Manifest, Origin, Source};
use crate::planner::Plan;

/// A manifest whose text has no place for an address.
#[derive(Debug, Error)]
#[error("{origin}: the address can't be filled in: {reason}")]
pub struct FillError {
    origin: Origin,
    reason: &'static str,
}

/// The texts of `sources`, one document stream, untouched but for the addresses of allocated Services.
///
/// # Errors
/// [`FillError`] for a Service whose `spec` is missing, or stands elsewhere (anchors, merge keys).
pub fn manifests(sources: &[Source], manifests: &[Manifest], plan: &Plan) -> Result<String, FillError> {
    let mut edits: Vec<Vec<Edit>> = sources.iter().map(|_| Vec::new()).collect();
    let mut filled: Vec<Value> = manifests.iter().map(|manifest| manifest.object.clone()).collect();
    for (row, &index) in plan.rows.iter().zip(&plan.manifests).filter(|(row, _)| row.decision == Outcome::Allocated) {
        let manifest = &manifests[index];
        let line_end = if sources[manifest.origin.source].text.contains("\r\n") { "\r\n" } else { "\n" };
        let reason = "its spec is missing, or an alias or merge key brings it in; write it out";
        let found = manifest.slot.as_ref().and_then(|slot| slot.edits(&row.cluster_ips, line_end));
        edits[manifest.origin.source].extend(found.ok_or(FillError { origin: manifest.origin.clone(), reason })?);
        filled[index] = set_addresses(&filled[index], &row.cluster_ips);
    }
    let mut stream = String::new();
    for (index, (source, edits)) in sources.iter().zip(edits).enumerate() {
        let source = Source { name: source.name.clone(), text: apply(&source.text, edits) };
        let expected = manifests.iter().zip(&filled).filter(|(manifest, _)| manifest.origin.source == index);
        verify(&source, &expected.collect::<Vec<_>>())?;
        if index > 0 {
            separate(&mut stream, &source.text);
        }
        stream.push_str(&source.text);
    }
    Ok(stream)
}

/// What was written is read again: a text that came out wrong must not be printed.
fn verify(source: &Source, expected: &[(&Manifest, &Value)]) -> Result<(), FillError> {
    let written = manifests::parse(std::slice::from_ref(source), "").unwrap_or_default();
    for (index, (manifest, object)) in expected.iter().enumerate() {
        // The namespace of an object that names none is not in its text.
        let same = |written: &Manifest| {
            let mut written = written.object.clone();
            if written.pointer("/metadata/namespace") == Some(&Value::from("")) {
                written["metadata"]["namespace"] = object["metadata"]["namespace"].clone();
            }
            written == **object
        };
        if !written.get(index).is_some_and(same) {
            let reason = "the text around it is too unusual; set clusterIP by hand";
            return Err(FillError { origin: manifest.origin.clone(), reason });
        }
    }
    Ok(())
}

fn set_addresses(object: &Value, addresses: &[IpAddr]) -> Value {
    let mut object = object.clone();
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let had_list = object.pointer("/spec/clusterIPs").is_some();
    object["spec"]["clusterIP"] = texts.first().cloned().into();
    if texts.len() > 1 {
        object["spec"]["clusterIPs"] = texts.into();
    } else if had_list {
        object["spec"]["clusterIPs"] = Value::Array(Vec::new());
    }
    object
}

fn separate(stream: &mut String, next: &str) {
    if !stream.is_empty() && !stream.ends_with('\n') {
        stream.push('\n');
    }
    let begins = next.lines().map(str::trim_end).find(|line| !line.is_empty() && !line.starts_with('#'));
    if !begins.is_some_and(|line| line == "---" || line.starts_with("--- ") || line.starts_with('%')) {
        stream.push_str("---\n");
    }
}
