//! The commands: each reads its arguments, calls the module that does the work, and prints the result.

pub mod audit;
pub mod deployed;
pub mod evaluate;
pub mod move_;
pub mod plan;
mod scope;
pub mod serve;
mod settings_file;

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use clusterip_host::cluster::manifests;

/// Writes to standard output. A reader that stopped reading (`| head`) is not an error.
///
/// # Errors
/// If standard output can't be written for another reason.
pub fn output(bytes: &[u8]) -> anyhow::Result<()> {
    let written = anstream::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Reads the objects of a snapshot file.
fn snapshot(file: &Path) -> anyhow::Result<Vec<Value>> {
    let source = manifests::read_file(file).context("snapshot")?;
    let manifests = manifests::parse(&[source], "default").context("snapshot")?;
    Ok(manifests.into_iter().map(|manifest| manifest.object.value()).collect())
}
