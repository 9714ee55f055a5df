//! The files of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

use clusterip::cluster::yaml;
use publish::metadata::Metadata;
use serde_json::Value;

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The YAML of a file, parsed by another parser than that of the product.
#[allow(dead_code)]
pub fn read_yaml(path: &str) -> Value {
    yaml::single(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[allow(dead_code)]
pub fn metadata() -> Metadata {
    Metadata::from_yaml(&read("policy-metadata.yml")).unwrap()
}
