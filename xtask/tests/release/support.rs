//! Reads the files of the repository, and annotates the module as a release does.

use std::fs;
use std::path::{Path, PathBuf};

use clusterip_cluster::yaml;
use serde_json::Value;
use xtask::metadata::{Metadata, annotate};

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The YAML of a file, parsed by another parser than that of the product.
pub fn read_yaml(path: &str) -> Value {
    yaml::single(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

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

/// A value that was found, and the value that it must equal.
pub struct Row<'a> {
    pub name: &'a str,
    pub found: Value,
    pub expected: Value,
}

/// Compares all rows, and reports those that differ.
#[track_caller]
pub fn assert_rows(rows: &[Row<'_>]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter(|row| row.found != row.expected)
        .map(|row| format!("{}: found {}, expected {}", row.name, row.found, row.expected))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
