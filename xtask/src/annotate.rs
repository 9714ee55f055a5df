//! Writes the metadata into the module, as a custom section that Kubewarden reads.

use thiserror::Error;
use wasm_encoder::{CustomSection, Section};
use wasmparser::{BinaryReaderError, Parser, Payload};

use crate::metadata::{Metadata, USAGE};

/// The name of the custom section.
pub const SECTION: &str = "io.kubewarden.metadata";
/// The version of the waPC guest protocol that the policy speaks. The tests of `clusterip` compare it with the module.
pub const PROTOCOL: &str = "v1";

/// Why a module can't be annotated, or its annotation can't be read.
#[derive(Debug, Error)]
pub enum AnnotateError {
    /// The file is not WebAssembly.
    #[error("not a WebAssembly module: {0}")]
    Wasm(#[from] BinaryReaderError),
    /// The module already has the section. With two sections, the result would depend on the reader.
    #[error("the module already has a section {SECTION}: annotate the module as it was built")]
    Twice,
    /// The module does not have the section.
    #[error("the module has no section {SECTION}: annotate it first")]
    NotAnnotated,
    /// The section is not valid metadata.
    #[error("can't read or write section {SECTION}: {0}")]
    Section(#[from] serde_json::Error),
}

/// Adds metadata and a usage text to a module. All bytes of the module stay the same; the section is appended.
pub fn annotate(module: &[u8], mut metadata: Metadata, usage: &str) -> Result<Vec<u8>, AnnotateError> {
    if section(module)?.is_some() {
        return Err(AnnotateError::Twice);
    }
    metadata.protocol_version = Some(PROTOCOL.to_owned());
    metadata.annotations.insert(USAGE.to_owned(), usage.to_owned());
    let data = serde_json::to_vec(&metadata)?;
    let mut annotated = module.to_vec();
    CustomSection { name: SECTION.into(), data: data.into() }.append_to(&mut annotated);
    Ok(annotated)
}

/// Reads the metadata of an annotated module.
pub fn metadata(module: &[u8]) -> Result<Metadata, AnnotateError> {
    let section = section(module)?.ok_or(AnnotateError::NotAnnotated)?;
    Ok(serde_json::from_slice(section)?)
}

fn section(module: &[u8]) -> Result<Option<&[u8]>, AnnotateError> {
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) = payload?
            && section.name() == SECTION
        {
            return Ok(Some(section.data()));
        }
    }
    Ok(None)
}
