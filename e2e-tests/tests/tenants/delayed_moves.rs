//! How much the Services of a tenant delay the moves of another namespace.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use super::support::{NOT_RECORDED, Scene};
use crate::support::webhook_cluster::annotated;

/// Services that look half moved, and whose moves can never be finished; and then moves of the server that the cluster does
/// not let it finish.
#[tokio::test]
async fn forged_and_failing_moves_delay_no_other_move() {
    const MANY: usize = 100;
    let scene = Scene::start().await;
    let neighbour = scene.plane.namespace("neighbour").await;
    let usual = scene.pace(&neighbour, "before").await;
    // Of this test alone, because the API server forgets the rule below late.
    let mallory = scene.tenant("failing-moves").await;
    for nth in 0..20 {
        let journal = json!({"phase": "released", "way": "externalName", "from": [format!("172.21.0.{}", 200 + nth)],
            "to": [], "spec": {"type": "ClusterIP", "ports": [{"port": 99_999}]}, "managedFields": []});
        mallory.forges(&format!("stuck-{nth}"), &journal, json!({})).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pace = scene.pace(&neighbour, "beside-forged").await;
    pace.is_at_most_delayed(usual);
    scene.wait_for_event(&mallory.namespace, "stuck-7", NOT_RECORDED).await;

    // A rule of the cluster that refuses the second half of a move in this namespace.
    let aliases = "oldObject == null || oldObject.spec.?type.orValue('') != 'ExternalName' || \
                   object.spec.?type.orValue('') == 'ExternalName'";
    scene.plane.allow_only(&mallory.namespace, aliases, "aliases stay aliases").await;

    let linux = json!({"clusterip-policy/os": "linux"});
    let names: Vec<String> = (0..MANY).map(|nth| format!("web-{nth}")).collect();
    join_all(names.iter().map(async |name| drop(mallory.creates(&annotated(name, linux.clone(), json!({}))).await)))
        .await;
    let windows = json!({"clusterip-policy/os": "windows"});
    join_all(names.iter().map(async |name| drop(mallory.annotates(name, windows.clone()).await.unwrap()))).await;
    let pace = scene.pace(&neighbour, "after").await;
    pace.is_at_most_delayed(usual);
}
