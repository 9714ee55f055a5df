//! Compiled modules. wasmtime runs their code without checking it, so this is the only file with `unsafe`.

use wasmtime::{Engine, Module, Result};

/// The policy, which is built into this program. The build script has compiled it. It is a `static`, because each use
/// of a constant would copy the code into the program again.
pub static EMBEDDED: CompiledModule = CompiledModule(include_bytes!(concat!(env!("OUT_DIR"), "/policy.cwasm")));

/// The size of the policy's WebAssembly module in bytes, before it was compiled, as a decimal number.
pub const WASM_SIZE: &str = env!("CLUSTERIP_POLICY_SIZE");

/// A WebAssembly module that wasmtime compiled when this program was built.
#[derive(Clone, Copy)]
pub struct CompiledModule(&'static [u8]);

impl CompiledModule {
    /// A module that another build script compiled, such as a guest of the tests.
    ///
    /// # Safety
    /// `code` must be what `Engine::precompile_module` of wasmtime returned in a build script, without any change. It
    /// must not come from a file that is read at run time, from a request or from an argument: wasmtime would run
    /// whatever code is in it.
    #[expect(unsafe_code, reason = "any other code could do anything")]
    pub const unsafe fn from_build_script(code: &'static [u8]) -> Self {
        Self(code)
    }

    /// Loads the module.
    ///
    /// # Errors
    /// If the module was compiled by another version of wasmtime, with other settings, or for another machine.
    #[expect(unsafe_code, reason = "wasmtime can't check that code was compiled by wasmtime")]
    pub(super) fn load(self, engine: &Engine) -> Result<Module> {
        // SAFETY: the bytes must be what `Engine::precompile_module` returned. Only two places make a `CompiledModule`:
        // `EMBEDDED` has the bytes that the build script of this crate got from that function and that became a part
        // of the program, and the caller of `from_build_script` promises the same. Both are constants of the program,
        // so nothing that the program reads can change them. wasmtime itself checks its major version, the settings,
        // the machine and the features of the processor, and returns an error.
        unsafe { Module::deserialize(engine, self.0) }
    }
}
