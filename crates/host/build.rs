//! Compiles the policy module for the machine that will run the program, which has no compiler.

#[path = "src/policy/engine_config.rs"]
mod engine_config;

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use wasmtime::Engine;

fn main() {
    println!("cargo::rerun-if-env-changed=CLUSTERIP_POLICY");
    if let Err(error) = compile() {
        println!("cargo::error={error}");
    }
}

fn compile() -> Result<(), String> {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../..");
    let file = env::var_os("CLUSTERIP_POLICY").map_or_else(|| workspace.join("policy.wasm"), PathBuf::from);
    println!("cargo::rerun-if-changed={}", file.display());
    let missing = |error: io::Error| {
        format!("{}: {error}: `make policy.wasm` builds the module that this program embeds", file.display())
    };
    let module = fs::read(&file).map_err(missing)?;
    println!("cargo::rustc-env=CLUSTERIP_POLICY_SIZE={}", module.len());

    let target = variable("TARGET")?;
    let compiled = compiled(&module, &target)
        .map_err(|error| format!("{}: it can't be compiled for {target}: {error:#}", file.display()))?;
    let output = Path::new(&variable("OUT_DIR")?).join("policy.cwasm");
    fs::write(&output, compiled).map_err(|error| format!("{}: {error}", output.display()))
}

/// The code of a module. It runs on every processor of the target's architecture: wasmtime uses no optional
/// instructions if the target is named.
fn compiled(module: &[u8], target: &str) -> wasmtime::Result<Vec<u8>> {
    Engine::new(engine_config::new().target(target)?)?.precompile_module(module)
}

/// A variable that cargo sets.
fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("{name}: {error}"))
}
