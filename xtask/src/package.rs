//! Completes the Artifact Hub package at release: the file in the repository can contain neither the digest of the
//! module nor the date.

use jiff::Timestamp;
use serde::Deserialize;
use thiserror::Error;

use crate::annotate::{self, AnnotateError};
use crate::image::sha256;
use crate::metadata::{MetadataError, VERSION};

/// Why a package can't be completed.
#[derive(Debug, Error)]
pub enum PackageError {
    /// The module is not annotated.
    #[error(transparent)]
    Annotation(#[from] AnnotateError),
    /// The annotation of the module has no version.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The package is not YAML, or has no version.
    #[error("can't read the package: {0}")]
    Read(#[from] serde_saphyr::Error),
    /// The package has no line for a field, or more than one.
    #[error("the package has {count} lines that begin with {field:?}, expected one")]
    Lines {
        /// The beginning of the line.
        field: &'static str,
        /// The number of such lines.
        count: usize,
    },
    /// The package and the module have different versions.
    #[error("the package has version {package}, and the module has version {module}: they must be equal")]
    Version {
        /// The version of the package.
        package: String,
        /// The version in the annotation of the module.
        module: String,
    },
}

/// Fills in `digest` and `createdAt`. The digest is the SHA-256 of the annotated module, which is also that of the
/// image's layer and of the file in the release. Every other line stays the same.
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

/// The only field of a package that is compared with the module.
#[derive(Deserialize)]
struct Named {
    version: String,
}

/// Replaces the value of the only line that begins with `field`.
fn replace(text: &str, field: &'static str, value: &str) -> Result<String, PackageError> {
    match text.lines().filter(|line| line.starts_with(field)).count() {
        1 => {}
        count => return Err(PackageError::Lines { field, count }),
    }
    let line = |line: &str| if line.starts_with(field) { format!("{field}{value}\n") } else { format!("{line}\n") };
    Ok(text.lines().map(line).collect())
}
