//! Reads what stands in `deploy`, for the tests that hold it together.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not there.
    #[error("{path} can't be read: {source}")]
    File {
        /// Which one, from the root of the repository.
        path: String,
        /// What is in the way.
        source: io::Error,
    },
    /// It is no YAML.
    #[error("no YAML: {0}")]
    Yaml(#[from] serde_saphyr::Error),
}

/// The root of the repository.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a file, named from the root of the repository.
///
/// # Errors
/// Where it is not there.
pub fn read(path: &str) -> Result<String, Unreadable> {
    fs::read_to_string(workspace().join(path)).map_err(|source| Unreadable::File { path: path.to_owned(), source })
}

/// The one document of a text.
///
/// # Errors
/// Where it is no YAML.
pub fn document(text: &str) -> Result<Value, Unreadable> {
    Ok(serde_saphyr::from_str(text)?)
}

/// All documents of a text but the empty ones.
///
/// # Errors
/// Where it is no YAML.
pub fn documents(text: &str) -> Result<Vec<Value>, Unreadable> {
    Ok(serde_saphyr::from_multiple(text)?)
}
