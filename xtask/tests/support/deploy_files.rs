//! Reads the files in `deploy`, which tests compare.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::Value;

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of the file at `path` from the root of the repository.
pub fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(workspace().join(path)).with_context(|| format!("can't read {path}"))
}

pub fn document(text: &str) -> anyhow::Result<Value> {
    serde_saphyr::from_str(text).map_err(|error| anyhow!("not YAML: {error}"))
}

pub fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).map_err(|error| anyhow!("not YAML: {error}"))
}
