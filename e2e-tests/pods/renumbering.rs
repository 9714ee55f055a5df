//! A renumbering from the first command to the last, in a cluster of its own. `make bench-renumber` measures a
//! renumbering of more Services, and compares its restarts of API servers and Pods with those without a renumbering.

use std::time::Duration;

use e2e_tests::support::renumbering::{Plan, missed_goals, options, renumber};
use e2e_tests::support::whole_cluster::{WholeCluster, tested_images};

pub async fn renumbering_interrupts_no_request() {
    let cluster = WholeCluster::start_with(options(tested_images().unwrap(), "nftables"));
    let rest = Duration::from_secs(3);
    let plan = Plan { services: 4, rate: 20, grace_period: None, rest, compares_restarts: false };
    let results = renumber(&cluster, plan).await;
    assert_eq!(missed_goals(&results, 10_000), Vec::<String>::new(), "{results:#?}");
}
