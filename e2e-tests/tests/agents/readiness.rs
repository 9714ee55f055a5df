//! Agents whose Node does not exist.

use clusterip_agent::heartbeat::unknown_node;
use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::kinds;
use clusterip_cluster::watch::stores::Stores;
use serde_json::json;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;

#[tokio::test]
async fn agent_is_not_ready_without_its_node() {
    let plane = ControlPlane::shared().await;
    let stores = Stores::new(plane.client(), ClusterMetrics::default(), |_| (), |_| ());
    stores.watch_kinds(kinds::of_agent(false));
    stores.completed().await;
    let name = "agent-is-not-ready";
    let expected =
        "there is no Node \"agent-is-not-ready\": --node must be the name of the Node that the agent runs on";
    assert_eq!(unknown_node(name, &stores).as_deref(), Some(expected));

    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    plane.apply(&node.to_string()).await;
    eventually("the Node", async || unknown_node(name, &stores).is_none().then_some(())).await;
    plane.kubectl(&["delete", "node", name]).await.ok();
}
