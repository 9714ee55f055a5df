//! No request fails while a Service moves seamlessly. `make bench-moves` measures more Services, and other methods.

use std::time::Duration;

use e2e_tests::support::move_load::{Durations, MoveLoad, MoveMethod, Tally};
use e2e_tests::support::whole_cluster::{AGNHOST, WholeCluster};

const NODES: [&str; 2] = ["node-1", "node-2"];
const SERVICES: usize = 2;
/// As in `make bench-moves`.
const DURATIONS: Durations = Durations { by_name: Duration::from_secs(60), by_address: Duration::from_secs(38) };

pub async fn seamless_move_fails_no_request(cluster: &WholeCluster) {
    let load = MoveLoad::start(cluster, &NODES, AGNHOST).await;
    let mut all = Tally::default();
    for nth in 1..=SERVICES {
        all.add(&load.measure(MoveMethod::Seamless, nth, DURATIONS).await);
    }
    load.end().await;
    assert_eq!(all.by_name.failed, 0, "{all:?}");
    assert_eq!(all.long_lived.failed, 0, "{all:?}");
    assert!(all.by_address.longest_pause <= 1000, "{all:?}");
    assert!(all.by_name.requests > 10_000, "{all:?}");
}
