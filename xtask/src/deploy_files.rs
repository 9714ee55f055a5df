//! Reads the files in `deploy` for the tests that compare them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

/// Why a file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file does not exist or can't be opened.
    #[error("can't read {path}: {source}")]
    File {
        /// The path of the file from the root of the repository.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not YAML.
    #[error("not YAML: {0}")]
    Yaml(#[from] serde_saphyr::Error),
}

/// The root of the repository.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of the file at `path` from the root of the repository.
pub fn read(path: &str) -> Result<String, Unreadable> {
    fs::read_to_string(workspace().join(path)).map_err(|source| Unreadable::File { path: path.to_owned(), source })
}

/// The only document of a YAML text.
pub fn document(text: &str) -> Result<Value, Unreadable> {
    Ok(serde_saphyr::from_str(text)?)
}

/// All documents of a YAML text except empty ones.
pub fn documents(text: &str) -> Result<Vec<Value>, Unreadable> {
    Ok(serde_saphyr::from_multiple(text)?)
}
