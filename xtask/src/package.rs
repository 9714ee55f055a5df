//! Completes the Artifact Hub package at release: the file in the repository can contain neither the digest of the
//! module nor the date.

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use serde::Deserialize;

use crate::image::sha256;
use crate::metadata::{VERSION, of_module};

/// Fills in `digest` and `createdAt`. The digest is the SHA-256 of the annotated module, which is also that of the
/// image's layer and of the file in the release. Every other line stays the same.
pub fn complete(package: &str, module: &[u8], created: Timestamp) -> anyhow::Result<String> {
    let metadata = of_module(module)?;
    let version = metadata.annotation(VERSION)?;
    let Named { version: named } =
        serde_saphyr::from_str(package).map_err(|error| anyhow!("can't read the package: {error}"))?;
    if named != version {
        bail!("the package has version {named}, and the module has version {version}: they must be equal");
    }
    let package = replace(package, "digest: ", &format!("sha256:{}", sha256(module)))?;
    replace(&package, "createdAt: ", &format!("\"{created}\""))
}

#[derive(Deserialize)]
struct Named {
    version: String,
}

fn replace(text: &str, field: &'static str, value: &str) -> anyhow::Result<String> {
    let count = text.lines().filter(|line| line.starts_with(field)).count();
    if count != 1 {
        bail!("the package has {count} lines that begin with {field:?}, expected one");
    }
    let line = |line: &str| if line.starts_with(field) { format!("{field}{value}\n") } else { format!("{line}\n") };
    Ok(text.lines().map(line).collect())
}
