//! Measures on this machine the figures that the project promises: `make bench`.
//!
//! The output is a table of figures, each with its bound. A figure beyond its bound does not fail the run, because a
//! busy machine is not a defect of a change. Figures that are compared with each other are measured alternately, and
//! medians are shown. With the argument `scale`, only the figures of a large cluster are measured: `make bench-scale`.

mod evaluation;
mod fixtures;
mod layout;
mod process;
mod scale;
mod table;

use std::fs;

use mimalloc::MiMalloc;
use table::Table;

/// As in the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut table = Table::default();
    if std::env::args().any(|argument| argument == "scale") {
        table.head("100,000 Services, 20,000 Deployments and 50,000 Pods, as a process");
        return scale::figures(&mut table);
    }
    table.head("Sizes");
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policy.wasm");
    table.row("policy.wasm", fs::metadata(policy)?.len() as f64 / 1e3, "KB", Some(530.0));
    table.row("the program", fs::metadata(process::program().get_program())?.len() as f64 / 1e6, "MB", Some(25.0));
    table.head("One decision, order: spread, pool half full");
    evaluation::figures(&mut table)
}
