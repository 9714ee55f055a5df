//! Prints manifests with their addresses and blocks filled in.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::slice;

use anyhow::anyhow;
use clusterip_cluster::manifests::manifest_edit::{Edit, Fields, InsertionPoint, apply};
use clusterip_cluster::manifests::{self, Manifest, ManifestText};
use clusterip_core::annotations::{RECORD_ANNOTATION, in_record};
use clusterip_core::decision::RecordChange;
use serde_json::{Map, Value};

use crate::planner::{Plan, PlannedObject, Row};

const EXTERNAL: &str = "external address";

struct Filling {
    fields: Fields,
    /// The addresses or blocks; empty if they do not change.
    values: Vec<String>,
    record: Option<String>,
}

/// The texts of `sources` as one document stream, in which only addresses, blocks and records of external addresses
/// change. A record that admission is going to remove stays in the text.
pub fn manifests(
    sources: &[ManifestText],
    manifests: &[Manifest<PlannedObject>],
    plan: &Plan,
) -> anyhow::Result<String> {
    let mut edits: Vec<Vec<Edit>> = sources.iter().map(|_| Vec::new()).collect();
    let line_ends = sources.iter().map(|source| if source.text.contains("\r\n") { "\r\n" } else { "\n" });
    let line_ends: Vec<&str> = line_ends.collect();
    let filled = fillings(plan);
    let (mut objects, mut places) = (Vec::with_capacity(manifests.len()), BTreeMap::new());
    manifests::each(sources, "", &mut |mut manifest, node| {
        let filling = filled.get(&objects.len());
        places.extend(filling.map(|filling| (objects.len(), InsertionPoint::of(node, filling.fields))));
        let is_planned = manifests.get(objects.len()).is_some_and(|planned| planned.object.is_about(&manifest.object));
        if let Some(filling) = filling {
            set(&mut manifest.object, filling);
        }
        objects.push(is_planned.then(|| hash(&manifest.object)));
    })?;
    for (&index, Filling { values, record, .. }) in &filled {
        let manifest = &manifests[index];
        let line_end = line_ends[manifest.origin.source];
        let edits = &mut edits[manifest.origin.source];
        if !values.is_empty() {
            let reason = "its spec is missing, or an alias or merge key brings it in; write it out";
            let found = places.get(&index).and_then(|place| place.edits(values, line_end));
            let what = if manifest.object.is_node() { "block" } else { "address" };
            edits.extend(found.ok_or_else(|| no_place(manifest, what, reason))?);
        }
        if let Some(record) = record {
            let reason = "an alias or merge key brings its metadata or annotations in; write them out";
            let found = places.get(&index).and_then(|place| place.record_edits(record, line_end));
            edits.extend(found.ok_or_else(|| no_place(manifest, EXTERNAL, reason))?);
        }
    }
    let mut stream = String::new();
    for (source, edits) in sources.iter().zip(edits) {
        let text = apply(&source.text, edits);
        if !stream.is_empty() {
            separate(&mut stream, &text);
        }
        stream.push_str(&text);
    }
    let stream = ManifestText { name: String::new(), text: stream };
    verify(&stream, &objects, manifests, &filled)?;
    Ok(stream.text)
}

fn fillings(plan: &Plan) -> BTreeMap<usize, Filling> {
    let filling = |row: &Row| {
        let fields = if row.namespace.is_some() { Fields::ClusterIps } else { Fields::PodCidrs };
        let values = if row.decision.is_allocated() { row.given.texts() } else { Vec::new() };
        let external = row.external.as_ref().filter(|external| external.decision == RecordChange::Recorded);
        let record = external.map(|external| in_record(&external.addresses));
        let changes = !values.is_empty() || record.is_some();
        changes.then_some((row.manifest, Filling { fields, values, record }))
    };
    plan.rows.iter().chain(plan.nodes.iter().flatten()).filter_map(filling).collect()
}

fn no_place(manifest: &Manifest<PlannedObject>, what: &str, reason: &str) -> anyhow::Error {
    anyhow!("{}: the {what} can't be filled in: {reason}", manifest.origin)
}

/// Parses the filled text again: a text whose objects do not have these hashes must not be printed. An object that is not
/// the planned one has no hash, and is refused.
fn verify(
    stream: &ManifestText,
    objects: &[Option<u64>],
    manifests: &[Manifest<PlannedObject>],
    filled: &BTreeMap<usize, Filling>,
) -> anyhow::Result<()> {
    let (mut next, mut unlike) = (0, None);
    let read = manifests::each(slice::from_ref(stream), "", &mut |written, _| {
        if unlike.is_none() && objects.get(next) != Some(&Some(hash(&written.object))) {
            unlike = Some(next);
        }
        next += 1;
    });
    if read.is_ok() && unlike.is_none() && next == manifests.len() {
        return Ok(());
    }
    let unlike = if read.is_ok() { unlike.unwrap_or(next) } else { 0 };
    let Some(manifest) = manifests.get(unlike).or(manifests.last()) else { return Ok(()) };
    let alone = |filling: &&Filling| filling.values.is_empty() && filling.record.is_some();
    let (what, by_hand) = match filled.get(&unlike).filter(alone) {
        Some(_) => (EXTERNAL, "the annotation"),
        None if manifest.object.is_node() => ("block", "podCIDR and podCIDRs"),
        None => ("address", "clusterIP"),
    };
    Err(no_place(manifest, what, &format!("this YAML layout can't be edited; set {by_hand} by hand")))
}

fn hash(object: &Value) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(object)
}

fn set(object: &mut Value, Filling { fields, values, record }: &Filling) {
    let (first, all) = fields.names();
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let (Some(metadata), Some(record)) = (metadata, record) {
        let annotations = metadata.entry("annotations").or_insert(Value::Null);
        if annotations.is_null() {
            *annotations = Value::Object(Map::new());
        }
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(RECORD_ANNOTATION.to_owned(), record.clone().into());
        }
    }
    if values.is_empty() {
        return;
    }
    let spec = object.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    let Some(spec) = spec.as_object_mut() else { return };
    let had_list = spec.contains_key(all);
    spec.insert(first.to_owned(), values.first().cloned().into());
    if fields.lists(values.len()) {
        spec.insert(all.to_owned(), values.clone().into());
    } else if had_list {
        spec.insert(all.to_owned(), Value::Array(Vec::new()));
    }
}

/// Ends the previous document, unless `next` begins with a document marker of its own.
fn separate(stream: &mut String, next: &str) {
    if !stream.ends_with('\n') {
        stream.push('\n');
    }
    let begins = next.lines().map(str::trim_end).find(|line| !line.is_empty() && !line.starts_with('#'));
    match begins {
        Some(line) if line == "---" || line.starts_with("--- ") => {}
        // Directives may only follow a document with an explicit end marker.
        Some(line) if line.starts_with('%') => stream.push_str("...\n"),
        _ => stream.push_str("---\n"),
    }
}
