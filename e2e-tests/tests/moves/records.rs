//! The record of a move is the only journal that counts: the contents of a Service can't forge or replay a move.

use clusterip_core::annotations::MOVING_NAME;
use clusterip_moves::outcome::{Outcome, Unmoved};
use serde_json::json;

use super::support::{again, disturbed, moved};
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::{These, addresses, create, fresh, is_recorded, mover, order, patch, plane};

/// A record belongs to one Service and is deleted at the end of the move, so it can't be replayed.
#[tokio::test]
async fn record_is_deleted_when_its_move_ends() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("replayed").await;
    let [to, _] = fresh();
    let before = create(&client, &namespace, "web", json!({"ports": [{"port": 80}]})).await;
    let proxy = Proxy::start(&plane).await;
    let watch = async || (is_recorded(&client, &before).await, again(&client, &before).await);
    let (outcome, (recorded, released)) = disturbed(&proxy, &before, "assign", &[vec![to]], watch).await;
    assert_eq!(outcome, moved(&addresses(&before), &[to]));
    assert!(recorded, "while the Service has no address");
    assert!(!is_recorded(&client, &before).await, "afterwards");
    // The author of the Service restores its state from the middle of the move.
    let marker = &released["metadata"]["annotations"];
    let replay =
        json!({"metadata": {"annotations": marker}, "spec": {"type": "ExternalName", "externalName": MOVING_NAME}});
    let replayed = patch(&client, &namespace, "web", replay).await;
    let outcome = mover(client.clone()).start(&order(&before, &[to]), None, &These(vec![])).await.unwrap();
    assert_eq!((outcome, again(&client, &before).await), (Outcome::Unmoved(Unmoved::NotRecorded), replayed));
}
