//! The commands: they read arguments, call what does the work, and print.

pub mod connect;
pub mod move_;
pub mod plan;
pub mod serve;

use std::io::{self, Write};

/// Writes to standard output. A reader that stopped reading (`| head`) is no failure.
///
/// # Errors
/// Where it can't be written for another reason.
pub fn output(bytes: &[u8]) -> anyhow::Result<()> {
    let written = anstream::stdout().lock().write_all(bytes).and_then(|()| io::stdout().flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
