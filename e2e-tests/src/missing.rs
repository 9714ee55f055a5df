//! Skips a test whose tools are missing. `scripts/skip` does the same for the Makefile.

use std::env;

/// Reports that a check is skipped because `name` is missing. `message` says what to install.
///
/// # Panics
/// With `REQUIRE_ALL=1` a skipped check fails, unless `REQUIRE_EXCEPT` lists `name`; names are separated by spaces.
#[allow(clippy::panic, reason = "it fails a test")]
pub fn skip(name: &str, message: &str) {
    let required = env::var("REQUIRE_ALL").is_ok_and(|value| value == "1");
    let except = env::var("REQUIRE_EXCEPT").unwrap_or_default();
    if required && !except.split_whitespace().any(|other| other == name) {
        panic!("REQUIRE_ALL=1, and {message}");
    }
    eprintln!("skipped: {message}");
}
