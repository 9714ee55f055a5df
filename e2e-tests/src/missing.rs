//! Skips a test whose tools are missing. `scripts/skip` does the same for the Makefile.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::{env, thread};

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
    // A test that ends here counts as passed. `scripts/run-parts` subtracts it. Outside of tests, in `main`, the runner
    // itself ignores what can't run.
    if thread::current().name() != Some("main")
        && let Some(file) = env::var_os("SKIPPED")
        && let Ok(mut file) = OpenOptions::new().append(true).open(file)
    {
        let _ = writeln!(file, "test: {name}");
    }
}
