//! What `clusterip serve` costs a cluster and does for it, on a real control plane: `make bench-cluster`.
//!
//! A table of figures, each with its bound. Nothing here fails because a figure is bad: a busy machine is no
//! defect of a change. What is compared with each other is measured in turns on one control plane, so that
//! both see the same machine.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/mod.rs"]
mod support;

mod bench;
mod full;
mod helm;
mod large;
mod manifests;
mod pairs;
mod process;
mod table;

use bench::Bench;
use table::Table;

/// How often what is compared is measured in turns: `PAIRS` says otherwise.
const PAIRS: usize = 7;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(figures());
}

async fn figures() {
    let pairs = std::env::var("PAIRS").map_or(PAIRS, |pairs| pairs.parse().expect("PAIRS is a number"));
    let bench = Bench::start().await;
    let mut table = Table::new(&bench.about(pairs));

    let small = pairs::measure(&bench, pairs).await;
    table.head("150 Services, half of them Windows, Deployments first");
    small.correctness(&mut table);
    small.rates(&mut table, 1.0);
    small.latency(&mut table);

    table.head("140 Services, then their Deployments, half of them Windows");
    helm::measure(&bench, pairs, helm::IN_TURN).await.rows(&mut table, "one Deployment after the other");
    helm::measure(&bench, pairs, helm::SIDE_BY_SIDE).await.rows(&mut table, "20 Deployments at a time");

    table.head("A full /24, 300 Services, 60 at a time");
    full::measure(&bench, pairs).await.rows(&mut table);

    bench.add_others().await;
    let crowded = pairs::measure(&bench, pairs).await;
    table.head("The same 150 Services beside 10,000 others");
    crowded.correctness(&mut table);
    crowded.rates(&mut table, 1.2);
    crowded.latency_without_bound(&mut table);
    crowded.own_time(&mut table, &small);

    table.head("Memory with 10,000 Services, 2,000 Deployments and 5,000 Pods");
    large::measure(&bench, pairs).await.rows(&mut table);
    table.end();
}
