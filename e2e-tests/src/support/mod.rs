//! Helpers of the tests: control planes, processes, proxies, fakes.

use std::path::PathBuf;

pub mod bad_client;
pub mod cluster;
#[cfg(target_os = "linux")]
pub mod cluster_cases;
pub mod command;
pub mod control_plane;
pub mod costly_services;
pub mod documented_steps;
pub mod eventually;
pub mod fake_kubelet;
pub mod fake_network;
pub mod fault_proxy;
pub mod helm;
#[cfg(target_os = "linux")]
pub mod installation;
pub mod k2s_webhook;
pub mod lent_control_plane;
pub mod markdown;
pub mod move_helpers;
pub mod move_load;
pub mod node_ipam_controller;
pub mod node_webhook_rules;
pub mod pod_cidr_cluster;
pub mod pools;
pub mod process_usage;
#[cfg(target_os = "linux")]
pub mod renumbering;
pub mod replicas;
pub mod second_webhook;
pub mod serve_process;
pub mod service_webhook_rules;
pub mod shared;
#[cfg(target_os = "linux")]
pub mod shop;
pub mod stalling_connection;
#[cfg(target_os = "linux")]
pub mod upstream_tests;
pub mod webhook_cluster;
#[cfg(target_os = "linux")]
pub mod whole_cluster;
pub mod workloads;

/// Clients speak TLS through ring, as the program does.
pub fn use_ring() {
    // This fails if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The program under test, which cargo builds beside the folder of the tests.
pub fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("clusterip");
    assert!(program.is_file(), "{} is missing: `make e2e-tests` builds it", program.display());
    program
}
