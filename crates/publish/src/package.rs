//! What Artifact Hub is told, completed at release: the file in the tree can't know the module's digest
//! nor the day.

use jiff::Timestamp;
use serde::Deserialize;
use thiserror::Error;

use crate::annotate::{self, AnnotateError};
use crate::image::sha256;
use crate::metadata::{MetadataError, VERSION};

/// A package that can't be completed.
#[derive(Debug, Error)]
pub enum PackageError {
    /// The module is not annotated.
    #[error(transparent)]
    Annotation(#[from] AnnotateError),
    /// The annotation names no version.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The package is no YAML, or names no version.
    #[error("the package can't be read: {0}")]
    Read(#[from] serde_saphyr::Error),
    /// The package has no line for it, or more than one.
    #[error("the package has {count} lines that begin with {field:?}, not one")]
    Lines {
        /// How the line begins.
        field: &'static str,
        /// How many do.
        count: usize,
    },
    /// The package and the module are not of one release.
    #[error("the package is of version {package}, the module of {module}: both are to be released as one")]
    Version {
        /// What the package says.
        package: String,
        /// What the module's annotation says.
        module: String,
    },
}

/// Fills in `digest` (the SHA-256 of the annotated module, which is that of the image's layer and of the
/// file in the release) and `createdAt`. Every other line stays as it is.
///
/// # Errors
/// [`PackageError`] where the package has no place for them, or is of another version than the module.
pub fn complete(package: &str, module: &[u8], created: Timestamp) -> Result<String, PackageError> {
    let metadata = annotate::metadata(module)?;
    let version = metadata.annotation(VERSION)?;
    let Named { version: named } = serde_saphyr::from_str(package)?;
    if named != version {
        return Err(PackageError::Version { package: named, module: version.to_owned() });
    }
    let package = replace(package, "digest: ", &format!("sha256:{}", sha256(module)))?;
    replace(&package, "createdAt: ", &format!("\"{created}\""))
}

/// The only field of a package that is compared.
#[derive(Deserialize)]
struct Named {
    version: String,
}

/// The text with the value of the only line that begins with `field` replaced.
fn replace(text: &str, field: &'static str, value: &str) -> Result<String, PackageError> {
    match text.lines().filter(|line| line.starts_with(field)).count() {
        1 => {}
        count => return Err(PackageError::Lines { field, count }),
    }
    let line = |line: &str| if line.starts_with(field) { format!("{field}{value}\n") } else { format!("{line}\n") };
    Ok(text.lines().map(line).collect())
}
