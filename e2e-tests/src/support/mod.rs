//! What the tests stand on.

use std::path::PathBuf;

pub mod air;
pub mod bad_client;
pub mod cluster;
pub mod control_plane;
pub mod eventually;
pub mod host;
pub mod line;
pub mod moving;
pub mod node;
pub mod node_reach;
pub mod nodeipam;
pub mod nodes;
pub mod process;
pub mod proxy;
pub mod reach;
pub mod replicas;
pub mod runbook;
pub mod second_webhook;
pub mod served;

/// Clients speak TLS through ring, as the program does.
pub fn use_ring() {
    // Refused when it is done already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The program under test, which cargo builds beside the folder of the tests.
pub fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("clusterip");
    assert!(program.is_file(), "{} is missing: `make e2e-tests` builds it", program.display());
    program
}
