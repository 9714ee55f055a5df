//! What a seamless move changes, in which order, and what it leaves behind.

use serde_json::{Value, json};

use super::support::{SEAMLESS, Stage};
use crate::support::command::ended;
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::{addresses, but_addresses};

/// The name always leads to an address. The old address is gone only between the changes of `web` and `old`, and the new
/// one only between those of `new` and `web`.
const CHANGES: [&str; 10] = [
    "added new: the new address",
    "added old: another address",
    "modified old: the name of new",
    "modified web: the name of old, marked",
    "modified old: the old address",
    "deleted new: the new address",
    "modified web: the new address, marked",
    "modified web: the new address",
    "modified old: the old address",
    "deleted old: the old address",
];

#[tokio::test(flavor = "multi_thread")]
async fn name_and_old_address_always_lead_to_the_pods() {
    let stage = Stage::new("seamless").await;
    let before = stage.service("web", json!({})).await;
    let watch = stage.watch(&before).await;
    let printed = stage.run(&SEAMLESS).await.ok();
    assert_eq!(printed.lines().last(), Some("moved 1 of 1, 0 stay"), "{printed}");
    assert_eq!(stage.end_watch(watch).await, CHANGES);
    let after = stage.stored("web").await;
    assert!(addresses(&after).iter().all(|address| stage.is_in_pool(address)), "{after}");
    // The UID, the fields and their owners are the same.
    assert_eq!(but_addresses(&after), but_addresses(&before));
    assert_eq!(stage.left().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_direct_traffic_are_those_of_the_service() {
    let stage = Stage::new("seamless-fields").await;
    let spec = json!({
        "ports": [
            {"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http"},
            {"name": "admin", "port": 81, "targetPort": "admin"},
        ],
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "internalTrafficPolicy": "Cluster",
        "publishNotReadyAddresses": true,
        "trafficDistribution": "PreferClose",
    });
    let before = stage.service("web", spec).await;
    let proxy = Proxy::start(&stage.plane).await;
    ended(stage.command_through(&proxy, &SEAMLESS)).await.ok();
    let bare = |spec: &Value| {
        let mut spec = spec.clone();
        spec.as_object_mut().unwrap().retain(|field, _| field != "clusterIP" && field != "clusterIPs");
        spec
    };
    // `new` and `old` as the command creates them.
    let writes = proxy.writes();
    let created: Vec<&Value> = writes
        .iter()
        .filter(|seen| {
            seen.body["metadata"]["ownerReferences"].is_array() && seen.method == "POST" && !seen.is_dry_run()
        })
        .map(|seen| &seen.body)
        .collect();
    assert_eq!(created.len(), 2, "{created:?}");
    for service in created {
        assert_eq!(bare(&service["spec"]), bare(&before["spec"]), "{service}");
        assert_eq!(service["metadata"]["annotations"]["clusterip-policy/move"], "never");
    }
    assert_eq!(but_addresses(&stage.stored("web").await), but_addresses(&before));
}
