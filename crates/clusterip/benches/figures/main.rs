//! Measures on this machine the figures that the project promises: `make bench`.
//!
//! The output is a table of figures, each with its bound. A figure beyond its bound does not fail the run, because a
//! busy machine is not a defect of a change. Figures that are compared with each other are measured alternately, and
//! medians are shown. With the argument `scale`, only the figures of a large cluster are measured: `make bench-scale`.

mod evaluation;
mod fixtures;
mod layout;
mod module;
mod process;
mod program;
mod scale;
mod table;

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
    table.head("The program");
    program::figures(&mut table)?;
    table.head("The policy module, on the interpreter of clusterip evaluate");
    module::figures(&mut table)?;
    table.head("One decision of the program, order: spread, pool half full");
    evaluation::figures(&mut table)
}
