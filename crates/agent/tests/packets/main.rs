//! Tests with real packets between network namespaces: a client and nodes on one bridge.
//!
//! They need root, `ip` and `nft`. If one is missing, the tests count as ignored, or fail with `REQUIRE_ALL=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(not(target_os = "linux"), allow(unused))]

#[cfg(target_os = "linux")]
mod addresses;
#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod firewall;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod interfaces;
#[cfg(target_os = "linux")]
#[path = "../../../../e2e-tests/src/missing.rs"]
mod missing;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod node_errors;

/// The argument with which this program starts itself inside of a namespace.
#[cfg(target_os = "linux")]
const INSIDE: &str = "inside";

#[cfg(target_os = "linux")]
fn main() {
    use libtest_mimic::{Arguments, Trial, run};

    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return inside::run_commands();
    }
    let lacking = network::lacking();
    if let Some(lacking) = &lacking {
        missing::skip("packets", &format!("tests with real packets need {lacking}"));
    }
    let trial = |(name, case): (&str, fn())| {
        let trial = Trial::test(name, move || {
            case();
            Ok(())
        });
        trial.with_ignored_flag(lacking.is_some())
    };
    run(&Arguments::from_args(), cases::CASES.iter().copied().map(trial).collect()).exit()
}

#[cfg(not(target_os = "linux"))]
fn main() {}
