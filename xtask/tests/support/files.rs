//! Reads the files of the repository, and compares what tests find in them.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of the file at `path` from the root of the repository.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The YAML of a file.
pub fn read_yaml(path: impl AsRef<Path>) -> Value {
    document(&read(path))
}

pub fn document(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("not YAML: {error}: {text}"))
}

pub fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("not YAML: {error}: {text}"))
}

/// The files below a folder, in the order of their paths. Links are left out: the chart has some to the kustomizations.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files_below(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Compares the fields of an object that `expected` names, each as a whole. `null` stands for a missing field.
#[track_caller]
pub fn assert_fields(name: &str, found: &Value, expected: &Value) {
    for (field, expected) in expected.as_object().unwrap() {
        assert_eq!(found[field], *expected, "{name}: {field}");
    }
}
