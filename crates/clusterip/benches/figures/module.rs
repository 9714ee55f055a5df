//! Size and loading time of the module.

use std::fs;
use std::path::{Path, PathBuf};

use clusterip_cluster::policy::wasm_module::{Limits, WasmModule};

use crate::layout::median;
use crate::table::{Table, time};

const ROUNDS: usize = 5;

/// The module that `make policy.wasm` builds from this tree.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy.wasm")
}

pub fn module() -> Result<WasmModule, Box<dyn std::error::Error>> {
    Ok(WasmModule::load(&file(), Limits::default())?)
}

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    table.row("policy.wasm", fs::metadata(file())?.len() as f64 / 1000.0, "KB", Some(530.0));
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let (duration, loaded) = time(module);
        loaded?;
        runs.push(duration.as_secs_f64() * 1000.0);
    }
    table.row("loading it", median(runs), "ms", None);
    Ok(())
}
