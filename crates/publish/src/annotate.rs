//! The metadata in the module itself: a custom section that Kubewarden looks for.

use thiserror::Error;
use wasm_encoder::{CustomSection, Section};
use wasmparser::{BinaryReaderError, Parser, Payload};

use crate::metadata::{Metadata, USAGE};

/// The name of the section.
pub const SECTION: &str = "io.kubewarden.metadata";
/// The version of the guest's protocol that the policy speaks. (The tests of `clusterip` ask the module itself.)
pub const PROTOCOL: &str = "v1";

/// A module that can't be annotated, or whose annotation can't be read.
#[derive(Debug, Error)]
pub enum AnnotateError {
    /// Not WebAssembly.
    #[error("not a WebAssembly module: {0}")]
    Wasm(#[from] BinaryReaderError),
    /// Two sections: which one counts would be up to the reader.
    #[error("the module has a section {SECTION} already: annotate the one that was built")]
    Twice,
    /// The section is not there.
    #[error("the module has no section {SECTION}: annotate it first")]
    NotAnnotated,
    /// The section is no metadata.
    #[error("section {SECTION} can't be read, or written: {0}")]
    Section(#[from] serde_json::Error),
}

/// Puts metadata and the text for its users into a module, and changes nothing else: what was there
/// keeps every byte, the section comes last.
///
/// # Errors
/// [`AnnotateError`] where the module is none, or annotated already.
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

/// The metadata of an annotated module.
///
/// # Errors
/// [`AnnotateError`] where it has none.
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
