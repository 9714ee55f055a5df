//! Writes the metadata into the module, as a custom section that Kubewarden reads.

use anyhow::{Context, anyhow, bail};
use wasm_encoder::{CustomSection, Section};
use wasmparser::{Parser, Payload};

use crate::metadata::{Metadata, USAGE};

/// The name of the custom section.
pub const SECTION: &str = "io.kubewarden.metadata";
/// The version of the waPC guest protocol that the policy speaks. The tests of `clusterip` compare it with the module.
pub const PROTOCOL: &str = "v1";

/// Adds metadata and a usage text to a module. All bytes of the module stay the same; the section is appended.
pub fn annotate(module: &[u8], mut metadata: Metadata, usage: &str) -> anyhow::Result<Vec<u8>> {
    if section(module)?.is_some() {
        // With two sections, the result would depend on the reader.
        bail!("the module already has a section {SECTION}: annotate the module as it was built");
    }
    metadata.protocol_version = Some(PROTOCOL.to_owned());
    metadata.annotations.insert(USAGE.to_owned(), usage.to_owned());
    let data = serde_json::to_vec(&metadata).map_err(unusable)?;
    let mut annotated = module.to_vec();
    CustomSection { name: SECTION.into(), data: data.into() }.append_to(&mut annotated);
    Ok(annotated)
}

/// Reads the metadata of an annotated module.
pub fn metadata(module: &[u8]) -> anyhow::Result<Metadata> {
    let section =
        section(module)?.with_context(|| format!("the module has no section {SECTION}: annotate it first"))?;
    serde_json::from_slice(section).map_err(unusable)
}

fn section(module: &[u8]) -> anyhow::Result<Option<&[u8]>> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) =
            payload.map_err(|error| anyhow!("not a WebAssembly module: {error}"))?
            && section.name() == SECTION
        {
            return Ok(Some(section.data()));
        }
    }
    Ok(None)
}

fn unusable(error: serde_json::Error) -> anyhow::Error {
    anyhow!("can't read or write section {SECTION}: {error}")
}
