//! Tests of the deployments with real Pods: `deploy` and the chart as users install them, in a cluster with two nodes.
//! The Pods run images like those that users get, with the program of the tests. The tests need root, the programs of a
//! node, and buildah for the images. If something is missing, the tests count as ignored, or fail with `REQUIRE_ALL=1`.
//! All tests but that of a renumbering share one cluster, so they run one after the other, and each removes what it
//! installed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod called_by_control_plane;
mod chart;
mod external;
mod health;
mod metallb;
mod monitoring;
mod moves;
mod nodes;
mod renumbering;
mod replicas;
mod traffic;
mod webhook;

use e2e_tests::missing;
use e2e_tests::support::cluster_cases::{Case, run_cases};
use e2e_tests::support::whole_cluster::{WholeCluster, lacking, tested_images};

const NODES: usize = 2;

const CASES: [(&str, Case); 13] = [
    ("webhook_places_the_shop_as_planned", |cluster| Box::pin(webhook::shop_is_placed_as_planned(cluster))),
    ("address_of_a_moved_service_answers", |cluster| Box::pin(traffic::address_of_a_moved_service_answers(cluster))),
    ("seamless_move_keeps_a_service_reachable", |cluster| {
        Box::pin(moves::seamless_move_keeps_a_service_reachable(cluster))
    }),
    ("installation_interrupts_no_request", |cluster| Box::pin(moves::installation_interrupts_no_request(cluster))),
    ("drain_of_the_leader_s_node_fails_no_request", |cluster| Box::pin(replicas::drain_of_the_leaders_node(cluster))),
    ("pods_become_ready_when_they_serve_and_stay", |cluster| Box::pin(health::pods_become_ready_and_stay(cluster))),
    ("external_addresses_of_both_pools_answer", |cluster| Box::pin(external::addresses_of_both_pools_answer(cluster))),
    ("address_that_clusterip_chooses_is_announced_by_metallb", |cluster| {
        Box::pin(metallb::chosen_address_is_announced(cluster))
    }),
    ("pod_cidrs_are_checked_with_deploy_nodes", |cluster| Box::pin(nodes::pod_cidrs_are_checked(cluster))),
    ("metrics_answer_where_deploy_monitoring_says", |cluster| Box::pin(monitoring::scrape_target_answers(cluster))),
    ("chart_is_installed_upgraded_and_uninstalled", |cluster| Box::pin(chart::install_upgrade_uninstall(cluster))),
    ("renumbering_interrupts_no_request", |_| Box::pin(renumbering::renumbering_interrupts_no_request())),
    // The last one: kubectl would remember the aggregated API, and print errors about it in other tests.
    ("moves_do_not_deadlock_services_that_the_control_plane_calls", |cluster| {
        Box::pin(called_by_control_plane::moves_do_not_deadlock(cluster))
    }),
];

fn main() {
    let lacking = lacking().or_else(|| tested_images().err());
    if let Some(lacking) = &lacking {
        missing::skip("pods", &format!("tests with real Pods need a cluster: {lacking}"));
    }
    run_cases(&CASES, lacking.is_none(), start)
}

fn start() -> WholeCluster {
    let folder = tempfile::tempdir().unwrap();
    WholeCluster::start(NODES, &[tested_images().unwrap(), metallb::write_images(folder.path())].concat())
}
