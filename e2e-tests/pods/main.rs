//! Tests of the deployments with real Pods: `deploy` and the chart as users install them, in a cluster with two nodes.
//! They need root and the programs of a node. If something is missing, the tests count as ignored, or fail with
//! `REQUIRE_ALL=1`. All tests share one cluster, so they run one after the other, and each removes what it installed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod conformance;
mod moves;
mod replicas;
mod traffic;
mod webhook;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use e2e_tests::support::whole_cluster::{WholeCluster, lacking, write_image};
use e2e_tests::{missing, support};
use libtest_mimic::{Arguments, Trial, run};

/// The image of `deploy` and the chart.
const IMAGE: &str = concat!("ghcr.io/clusterip-policy/clusterip:v", env!("CARGO_PKG_VERSION"));
const NODES: usize = 2;

type Case = for<'c> fn(&'c WholeCluster) -> Pin<Box<dyn Future<Output = ()> + 'c>>;

const CASES: [(&str, Case); 7] = [
    ("pods_answer_through_cluster_ip_node_port_and_name", |cluster| Box::pin(traffic::pods_answer(cluster))),
    ("webhook_places_the_shop_as_planned", |cluster| Box::pin(webhook::shop_is_placed_as_planned(cluster))),
    ("address_of_a_moved_service_answers", |cluster| Box::pin(traffic::address_of_a_moved_service_answers(cluster))),
    ("seamless_move_keeps_a_service_reachable", |cluster| {
        Box::pin(moves::seamless_move_keeps_a_service_reachable(cluster))
    }),
    ("drain_of_the_leader_s_node_fails_no_request", |cluster| Box::pin(replicas::drain_of_the_leaders_node(cluster))),
    ("chart_is_installed_upgraded_and_uninstalled", |cluster| Box::pin(chart::install_upgrade_uninstall(cluster))),
    ("upstream_tests_of_services_pass", |cluster| Box::pin(conformance::upstream_tests_of_services_pass(cluster))),
];

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let lacking = lacking();
    if let Some(lacking) = &lacking {
        missing::skip("pods", &format!("tests with real Pods need a cluster: {lacking}"));
    }
    support::use_ring();
    let cluster = Arc::new(OnceLock::new());
    let trials = CASES.iter().map(|(name, case)| {
        let (cluster, case) = (Arc::clone(&cluster), *case);
        let trial = Trial::test(*name, move || {
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(case(cluster.get_or_init(start)));
            Ok(())
        });
        trial.with_ignored_flag(lacking.is_some())
    });
    let conclusion = run(&arguments, trials.collect());
    // Waits until nothing is left of the cluster.
    drop(cluster);
    conclusion.exit()
}

fn start() -> WholeCluster {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("clusterip.tar");
    write_image(IMAGE, &archive, &support::program());
    WholeCluster::start(NODES, &[&archive])
}
