//! Reads the parts of the folders in `e2e-tests/sessions` that are needed here; `sessions.rs` replays them.

use std::fs;
use std::path::Path;

use serde_json::Value;

pub struct Recorded {
    pub name: String,
    /// The `AdmissionResponse` with its patch decoded.
    pub response: Value,
}

/// All sessions, by name.
pub fn all() -> Vec<Recorded> {
    let sessions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e-tests/sessions");
    let mut all: Vec<Recorded> = fs::read_dir(sessions)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| Recorded {
            name: path.file_name().unwrap().to_str().unwrap().to_owned(),
            response: serde_json::from_str(&fs::read_to_string(path.join("response.json")).unwrap()).unwrap(),
        })
        .collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(all.len() >= 90, "only {} sessions", all.len());
    all
}
