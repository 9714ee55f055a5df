//! The settings of wasmtime. The program loads only a module that the build script has compiled with the same settings,
//! so the build script includes this file.

use wasmtime::{Config, WasmBacktraceDetails};

/// The settings with which modules are compiled, and with which they run.
pub(super) fn new() -> Config {
    let mut config = Config::new();
    // Ends an evaluation at its time limit.
    config.epoch_interruption(true);
    // The module has no names that a backtrace could show.
    config.wasm_backtrace_max_frames(None);
    config.generate_address_map(false);
    // By default this setting is read from the environment, and the program would not load its module where the
    // environment differs from that of the build.
    config.wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}
