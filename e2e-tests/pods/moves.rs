//! Clients reach a Service while it moves seamlessly. `make bench-moves` counts every failed request, of more Services,
//! and compares other methods: a plain move fails half of these requests.

use e2e_tests::support::move_load::{MoveLoad, MoveMethod};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster};

const NODES: [&str; 2] = ["node-1", "node-2"];
const SERVICES: usize = 2;

pub async fn seamless_move_keeps_a_service_reachable(cluster: &WholeCluster) {
    let load = MoveLoad::start(cluster, &NODES, AGNHOST).await;
    let tally = load.measure(MoveMethod::Seamless, SERVICES).await;
    load.end().await;
    assert!(tally.by_name.requests > 1_000, "{tally}");
    // A kube-proxy on a busy machine may program one half of a swap alone, and then requests fail for a second.
    for requests in [&tally.by_name, &tally.by_address, &tally.long_lived] {
        assert!(requests.failed * 10 < requests.requests, "{tally}");
    }
}
