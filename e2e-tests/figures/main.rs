//! Measures what `clusterip serve` costs a cluster and achieves in it, on a real control plane: `make bench-cluster`.
//! `PARTS` selects parts: `load`, `claims`, `helm`, `nodes`, `crowd`, `surveys`, `memory`, `full`, `pools`, `fence`,
//! `tenants`, `heartbeats` and `huge`, such as `PARTS="load crowd" make bench-cluster`. Without `PARTS`, all parts
//! except `huge` are measured.
//! The result is a table of figures, each with its bound. A bad figure is not a failure, because the machine may be
//! busy. The sides of a comparison are measured in turns on one control plane, so that all have the same conditions. Only the part
//! `huge` compares two control planes, one of which has no Services.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../crates/clusterip/benches/figures/layout.rs"]
mod layout;

mod bench;
mod etcd;
mod fence;
mod full_pools;
mod heartbeats;
mod helm;
mod huge;
mod large;
mod least_webhook;
mod manifests;
mod nodes;
mod pairs;
mod pools;
mod reviews;
mod surveys;
mod table;
mod tenants;

use bench::Bench;
use e2e_tests::support;
use table::Table;

/// The number of turns in a comparison; `PAIRS` changes it.
const PAIRS: usize = 7;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(figures());
}

async fn figures() {
    let pairs = std::env::var("PAIRS").map_or(PAIRS, |pairs| pairs.parse().expect("PAIRS is a number"));
    // The arguments are names of groups; cargo adds options of its own.
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let asked = |group: &str| only.is_empty() || only.iter().any(|name| name == group);
    let bench = Bench::start().await;
    let mut table = Table::new(&bench.about(pairs));
    let empty = if asked("memory") { Some(large::start(&bench).await) } else { None };

    let mut small = None;
    if asked("load") || asked("crowd") {
        let measured = pairs::measure_with_least(&bench, pairs).await;
        table.head("150 Services, half of them Windows, Deployments first");
        measured.correctness(&mut table);
        measured.rates(&mut table, 1.0);
        measured.latency(&mut table);
        measured.beside_least(&mut table);
        small = Some(measured);
    }
    if asked("claims") {
        let measured = pairs::measure_claims(&bench, pairs).await;
        table.head("The same 150 Services, one replica with claims");
        measured.correctness(&mut table);
        measured.claims(&mut table);
    }
    if asked("helm") {
        table.head("140 Services, then their Deployments, half of them Windows");
        helm::rows(&helm::measure(&bench, pairs).await, &mut table);
    }
    if asked("nodes") {
        table.head("2,000 Nodes, 60 at a time, blocks of /24");
        nodes::measure(&bench, pairs).await.rows(&mut table);
    }
    if asked("crowd") || asked("surveys") || asked("memory") {
        bench.add_others().await;
    }
    if let Some(small) = small.filter(|_| asked("crowd")) {
        let crowded = pairs::measure(&bench, pairs).await;
        table.head("The same 150 Services beside 10,000 others");
        crowded.correctness(&mut table);
        crowded.rates(&mut table, 1.2);
        crowded.own_time(&mut table, &small);
    }
    if asked("surveys") {
        table.head("Creates while 10,000 other Services are examined");
        surveys::measure(&bench, pairs).await.rows(&mut table);
    }
    if let Some(empty) = empty {
        table.head("10,000 Services, 2,000 Deployments and 5,000 Pods");
        large::measure(&bench, pairs).await.rows(&mut table, &empty);
    }
    // The other parts have control planes of their own, without the objects of the parts before.
    drop(bench);
    if asked("full") {
        table.head("Creates into pools that are full, or almost");
        full_pools::measure(pairs).await.rows(&mut table);
    }
    if asked("pools") {
        table.head("500 ServicePools, 10,000 Services");
        pools::measure(&Bench::start().await, pairs).await.rows(&mut table);
    }
    if asked("fence") {
        table.head("The fence, without a server");
        fence::measure(&Bench::start().await, pairs).await.rows(&mut table);
    }
    if asked("tenants") {
        table.head("A tenant with 192 large workloads, 48 dry runs at a time");
        tenants::measure(&Bench::start().await, pairs).await.rows(&mut table);
    }
    if asked("heartbeats") {
        table.head("Heartbeats of agents, without addresses");
        heartbeats::measure(&Bench::start().await, pairs).await.rows(&mut table);
    }
    if only.iter().any(|name| name == "huge") {
        table.head("100,000 Services, 20,000 Deployments and 50,000 Pods");
        huge::measure(pairs).await.rows(&mut table);
    }
    table.end();
}
