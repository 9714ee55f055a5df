//! No request fails while a Service moves seamlessly. `make bench-moves` measures more Services, and other methods.

use e2e_tests::support::move_load::{MoveLoad, MoveMethod};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster};

const NODES: [&str; 2] = ["node-1", "node-2"];
const SERVICES: usize = 2;

pub async fn seamless_move_fails_no_request(cluster: &WholeCluster) {
    let load = MoveLoad::start(cluster, &NODES, AGNHOST).await;
    let tally = load.measure(MoveMethod::Seamless, SERVICES).await;
    load.end().await;
    assert_eq!(tally.by_name.failed, 0, "{tally}");
    assert_eq!(tally.long_lived.failed, 0, "{tally}");
    assert!(tally.by_address.longest_pause <= 1000, "{tally:?}");
    assert!(tally.by_name.requests > 4_000, "{tally}");
}
