//! `deploy/webhook` as a Pod places the Services of `examples/shop` as `clusterip plan` forecasts.

use std::path::Path;

use e2e_tests::support::installation::{install, satisfies_the_restricted_level, uninstall};
use e2e_tests::support::shop;
use e2e_tests::support::whole_cluster::WholeCluster;

const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/settings/k2s.yaml");

pub async fn shop_is_placed_as_planned(cluster: &WholeCluster) {
    install(cluster, "webhook").await;
    satisfies_the_restricted_level(cluster).await;
    shop::place_as_planned(cluster, Path::new(SETTINGS)).await;
    shop::delete(cluster).await;
    uninstall(cluster).await;
}
