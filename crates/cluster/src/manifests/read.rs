//! Reads the text of a file, or of standard input.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use super::{ManifestError, ManifestText};

/// The largest file that [`read_file`] reads, in bytes.
pub const MAX_FILE: u64 = 64 << 20;

/// Whether an argument names standard input instead of a file.
pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the text of one file, which may have 64 MiB, or all of standard input for `-`.
pub fn read_file(path: &Path) -> Result<ManifestText, ManifestError> {
    read_at_most(path, MAX_FILE)
}

/// As [`read_file`] without a limit, for files with the objects of a whole cluster.
pub fn read_large_file(path: &Path) -> Result<ManifestText, ManifestError> {
    read_at_most(path, u64::MAX)
}

fn read_at_most(path: &Path, limit: u64) -> Result<ManifestText, ManifestError> {
    if is_standard_input(path) {
        return read_standard_input();
    }
    let name = path.display().to_string();
    let failed = |error: io::Error| ManifestError::read(&name, &error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(failed(io::Error::other(format!("larger than {} MiB", limit >> 20))));
    }
    source(name, bytes)
}

fn read_standard_input() -> Result<ManifestText, ManifestError> {
    let (name, mut bytes) = ("-".to_owned(), Vec::new());
    io::stdin().read_to_end(&mut bytes).map_err(|error: io::Error| ManifestError::read(&name, &error))?;
    source(name, bytes)
}

fn source(name: String, bytes: Vec<u8>) -> Result<ManifestText, ManifestError> {
    match String::from_utf8(bytes) {
        Ok(text) => Ok(ManifestText { name, text: text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text) }),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let bytes = error.as_bytes();
            let line = 1 + bytes[..valid].iter().filter(|byte| **byte == b'\n').count();
            let byte = bytes.get(valid).copied().unwrap_or_default();
            Err(ManifestError(format!("{name}: line {line}: not UTF-8 (byte {byte:#04x})")))
        }
    }
}
