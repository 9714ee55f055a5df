//! Tests of the policy in Kubewarden as its users run it: with its controller, policy-server, audit scanner and charts,
//! and a registry with the policy, in a cluster with two nodes. The tests type the commands of `docs/kubewarden.md`.
//! They need root, the programs of a node, policy-server and kwctl. If something is missing, the tests count as
//! ignored, or fail with `REQUIRE_ALL=1`. All tests share one cluster, so they run one after the other, and each
//! uninstalls the policy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit_scanner;
mod installation;
mod kubewarden_cluster;
mod registry;

use e2e_tests::missing;
use e2e_tests::support::cluster_cases::{Case, run_cases};

const CASES: [(&str, Case); 4] = [
    ("documented_installation_places_the_shop_as_planned", |cluster| {
        Box::pin(installation::shop_is_placed_as_planned(cluster))
    }),
    ("monitor_mode_only_warns", |cluster| Box::pin(installation::monitor_mode_only_warns(cluster))),
    ("team_policy_denies_addresses_of_other_teams", |cluster| {
        Box::pin(installation::team_policy_denies_addresses_of_other_teams(cluster))
    }),
    ("audit_scanner_reports_what_the_policy_denies", |cluster| {
        Box::pin(audit_scanner::reports_what_the_policy_denies(cluster))
    }),
];

fn main() {
    let lacking = kubewarden_cluster::lacking();
    if let Some((name, lacking)) = &lacking {
        missing::skip(name, &format!("the tests of Kubewarden need {lacking}"));
    }
    run_cases(&CASES, lacking.is_none(), kubewarden_cluster::start)
}
