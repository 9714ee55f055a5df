//! Compiles the guests for the machine that runs the tests.

mod sources;

// The settings of the host, which loads only modules that were compiled with them.
#[path = "../../host/src/policy/engine_config.rs"]
mod engine_config;

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use wasmtime::Engine;

fn main() -> Result<(), Box<dyn Error>> {
    let mut guests = Vec::new();
    for source in sources::all() {
        guests.push((source.name, wat::parse_str(&source.text)?));
    }
    let engine = Engine::new(engine_config::new().target(&env::var("TARGET")?)?)?;
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    let mut table = "&[\n".to_owned();
    for (number, (name, module)) in guests.iter().enumerate() {
        let code = engine.precompile_module(module).map_err(|error| format!("{name:?}: {error:#}"))?;
        let file = folder.join(format!("{number}.cwasm"));
        fs::write(&file, code)?;
        writeln!(table, "({name:?}, include_bytes!({file:?}).as_slice()),")?;
    }
    fs::write(folder.join("guests.rs"), table + "]\n")?;
    Ok(())
}
