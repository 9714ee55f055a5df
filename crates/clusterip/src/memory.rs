//! How much freed memory the allocator keeps.

/// The most arenas that pay: what is parsed and evaluated at once is little.
const ARENAS: usize = 4;

/// Lets threads share what the allocator keeps. By itself glibc gives nearly every thread an arena of its
/// own, and each keeps some megabytes of what was freed: in a large cluster more than the cluster takes.
#[allow(unsafe_code, reason = "the C library has no other way to be asked")]
pub fn share_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(threads.min(ARENAS)).unwrap_or(1);
        // SAFETY: the call takes two numbers, and locks what it changes.
        let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
        if taken != 1 {
            tracing::debug!(arenas, "the allocator keeps its arenas");
        }
    }
}
