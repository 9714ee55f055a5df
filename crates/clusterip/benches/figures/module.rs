//! Size and loading time of the module.

use clusterip_host::policy::module::{EMBEDDED, Module, WASM_SIZE};

use crate::layout::median;
use crate::table::{Table, time};

const ROUNDS: usize = 5;

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = WASM_SIZE.parse::<u64>()?;
    table.row("policy.wasm", bytes as f64 / 1000.0, "KB", Some(530.0));
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let (duration, module) = time(|| Module::new(EMBEDDED));
        module?;
        runs.push(duration.as_secs_f64() * 1000.0);
    }
    table.row("loading its compiled code, once a process", median(runs), "ms", None);
    Ok(())
}
