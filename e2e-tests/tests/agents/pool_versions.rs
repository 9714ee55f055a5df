//! Which version of an edited pool agents use.

use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::live_settings::{SettingsSource, start_following};
use clusterip_cluster::permissions::Duties;
use clusterip_cluster::watch::stores::Stores;
use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::pools::pool;

/// No server runs: an agent decides by itself which version is in use.
#[tokio::test]
async fn agents_keep_the_pool_that_an_edit_put_into_a_service_range() {
    const GOOD: &str = "10.0.9.0/24";
    let plane = LentControlPlane::get().await;
    plane.install_pools().await;
    let mut policy = json!({});
    if !plane.tells_addresses() {
        policy["serviceCIDRs"] = json!(plane.service_ranges());
    }
    let edge = |cidr: &str| pool("ExternalPool", "edge", json!({"cidrs": [cidr]}));
    let apply = async |items: &[Value]| {
        plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    };
    apply(&[pool("ClusterIPPolicy", "default", policy), edge(GOOD)]).await;
    let (client, metrics) = (plane.client(), ClusterMetrics::default());
    let stores = Stores::new(client.clone(), metrics, |_| (), |_| ());
    let source = SettingsSource::Pools { client: client.clone() };
    let duties = Duties { namespace: "default".to_owned(), agent: true, pools: true, ..Duties::default() };
    let follower = start_following(source, &stores, &duties).await.unwrap();
    let settings = follower.subscribe();
    tokio::spawn(follower.run(std::future::pending()));

    // The agent has seen the edit when it uses the pool that was created afterwards.
    let service_range = plane.service_ranges()[0].clone();
    apply(&[edge(&service_range)]).await;
    apply(&[pool(
        "ExternalPool",
        "other",
        json!({"cidrs": ["10.0.8.0/24"], "priority": 1, "match": {"namespaces": ["none"]}}),
    )])
    .await;
    let used = eventually("both pools", async || {
        let document = settings.borrow().document.clone();
        let pools = document["external"]["pools"].as_array()?.clone();
        (pools.len() == 2).then_some(pools)
    });
    let used = used.await;
    let edge = used.iter().find(|pool| pool["name"] == "edge").unwrap();
    assert_eq!(edge["cidrs"], json!([GOOD]), "{used:?}");
}
