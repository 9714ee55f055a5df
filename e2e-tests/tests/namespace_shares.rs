//! Requests of one namespace whose Services are never created do not use up the addresses of other namespaces.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::second_webhook::{REFUSAL, Verdict, serve};
use crate::support::webhook_cluster::{WebhookCluster, address, annotated, place};

/// Another webhook refuses the Services after the server has given them addresses.
#[tokio::test]
async fn refused_creates_leave_addresses_for_other_namespaces() {
    let cluster = WebhookCluster::shared().await;
    let refused = cluster.plane.namespace("refused-names").await;
    let other = cluster.plane.namespace("beside-refused-names").await;
    serve(&cluster, &refused, |object| {
        if object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("refused")) {
            Verdict::Refuse
        } else {
            Verdict::Keep
        }
    })
    .await;
    let windows = |name: String| annotated(&name, json!({"clusterip-policy/os": "windows"}), json!({}));
    // The pool "windows" has fewer than 200 usable addresses.
    for first in (0..256).step_by(16) {
        let services: Vec<Value> = (first..first + 16).map(|number| windows(format!("refused-{number}"))).collect();
        for refusal in join_all(services.iter().map(|service| cluster.create(&refused, service))).await {
            let message = refusal.unwrap_err();
            assert!(message.ends_with(REFUSAL), "{message}");
        }
    }
    for number in 0..10 {
        let created = cluster.create(&other, &windows(format!("web-{number}"))).await.unwrap();
        assert_eq!(place(address(&created)), "windows");
    }
}
