//! The commands: each reads its arguments, calls the module that does the work, and prints the result.

pub mod audit;
pub mod deployed;
pub mod evaluate;
pub mod init;
pub mod move_;
pub mod plan;
mod scope;
pub mod serve;
mod settings_file;
pub mod snapshot;
mod terminal_options;
pub mod validate;

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clusterip_host::cluster::manifests::{self, ManifestError, Source};
use serde_json::Value;

use crate::snapshot_kinds::SnapshotKinds;

/// The notice of a command that reads a cluster without a settings file, and does not ask a server for its settings.
const DEFAULT_POOLS_NOTICE: &str = "settings: the pools of K2s (no --settings)";

/// Writes to standard output. A reader that stopped reading (`| head`) is not an error.
///
/// # Errors
/// If standard output can't be written for another reason.
pub fn output(bytes: &[u8]) -> anyhow::Result<()> {
    output_to_reader(bytes).map(|_| ())
}

/// Writes to standard output as [`output`] does. Returns false if the reader has stopped reading.
///
/// # Errors
/// As [`output`].
fn output_to_reader(bytes: &[u8]) -> anyhow::Result<bool> {
    let written = anstream::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush());
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads the text of a file, or of standard input for `-`.
fn read_text(path: &Path) -> Result<Source, ManifestError> {
    if path.as_os_str() == "-" { manifests::read_standard_input() } else { manifests::read_file(path) }
}

/// Reads the objects of a snapshot file.
fn read_snapshot(file: &Path) -> anyhow::Result<Vec<Value>> {
    let source = manifests::read_large_file(file).context("snapshot")?;
    let manifests = manifests::parse(&[source], "default").context("snapshot")?;
    let objects: Vec<Value> = manifests.into_iter().map(|manifest| manifest.object.value()).collect();
    let kinds = SnapshotKinds::of(&objects);
    kinds.check_not_empty().with_context(|| format!("snapshot: {}", file.display()))?;
    Ok(objects)
}
