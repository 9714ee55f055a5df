//! Guest modules for the tests of the host. Most of them misbehave, each in its own way. The build script compiles
//! them, because the host runs compiled code only.

/// The names of the guests, and their code.
const GUESTS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/guests.rs"));

/// The compiled code of a guest, which wasmtime loads; `None` if no guest has this name. The names are in the build
/// script.
pub fn code(name: &str) -> Option<&'static [u8]> {
    GUESTS.iter().find(|(guest, _)| *guest == name).map(|(_, code)| *code)
}
