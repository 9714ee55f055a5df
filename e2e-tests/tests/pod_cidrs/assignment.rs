//! Nodes get blocks while the settings have pools of Nodes.

use serde_json::{Value, json};

use super::support::{ASSIGNED, BLOCKS, WAITING, measures, one};
use crate::support::fault_proxy::Proxy;
use crate::support::pod_cidr_cluster::{Nodes, pool, settings};

#[tokio::test]
async fn nodes_are_ignored_until_the_settings_have_node_pools() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(&nodes.plane).await;
    let server = nodes.server_at(proxy.url(), &Value::Null).start().await;
    server.logged("leading: misplaced Services are moved").await;
    nodes.create("early", json!({}), &[]).await;
    measures(&server, &["clusterip_leader", BLOCKS], &["clusterip_leader 1"]).await;
    std::fs::write(server.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/24"]))).unwrap();
    assert_eq!(nodes.given("early").await, ["10.42.0.0/24"]);
    let nodes_written = || proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    assert_eq!(nodes_written(), 1);
    let assigned = r#"clusterip_node_assignments_total{result="assigned"} 1"#;
    let blocks = ["usable", "used"]
        .map(|state| format!(r#"clusterip_node_pool_blocks{{pool="all",family="IPv4",state="{state}"}} 1.0"#));
    measures(&server, &[ASSIGNED, BLOCKS], &[assigned, &blocks[0], &blocks[1]]).await;
    // The settings have no pools of Nodes any more.
    nodes.create("waits", json!({}), &[]).await;
    nodes.wait_for_event("waits", "CIDRNotAvailable").await;
    measures(&server, &[WAITING], &["clusterip_nodes_waiting 1"]).await;
    std::fs::write(server.folder().join("settings.yaml"), settings(&Value::Null)).unwrap();
    measures(&server, &[WAITING, BLOCKS], &[]).await;
    nodes.delete("early").await;
    nodes.create("late", json!({}), &[]).await;
    std::fs::write(server.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/23"]))).unwrap();
    // The order is that of the names, as a list returns the Nodes.
    assert_eq!(
        (nodes.given("late").await, nodes.given("waits").await),
        (vec!["10.42.0.0/24".to_owned()], vec!["10.42.1.0/24".to_owned()])
    );
    // No pool is left for a new Node.
    let windows = json!({"pools": [pool("windows", &["10.44.0.0/24"], &json!({"match": {"os": "windows"}}))]});
    std::fs::write(server.folder().join("settings.yaml"), settings(&windows)).unwrap();
    nodes.create("linux", json!({}), &[]).await;
    let log = server.logged("left without a pod CIDR").await;
    assert!(log.contains("linux"), "{log}");
    let no_pool = r#"clusterip_node_assignments_total{result="no_pool"}"#;
    measures(&server, &[no_pool], &[&format!("{no_pool} 1")]).await;
}
