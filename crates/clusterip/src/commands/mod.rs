//! The commands: each reads its arguments, calls the module that does the work, and prints the result.

mod arguments;
pub mod audit;
pub mod evaluate;
mod given_settings;
pub mod init;
mod leading_server;
mod missing_permissions;
pub mod move_;
pub mod plan;
pub mod renumber;
pub mod serve;
pub mod settings;
pub mod snapshot;
pub mod terminal;
pub mod validate;
pub mod version;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clusterip_cluster::manifests;
use clusterip_cluster::manifests::{NamespaceRule, manifest_files};
use serde::Serialize;
use serde_json::Value;

use crate::report;
use crate::snapshot_kinds::SnapshotKinds;

/// Writes to standard output. Returns false if the reader has stopped reading (`| head`), which is not an error.
pub fn output(bytes: &[u8]) -> anyhow::Result<bool> {
    const ESCAPE: u8 = 0x1b;
    // Without colors, the search for them is left out: an output may have many megabytes.
    let written = if bytes.contains(&ESCAPE) {
        anstream::stdout().lock().write_all(bytes)
    } else {
        io::stdout().lock().write_all(bytes)
    };
    finish(written)
}

/// As [`output`], for a value that is printed as indented JSON.
pub fn output_json(value: &impl Serialize) -> anyhow::Result<bool> {
    finish(report::write_json(value, io::stdout().lock()))
}

fn finish(written: io::Result<()>) -> anyhow::Result<bool> {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn output_to(file: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match file {
        Some(file) => fs::write(file, text).with_context(|| file.display().to_string()),
        None => output(text.as_bytes()).map(|_| ()),
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(work);
    // A watch may be in the middle of a request that no task waits for.
    runtime.shutdown_background();
    done
}

/// Checks that only one of the paths of these arguments, each with its name, is `-` for standard input.
fn check_standard_input(arguments: &[(&str, &[PathBuf])]) -> anyhow::Result<()> {
    let paths = arguments.iter().flat_map(|(name, paths)| paths.iter().map(move |path| (*name, path)));
    let names: Vec<&str> = paths.filter(|(_, path)| manifests::is_standard_input(path)).map(|(name, _)| name).collect();
    if names.len() > 1 {
        bail!(
            "standard input can be read only once, but - is given for {}: use files for all but one",
            names.join(" and for ")
        );
    }
    Ok(())
}

fn read_snapshot(file: &Path) -> anyhow::Result<Vec<Value>> {
    let rule = NamespaceRule::Default("default");
    let (manifests, is_empty_list) = if file.is_dir() {
        let folder = [file.to_owned()];
        (manifest_files::load(&folder, rule, |object| object).context("snapshot")?.manifests, false)
    } else {
        let source = manifests::read_at_most(file, u64::MAX).context("snapshot")?;
        let read = manifest_files::load_text(source, rule, |object| object).context("snapshot")?;
        let is_empty_list = read.manifests.is_empty() && read.sources.iter().all(manifests::is_empty_list);
        (read.manifests, is_empty_list)
    };
    let objects: Vec<Value> = manifests.into_iter().map(|manifest| manifest.object).collect();
    // Such a text is written on purpose, unlike a file that a failed command left empty.
    if !is_empty_list {
        let kinds = SnapshotKinds::of(&objects);
        kinds.check_not_empty().with_context(|| format!("snapshot: {}", file.display()))?;
    }
    Ok(objects)
}
