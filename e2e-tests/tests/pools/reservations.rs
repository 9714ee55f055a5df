//! Addresses that a pool keeps for single Services.

use serde_json::{Value, json};

use super::support::PoolCluster;
use crate::support::eventually::eventually;
use crate::support::pools::pool;
use crate::support::webhook_cluster::{address, service, within};

/// The only reservation of a pool, as an audit of the cluster shows it; `None` if the server does not use the pools as
/// they are now.
async fn audited(cluster: &PoolCluster, name: &str) -> Option<Value> {
    let audit = cluster.audit().await?;
    let reservations = audit["reservations"].as_array()?.iter();
    let mut reservations = reservations.filter(|reservation| reservation["pool"] == name);
    reservations.next().cloned().filter(|_| reservations.next().is_none())
}

/// Waits until the status of a pool shows this holder of its only reservation, and an audit this state since the same
/// time. Returns the time.
async fn held(cluster: &PoolCluster, name: &str, holder: &str, state: &str) -> Value {
    let is_expected = |object: &Value| object["status"]["reservations"][0]["holder"] == holder;
    let object = cluster.status_of("ServicePool", name, is_expected).await;
    let reservations = object["status"]["reservations"].as_array().unwrap();
    assert_eq!(reservations.len(), 1, "{object}");
    let since = reservations[0]["since"].clone();
    eventually(&format!("an audit with {state} since {since}"), async || {
        let audited = audited(cluster, name).await?;
        (audited["state"] == state && audited["since"] == since).then_some(())
    })
    .await;
    since
}

#[tokio::test]
async fn reinstall_into_a_full_pool_gets_its_address_back() {
    const RANGE: &str = "172.21.90.0/29";
    const KEPT: &str = "172.21.90.4";
    let cluster = PoolCluster::shared_by_audits().await;
    let namespace = cluster.plane.namespace("reserved").await;
    let spec = json!({
        "cidrs": [RANGE], "match": {"namespaces": [namespace]},
        "reservations": [{"address": KEPT, "namespace": namespace, "name": "db"}],
    });
    cluster.apply(&[pool("ServicePool", "reserved", spec)]).await;
    cluster.serves(&namespace, &json!({}), RANGE).await;
    let empty = held(&cluster, "reserved", "Nobody", "free").await;
    for nth in 0..5 {
        let created = cluster.create(&namespace, &service(&format!("web-{nth}"), json!({}))).await.unwrap();
        assert!(within(address(&created), RANGE) && address(&created).to_string() != KEPT, "{created}");
    }
    let is_full = async || {
        let refused = cluster.create(&namespace, &service("late", json!({}))).await.unwrap_err();
        assert!(refused.contains("is full"), "{refused}");
    };
    is_full().await;
    assert_eq!(held(&cluster, "reserved", "Nobody", "free").await, empty, "nothing has changed since");

    let first = cluster.create(&namespace, &service("db", json!({}))).await.unwrap();
    assert_eq!(address(&first).to_string(), KEPT);
    held(&cluster, "reserved", "Owner", "held").await;

    cluster.delete(&namespace, "db").await;
    held(&cluster, "reserved", "Nobody", "free").await;
    is_full().await;
    let by_hand = cluster.create(&namespace, &service("thief", json!({"clusterIP": KEPT}))).await.unwrap_err();
    let expected = format!("{KEPT} of pool \"reserved\" is reserved for Service {namespace}/db");
    assert!(by_hand.contains(&expected), "{by_hand}");
    // The server may still have to learn that the Service was deleted.
    let again =
        eventually("the address again", async || cluster.create(&namespace, &service("db", json!({}))).await.ok())
            .await;
    assert_eq!(address(&again).to_string(), KEPT);
    held(&cluster, "reserved", "Owner", "held").await;
}
