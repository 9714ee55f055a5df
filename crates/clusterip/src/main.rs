//! `clusterip`: see [`clusterip::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    clusterip::cli::run()
}
