//! The definitions of pools are deleted while a server watches the objects.

use std::time::Duration;

use super::support::PoolCluster;

#[tokio::test(flavor = "multi_thread")]
async fn deleted_definitions_are_reported_in_one_line() {
    let cluster = PoolCluster::lent().await;
    // A server without any pool.
    cluster.server.logged("the settings have no pool").await;
    cluster.plane.kubectl(&["delete", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds")]).await.ok();
    cluster.server.logged("install the definitions again with kubectl apply -k deploy/api").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let log = cluster.server.log();
    let about = |text: &str| log.iter().filter(|line| line.contains(text)).count();
    assert_eq!(about("install the definitions again"), 1, "{log:#?}");
    assert_eq!((about("WatchEvent"), about("404 page not found")), (0, 0), "{log:#?}");
}
