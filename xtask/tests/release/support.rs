//! Annotates the module as a release does.

use std::fs;

use xtask::metadata::{Metadata, annotate};

use crate::files::{read, workspace};

pub fn metadata() -> Metadata {
    Metadata::from_yaml(&read("policy-metadata.yml")).unwrap()
}

/// The module, as `make policy.wasm` builds it.
pub fn module() -> Vec<u8> {
    fs::read(workspace().join("policy.wasm")).unwrap_or_else(|error| panic!("policy.wasm: {error}"))
}

/// The module with the metadata and the usage text of the repository.
pub fn annotated() -> Vec<u8> {
    annotate(&module(), metadata(), &read("README.md")).unwrap()
}
