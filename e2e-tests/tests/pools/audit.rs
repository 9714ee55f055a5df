//! The status of a pool and an audit of the cluster show the same numbers.

use serde_json::{Value, json};

use super::support::{PoolCluster, pool_of};
use crate::support::eventually::eventually;
use crate::support::pools::pool;
use crate::support::webhook_cluster::service;

/// The numbers of a pool in an audit, as its status has them.
fn audited(audit: &Value, name: &str) -> Option<Value> {
    let pool = audit["pools"].as_array()?.iter().find(|pool| pool["name"] == name)?;
    let ranges = pool["ranges"].as_array()?;
    let sum = |field: &str| ranges.iter().filter_map(|range| range["counts"][field].as_u64()).sum::<u64>();
    let addresses = ranges.iter().flat_map(|range| range["addresses"].as_array().into_iter().flatten());
    let misplaced = addresses.filter(|address| address["state"] == "misplaced").count();
    Some(json!({
        "usable": sum("usable"), "used": sum("used") + sum("usedAnyway"), "free": sum("free"), "misplaced": misplaced,
    }))
}

#[tokio::test]
async fn status_and_audit_show_the_same_numbers() {
    const RANGE: &str = "172.21.92.0/28";
    const OTHER: &str = "172.21.93.0/28";
    let cluster = PoolCluster::shared_by_audits().await;
    let namespace = cluster.plane.namespace("numbers").await;
    let other = cluster.plane.namespace("numbers-other").await;
    let spec =
        json!({"cidrs": [RANGE], "reserved": 4, "exclude": ["172.21.92.9"], "match": {"namespaces": [namespace]}});
    cluster.apply(&[pool("ServicePool", "numbers", spec), pool_of("numbers-other", OTHER, &other)]).await;
    cluster.serves(&namespace, &json!({}), RANGE).await;
    cluster.serves(&other, &json!({}), OTHER).await;

    // An address that the pool does not hand out, and an address of a Service that belongs to the other pool.
    cluster.create(&namespace, &service("by-hand", json!({"clusterIP": "172.21.92.2"}))).await.unwrap();
    cluster.create(&other, &service("misplaced", json!({"clusterIP": "172.21.92.12"}))).await.unwrap();
    cluster.create(&namespace, &service("web", json!({}))).await.unwrap();

    // 15 addresses without those of the network, of the broadcast, and those that are reserved or excluded.
    let expected = json!({"usable": 10, "used": 3, "free": 8, "misplaced": 1});
    eventually("the same numbers in the status and in an audit", async || {
        let object = cluster.object("ServicePool", "numbers").await;
        let of_status = &object["status"]["addresses"]["ipv4"];
        // The server keeps addresses in flight in its memory, so an audit does not know them.
        let free = of_status["free"].as_u64()? + of_status["inFlight"].as_u64()?;
        let of_status = json!({
            "usable": of_status["usable"], "used": of_status["used"], "free": free,
            "misplaced": of_status["misplaced"],
        });
        let audited = audited(&cluster.audit().await?, "numbers")?;
        (of_status == expected && audited == expected).then_some(())
    })
    .await;
}
