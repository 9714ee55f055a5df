//! Tests of external addresses with real packets: agents on nodes that are network namespaces, a client on the same
//! bridge, and a real control plane. They need root, `ip`, `nft` and a control plane. If one is missing, the tests
//! count as ignored, or fail with `REQUIRE_ALL=1`. Everything runs in a network namespace of its own, which can't be
//! reached from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agent_cluster;
mod arp_probe;
mod cases;
mod deploy_external;
#[path = "../../crates/agent/tests/packets/inside.rs"]
mod inside;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../crates/agent/tests/packets/network.rs"]
mod network;

use std::env;

use e2e_tests::{missing, support};
use libtest_mimic::{Arguments, run};
use nix::sched::{CloneFlags, unshare};

/// The argument with which this program starts itself inside of a namespace.
const INSIDE: &str = "inside";
/// The argument with which this program probes ARP. The own address and the probed addresses follow.
const PROBE: &str = "probe";

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some(INSIDE) => return inside::run_commands(),
        Some(PROBE) => {
            let mut addresses = words[1..].iter().map(|address| address.parse().unwrap());
            let own = addresses.next().unwrap();
            return arp_probe::ask(own, &addresses.collect::<Vec<_>>());
        }
        _ => {}
    }
    let lacking = lacking();
    if let Some(lacking) = &lacking {
        missing::skip("packets", &format!("tests of external addresses with real packets need {lacking}"));
    } else {
        // Before a second thread starts, because each thread has its own namespace.
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        network::run("ip", &["link", "set", "lo", "up"]);
        support::use_ring();
    }
    let trials = cases::all().into_iter().map(|trial| trial.with_ignored_flag(lacking.is_some()));
    run(&Arguments::from_args(), trials.collect()).exit()
}

fn lacking() -> Option<&'static str> {
    let lacking = network::lacking();
    lacking.or_else(|| {
        env::var_os(support::control_plane::PROGRAM).is_none().then_some("a control plane: make test-external")
    })
}
