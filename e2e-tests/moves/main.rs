//! Measures how many requests fail while Services move, in a cluster with two nodes: `make bench-moves`. It moves
//! `SERVICES` (20) Services seamlessly, one after the other, and four with each other method. `PROXY` is the mode of
//! kube-proxy: `nftables` or `iptables`. The result is a table in Markdown for docs/moving.md. A missed goal is not a
//! failure, because the machine may be busy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod table;

use e2e_tests::support::move_load::{MoveLoad, MoveMethod};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster, lacking};

const NODES: [&str; 2] = ["node-1", "node-2"];
/// The number of Services that move seamlessly.
const SERVICES: usize = 20;
/// The maximum number of Services for the other methods: with them, requests of every client fail.
const OTHER_SERVICES: usize = 4;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    if let Some(lacking) = lacking() {
        eprintln!("moves are measured in a cluster with nodes: {lacking}");
        std::process::exit(1);
    }
    let proxy = std::env::var("PROXY").unwrap_or_else(|_| "nftables".to_owned());
    let services = std::env::var("SERVICES").map_or(SERVICES, |number| number.parse().unwrap());
    let cluster = WholeCluster::start_with_proxy(NODES.len(), &[], &proxy);
    let load = MoveLoad::start(&cluster, &NODES, AGNHOST).await;
    let mut results = Vec::new();
    for method in MoveMethod::ALL {
        let services = if method == MoveMethod::Seamless { services } else { services.min(OTHER_SERVICES) };
        results.push((method, services, load.measure(method, services).await));
    }
    load.end().await;
    println!("{}", table::table(&about(&cluster, &proxy), &results));
}

/// The conditions of the measurements.
fn about(cluster: &WholeCluster, proxy: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "Kubernetes {}, {} nodes on one machine with {cores} processors, kube-proxy in mode {proxy}, CoreDNS with \
         `ttl 30` and `cache 30`. The Services move one after the other.",
        cluster.version(),
        NODES.len(),
    )
}
