//! Output of results: tables, JSON, YAML, reports for pipelines, and the HTML map.

pub(crate) mod audit_parts;
pub(crate) mod audit_table;
pub(crate) mod columns;
pub mod filled_manifests;
pub mod map;
pub(crate) mod moves;
pub(crate) mod pipeline_reports;
pub(crate) mod plan;
pub(crate) mod renumber;

use std::io::{self, Write};

use clusterip_cluster::harmless_text::{HarmlessJson, harmless_json};
use serde::Serialize;

/// The value as indented JSON with a final line break.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(harmless_json(serde_json::to_string_pretty(value)?) + "\n")
}

/// Writes the value as [`json`] returns it, without all of its text in memory.
pub(crate) fn write_json(value: &impl Serialize, output: impl Write) -> io::Result<()> {
    let mut output = HarmlessJson::new(output);
    serde_json::to_writer_pretty(&mut output, value)?;
    output.write_all(b"\n")?;
    output.flush()
}
