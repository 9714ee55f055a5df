//! Manifests with their addresses filled in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::slice;

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
    let line_ends = sources.iter().map(|source| if source.text.contains("\r\n") { "\r\n" } else { "\n" });
    let line_ends: Vec<&str> = line_ends.collect();
    let mut filled: BTreeMap<usize, &[IpAddr]> = BTreeMap::new();
    for (row, &index) in plan.rows.iter().zip(&plan.manifests).filter(|(row, _)| row.decision == Outcome::Allocated) {
        let manifest = &manifests[index];
        let reason = "its spec is missing, or an alias or merge key brings it in; write it out";
        let found =
            manifest.slot.as_ref().and_then(|slot| slot.edits(&row.cluster_ips, line_ends[manifest.origin.source]));
        edits[manifest.origin.source].extend(found.ok_or(FillError { origin: manifest.origin.clone(), reason })?);
        filled.insert(index, &row.cluster_ips);
    }
    let mut stream = String::new();
    for (source, edits) in sources.iter().zip(edits) {
        let text = apply(&source.text, edits);
        if !stream.is_empty() {
            separate(&mut stream, &text);
        }
        stream.push_str(&text);
    }
    let stream = Source { name: String::new(), text: stream };
    verify(&stream, manifests, &filled)?;
    Ok(stream.text)
}

/// What was written is read again: a text that came out wrong must not be printed.
fn verify(stream: &Source, manifests: &[Manifest], filled: &BTreeMap<usize, &[IpAddr]>) -> Result<(), FillError> {
    let (mut next, mut unlike) = (0, None);
    let read = manifests::each(slice::from_ref(stream), "", &mut |written| {
        if unlike.is_none() && manifests.get(next).is_some_and(|manifest| !same(&written, manifest, filled.get(&next)))
        {
            unlike = Some(next);
        }
        next += 1;
    });
    let unlike = if read.is_ok() { unlike.unwrap_or(next) } else { 0 };
    match manifests.get(unlike) {
        Some(manifest) => {
            let reason = "the text around it is too unusual; set clusterIP by hand";
            Err(FillError { origin: manifest.origin.clone(), reason })
        }
        None => Ok(()),
    }
}

/// Whether what was written is the manifest, with its addresses if it got any.
fn same(written: &Manifest, manifest: &Manifest, addresses: Option<&&[IpAddr]>) -> bool {
    if addresses.is_none() && written.object == manifest.object {
        return true;
    }
    let (mut written, mut object) = (written.object.value(), manifest.object.value());
    // The namespace of an object that names none is not in its text.
    if written.pointer("/metadata/namespace") == Some(&Value::from("")) {
        written["metadata"]["namespace"] = object["metadata"]["namespace"].clone();
    }
    if let Some(addresses) = addresses {
        set_addresses(&mut object, addresses);
    }
    written == object
}

fn set_addresses(object: &mut Value, addresses: &[IpAddr]) {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let had_list = object.pointer("/spec/clusterIPs").is_some();
    object["spec"]["clusterIP"] = texts.first().cloned().into();
    if texts.len() > 1 {
        object["spec"]["clusterIPs"] = texts.into();
    } else if had_list {
        object["spec"]["clusterIPs"] = Value::Array(Vec::new());
    }
}

/// Ends the document before, where `next` does not begin with a mark of its own.
fn separate(stream: &mut String, next: &str) {
    if !stream.ends_with('\n') {
        stream.push('\n');
    }
    let begins = next.lines().map(str::trim_end).find(|line| !line.is_empty() && !line.starts_with('#'));
    match begins {
        Some(line) if line == "---" || line.starts_with("--- ") => {}
        // Directives may only follow a document that says where it ends.
        Some(line) if line.starts_with('%') => stream.push_str("...\n"),
        _ => stream.push_str("---\n"),
    }
}
