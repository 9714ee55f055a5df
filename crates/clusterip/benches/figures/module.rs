//! Size and compile time of the module.

use std::borrow::Cow;
use std::{env, fs, io};

use clusterip_host::policy::module::{EMBEDDED, Module};

use crate::layout::median;
use crate::table::{Table, time};

/// The module that is measured: the embedded one, or the file that the environment variable `POLICY` names.
pub fn policy() -> io::Result<Cow<'static, [u8]>> {
    match env::var_os("POLICY") {
        Some(file) => fs::read(file).map(Cow::Owned),
        None => Ok(Cow::Borrowed(EMBEDDED)),
    }
}

const ROUNDS: usize = 5;

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let policy = policy()?;
    table.row("policy.wasm", policy.len() as f64 / 1000.0, "KB", Some(400.0));
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let (duration, module) = time(|| Module::new(&policy));
        module?;
        runs.push(duration.as_secs_f64() * 1000.0);
    }
    table.row("compiling it, once a process", median(runs), "ms", None);
    Ok(())
}
