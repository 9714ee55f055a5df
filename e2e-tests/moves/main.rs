//! Measures how many requests fail while Services move, in a cluster with two nodes: `make bench-moves`. It moves 20
//! Services one after the other with each method, which takes 15 minutes. `MOVES_SHORT=1` moves two. `PROXY` is the mode of
//! kube-proxy: `nftables` or `iptables`. The result is a table in Markdown for docs/moving.md. A missed goal is not a
//! failure, because the machine may be busy.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod table;

use e2e_tests::support::move_load::{MoveLoad, MoveMethod};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster, lacking};

const NODES: [&str; 2] = ["node-1", "node-2"];
/// The number of Services for each method.
const SERVICES: usize = 20;
const FEW_SERVICES: usize = 2;

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
    let is_short = std::env::var_os("MOVES_SHORT").is_some();
    let services = if is_short { FEW_SERVICES } else { SERVICES };
    let cluster = WholeCluster::start_with_proxy(NODES.len(), &[], &proxy);
    let load = MoveLoad::start(&cluster, &NODES, AGNHOST).await;
    let mut results = Vec::new();
    for method in MoveMethod::ALL {
        results.push((method, load.measure(method, services).await));
    }
    load.end().await;
    println!("{}", table::table(&about(&cluster, &proxy, services), &results));
}

/// The conditions of the measurements.
fn about(cluster: &WholeCluster, proxy: &str, services: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "Kubernetes {}, {} nodes on one machine with {cores} processors, kube-proxy in mode {proxy}, CoreDNS with \
         `ttl 30` and `cache 30`; {services} Services one after the other.",
        cluster.version(),
        NODES.len(),
    )
}
