//! Hands the compiler the policy module that the binary embeds.

use std::env;
use std::path::PathBuf;

fn main() {
    let workspace = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let module = env::var_os("CLUSTERIP_POLICY").map_or_else(|| workspace.join("policy.wasm"), PathBuf::from);
    println!("cargo::rerun-if-env-changed=CLUSTERIP_POLICY");
    println!("cargo::rerun-if-changed={}", module.display());
    match module.canonicalize() {
        Ok(module) => println!("cargo::rustc-env=CLUSTERIP_POLICY_MODULE={}", module.display()),
        Err(error) => println!(
            "cargo::error={}: {error}: `make policy.wasm` builds the module that this program embeds",
            module.display()
        ),
    }
}
